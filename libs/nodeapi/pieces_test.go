package nodeapi

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/release"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// keeper is a Candidate that keeps damaged bytes.
type keeper struct {
	Candidate
	asked PiecesRequest
	res   PiecesResult
	err   error
	vouch VouchRequest
}

func (k *keeper) Pieces(_ context.Context, req *PiecesRequest) (*PiecesResult, error) {
	k.asked = *req
	return &k.res, k.err
}

func (k *keeper) Vouch(_ context.Context, req *VouchRequest) (*VouchResult, error) {
	k.vouch = *req
	return &VouchResult{Partitions: make([]Vouch, len(req.Partitions))}, nil
}

func askKeeper(t *testing.T, k *keeper, own string) *ReplicaClient {
	t.Helper()
	s := rpc.NewServer(rpc.ServerConfig{
		NodeID: "s1", ClusterID: func() string { return "c" }, Log: slog.New(slog.DiscardHandler), Release: own,
	})
	ServeCandidate(s, k)
	client := rpc.NewClient(rpc.ClientConfig{ClusterID: func() string { return "c" }})
	t.Cleanup(client.Close)
	return NewReplicaClient(client.Peer("s1", testkit.Serve(t, s)))
}

var pieceName = strings.Repeat("f", 16) + "-" + strings.Repeat("9", 20) + "-9223372036854775807"

// Damaged bytes come over the wire as they are, as many as there may be at once; more
// than was asked for is not believed.
func TestPiecesOverTheWire(t *testing.T) {
	k := &keeper{res: PiecesResult{Bytes: bytes.Repeat([]byte{0xff}, MaxPieceBytes)}}
	for range MaxPieceList {
		k.res.Pieces = append(k.res.Pieces, Piece{pieceName, 1<<63 - 1, 1<<32 - 1})
	}
	c := askKeeper(t, k, release.Name)
	req := &PiecesRequest{From: "s2", Disk: 1, Boot: 2, Copy: 3, Target: target, After: "a", Name: pieceName, Offset: 1 << 40, MaxBytes: 9 << 20}
	got, err := c.Pieces(t.Context(), req)
	if err != nil || !reflect.DeepEqual(got, &k.res) || k.asked != *req {
		t.Fatalf("%d pieces, %d bytes for %+v: %v", len(got.Pieces), len(got.Bytes), k.asked, err)
	}
	var lost *rpc.TransportError
	req.MaxBytes = 10
	if _, err := c.Pieces(t.Context(), req); !errors.As(err, &lost) {
		t.Errorf("more bytes than were asked for: %v", err)
	}
	k.res = PiecesResult{Pieces: append(k.res.Pieces, Piece{})}
	if _, err := c.Pieces(t.Context(), req); !errors.As(err, &lost) {
		t.Errorf("more pieces than may be: %v", err)
	}
	k.err = problem.New(problem.NotReady, "starting")
	if _, err := c.Pieces(t.Context(), req); !problem.HasCode(err, problem.NotReady) {
		t.Errorf("a refusal: %v", err)
	}
}

// A leader of the first release is asked for its word without its damaged bytes.
func TestAnOlderLeaderVouchesWithoutPieces(t *testing.T) {
	for _, own := range []string{release.First, release.Name} {
		k := &keeper{}
		req := &VouchRequest{Partitions: []topic.Ref{target.Ref}, Histories: true, Pieces: true}
		if _, err := askKeeper(t, k, own).Vouch(t.Context(), req); err != nil || k.vouch.Pieces != (own == release.Name) || !k.vouch.Histories {
			t.Errorf("release %s was asked %+v: %v", own, k.vouch, err)
		}
		req.Partitions = []topic.Ref{target.Ref, target.Ref}
		if _, err := askKeeper(t, k, own).Vouch(t.Context(), req); err == nil {
			t.Error("two partitions with their damaged bytes")
		}
	}
}
