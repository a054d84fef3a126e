package raftnode

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

func removeState(t *testing.T, h *host) {
	t.Helper()
	if err := os.Remove(filepath.Join(h.dir, stateFile)); err != nil {
		t.Fatal(err)
	}
}

func removeSnapshots(t *testing.T, h *host) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(h.dir, "snapshots")); err != nil {
		t.Fatal(err)
	}
}

// refuses opens a stopped host and expects the error.
func refuses(t *testing.T, h *host, want error) {
	t.Helper()
	n, err := Open(h.config())
	if err == nil {
		_ = n.Close()
	}
	if !errors.Is(err, want) {
		t.Fatalf("open: %v, want %v", err, want)
	}
}

// withSnapshot is a stopped node with topics a* in its snapshot, b* only in the
// log, and the log cut off below the snapshot.
func withSnapshot(t *testing.T) (*host, string) {
	t.Helper()
	h := single(t)
	fill(t, []*host{h}, "a", 1, 20)
	if err := h.Snapshot(); err != nil {
		t.Fatal(err)
	}
	fill(t, []*host{h}, "b", 100, 3)
	if first, err := h.logs.FirstIndex(); err != nil || first < 10 {
		t.Fatalf("the log still begins at %d, %v", first, err)
	}
	want := h.dump()
	h.stop()
	return h, want
}

func same(t *testing.T, h *host, want string) {
	t.Helper()
	leaderOf(t, h)
	if got := h.dump(); got != want {
		t.Fatalf("state differs:\n%s\nwant\n%s", got, want)
	}
	if _, err := h.View().Topic("b2"); err != nil {
		t.Fatal(err)
	}
	if all, err := h.View().Topics("", "", 1000); err != nil || len(all) != 23 {
		t.Fatalf("%d topics in the view, %v", len(all), err)
	}
}

func TestStartFromSnapshotAndLog(t *testing.T) {
	h, want := withSnapshot(t)
	removeState(t, h)
	h.start()
	if _, err := h.View().Topic("a19"); err != nil {
		t.Fatalf("the snapshot is not restored before the first read: %v", err)
	}
	same(t, h, want)
}

func TestStartKeepsAStateAboveTheSnapshot(t *testing.T) {
	h, want := withSnapshot(t)
	h.start()
	if _, err := h.View().Topic("b2"); err != nil {
		t.Fatalf("the state was rolled back to the snapshot: %v", err)
	}
	same(t, h, want)
	// What left the log may have been a command; what stands in it can be seen.
	last, _ := apply(t, []*host{h}, registerAs("g", topic.RoleGateway, 1))
	if !h.commandBetween(0, 1) || !h.commandBetween(last-1, last) || h.commandBetween(last, last) {
		t.Error("a missing entry does not count as a command, or a command does not, or nothing does")
	}
	h.stop()
	h.start()
	leaderOf(t, h)
	if _, err := h.View().Topic("b2"); err != nil {
		t.Fatal(err)
	}
}

func TestStartRefusesGaps(t *testing.T) {
	h, _ := withSnapshot(t)
	removeSnapshots(t, h)
	refuses(t, h, ErrLogGap)
	removeState(t, h)
	refuses(t, h, ErrLogGap)

	h, _ = withSnapshot(t)
	if err := os.Remove(filepath.Join(h.dir, logFile)); err != nil {
		t.Fatal(err)
	}
	refuses(t, h, ErrLogGap)
}

func TestStartFallsBackOnlyWhereTheLogReaches(t *testing.T) {
	damage := func(h *host) {
		files, err := filepath.Glob(filepath.Join(h.dir, "snapshots", "*", "state.bin"))
		if err != nil || len(files) != 1 {
			t.Fatalf("snapshots %v, %v", files, err)
		}
		flip(t, files[0], 9000)
	}
	// Not needed: the state is above it.
	h, want := withSnapshot(t)
	damage(h)
	h.start()
	same(t, h, want)
	h.stop()
	// Needed, and the log does not reach back.
	removeState(t, h)
	refuses(t, h, ErrLogGap)

	// Needed, and the log is whole.
	h = newHost(t, "v1", true)
	h.tune = func(t *Timing) { t.TrailingLogs = 1000 }
	bootstrapped(t, h)
	fill(t, []*host{h}, "a", 1, 2)
	if err := h.Snapshot(); err != nil {
		t.Fatal(err)
	}
	want = h.dump()
	h.stop()
	damage(h)
	removeState(t, h)
	h.start()
	leaderOf(t, h)
	if got := h.dump(); got != want {
		t.Fatalf("state differs:\n%s\nwant\n%s", got, want)
	}
}

func flip(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

// edit opens a stopped host's raw log.
func edit(t *testing.T, h *host, fn func(*raftboltdb.BoltStore)) {
	t.Helper()
	s, err := raftboltdb.NewBoltStore(filepath.Join(h.dir, logFile))
	if err != nil {
		t.Fatal(err)
	}
	fn(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestStartRefusesADamagedLog(t *testing.T) {
	for name, damage := range map[string]func(*raft.Log){
		"data":     func(l *raft.Log) { l.Data[len(l.Data)/2] ^= 1 },
		"term":     func(l *raft.Log) { l.Term++ },
		"type":     func(l *raft.Log) { l.Type = raft.LogNoop },
		"checksum": func(l *raft.Log) { l.Extensions = nil },
	} {
		h := single(t)
		at, _ := apply(t, []*host{h}, createTopic("t", 1, "s1"))
		fill(t, []*host{h}, "more", 10, 2)
		h.stop()
		edit(t, h, func(s *raftboltdb.BoltStore) {
			var l raft.Log
			if err := s.GetLog(at, &l); err != nil {
				t.Fatal(err)
			}
			damage(&l)
			if err := s.StoreLog(&l); err != nil {
				t.Fatal(err)
			}
		})
		t.Log(name)
		refuses(t, h, ErrDamagedLog)
	}
	h := single(t)
	at, _ := apply(t, []*host{h}, createTopic("t", 1, "s1"))
	fill(t, []*host{h}, "more", 10, 2)
	h.stop()
	edit(t, h, func(s *raftboltdb.BoltStore) {
		if err := s.DeleteRange(at, at); err != nil {
			t.Fatal(err)
		}
	})
	refuses(t, h, ErrLogGap)
}

// An entry that a node does not understand stops it; it is never skipped, not
// even by a restart.
func TestAnUnknownEntryStopsTheNode(t *testing.T) {
	h := single(t)
	last := fill(t, []*host{h}, "t", 1, 2)
	before := h.dump()
	bad, err := metastate.Encode(createTopic("u", 50, "s1"))
	if err != nil {
		t.Fatal(err)
	}
	bad[3] ^= 1
	for range 2 {
		_ = h.raft().Apply(bad, patience)
		select {
		case <-h.Done():
		case <-within(t).Done():
			t.Fatal("the node goes on")
		}
		if !errors.Is(h.Err(), ErrApplyStopped) || !errors.Is(h.Err(), metastate.ErrDamagedEntry) {
			t.Fatalf("cause: %v", h.Err())
		}
		if h.Applied() > last+2 || h.dump() != before {
			t.Fatal("something was applied")
		}
		if _, _, err := h.Apply(within(t), createTopic("v", 60, "s1")); err == nil {
			t.Fatal("the node still takes entries")
		}
		if err := h.WaitApplied(within(t), last+100); !errors.Is(err, ErrApplyStopped) {
			t.Fatalf("a waiter: %v", err)
		}
		h.stop()
		h.start()
	}
}

func TestAStateOfANewerReleaseIsRefused(t *testing.T) {
	h := single(t)
	h.stop()
	s, err := openState(filepath.Join(h.dir, stateFile))
	if err != nil {
		t.Fatal(err)
	}
	err = s.update(func(tx stateTx) error { return tx.Put(metastate.BucketMeta, []byte("newest_type"), []byte("250")) })
	if err := errors.Join(err, s.close()); err != nil {
		t.Fatal(err)
	}
	refuses(t, h, ErrDamagedState)
}

// copyState returns a consistent copy of a running host's state file.
func copyState(t *testing.T, h *host) []byte {
	t.Helper()
	var b bytes.Buffer
	err := h.stores.state.read(func(tx stateTx) error {
		_, err := tx.tx.WriteTo(&b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// putState puts a copy in the place of a stopped host's state file.
func putState(t *testing.T, h *host, state []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, stateFile), state, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAFailedLogWriteStopsTheNode(t *testing.T) {
	var cause error
	s, err := openLogStore(filepath.Join(t.TempDir(), logFile), &room{}, func(err error) { cause = err })
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.StoreLog(&raft.Log{Index: 1, Type: raft.LogNoop}), s.Close()); err != nil || cause != nil {
		t.Fatal(err, cause)
	}
	if err := s.StoreLog(&raft.Log{Index: 2}); err == nil || cause == nil {
		t.Fatalf("a write that failed: %v, reported %v", err, cause)
	}
}

// The checksum of a log entry as it stands on disk.
func TestGoldenLogEntry(t *testing.T) {
	l := &raft.Log{Index: 0x0102, Term: 3, Type: raft.LogCommand, Data: []byte("narad")}
	if got := logChecksum(l); got != 0x43d54d93 {
		t.Fatalf("checksum %08x", got)
	}
}
