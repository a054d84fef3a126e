package rpc

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/narad-mq/narad/libs/metaapi/lifecycle"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/release"
	"github.com/narad-mq/narad/libs/testkit"
)

// olderPeer refuses the fields that it lacks, the first in the order of a strict
// decoder, and notes the names in every body.
type olderPeer struct {
	addr string

	mu       sync.Mutex // guards what follows
	lacks    []string
	code     problem.Code // of its refusals
	stubborn bool         // it names a field whether it is there or not
	asked    [][]string
}

func newOlderPeer(t *testing.T, lacks ...string) *olderPeer {
	t.Helper()
	p := &olderPeer{lacks: lacks, code: problem.InvalidRequest}
	s := NewServer(ServerConfig{NodeID: "old", ClusterID: func() string { return "c1" }, Log: slog.New(slog.DiscardHandler)})
	for _, m := range []Method{beat, hello} {
		s.add(&operation{Method: m, json: true, handle: whole(func(_ context.Context, r *Request, reply []byte) ([]byte, error) {
			return append(reply, `{}`...), p.judge(r.Body)
		})})
	}
	p.addr = testkit.Serve(t, s)
	return p
}

func (p *olderPeer) judge(body []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var object map[string]any
	if err := json.Unmarshal(body, &object); err != nil {
		return err
	}
	var names []string
	for name := range object {
		names = append(names, name)
	}
	slices.Sort(names)
	p.asked = append(p.asked, names)
	if p.stubborn {
		names = []string{"release"}
		p.lacks = names
	}
	for _, name := range names {
		if slices.Contains(p.lacks, name) {
			return problem.New(p.code, "no").With("parameter", name)
		}
	}
	return nil
}

// took returns how many requests came since the last look, and the last one's names.
func (p *olderPeer) took() (n int, last []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n = len(p.asked); n > 0 {
		last = p.asked[n-1]
	}
	p.asked = nil
	return n, last
}

// beat is an operation with two droppable fields.
var beat = Method{Name: "heartbeat", Class: ClassControl, MaxRequest: 1 << 10, MaxReply: 1 << 10}

type beatRequest struct {
	NodeID          string `json:"node_id"`
	Release         string `json:"release"`
	NewestEntryType uint8  `json:"newest_entry_type"`
}

func newDropClient(t *testing.T) (c *Client, later func(time.Duration)) {
	t.Helper()
	c = NewClient(ClientConfig{NodeID: "n2", ClusterID: func() string { return "c1" }})
	t.Cleanup(c.Close)
	now := time.Now()
	c.dropped.now = func() time.Time { return now }
	return c, func(d time.Duration) { now = now.Add(d) }
}

func TestRefusedFieldsAreLeftOut(t *testing.T) {
	p := newOlderPeer(t, "newest_entry_type", "release")
	client, later := newDropClient(t)
	send := func() (int, []string) {
		t.Helper()
		// A handle of its own for each request, as the join loop has it.
		if _, err := CallJSON[struct{}](t.Context(), client.Peer("", p.addr), beat, beatRequest{"n2", "0.2.0", 9}); err != nil {
			t.Fatal(err)
		}
		return p.took()
	}
	full, bare := []string{"newest_entry_type", "node_id", "release"}, []string{"node_id"}
	if n, last := send(); n != 3 || !slices.Equal(last, bare) {
		t.Errorf("%d requests, the last with %v: each refused field costs one, at once", n, last)
	}
	later(lifecycle.FieldDroppedFor - time.Millisecond)
	if n, last := send(); n != 1 || !slices.Equal(last, bare) {
		t.Errorf("%d requests, the last with %v: a refusal is remembered", n, last)
	}
	later(time.Millisecond)
	if n, last := send(); n != 3 || !slices.Equal(last, bare) {
		t.Errorf("%d requests, the last with %v: the memory ends", n, last)
	}
	p.mu.Lock()
	p.lacks = nil // it is upgraded
	p.mu.Unlock()
	later(lifecycle.FieldDroppedFor)
	if n, last := send(); n != 1 || !slices.Equal(last, full) {
		t.Errorf("%d requests, the last with %v: an upgraded peer gets everything", n, last)
	}
	other := newOlderPeer(t, "release")
	if _, err := CallJSON[struct{}](t.Context(), client.Peer("", other.addr), beat, beatRequest{"n2", "0.2.0", 9}); err != nil {
		t.Fatal(err)
	}
	if n, last := other.took(); n != 2 || !slices.Equal(last, []string{"newest_entry_type", "node_id"}) {
		t.Errorf("%d requests, the last with %v: every peer is asked for itself", n, last)
	}
}

// TestOtherRefusalsAreFinal: a field that must not be left out, one of another
// operation, another status.
func TestOtherRefusalsAreFinal(t *testing.T) {
	client, _ := newDropClient(t)
	for name, c := range map[string]struct {
		m     Method
		lacks string
		code  problem.Code
		req   any
	}{
		"a needed field":             {beat, "node_id", problem.InvalidRequest, beatRequest{"n2", "r", 9}},
		"a field of another request": {hello, "release", problem.InvalidRequest, map[string]string{"release": "r"}},
		"not found":                  {beat, "release", problem.MemberNotFound, beatRequest{"n2", "r", 9}},
		"not ready":                  {beat, "release", problem.NotReady, beatRequest{"n2", "r", 9}},
	} {
		p := newOlderPeer(t, c.lacks)
		p.code = c.code
		_, err := CallJSON[struct{}](t.Context(), client.Peer("", p.addr), c.m, c.req)
		if n, _ := p.took(); !problem.HasCode(err, c.code) || n != 1 {
			t.Errorf("%s: %v after %d requests", name, err, n)
		}
	}
	// A peer that goes on refusing what is not there any more is not asked for ever.
	p := newOlderPeer(t)
	p.stubborn = true
	_, err := CallJSON[struct{}](t.Context(), client.Peer("", p.addr), beat, beatRequest{"n2", "r", 9})
	if n, _ := p.took(); !problem.HasCode(err, problem.InvalidRequest) || n != 2 {
		t.Errorf("stubborn: %v after %d requests", err, n)
	}
}

// TestOlderReleaseOfTheSameCode: client and server under the name of an older
// release send and know less, which is what its stand-in is made of.
func TestOlderReleaseOfTheSameCode(t *testing.T) {
	var got beatRequest
	s := NewServer(ServerConfig{
		NodeID: "old", ClusterID: func() string { return "c1" }, Log: slog.New(slog.DiscardHandler), Release: release.First,
	})
	HandleJSON(s, beat, func(_ context.Context, req *beatRequest) (*struct{}, error) { got = *req; return &struct{}{}, nil })
	addr := testkit.Serve(t, s)
	client, _ := newDropClient(t)
	peer := client.Peer("old", addr)
	_, err := peer.Call(t.Context(), beat, []byte(`{"node_id":"n2","release":"r"}`))
	if refusedField(err) != "release" {
		t.Errorf("its server refuses with %v", err)
	}
	if _, err := CallJSON[struct{}](t.Context(), peer, beat, beatRequest{"n2", "r", 9}); err != nil || got != (beatRequest{NodeID: "n2"}) {
		t.Errorf("it got %+v, %v", got, err)
	}
	older := NewClient(ClientConfig{NodeID: "n2", ClusterID: func() string { return "c1" }, Release: release.First})
	defer older.Close()
	p := newOlderPeer(t)
	if _, err := CallJSON[struct{}](t.Context(), older.Peer("", p.addr), beat, beatRequest{"n2", "r", 9}); err != nil {
		t.Fatal(err)
	}
	if n, last := p.took(); n != 1 || !slices.Equal(last, []string{"node_id"}) {
		t.Errorf("its client sent %d requests, the last with %v", n, last)
	}
}
