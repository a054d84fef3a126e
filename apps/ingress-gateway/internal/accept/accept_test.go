package accept

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
	"github.com/narad-mq/narad/libs/wal"
)

type fixture struct {
	meta *testkit.Meta
	fs   *vfs.Mem
	log  *wal.WAL
	p    *Producer
	t    *topic.Topic
}

func open(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{meta: testkit.NewMeta(), fs: vfs.NewMem(), t: &topic.Topic{Name: "orders", Incarnation: 7, Config: topic.DefaultConfig()}}
	f.fs.SetCapacity(64 << 20)
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if f.log, err = wal.Open(f.fs, "wal", wal.Options{OnSync: metrics.ObserveSync, FillAhead: -1, SegmentBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.log.Close() })
	f.p = New(Config{}, Deps{View: f.meta, Log: f.log, FS: f.fs, Dir: "wal", Metrics: metrics})
	return f
}

func message(key, payload string, pin int32) api.Produced {
	m := api.Produced{Pin: pin, Message: record.Message{Payload: []byte(payload)}}
	if key != "" {
		m.Message.Key = []byte(key)
	}
	return m
}

func (f *fixture) accept(msgs ...api.Produced) (string, error) {
	return f.p.Accept(context.Background(), f.t, msgs)
}

func (f *fixture) next(t *testing.T) wal.Record {
	t.Helper()
	rec, ok, err := f.log.Reader().TryNext()
	if !ok || err != nil {
		t.Fatalf("nothing to read: %v", err)
	}
	return rec
}

func TestAcceptedRecordIsInTheWAL(t *testing.T) {
	f := open(t)
	id, err := f.accept(message("k", "one", api.AnyPartition), message("", "two", 2))
	if err != nil {
		t.Fatal(err)
	}
	first, second := f.next(t), f.next(t)
	want := record.MessageID(record.Stream{Kind: record.StreamWAL, ID: f.log.Identity()}, record.Number{Seq: first.Seq})
	if id != want || second.Seq != first.Seq+1 {
		t.Fatalf("id %s, want %s", id, want)
	}
	if first.Partition != int32(xxhash.Sum64String("k")%3) || first.Pinned || first.Incarnation != 7 || first.Topic != "orders" {
		t.Fatalf("first record %+v", first.Entry)
	}
	if second.Partition != 2 || !second.Pinned {
		t.Fatalf("pinned record %+v", second.Entry)
	}
}

func TestMessagesWithoutKeySpreadOverPartitions(t *testing.T) {
	f := open(t)
	seen := map[int32]int{}
	for range 30 {
		if _, err := f.accept(message("", "x", api.AnyPartition)); err != nil {
			t.Fatal(err)
		}
		seen[f.next(t).Partition]++
	}
	for p := range int32(3) {
		if seen[p] != 10 {
			t.Fatalf("spread %v", seen)
		}
	}
}

func expect(t *testing.T, err error, code problem.Code, applied problem.Applied) {
	t.Helper()
	if !problem.HasCode(err, code) {
		t.Fatalf("error %v, want %s", err, code)
	}
	if p, ok := err.(*problem.Problem); !ok || p.Applied != applied {
		t.Fatalf("applied of %v, want %s", err, applied)
	}
}

func TestRefusals(t *testing.T) {
	f := open(t)
	f.meta.SetState(false, false)
	_, err := f.accept(message("", "x", api.AnyPartition))
	expect(t, err, problem.NotReady, problem.AppliedNo)
	f.meta.SetState(true, false) // no ownership latch and no leader are needed
	if _, err = f.accept(message("", "x", api.AnyPartition)); err != nil {
		t.Fatal(err)
	}
	_, err = f.accept(message("", "x", 3))
	expect(t, err, problem.PartitionOutOfRange, problem.AppliedNo)

	f.fs.SetCapacity(200)
	f.p.look()
	_, err = f.accept(message("", "x", api.AnyPartition))
	expect(t, err, problem.DiskFull, problem.AppliedNo)
	expect(t, f.p.CanAccept(), problem.DiskFull, problem.AppliedNo)
	f.fs.SetCapacity(64 << 20)
	f.p.look()
	if err := f.p.CanAccept(); err != nil {
		t.Fatal(err)
	}
	f.p.Drain()
	_, err = f.accept(message("", "x", api.AnyPartition))
	expect(t, err, problem.Draining, problem.AppliedNo)
}

func TestOneTopicHoldsAtMostAQuarter(t *testing.T) {
	f := open(t) // 64 MiB: a quarter of 90 % is 14.4 MiB
	big := message("", strings.Repeat("x", 4<<20), api.AnyPartition)
	for i := range 3 {
		if _, err := f.accept(big); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	_, err := f.accept(big)
	expect(t, err, problem.TopicBacklogFull, problem.AppliedNo)
	other := *f.t
	other.Name, other.Incarnation = "other", 8
	if _, err := f.p.Accept(context.Background(), &other, []api.Produced{message("", "x", api.AnyPartition)}); err != nil {
		t.Fatal(err)
	}
	f.p.Dispatched(7, 4<<20+1)
	if _, err := f.accept(big); err != nil {
		t.Fatal(err)
	}
}

type brokenLog struct{ err error }

func (b brokenLog) Append([]wal.Entry) (wal.ID, error) { return wal.ID{}, b.err }
func (b brokenLog) Stats() wal.Stats                   { return wal.Stats{Failed: true} }

func TestWALErrorsSayWhetherSomethingMayBeThere(t *testing.T) {
	f := open(t)
	f.p.deps.Log = brokenLog{fmt.Errorf("%w: disk", wal.ErrRefused)}
	_, err := f.accept(message("", "x", api.AnyPartition))
	expect(t, err, problem.WALUnavailable, problem.AppliedNo)
	expect(t, f.p.CanAccept(), problem.WALUnavailable, problem.AppliedNo)
	f.p.deps.Log = brokenLog{fmt.Errorf("%w: disk", wal.ErrOutcomeUnknown)}
	_, err = f.accept(message("", "x", api.AnyPartition))
	expect(t, err, problem.WALUnavailable, problem.AppliedUnknown)
}

// TestParkedRecordsAreBacklog: a gateway whose stuck records lie in parked logs
// must not look empty, to an alert or to a decommission.
func TestParkedRecordsAreBacklog(t *testing.T) {
	f := open(t)
	f.p.deps.Parked = func() (int64, int64) { return 5, 1000 }
	if _, err := f.accept(message("k", "one", api.AnyPartition)); err != nil {
		t.Fatal(err)
	}
	f.p.look()
	if backlog, _ := f.p.Load(); backlog != 6 {
		t.Errorf("backlog %d, want 6", backlog)
	}
	if at := f.p.stats.Load().OldestAcceptMS; at != 1000 {
		t.Errorf("oldest %d, want 1000", at)
	}
}
