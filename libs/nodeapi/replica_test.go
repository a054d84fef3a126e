package nodeapi

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// The samples: every field set, and the edges of counts and numbers.
var (
	fetchRequest = &FetchRequest{
		From: "s2", Disk: 0x21, Boot: 0x22, WaitMS: MaxFetchWaitMS, MaxBytes: 8 << 20,
		Partitions: []FetchPartition{
			{Target: target, Copy: 0xc1, Offset: 1000, LastEpoch: 8, HWM: 990, PositionSeen: 1<<64 - 1, Round: 5, MaxBytes: 1 << 20},
			{Target: Target{Ref: topic.Ref{Topic: "t"}}, Observer: true},
		},
	}
	fetchResult = &FetchResult{Partitions: []FetchAnswer{
		{
			Index: 0, Status: FetchOK, Epoch: 9, HWM: 1000, LogStart: 5, PositionVersion: 1<<64 - 1,
			PositionGeneration: 3, Position: []byte("pos"), Batches: []byte("batches"), Snapshot: []byte{},
		},
		{
			Index: 1, Status: FetchDiverging, Epoch: 9, Diverge: 7, DivergeEnd: 1 << 50, Round: 6, Position: []byte{},
			Batches: []byte{}, Snapshot: []byte{},
		},
		{Index: 8191, Status: FetchBelowStart, Epoch: 1 << 31, LogStart: 77, Batches: []byte{}, Snapshot: []byte("snap")},
	}}
	fenceRequest = &FenceRequest{WithPositions: true, Items: []FenceItem{target, {}}}
	fenceResult  = &FenceResult{Answers: []FenceAnswer{
		{
			Status: FenceDamaged, PromisedEpoch: 10, LastEpoch: 9, LEO: 1000, HWM: 990, Settled: 8, CopyID: 0xc0,
			PositionGeneration: 3, Position: []byte("pos"),
		},
		{Status: FenceStale, PromisedEpoch: 11, PositionLeft: true},
	}}
	handoverRequest = &HandoverRequest{Target: target, To: "s2", ToDisk: 0x21}
	handoverResult  = &HandoverResult{Ready: true, LEO: 1000}
)

var replicaGolden = map[string]string{
	"fetch request": "01" + "027332" + "0000000000000021" + "0000000000000022" + "f403" + "80808004" + "02" +
		"066f7264657273" + "3f9a17c4e2b08d51" + "03" + "0102030405060708" + "00000009" +
		"00000000000000c1" + "e807" + "00000008" + "de07" + "ffffffffffffffffff01" + "05" + "808040" + "00" +
		"0174" + "0000000000000000" + "00" + "0000000000000000" + "00000000" + "0000000000000000" + "00" + "00000000" + "00" + "00" + "00" + "00" + "01",
	"fetch reply": "01" + "03" +
		"00" + "00" + "00000009" + "e807" + "05" + "00000000" + "00" + "00" + "ffffffffffffffffff01" + "03" + "01" + "03706f73" + "0762617463686573" + "00" +
		"01" + "01" + "00000009" + "00" + "00" + "00000007" + "80808080808080" + "02" + "06" + "00" + "00" + "01" + "00" + "00" + "00" +
		"ff3f" + "02" + "80000000" + "00" + "4d" + "00000000" + "00" + "00" + "00" + "00" + "00" + "00" + "04736e6170",
	"fence request": "01" + "01" + "02" +
		"066f7264657273" + "3f9a17c4e2b08d51" + "03" + "0102030405060708" + "00000009" +
		"00" + "0000000000000000" + "00" + "0000000000000000" + "00000000",
	"fence reply": "01" + "02" +
		"05" + "0000000a" + "00000009" + "e807" + "de07" + "00000008" + "00000000000000c0" + "00" + "03" + "01" + "03706f73" +
		"01" + "0000000b" + "00000000" + "00" + "00" + "00000000" + "0000000000000000" + "01" + "00" + "00",
}

var replicaBodies = []codecCase{
	body("fetch request", fetchRequest, appendFetchRequest, decodeFetchRequest),
	body("fetch reply", fetchResult, joinedFetchResult, decodeFetchResult),
	body("fence request", fenceRequest, appendFenceRequest, decodeFenceRequest),
	body("fence reply", fenceResult, appendFenceResult, decodeFenceResult),
}

func joinedFetchResult(b []byte, res *FetchResult) []byte {
	return bytes.Join(appendFetchResult(b, res), nil)
}

type codecCase = struct {
	name   string
	sample any
	encode func([]byte, any) []byte
	decode func([]byte) (any, error)
}

func TestReplicaGolden(t *testing.T) {
	for _, c := range replicaBodies {
		whole := c.encode(nil, c.sample)
		if got := hex.EncodeToString(whole); got != replicaGolden[c.name] {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, replicaGolden[c.name])
		}
		if v, err := c.decode(whole); err != nil || !reflect.DeepEqual(v, c.sample) {
			t.Errorf("%s was read as %+v, %v", c.name, v, err)
		}
		for n := range whole {
			if v, err := c.decode(whole[:n]); err == nil {
				t.Errorf("%s cut at %d was read as %+v", c.name, n, v)
			}
		}
		if _, err := c.decode(append(bytes.Clone(whole), 0)); err == nil {
			t.Errorf("%s with a byte behind it was read", c.name)
		}
		whole[0] = 2
		if _, err := c.decode(whole); err == nil {
			t.Errorf("%s of another version was read", c.name)
		}
	}
}

// What is outside of the bounds is refused when it is read, whoever sent it.
func TestReplicaBounds(t *testing.T) {
	refused := func(what string, encoded []byte, decode func([]byte) error) {
		t.Helper()
		if decode(encoded) == nil {
			t.Errorf("%s was read", what)
		}
	}
	request := func(b []byte) error { _, err := decodeFetchRequest(b); return err }
	reply := func(b []byte) error { _, err := decodeFetchResult(b); return err }
	fence := func(b []byte) error { _, err := decodeFenceResult(b); return err }
	refused("a wait that is too long", appendFetchRequest(nil, &FetchRequest{WaitMS: MaxFetchWaitMS + 1}), request)
	refused("too many bytes", appendFetchRequest(nil, &FetchRequest{MaxBytes: MaxFetchBytes + 1}), request)
	refused("a negative offset", appendFetchRequest(nil, &FetchRequest{Partitions: []FetchPartition{{Offset: -1}}}), request)
	refused("too many partitions", appendFetchRequest(nil, &FetchRequest{Partitions: make([]FetchPartition, MaxFetchPartitions+1)}), request)
	refused("an unknown status", joinedFetchResult(nil, &FetchResult{Partitions: []FetchAnswer{{Status: lastFetchStatus + 1}}}), reply)
	refused("answers out of order", joinedFetchResult(nil, &FetchResult{Partitions: []FetchAnswer{{Index: 1}, {Index: 1}}}), reply)
	refused("a large position", joinedFetchResult(nil, &FetchResult{Partitions: []FetchAnswer{{Position: make([]byte, maxPosition+1)}}}), reply)
	refused("a large snapshot", joinedFetchResult(nil, &FetchResult{Partitions: []FetchAnswer{{Snapshot: make([]byte, maxSnapshot+1)}}}), reply)
	refused("an unknown fence status", appendFenceResult(nil, &FenceResult{Answers: []FenceAnswer{{Status: lastFenceStatus + 1}}}), fence)
	refused("many fences", appendFenceRequest(nil, &FenceRequest{Items: make([]FenceItem, MaxFenceItems+1)}), func(b []byte) error {
		_, err := decodeFenceRequest(b)
		return err
	})
}

// The largest requests that the bounds allow fit into their bodies.
func TestLargestReplicaRequestsFit(t *testing.T) {
	long := Target{Ref: topic.Ref{Topic: strings.Repeat("t", topic.MaxNameLength), Incarnation: 1<<64 - 1, Partition: 1<<31 - 1}}
	req := &FetchRequest{From: strings.Repeat("f", maxNodeID)}
	for range MaxFetchPartitions {
		req.Partitions = append(req.Partitions, FetchPartition{
			Target: long, Offset: 1<<63 - 1, HWM: 1<<63 - 1, PositionSeen: 1<<64 - 1, MaxBytes: MaxFetchBytes,
		})
	}
	if n := len(appendFetchRequest(nil, req)); n > maxFetchBody {
		t.Errorf("a fetch of %d bytes, the bound is %d", n, maxFetchBody)
	}
	fence := &FenceRequest{}
	for range MaxFenceItems {
		fence.Items = append(fence.Items, long)
	}
	if n := len(appendFenceRequest(nil, fence)); n > maxFenceBody {
		t.Errorf("a fence of %d bytes, the bound is %d", n, maxFenceBody)
	}
	head := len(joinedFetchResult(nil, &FetchResult{Partitions: []FetchAnswer{{
		Index: MaxFetchPartitions - 1, HWM: 1<<63 - 1, LogStart: 1<<63 - 1, DivergeEnd: 1<<63 - 1, PositionVersion: 1<<64 - 1,
		PositionGeneration: 1<<64 - 1, Position: []byte{},
	}}})) + 12 // three longer lengths
	if head > maxFetchHead || maxFetchHead*MaxFetchPartitions > 1<<20 {
		t.Errorf("a head of %d bytes, reckoned with %d", head, maxFetchHead)
	}
}

type fakeReplica struct {
	got      any
	err      error
	released int
	fetch    *FetchResult // nil: the sample
}

func (f *fakeReplica) Fetch(_ context.Context, r *FetchRequest) (*FetchResult, error) {
	f.got = r
	if f.err != nil {
		return nil, f.err
	}
	res := FetchResult{Partitions: fetchResult.Partitions[:2]}
	if f.fetch != nil {
		res = *f.fetch
	}
	res.OnRelease(func() { f.released++ })
	return &res, nil
}

func (f *fakeReplica) Fence(_ context.Context, r *FenceRequest) (*FenceResult, error) {
	f.got = r
	if f.err != nil {
		return nil, f.err
	}
	return fenceResult, nil
}

func (f *fakeReplica) Handover(_ context.Context, r *HandoverRequest) (*HandoverResult, error) {
	f.got = r
	if f.err != nil {
		return nil, f.err
	}
	return handoverResult, nil
}

// TestReplicaContract runs one suite over the memory and the wire.
func TestReplicaContract(t *testing.T) {
	t.Run("memory", func(t *testing.T) { f := &fakeReplica{}; replicaSuite(t, f, f) })
	t.Run("wire", func(t *testing.T) { f := &fakeReplica{}; replicaSuite(t, f, replicaOnWire(t, f)) })
}

func replicaOnWire(t testing.TB, r Replica) *ReplicaClient {
	t.Helper()
	s := rpc.NewServer(rpc.ServerConfig{NodeID: "s1", ClusterID: func() string { return "c" }, Log: slog.New(slog.DiscardHandler)})
	ServeReplica(s, r)
	addr := testkit.Serve(t, s)
	c := rpc.NewClient(rpc.ClientConfig{NodeID: "s2", ClusterID: func() string { return "c" }})
	t.Cleanup(c.Close)
	return NewReplicaClient(c.Peer("s1", addr))
}

func replicaSuite(t *testing.T, f *fakeReplica, n Replica) {
	ctx := t.Context()
	for name, c := range map[string]struct {
		call      func() (any, error)
		req, want any
	}{
		"fetch": {func() (any, error) {
			res, err := n.Fetch(ctx, fetchRequest)
			if err != nil {
				return nil, err
			}
			return res.Partitions, nil // not released: it is compared below
		}, fetchRequest, fetchResult.Partitions[:2]},
		"fence":    {func() (any, error) { return n.Fence(ctx, fenceRequest) }, fenceRequest, fenceResult},
		"handover": {func() (any, error) { return n.Handover(ctx, handoverRequest) }, handoverRequest, handoverResult},
	} {
		t.Run(name, func(t *testing.T) {
			f.err = nil
			got, err := c.call()
			if err != nil || !reflect.DeepEqual(got, c.want) || !reflect.DeepEqual(f.got, c.req) {
				t.Errorf("answer %+v, error %v, asked %+v; want %+v for %+v", got, err, f.got, c.want, c.req)
			}
			f.err = problem.New(problem.NotReady, "starting")
			_, err = c.call()
			var p *problem.Problem
			if !errors.As(err, &p) || p.Code != problem.NotReady || p.Applied != problem.AppliedNo {
				t.Errorf("refusal: %v", err)
			}
		})
	}
}

func TestFetchIsReleasedOnce(t *testing.T) {
	f := &fakeReplica{}
	res, err := replicaOnWire(t, f).Fetch(t.Context(), fetchRequest)
	if err != nil || f.released != 1 {
		t.Fatalf("the server released %d times: %v", f.released, err)
	}
	n := 0
	res.OnRelease(func() { n++ })
	res.Release()
	res.Release()
	if n != 1 {
		t.Errorf("released %d times", n)
	}
	new(FetchResult).Release()
}

// Large batches are not copied on their way into a reply, which is the same as if they
// were, and are in use until it is written.
func TestLargeBatchesAreNotCopied(t *testing.T) {
	want := &FetchResult{}
	for i, n := range []int{minView, 1, 0, minView - 1, 3 * minView, 1 << 20} {
		batches := bytes.Repeat([]byte{byte(i + 1)}, n)
		want.Partitions = append(want.Partitions, FetchAnswer{
			Index: i, HWM: int64(n), Position: []byte("pos"), Batches: batches, Snapshot: []byte("snap"),
		})
	}
	parts, shared := appendFetchResult(nil, want), 0
	for _, part := range parts {
		for _, a := range want.Partitions {
			if len(part) > 0 && len(a.Batches) > 0 && &part[0] == &a.Batches[0] {
				shared++
			}
		}
	}
	if got, err := decodeFetchResult(bytes.Join(parts, nil)); err != nil || !reflect.DeepEqual(got, want) || shared != 3 {
		t.Fatalf("%d batches were not copied, and the reply was read with %v", shared, err)
	}
	released := make(chan struct{})
	f := &releasing{res: want, released: released}
	got, err := replicaOnWire(t, f).Fetch(t.Context(), &FetchRequest{Partitions: make([]FetchPartition, len(want.Partitions))})
	if err != nil || !reflect.DeepEqual(got.Partitions, want.Partitions) {
		t.Fatalf("over the wire: %v", err)
	}
	select {
	case <-released:
	case <-time.After(testkit.Patience):
		t.Fatal("the server did not release them")
	}
}

// releasing is a Replica that scribbles over what it answered once that is released.
type releasing struct {
	fakeReplica
	res      *FetchResult
	released chan struct{}
}

func (f *releasing) Fetch(context.Context, *FetchRequest) (*FetchResult, error) {
	res := &FetchResult{Partitions: slices.Clone(f.res.Partitions)}
	var lent [][]byte
	for i := range res.Partitions {
		lent = append(lent, bytes.Clone(res.Partitions[i].Batches))
		res.Partitions[i].Batches = lent[i]
	}
	res.OnRelease(func() {
		for _, b := range lent {
			clear(b)
		}
		close(f.released)
	})
	return res, nil
}

// Answers that do not fit the question are not believed.
func TestReplicaAnswersFitTheQuestion(t *testing.T) {
	f := &fakeReplica{fetch: &FetchResult{Partitions: []FetchAnswer{{Index: 2}}}}
	c := replicaOnWire(t, f)
	var te *rpc.TransportError
	if _, err := c.Fetch(t.Context(), fetchRequest); !errors.As(err, &te) || !te.Sent {
		t.Errorf("an answer about a partition that was not asked for: %v", err)
	}
	if _, err := c.Fence(t.Context(), &FenceRequest{Items: fenceRequest.Items[:1]}); !errors.As(err, &te) || !te.Sent {
		t.Errorf("two answers for one item: %v", err)
	}
	if _, err := c.Fetch(t.Context(), &FetchRequest{Partitions: make([]FetchPartition, MaxFetchPartitions+1)}); !errors.As(err, &te) || te.Sent {
		t.Errorf("too many partitions were sent: %v", err)
	}
	if _, err := c.Fence(t.Context(), &FenceRequest{Items: make([]FenceItem, MaxFenceItems+1)}); !errors.As(err, &te) || te.Sent {
		t.Errorf("too many items were sent: %v", err)
	}
}

func fuzzReplica(f *testing.F, name string) {
	for _, c := range replicaBodies {
		if c.name == name {
			f.Add(c.encode(nil, c.sample))
			f.Fuzz(func(t *testing.T, b []byte) {
				v, err := c.decode(b)
				if err != nil {
					return
				}
				w, err := c.decode(c.encode(nil, v))
				if err != nil || !reflect.DeepEqual(v, w) {
					t.Errorf("%x was read as %+v, and its own form as %+v, %v", b, v, w, err)
				}
			})
		}
	}
}

func FuzzFetchRequest(f *testing.F) { fuzzReplica(f, "fetch request") }
func FuzzFetchReply(f *testing.F)   { fuzzReplica(f, "fetch reply") }
func FuzzFenceRequest(f *testing.F) { fuzzReplica(f, "fence request") }
func FuzzFenceReply(f *testing.F)   { fuzzReplica(f, "fence reply") }
