package raftnode

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// The metadata at its intended size: 10,000 topics of 3 partitions on 50 members.
// `make gobench` runs these; what a create takes then is measured with the
// controller, in the voter's package.
const (
	scaleTopics     = 10_000
	scalePartitions = 3
	scaleMembers    = 50
)

// scaled makes a state of n topics in dir and returns its path.
func scaled(b testing.TB, dir string, n int) string {
	b.Helper()
	path := filepath.Join(dir, stateFile)
	s, err := openState(path)
	if err != nil {
		b.Fatal(err)
	}
	err = s.update(func(tx stateTx) error {
		entries := []metastate.Entry{&metastate.ClusterID{ID: "scale"}}
		for i := range scaleMembers {
			entries = append(entries, registerAs(fmt.Sprintf("s%d", i), topic.RoleStorage, 1))
		}
		for i := range n {
			entries = append(entries, createSized(fmt.Sprintf("topic-%06d", i), topic.Incarnation(i+1), i))
		}
		for _, e := range entries {
			if res, err := metastate.ApplyEntry(tx, e); err != nil || res.Err() != nil {
				return fmt.Errorf("%w, %w", err, res.Err())
			}
		}
		return tx.setApplied(uint64(n))
	})
	if err == nil {
		err = s.close()
	}
	if err != nil {
		b.Fatal(err)
	}
	return path
}

func createSized(name string, incarnation topic.Incarnation, first int) *metastate.CreateTopic {
	e := createTopic(name, incarnation, "")
	e.Topic.Partitions, e.Assignments = scalePartitions, nil
	for p := range scalePartitions {
		node := fmt.Sprintf("s%d", (first+p)%scaleMembers)
		e.Assignments = append(e.Assignments, topic.Assignment{
			Ref:      topic.Ref{Topic: name, Incarnation: incarnation, Partition: int32(p)},
			Replicas: []topic.Replica{{Node: node, DiskID: 7}}, Leader: node, LeaderEpoch: 1, ConfigVersion: 1,
		})
	}
	return e
}

// discardSink is a snapshot's file for those who measure what is before it. It
// notes the largest heap while it is written to.
type discardSink struct {
	written int64
	peak    uint64
}

func (d *discardSink) Write(p []byte) (int, error) {
	if d.written += int64(len(p)); d.written>>20 != (d.written-int64(len(p)))>>20 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		d.peak = max(d.peak, m.HeapAlloc)
	}
	return len(p), nil
}
func (d *discardSink) Close() error  { return nil }
func (d *discardSink) ID() string    { return "discarded" }
func (d *discardSink) Cancel() error { return nil }

// snapshotOf streams a state's snapshot and tells its size, and by how much the heap grew.
func snapshotOf(tb testing.TB, s *state) (size int64, grew uint64) {
	tb.Helper()
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f := newFSM(s, nil, &room{}, 0, nil)
	taken, err := f.Snapshot()
	if err != nil {
		tb.Fatal(err)
	}
	defer taken.Release()
	sink := &discardSink{}
	if err := taken.Persist(sink); err != nil {
		tb.Fatal(err)
	}
	return sink.written, max(sink.peak, before.HeapAlloc) - before.HeapAlloc
}

// TestSnapshotMemoryDoesNotGrow: eight times the topics, and a snapshot takes no
// more memory while it is streamed.
func TestSnapshotMemoryDoesNotGrow(t *testing.T) {
	const bound = 1 << 20 // a copying buffer, and what the runtime does beside
	for _, n := range []int{1000, 8000} {
		s, err := openState(scaled(t, t.TempDir(), n))
		if err != nil {
			t.Fatal(err)
		}
		size, grew := snapshotOf(t, s)
		t.Logf("%d topics: a snapshot of %d bytes, the heap grew by %d", n, size, grew)
		if grew > bound {
			t.Errorf("%d topics: the heap grew by %d bytes", n, grew)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
}

// BenchmarkSnapshotAtScale is one snapshot, without the disk that it goes to.
func BenchmarkSnapshotAtScale(b *testing.B) {
	s, err := openState(scaled(b, b.TempDir(), scaleTopics))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.close() }()
	b.ReportAllocs()
	var size int64
	var grew uint64
	for b.Loop() {
		size, grew = snapshotOf(b, s)
	}
	b.ReportMetric(float64(size)/(1<<20), "MiB/snapshot")
	b.ReportMetric(float64(grew)/(1<<20), "MiB-heap")
}

// BenchmarkRestartFromSnapshotAtScale is a start that finds nothing but the newest
// snapshot, from opening the directory to a view that can be read.
func BenchmarkRestartFromSnapshotAtScale(b *testing.B) {
	source := b.TempDir()
	s, err := openState(scaled(b, b.TempDir(), scaleTopics))
	if err != nil {
		b.Fatal(err)
	}
	snaps, err := openSnapshots(source, &logStore{}, newHCLog(orDiscard(nil)))
	if err != nil {
		b.Fatal(err)
	}
	_, trans := raft.NewInmemTransport("127.0.0.1:1")
	f := Found{ServerID: "s0", Addr: "127.0.0.1:1"}
	sink, err := snaps.Create(1, scaleTopics, 1, f.configuration(), 1, trans)
	if err != nil {
		b.Fatal(err)
	}
	taken, err := newFSM(s, nil, &room{}, 0, nil).Snapshot()
	if err != nil {
		b.Fatal(err)
	}
	if err := taken.Persist(&rawSink{sink}); err != nil {
		b.Fatal(err)
	}
	taken.Release()
	if err := s.close(); err != nil {
		b.Fatal(err)
	}
	var slowest time.Duration
	for b.Loop() {
		b.StopTimer()
		dir := b.TempDir()
		if err := os.CopyFS(dir, os.DirFS(source)); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		begin := time.Now()
		n, err := Open(Config{NodeID: "s0", BootNonce: 1, Dir: dir, Bind: "127.0.0.1:0"})
		if err != nil {
			b.Fatal(err)
		}
		if t, err := n.View().Topic("topic-009999"); err != nil || t.Partitions != scalePartitions {
			b.Fatal(t, err)
		}
		slowest = max(slowest, time.Since(begin))
		b.StopTimer()
		if err := n.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(slowest.Seconds(), "s-slowest")
}

// BenchmarkRestartAfterAKillAtScale is a start of a node that never votes, whose
// state was lost and which never took a snapshot, until it has applied again all that
// its leader has: more entries than Raft leaves between two snapshots.
func BenchmarkRestartAfterAKillAtScale(b *testing.B) {
	open := func(c Config) *Node {
		c.BootNonce, c.Timing = 1, Timing{SnapshotInterval: time.Hour}
		n, err := Open(c)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	leader := open(Config{NodeID: "v1", Dir: b.TempDir(), Bind: "127.0.0.1:0", Voter: true})
	defer func() { _ = leader.Close() }()
	if err := leader.Bootstrap([]Server{{ID: "v1", Addr: leader.Addr(), Voter: true}}); err != nil {
		b.Fatal(err)
	}
	member := Config{NodeID: "s1", Dir: b.TempDir(), Bind: "127.0.0.1:0", NeverVotes: true}
	n := open(member)
	member.Bind = n.Addr()
	for !leader.IsLeader() || leader.Barrier(b.Context()) != nil {
		<-time.After(latchPoll)
	}
	if _, err := leader.AddNonvoter(b.Context(), "s1", n.Addr(), leader.Configuration().Index); err != nil {
		b.Fatal(err)
	}
	var writers sync.WaitGroup
	next := make(chan int)
	for range 64 {
		writers.Go(func() {
			for i := range next {
				if _, _, err := leader.Apply(b.Context(), createSized(fmt.Sprintf("topic-%06d", i), topic.Incarnation(i+1), i)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range scaleTopics {
		next <- i
	}
	close(next)
	writers.Wait()
	wait := func(n *Node) {
		if err := n.WaitApplied(b.Context(), leader.Applied()); err != nil {
			b.Fatal(err)
		}
	}
	wait(n)
	var slowest time.Duration
	for b.Loop() {
		b.StopTimer()
		n.fail(errStalled) // it ends in no order
		if err := n.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		begin := time.Now()
		n = open(member)
		if n.Applied() != 0 {
			b.Fatal("the state was not lost")
		}
		wait(n)
		slowest = max(slowest, time.Since(begin))
	}
	b.ReportMetric(slowest.Seconds(), "s-slowest")
	if err := n.Close(); err != nil {
		b.Fatal(err)
	}
}

// rawSink hides what the sink is, so that no state machine is told of it.
type rawSink struct{ raft.SnapshotSink }

// BenchmarkBackupAtScale is a whole backup, checksums included.
func BenchmarkBackupAtScale(b *testing.B) {
	dir := b.TempDir()
	path := scaled(b, b.TempDir(), scaleTopics)
	s, err := openState(path)
	if err != nil {
		b.Fatal(err)
	}
	f := Found{ServerID: "v1", Addr: "127.0.0.1:1", Dir: filepath.Join(dir, "raft")}
	if err := os.MkdirAll(f.Dir, 0o700); err != nil {
		b.Fatal(err)
	}
	if err := errors.Join(s.close(), os.Rename(path, filepath.Join(f.Dir, stateFile))); err != nil {
		b.Fatal(err)
	}
	out := &Founded{Index: scaleTopics, Term: 1}
	if err := plant(&f, out); err != nil {
		b.Fatal(err)
	}
	n, err := Open(Config{NodeID: "v1", BootNonce: 1, Dir: f.Dir, Bind: "127.0.0.1:0", Voter: true, Timing: Timing{Heartbeat: 50 * time.Millisecond, Election: 50 * time.Millisecond, LeaderLease: 50 * time.Millisecond}})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = n.Close() }()
	for ok, _ := n.CaughtUp(); !ok; ok, _ = n.CaughtUp() {
		<-time.After(10 * time.Millisecond)
	}
	b.ResetTimer()
	b.ReportAllocs()
	for b.Loop() {
		stream, err := n.Backup(b.Context(), "bench", time.Now())
		if err != nil {
			b.Fatal(err)
		}
		size, err := io.Copy(io.Discard, stream)
		if err != nil || size != stream.Size || stream.Close() != nil {
			b.Fatal(size, err)
		}
		b.SetBytes(size)
	}
}
