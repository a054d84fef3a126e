package raftnode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/narad-mq/narad/libs/topic"
)

// full is a disk that a test fills and empties.
type full struct{ log, state atomic.Bool }

func errNoSpace() error { return &fs.PathError{Op: "write", Path: "test", Err: syscall.ENOSPC} }

func (f *full) hooks() hooks {
	at := func(b *atomic.Bool) func() error {
		return func() error {
			if b.Load() {
				return errNoSpace()
			}
			return nil
		}
	}
	return hooks{logFault: at(&f.log), stateFault: at(&f.state), roomPause: 5 * time.Millisecond}
}

func alive(t *testing.T, hosts ...*host) {
	t.Helper()
	for _, h := range hosts {
		if err := h.Err(); err != nil {
			t.Fatalf("%s ended: %v", h.id, err)
		}
	}
}

// TestFullDiskOfAFollower: entries arrive, nothing dies, and when there is room
// the node catches up by itself.
func TestFullDiskOfAFollower(t *testing.T) {
	for what, which := range map[string]func(*full) *atomic.Bool{
		"log": func(f *full) *atomic.Bool { return &f.log }, "state": func(f *full) *atomic.Bool { return &f.state },
	} {
		for _, strict := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, waits for its disk: %t", what, strict), func(t *testing.T) {
				f := &full{}
				fullDiskOfAFollower(t, f, which(f), strict)
			})
		}
	}
}

func fullDiskOfAFollower(t *testing.T, f *full, which *atomic.Bool, strict bool) {
	leader := single(t)
	h := newHost(t, "s1", false)
	h.hooks, h.strict = f.hooks(), strict
	h.start()
	addNonvoter(t, h, leader)
	waitApplied(t, fill(t, []*host{leader}, "before", 1, 3), h)
	have := h.dump()
	which.Store(true)
	if which == &f.log && !strict { // it takes what comes until a flush finds no room
		waitApplied(t, fill(t, []*host{leader}, "behind", 500, 1), h)
		poll(t, "a flush has failed", h.DiskFull)
		have = h.dump()
	}
	last := fill(t, []*host{leader}, "while", 10, 20)
	poll(t, "it says that its disk is full", func() bool {
		ok, _ := h.CaughtUp()
		return h.DiskFull() && !ok
	})
	alive(t, h, leader)
	if h.dump() != have {
		t.Error("something of a batch that found no room was applied")
	}
	which.Store(false)
	waitApplied(t, last, h)
	if h.dump() != leader.dump() {
		t.Error("it differs from the leader")
	}
	poll(t, "it does not say so any more", func() bool { return !h.DiskFull() })
}

// TestFullDiskOfALeader: it stops leading, ends nothing, and takes part again.
func TestFullDiskOfALeader(t *testing.T) {
	disks := map[string]*full{}
	hosts := trioWith(t, func(h *host) {
		disks[h.id] = &full{}
		h.hooks = disks[h.id].hooks()
	})
	for round, which := range []func(*full) *atomic.Bool{
		func(f *full) *atomic.Bool { return &f.log }, func(f *full) *atomic.Bool { return &f.state },
	} {
		old := leaderOf(t, hosts...)
		others := except(hosts, old)
		base := old.Applied()
		which(disks[old.id]).Store(true)
		poke := within(t)
		go func(n *Node) { _, _, _ = n.Apply(poke, registerAs("poke", topic.RoleStorage, 1)) }(old.Node)
		poll(t, "another leads", func() bool { return others[0].IsLeader() || others[1].IsLeader() })
		last := fill(t, others, fmt.Sprintf("round-%d-", round), 100+topic.Incarnation(base), 5) // the same one may lead again
		alive(t, hosts...)
		which(disks[old.id]).Store(false)
		waitApplied(t, last, hosts...)
	}
}

// TestFullDiskOfASoleVoter: it waits, and goes on with room.
func TestFullDiskOfASoleVoter(t *testing.T) {
	f := &full{}
	h := newHost(t, "v1", true)
	h.tune, h.hooks = alone, f.hooks()
	bootstrapped(t, h)
	f.log.Store(true)
	if _, _, err := h.Apply(within(t), createTopic("a", 1, "s1")); err == nil {
		t.Fatal("applied without room")
	}
	poll(t, "it says so", h.DiskFull)
	alive(t, h)
	f.log.Store(false)
	waitApplied(t, fill(t, []*host{h}, "after", 5, 3), h)
}

// TestCloseOnAFullDisk: an ordered stop does not wait for room and is no failure,
// and the next start has every entry.
func TestCloseOnAFullDisk(t *testing.T) {
	leader, f := single(t), &full{}
	h := newHost(t, "s1", false)
	h.hooks = f.hooks()
	h.start()
	addNonvoter(t, h, leader)
	f.state.Store(true)
	last := fill(t, []*host{leader}, "while", 10, 3)
	poll(t, "it waits", h.DiskFull)
	node := h.Node
	h.stop()
	if err := node.Err(); err != nil {
		t.Error(err)
	}
	f.state.Store(false)
	h.start()
	waitApplied(t, last, h)
}

// TestOtherWriteErrorsEndTheNode: neither a failed sync nor another errno is a
// full disk, and a full disk is none where Raft's memory would not fit the log.
func TestOtherWriteErrorsEndTheNode(t *testing.T) {
	for _, err := range []error{syscall.ENOSPC, &fs.PathError{Op: "sync", Err: syscall.ENOSPC}, &fs.PathError{Op: "write", Err: syscall.EIO}} {
		if noRoom(err) {
			t.Errorf("%v counts as a full disk", err)
		}
	}
	var ended error
	fault := error(nil)
	s, err := openLogStore(filepath.Join(t.TempDir(), logFile), &room{}, func(err error) { ended = err })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.fault = func() error { return fault }
	leading := false
	s.leading = func() bool { return leading }
	entry := func(i uint64, k raft.LogType) *raft.Log { return &raft.Log{Index: i, Term: 1, Type: k} }
	store := func(l *raft.Log) error { ended = nil; return errors.Join(s.StoreLog(l), ended) }
	for i := range uint64(5) {
		if err := store(entry(i+1, raft.LogCommand)); err != nil {
			t.Fatal(err)
		}
	}
	fault = errNoSpace()
	if err := store(entry(6, raft.LogConfiguration)); err == nil || ended != nil {
		t.Error("a follower's configuration", err, ended)
	}
	leading = true
	if err := store(entry(6, raft.LogConfiguration)); err == nil || ended == nil {
		t.Error("a leader goes on with a configuration that is not in its log")
	}
	leading = false
	if err := s.DeleteRange(1, 2); err != nil { // a snapshot has these
		t.Fatal(err)
	}
	if err := store(entry(6, raft.LogCommand)); err == nil || ended != nil {
		t.Error("after a compaction", err, ended)
	}
	if err := s.DeleteRange(4, 5); err != nil { // Raft clears what contradicts the leader
		t.Fatal(err)
	}
	if err := store(entry(4, raft.LogCommand)); err == nil || ended == nil {
		t.Error("it goes on although Raft believes in entries that are gone")
	}
}

// TestReallyFullDisk is the same on a file system of 4 MiB: bbolt's own errors,
// its state after them, starts without room, and snapshots.
func TestReallyFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a small disk needs mount, and mount needs root")
	}
	leader := single(t)
	h := newHost(t, "s1", false)
	h.hooks.roomPause = 5 * time.Millisecond
	if err := syscall.Mount("narad-test", h.dir, "tmpfs", 0, "mode=0700,size=4m"); err != nil {
		t.Skipf("a tmpfs cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		h.stop()
		if err := syscall.Unmount(h.dir, 0); err != nil {
			t.Error(err)
		}
	})
	h.start()
	addNonvoter(t, h, leader)
	waitApplied(t, fill(t, []*host{leader}, "before", 1, 10), h)
	for round := range 2 {
		ballast := filepath.Join(h.dir, "ballast")
		fillDisk(t, ballast)
		if err := h.Snapshot(); !noSpaceLeft(err) {
			t.Errorf("a snapshot on a full disk: %v", err)
		}
		last := fill(t, []*host{leader}, string(rune('a'+round)), topic.Incarnation(1000*(round+1)), 300)
		poll(t, "it notices", h.DiskFull)
		alive(t, h)
		h.stop() // and a start finds no room either
		h.start()
		poll(t, "it notices again", h.DiskFull)
		alive(t, h)
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		waitApplied(t, last, h)
		if h.dump() != leader.dump() {
			t.Fatal("it differs from the leader")
		}
	}
}

func noSpaceLeft(err error) bool {
	return err != nil && strings.Contains(err.Error(), syscall.ENOSPC.Error())
}

// fillDisk writes a file until not one byte more fits.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 1<<16); len(block) > 0; {
		if n, err := f.Write(block); err != nil && n == 0 {
			block = block[:len(block)/2]
		}
	}
}

func except(hosts []*host, one *host) (rest []*host) {
	for _, h := range hosts {
		if h != one {
			rest = append(rest, h)
		}
	}
	return rest
}
