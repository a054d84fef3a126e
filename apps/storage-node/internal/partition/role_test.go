package partition

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/storage-node/internal/alarm"
	"github.com/narad-mq/narad/apps/storage-node/internal/batches"
	"github.com/narad-mq/narad/apps/storage-node/internal/metrics"
	"github.com/narad-mq/narad/apps/storage-node/internal/queue"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

func copyOfThree(t *testing.T, fs vfs.FS) (p *Partition, failed *[]error) {
	t.Helper()
	s, failed := sharedOn(t, fs)
	p, err := Open(s, topic.Ref{Topic: "t", Incarnation: 1}, "/p", setOfThree(1, "s2", 0))
	if err != nil {
		t.Fatal(err)
	}
	return p, failed
}

func sharedOn(t *testing.T, fs vfs.FS) (s *Shared, failed *[]error) {
	t.Helper()
	none := func() float64 { return 0 }
	m, err := metrics.New(prometheus.NewRegistry(), metrics.Gauges{Leases: none, Free: none, LagRecords: none, LagSeconds: none})
	if err != nil {
		t.Fatal(err)
	}
	failed = new([]error)
	next := byte(0)
	s = &Shared{
		Serving: func(topic.Ref, topic.Epoch) {},
		FS:      fs, Node: "s1", DiskID: 1, Log: slog.New(slog.DiscardHandler), Metrics: m, Now: time.Now,
		Mono: func() int64 { return 1 }, Steady: func() int64 { return 1 }, Random: func(b []byte) { next++; b[0] = next },
		Cache: batches.NewCache(1 << 20), Deadlines: alarm.New(func() int64 { return 1 }),
		Flusher: queue.NewFlusher(func(*queue.Queue, error) {}), Failed: func(err error) { *failed = append(*failed, err) },
	}
	return s, failed
}

func setOfThree(epoch topic.Epoch, leader string, version uint64) Set {
	s := Set{Leadership: quorum.Leadership{Epoch: epoch, Leader: leader}}
	s.Version = version
	s.Replicas = []quorum.Replica{{Node: "s1", Disk: 1}, {Node: "s2", Disk: 2}, {Node: "s3", Disk: 3}}
	return s
}

// A partition that ends while a sync of it is due is no failure of the disk.
func TestEndOfAFollowerIsNoFailure(t *testing.T) {
	p, failed := copyOfThree(t, vfs.NewMem())
	if err := p.Assume(setOfThree(1, "s2", 0)); err != nil {
		t.Fatal(err)
	}
	if err := p.Drop(); err != nil {
		t.Fatal(err)
	}
	if err := p.SyncFollowed(); err != nil || len(*failed) > 0 {
		t.Fatalf("%v; the node was told %v", err, *failed)
	}
}

// Of two assignments the newer one counts, in whatever order they are assumed.
func TestOlderAssignmentChangesNothing(t *testing.T) {
	newer := setOfThree(5, "s2", 7)
	for name, older := range map[string]Set{
		"epoch": setOfThree(4, "s3", 7), "version": setOfThree(5, "s2", 6), "before its election": setOfThree(5, "", 7),
	} {
		p, _ := copyOfThree(t, vfs.NewMem())
		for _, s := range []Set{newer, older} {
			if err := p.Assume(s); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if _, _, ok := p.Request(5); !ok || !p.Holds(&topic.Assignment{LeaderEpoch: 5, Leader: "s2", ConfigVersion: 7}) {
			t.Errorf("%s: the newer one does not hold", name)
		}
	}
}

// A log that could not begin to follow is asked again, not believed to follow.
func TestFollowIsTriedAgain(t *testing.T) {
	p, _ := copyOfThree(t, vfs.NewMem())
	if err := p.Assume(setOfThree(2, "s2", 0)); err != nil {
		t.Fatal(err)
	}
	if err := p.log.BeginFollow(9); err != nil { // the log is ahead: it refuses
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Assume(setOfThree(3, "s3", 0)); err == nil {
			t.Fatal("it follows although its log does not")
		}
	}
}

// A write that does not return holds the append lock. Whoever looks for disks that do
// not answer goes on to the next partition, and looks again later.
func TestGiveUpWaitsForNoWrite(t *testing.T) {
	p := &Partition{s: &Shared{Mono: func() int64 { return stallMS + 1 }}}
	p.syncing.Store(1)
	p.mu.Lock()
	looked := make(chan struct{})
	go func() { p.GiveUp(); close(looked) }()
	select {
	case <-looked:
	case <-time.After(testkit.Patience):
		t.Error("it waits for the write")
	}
	p.mu.Unlock()
	<-looked
}

// copied is a batch as a leader of epoch 1 sends it, for offsets from up to to.
func copied(t *testing.T, from, to int64) []byte {
	t.Helper()
	var b record.Builder
	b.Reset(record.Stream{Kind: record.StreamWAL, ID: 1}, 0, record.Oldest{})
	for i := from; i < to; i++ {
		if err := b.Add(uint64(i)+1, record.AppendBody(nil, &record.Message{Payload: []byte("x")})); err != nil {
			t.Fatal(err)
		}
	}
	batch := append([]byte(nil), b.Finish(record.CodecNone)...)
	record.Place(batch, from, 1, 1)
	return batch
}

// What a sync made durable may be cut, and written anew, before anybody is told: for
// what was written anew it counts nothing.
func TestSyncThatIsOvertakenByACut(t *testing.T) {
	var held atomic.Bool
	syncing, goOn := make(chan struct{}), make(chan struct{})
	p, _ := copyOfThree(t, vfs.NewFault(vfs.NewMem(), func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpSync && held.Swap(false) {
			close(syncing)
			<-goOn
		}
		return vfs.Fault{}
	}))
	if err := p.Assume(setOfThree(1, "s2", 0)); err != nil {
		t.Fatal(err)
	}
	take := func(from, to int64) {
		t.Helper()
		_, asked, ok := p.Request(1)
		written, err := p.Answered(asked, &nodeapi.FetchAnswer{Epoch: 1, Batches: copied(t, from, to)})
		if !ok || !written || err != nil {
			t.Fatalf("asked %t, written %t: %v", ok, written, err)
		}
	}
	take(0, 10)
	if err := p.SyncFollowed(); err != nil {
		t.Fatal(err)
	}
	take(10, 15)
	held.Store(true)
	done := make(chan error, 1)
	go func() { done <- p.SyncFollowed() }()
	<-syncing
	p.mu.Lock()
	close(goOn)
	testkit.Poll(t, testkit.Patience, "15 are synced", func() bool { return p.log.LEO() == 15 })
	err := p.truncateLocked(10)
	if err == nil {
		_, err = p.copyLocked(&nodeapi.FetchAnswer{Epoch: 1, Batches: copied(t, 10, 20)})
	}
	p.mu.Unlock()
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	if _, f, ok := p.Request(1); ok || p.follower.LEO() != 10 {
		t.Fatalf("it says that it has synced %d (asks %t, %+v), of 10 and 10 that are only written", p.follower.LEO(), ok, f)
	}
	if err := p.SyncFollowed(); err != nil {
		t.Fatal(err)
	}
	if _, f, ok := p.Request(1); !ok || f.Offset != 20 {
		t.Fatalf("after the next sync it asks %t, %+v", ok, f)
	}
}

// A copy that is behind syncs between the pieces of a large batch, so that commits on the
// same disk wait for one piece only; one that is not writes it at once.
func TestBehindIsWrittenInPieces(t *testing.T) {
	syncs := 0
	p, _ := copyOfThree(t, vfs.NewFault(vfs.NewMem(), func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpSync {
			syncs++
		}
		return vfs.Fault{}
	}))
	if err := p.Assume(setOfThree(1, "s2", 0)); err != nil {
		t.Fatal(err)
	}
	var b record.Builder
	for i := range int64(2) {
		b.Reset(record.Stream{Kind: record.StreamWAL, ID: 1}, 0, record.Oldest{})
		if err := b.Add(uint64(i)+1, record.AppendBody(nil, &record.Message{Payload: make([]byte, 3*farPiece)})); err != nil {
			t.Fatal(err)
		}
		batch := append([]byte(nil), b.Finish(record.CodecNone)...)
		record.Place(batch, i, 1, 1)
		_, asked, ok := p.Request(1)
		syncs = 0
		written, err := p.Answered(asked, &nodeapi.FetchAnswer{Epoch: 1, HWM: 2, Batches: batch})
		if !ok || !written || err != nil {
			t.Fatalf("asked %t, written %t: %v", ok, written, err)
		}
		if i > 0 && syncs != 3 { // before it the first segment is made
			t.Fatalf("%d syncs", syncs)
		}
		if err := p.SyncFollowed(); err != nil || p.log.LEO() != i+1 {
			t.Fatalf("%d: %v", p.log.LEO(), err)
		}
	}
}
