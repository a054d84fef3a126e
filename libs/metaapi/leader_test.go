package metaapi

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/narad-mq/narad/libs/metaapi/lifecycle"
	"github.com/narad-mq/narad/libs/problem"
)

func leaderOf(t *testing.T, hint string, voters ...string) *Leader {
	return NewLeader(LeaderConfig{
		RPC: client(t), Hint: func() string { return hint }, Voters: func() []string { return voters },
	})
}

func TestLeaderFollowsHints(t *testing.T) {
	lead := &fake{}
	leadAddr := serve(t, lead)
	middle := &fake{err: NotLeader("v1", leadAddr)}
	middleAddr := serve(t, middle)
	first := &fake{err: NotLeader("v2", middleAddr)}
	l := leaderOf(t, "", serve(t, first))
	if _, err := l.CreateTopic(t.Context(), &CreateTopicRequest{Name: "x"}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.CreateTopic(t.Context(), &CreateTopicRequest{Name: "y"}); err != nil {
		t.Fatal(err)
	}
	if first.calls != 1 || middle.calls != 1 || lead.calls != 2 {
		t.Errorf("asked %d, %d, %d times: the leader was not remembered", first.calls, middle.calls, lead.calls)
	}
}

func TestLeaderGivesUpOnLoopsAndSilence(t *testing.T) {
	a, b := &fake{}, &fake{err: problem.New(problem.NoRaftConfiguration, "empty")}
	addrA, addrB := serve(t, a), serve(t, b)
	a.err = NotLeader("a", addrA) // names itself
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = dead.Close()
	_, err = leaderOf(t, dead.Addr().String(), addrA, addrB, addrA).CreateTopic(t.Context(), &CreateTopicRequest{Name: "x"})
	if !problem.HasCode(err, problem.NoMetastoreLeader) || a.calls != 1 || b.calls != 1 {
		t.Errorf("%v after %d and %d calls", err, a.calls, b.calls)
	}
}

func TestLeaderFollowsFourHintsAtMost(t *testing.T) {
	last := &fake{}
	addr := serve(t, last)
	for range lifecycle.MaxHints + 1 {
		addr = serve(t, &fake{err: NotLeader("x", addr)})
	}
	if _, err := leaderOf(t, addr).Members(t.Context()); !problem.HasCode(err, problem.NoMetastoreLeader) {
		t.Errorf("got %v", err)
	}
	if last.calls != 0 {
		t.Error("a fifth hint was followed")
	}
}

// cut is a voter that does the work and loses the answer.
func cut(t *testing.T) (addr string, accepted *atomic.Int64) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted = new(atomic.Int64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			_, _ = conn.Read(make([]byte, 4096))
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
	return ln.Addr().String(), accepted
}

func TestUnknownChangeIsNeverRepeated(t *testing.T) {
	lost, n := cut(t)
	other := &fake{}
	l := leaderOf(t, lost, serve(t, other))
	_, err := l.CreateTopic(t.Context(), &CreateTopicRequest{Name: "x"})
	if !problem.HasCode(err, problem.OutcomeUnknown) || other.calls != 0 || n.Load() != 1 {
		t.Errorf("%v; the other voter was asked %d times, the first %d", err, other.calls, n.Load())
	}
	if _, err := l.LookupTopic(t.Context(), &LookupTopicRequest{Name: "x"}); err != nil || other.calls != 1 {
		t.Errorf("a read did not turn to another voter: %v", err)
	}
}

func TestEndedContextAsksNobody(t *testing.T) {
	f := &fake{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := leaderOf(t, serve(t, f)).Members(ctx); err == nil || f.calls != 0 {
		t.Errorf("%v after %d calls", err, f.calls)
	}
}

func TestValidHint(t *testing.T) {
	for s, want := range map[string]bool{
		"voter-1:7944": true, "[::1]:1": true, "10.0.0.1:65535": true,
		strings.Repeat("a", 255) + ":65535": true, strings.Repeat("a", 256) + ":65535": false,
		"": false, "voter-1": false, ":7944": false, "voter-1:": false, "voter-1:0": false, "voter-1:65536": false,
		"voter-1:http": false, "voter-1:-1": false, "a:b:1": false, "voter-1:+7": false,
	} {
		if ValidHint(s) != want {
			t.Errorf("%q: %t", s, !want)
		}
	}
}
