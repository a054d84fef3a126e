package raftnode

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// TestLostPeerIsLoggedOnceInAWhile: of what Raft says many times a second about
// one peer, one line is kept, with a count; another peer has its own.
func TestLostPeerIsLoggedOnceInAWhile(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1000, 0)
	log := newHCLogAt(slog.New(slog.NewTextHandler(&out, nil)), func() time.Time { return now })
	say := func(l hclog.Logger, peer string) {
		l.Error("failed to heartbeat to", "peer", peer, "error", fmt.Errorf("attempt at %d", now.UnixNano()))
	}
	count := func() int { return strings.Count(out.String(), "failed to heartbeat to") }
	for range 100 {
		say(log, "a:1")
		say(log.Named("replication").With("x", 1), "a:1") // the same kind, wherever it comes from
		now = now.Add(10 * time.Millisecond)
	}
	if count() != 1 {
		t.Fatalf("%d lines for one peer:\n%s", count(), out.String())
	}
	say(log, "b:1")
	if count() != 2 {
		t.Errorf("another peer is kept back:\n%s", out.String())
	}
	now = now.Add(logAgainAfter)
	say(log, "a:1")
	if count() != 3 || !strings.Contains(out.String(), "suppressed=199") {
		t.Errorf("after a while, with the count:\n%s", out.String())
	}
	for range 3 {
		log.Info("entering follower state")
	}
	if strings.Count(out.String(), "entering") != 3 {
		t.Error("what is no warning was kept back")
	}
}

func TestDamperIsBounded(t *testing.T) {
	d := newDamper(func() time.Time { return time.Unix(1, 0) })
	for i := range 3 * maxDamped {
		d.admit(hclog.Error, "m", []any{"peer", i})
	}
	if len(d.seen) > maxDamped {
		t.Errorf("it remembers %d kinds", len(d.seen))
	}
}
