package replication

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/narad-mq/narad/apps/storage-node/internal/partition"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// unlatched is a manager without copies, whose replica of the metastore is not latched.
func unlatched() (*Manager, *testkit.Meta) {
	meta := testkit.NewMeta()
	meta.SetState(true, false)
	return New(Config{
		Self: "s1", DiskID: 1, BootNonce: 7, View: meta, Elections: &leader{}, Log: slog.New(slog.DiscardHandler), StepDown: time.Second,
		Peers: func(string) (nodeapi.Replica, error) { return &leader{}, nil },
	}), meta
}

// TestAPassBeforeTheLatchIsSkipped: it leaves the copies and whom they follow as they
// are, and says nothing of how far they are.
func TestAPassBeforeTheLatchIsSkipped(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		m, meta := unlatched()
		ref := topic.Ref{Topic: "orders", Incarnation: 7}
		m.copies = map[topic.Ref]*partition.Partition{ref: nil}
		f := newFetcher(m, "s2")
		f.start(t.Context())
		m.fetchers["s2"] = f
		for _, latched := range []bool{false, true} {
			meta.SetState(true, latched)
			settled := m.pass(t.Context())
			if _, kept := m.copies[ref]; settled != latched || kept == latched || len(m.fetchers) == 0 != latched {
				t.Errorf("latched %t: settled %t, copy kept %t, %d fetchers", latched, settled, kept, len(m.fetchers))
			}
		}
	})
}

// TestCatchingUpUntilTheLatch: a node that does not know its partitions yet does not
// call them caught up.
func TestCatchingUpUntilTheLatch(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		m, meta := unlatched()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { m.Run(ctx, ctx); close(ended) }()
		<-time.After(catchingUpFor - 5*time.Second)
		if !m.CatchingUp() {
			t.Error("it called copies caught up that it does not know")
		}
		meta.SetState(true, true)
		<-time.After(time.Second) // it lets a burst of changes settle
		if m.CatchingUp() {
			t.Error("it has no copies, and they are catching up")
		}
		cancel()
		<-ended
	})
}
