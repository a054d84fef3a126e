package raftnode

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// crash ends a host that never votes as a power cut does: the next start finds
// what its directory has at this moment.
func crash(t *testing.T, h *host) {
	t.Helper()
	h.stopFlushing()
	dir := copyOf(t, h)
	h.stop()
	h.dir = dir
}

// stopFlushing keeps from the file what the log takes from here on, unless
// something asks for it.
func (h *host) stopFlushing() { h.logs.behind.flush.end() }

// written is the last index that the log's file has.
func (h *host) written() uint64 {
	h.t.Helper()
	last, err := h.logs.BoltStore.LastIndex()
	if err != nil {
		h.t.Fatal(err)
	}
	return last
}

// left is the last index that the log's file of a stopped host has.
func left(t *testing.T, h *host) uint64 {
	t.Helper()
	s, err := openLogStore(filepath.Join(h.dir, logFile), &room{}, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	last := s.end(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return last
}

var lie = []byte("lie")

// tamper puts something into a state file of a stopped host that no log has.
func tamper(t *testing.T, h *host, name string) {
	t.Helper()
	s, err := openState(filepath.Join(h.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	err = s.update(func(tx stateTx) error {
		return errors.Join(tx.Put(metastate.BucketMeta, lie, lie), tx.setApplied(1_000_000))
	})
	if err := errors.Join(err, s.close()); err != nil {
		t.Fatal(err)
	}
}

func (h *host) lies() (lies bool) {
	h.t.Helper()
	if err := h.Read(func(r metastate.Reader) error { lies = r.Get(metastate.BucketMeta, lie) != nil; return nil }); err != nil {
		h.t.Fatal(err)
	}
	return lies
}

func has(t *testing.T, h *host, name string) bool {
	t.Helper()
	_, err := os.Stat(filepath.Join(h.dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// TestVotersWaitForTheirDisk: a majority's word for an entry is worth something
// only if each of them has it in its file.
func TestVotersWaitForTheirDisk(t *testing.T) {
	hosts := trio(t)
	for _, h := range hosts {
		h.stop()
	}
	for _, h := range hosts {
		h.start() // alone, so that its Raft appends nothing to the log meanwhile
		for range 20 {
			l := &raft.Log{Index: h.logs.end(t) + 1, Term: h.Stats().Term, Type: raft.LogNoop}
			if err := h.logs.StoreLog(l); err != nil || h.written() != l.Index {
				t.Fatalf("%s has answered for entry %d, its file ends at %d, %v", h.id, l.Index, h.written(), err)
			}
			if err := h.logs.DeleteRange(l.Index, l.Index); err != nil {
				t.Fatal(err)
			}
		}
		if h.stores.state.db.Load().NoSync || !has(t, h, stateFile) || has(t, h, unsyncedFile) {
			t.Errorf("%s does not sync its state", h.id)
		}
		h.stop()
	}
	cfg := newHost(t, "v1", true).config()
	cfg.NeverVotes = true
	if _, err := Open(cfg); err == nil {
		t.Error("a voter may be told that it never votes")
	}
}

func (s *logStore) end(t *testing.T) uint64 {
	t.Helper()
	last, err := s.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	return last
}

// TestAnUnsyncedStateIsNeverReadAfterACrash: it may be torn in ways that nobody
// notices. Here it lies, which is noticed.
func TestAnUnsyncedStateIsNeverReadAfterACrash(t *testing.T) {
	leader := single(t)
	h := nonvoter(t, "s1", leader)
	for round := range 3 {
		at := topic.Incarnation(100*round + 1)
		waitApplied(t, fill(t, []*host{leader}, fmt.Sprint("a", round), at, 20), h)
		if round == 1 { // with a snapshot, and a log that does not reach back
			if err := h.Snapshot(); err != nil {
				t.Fatal(err)
			}
		}
		crash(t, h)
		if has(t, h, stateFile) {
			t.Fatal("there is a state file that a start would read")
		}
		tamper(t, h, unsyncedFile)
		last := fill(t, []*host{leader}, fmt.Sprint("b", round), at+50, 3)
		h.start()
		waitApplied(t, last, h)
		if h.lies() || h.dump() != leader.dump() {
			t.Fatal("it has read a state that may be torn")
		}
	}
}

// TestAnOrderedEndKeepsTheState, and only until the next start.
func TestAnOrderedEndKeepsTheState(t *testing.T) {
	leader := single(t)
	h := nonvoter(t, "s1", leader)
	last := fill(t, []*host{leader}, "a", 1, 20)
	waitApplied(t, last, h)
	h.stop()
	if !has(t, h, stateFile) || has(t, h, unsyncedFile) {
		t.Fatal("the state did not get its name back")
	}
	h.start()
	if h.Applied() < last {
		t.Errorf("it starts at %d, had applied %d", h.Applied(), last)
	}
	if has(t, h, stateFile) || !has(t, h, unsyncedFile) {
		t.Error("the state of a running node has the name of a whole one")
	}
	h.stop()
	// A release that knows no other name, or a copy, left a whole state beside a torn one.
	if err := os.WriteFile(filepath.Join(h.dir, unsyncedFile), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.start()
	last = fill(t, []*host{leader}, "b", 50, 3)
	waitApplied(t, last, h)
	if h.dump() != leader.dump() {
		t.Error("it differs from the leader")
	}
}

// TestWhatWasNotFlushedComesAgain: the leader has it.
func TestWhatWasNotFlushedComesAgain(t *testing.T) {
	leader := single(t)
	h := nonvoter(t, "s1", leader)
	waitApplied(t, fill(t, []*host{leader}, "kept", 1, 5), h)
	if err := h.logs.flush(); err != nil {
		t.Fatal(err)
	}
	h.stopFlushing()
	file := h.written()
	last := fill(t, []*host{leader}, "lost", 50, 20)
	waitApplied(t, last, h)
	crash(t, h)
	if end := left(t, h); end < file || end >= last { // the leader sends the rest soon after the start
		t.Fatalf("the log ends at %d, it was cut at %d", end, file)
	}
	h.start()
	last = fill(t, []*host{leader}, "new", 100, 5)
	waitApplied(t, last, h)
	if h.dump() != leader.dump() {
		t.Error("it differs from the leader")
	}
}

// TestASnapshotNeverStandsAboveTheLog: the next entry would leave a gap, and no
// older snapshot could take the place of this one.
func TestASnapshotNeverStandsAboveTheLog(t *testing.T) {
	leader := single(t)
	h := newHost(t, "s1", false)
	h.tune = func(tm *Timing) { tm.TrailingLogs = 1000 }
	h.start()
	addNonvoter(t, h, leader)
	h.stopFlushing()
	last := fill(t, []*host{leader}, "a", 1, 5)
	waitApplied(t, last, h)
	if h.written() >= last {
		t.Fatal("the log was flushed before")
	}
	if err := h.Snapshot(); err != nil {
		t.Fatal(err)
	}
	if h.written() < last {
		t.Errorf("the log's file ends at %d, the snapshot at %d", h.written(), last)
	}
	crash(t, h)
	for _, m := range snapshotsOf(t, h) {
		flip(t, filepath.Join(h.dir, "snapshots", m, "state.bin"), 9000)
	}
	last = fill(t, []*host{leader}, "b", 50, 5)
	h.start()
	waitApplied(t, last, h)
	if h.dump() != leader.dump() {
		t.Error("it differs from the leader")
	}
}

func snapshotsOf(t *testing.T, h *host) (ids []string) {
	t.Helper()
	list, err := os.ReadDir(filepath.Join(h.dir, "snapshots"))
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	for _, e := range list {
		ids = append(ids, e.Name())
	}
	return ids
}

// TestACrashDoesNotForgetTheCluster: a node whose state is gone still refuses
// another cluster, before its own has told it anything.
func TestACrashDoesNotForgetTheCluster(t *testing.T) {
	var log, other testkit.Journal
	a, b := named(t, "a1", "cluster-a", &log), named(t, "b1", "cluster-b", &other)
	h := nonvoter(t, "s1", a)
	waitApplied(t, fill(t, []*host{a}, "a", 1, 1), h)
	crash(t, h)
	a.stop() // nobody is left to tell it
	h.start()
	if h.Applied() != 0 || h.View().ClusterID() != "" {
		t.Fatal("the state is still there")
	}
	if err := b.vote(h); !errors.Is(err, errOtherCluster) {
		t.Errorf("another cluster's call: %v", err)
	}
	if err := h.vote(b); !errors.Is(err, errOtherCluster) {
		t.Errorf("a call to another cluster: %v", err)
	}
}

// TestAFailedSyncEndsTheNode: what a failing disk holds cannot be known, and the
// state that it has is not read again.
func TestAFailedSyncEndsTheNode(t *testing.T) {
	leader := single(t)
	h := newHost(t, "s1", false)
	var fails atomic.Bool
	h.hooks.syncFault = func() error {
		if fails.CompareAndSwap(true, false) { // the next sync succeeds, and proves nothing
			return syscall.EIO
		}
		return nil
	}
	h.start()
	addNonvoter(t, h, leader)
	waitApplied(t, fill(t, []*host{leader}, "a", 1, 1), h)
	fails.Store(true)
	fill(t, []*host{leader}, "unsynced", 20, 1)
	select {
	case <-h.Done():
	case <-within(t).Done():
		t.Fatal("it goes on")
	}
	if !errors.Is(h.Err(), syscall.EIO) {
		t.Error(h.Err())
	}
	h.stop()
	if has(t, h, stateFile) {
		t.Error("the state counts as whole")
	}
	h.start()
	waitApplied(t, fill(t, []*host{leader}, "b", 50, 1), h)
	if h.dump() != leader.dump() {
		t.Error("it differs from the leader")
	}
}

// TestAVoteEndsANodeThatNeverVotes before it has confirmed anything as a voter.
func TestAVoteEndsANodeThatNeverVotes(t *testing.T) {
	leader := single(t)
	h := nonvoter(t, "s1", leader)
	go func() { _, _ = leader.AddVoter(t.Context(), h.id, h.addr, leader.Configuration().Index) }()
	select {
	case <-h.Done():
	case <-within(t).Done():
		t.Fatal("it goes on")
	}
	if !errors.Is(h.Err(), errVoteless) {
		t.Error(h.Err())
	}
	_, trans := raft.NewInmemTransport("")
	c := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(ServerID(h.id, 7)), Address: "a"}}}
	if _, err := h.stores.snaps.Create(1, 1, 1, c, 1, trans); !errors.Is(err, errVoteless) {
		t.Errorf("a snapshot says so: %v", err)
	}
}

// TestNothingRunsWhileNothingIsDirty: 50 members would each cost a timer.
func TestNothingRunsWhileNothingIsDirty(t *testing.T) {
	leader := single(t)
	h := nonvoter(t, "s1", leader)
	waitApplied(t, fill(t, []*host{leader}, "a", 1, 3), h)
	due := func(l *later) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.due != nil
	}
	poll(t, "nothing is due, and the log is in the file", func() bool { // a flush that runs is due no more
		return !due(&h.logs.behind.flush) && !due(&h.stores.state.unsynced.soon) && h.written() == h.logs.end(t)
	})
}

// TestTailIsLikeTheFile: to Raft a log that is written behind is a log.
func TestTailIsLikeTheFile(t *testing.T) {
	open := func() *logStore {
		s, err := openLogStore(filepath.Join(t.TempDir(), logFile), &room{}, func(err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	want, got := open(), open()
	got.writeBehind("s1")
	got.behind.flush.end()
	random := rand.New(rand.NewPCG(1, 2))
	both := func(do func(*logStore) error) {
		t.Helper()
		if err := errors.Join(do(want), do(got)); err != nil {
			t.Fatal(err)
		}
	}
	next := uint64(1)
	for step := range 200 {
		switch k := random.IntN(10); {
		case k < 6:
			var logs []*raft.Log
			for range 1 + random.IntN(5) {
				logs = append(logs, &raft.Log{Index: next, Term: uint64(step), Data: make([]byte, random.IntN(99))})
				next++
			}
			both(func(s *logStore) error { return s.StoreLogs(logs) })
		case k < 7:
			if err := got.flush(); err != nil {
				t.Fatal(err)
			}
		case k < 8: // a snapshot
			if first, last := want.firstOf(t), want.end(t); last > first {
				both(func(s *logStore) error { return s.DeleteRange(first, first+(last-first)/2) })
			}
		case k < 9: // another leader
			if first, last := want.firstOf(t), want.end(t); last > first {
				next = last - (last-first)/3
				both(func(s *logStore) error { return s.DeleteRange(next, last) })
			}
		default: // a leader's snapshot
			next += 10
		}
		if want.firstOf(t) != got.firstOf(t) || want.end(t) != got.end(t) {
			t.Fatalf("step %d: %d..%d, want %d..%d", step, got.firstOf(t), got.end(t), want.firstOf(t), want.end(t))
		}
		for i := range next + 2 {
			var a, b raft.Log
			errA, errB := want.GetLog(i, &a), got.GetLog(i, &b)
			if (errA == nil) != (errB == nil) || a.Term != b.Term || len(a.Data) != len(b.Data) || b.Extensions != nil {
				t.Fatalf("step %d: entry %d is %+v, %v, want %+v, %v", step, i, b, errB, a, errA)
			}
		}
	}
}

func (s *logStore) firstOf(t *testing.T) uint64 {
	t.Helper()
	first, err := s.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	return first
}

// TestTailIsBounded in entries and in bytes: whatever a disk does, memory holds.
func TestTailIsBounded(t *testing.T) {
	for what, c := range map[string]struct{ batch, size int }{"entries": {256, 1}, "bytes": {16, 64 << 10}} {
		s, err := openLogStore(filepath.Join(t.TempDir(), logFile), &room{}, func(err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		s.writeBehind("s1")
		s.behind.flush.end()
		next, flushed := uint64(1), false
		for range 24 {
			logs := make([]*raft.Log, c.batch)
			for i := range logs {
				logs[i] = &raft.Log{Index: next, Data: make([]byte, c.size)}
				next++
			}
			if err := s.StoreLogs(logs); err != nil {
				t.Fatal(err)
			}
			if n := len(s.behind.entries); n > maxTailEntries || s.behind.bytes > maxTailBytes {
				t.Fatalf("%s: %d entries, %d bytes wait", what, n, s.behind.bytes)
			}
			file, err := s.BoltStore.LastIndex()
			if err != nil {
				t.Fatal(err)
			}
			flushed = flushed || file > 0
		}
		if !flushed {
			t.Errorf("%s: nothing was ever flushed", what)
		}
	}
}
