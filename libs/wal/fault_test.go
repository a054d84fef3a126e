package wal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/vfs"
)

// TestFailuresStayUnread: what a failed write or sync left in the file, whole
// or torn, is not read once the WAL has recovered, now or after a restart; is
// no damage; and its numbers are not used again.
func TestFailuresStayUnread(t *testing.T) {
	for name, c := range map[string]struct {
		kind  vfs.OpKind
		short int
	}{
		"sync": {vfs.OpSync, 0}, "no byte written": {vfs.OpWrite, 0}, "torn": {vfs.OpWrite, 60},
		"first unit whole, second torn": {vfs.OpWrite, 1 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { failOnce(t, c.kind, c.short) })
		})
	}
}

func failOnce(t *testing.T, kind vfs.OpKind, short int) {
	m := newMem(t)
	var fail atomic.Bool
	f := vfs.NewFault(m, func(op vfs.Op) vfs.Fault {
		if op.Kind == kind && op.Len != headerWrite && fail.Load() {
			return vfs.Fault{Err: errDisk, Short: short}
		}
		return vfs.Fault{}
	})
	w := open(t, f, plain)
	_, err := appendNames(w, "a")
	must(t, err)
	failed := w.nextSeq
	fail.Store(true)
	if _, err := appendNames(w, "bad", fmt.Sprintf("worse%0900d", 0)); !errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrRefused) {
		t.Fatalf("failed %s: %v", kind, err)
	}
	if _, err := appendNames(w, "refused"); !errors.Is(err, ErrRefused) {
		t.Fatalf("after it: %v", err)
	}
	fail.Store(false)
	pass(2 * time.Second)
	id, err := appendNames(w, "c")
	must(t, err)
	if id.Seq < failed+2 {
		t.Errorf("sequence %d used again", id.Seq)
	}
	for _, restarted := range []bool{false, true, true} {
		if restarted {
			must(t, w.Close())
			w = open(t, f, plain)
		}
		if got := namesOf(drain(t, w)); !slices.Equal(got, []string{"a", "c"}) {
			t.Errorf("restarted %v: read %v", restarted, got)
		}
		if s := w.Stats(); s.Damages != 0 || s.Backlog != 2 {
			t.Errorf("restarted %v: %+v", restarted, s)
		}
	}
	must(t, w.Close())
}

// TestRecoveredButEmptySegmentStillHides: the segment that hides refused
// records is kept over restarts although it holds nothing.
func TestRecoveredButEmptySegmentStillHides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem(t)
		var fail atomic.Bool
		f := vfs.NewFault(m, func(op vfs.Op) vfs.Fault {
			if op.Kind == vfs.OpSync && fail.Load() {
				return vfs.Fault{Err: errDisk}
			}
			return vfs.Fault{}
		})
		w := open(t, f, plain)
		_, err := appendNames(w, "a")
		must(t, err)
		fail.Store(true)
		if _, err = appendNames(w, "bad"); err == nil {
			t.Fatal("the sync did not fail")
		}
		fail.Store(false)
		pass(2 * time.Second)
		for range 4 {
			must(t, w.Close())
			w = open(t, f, plain)
			if n := len(w.log.Segments()); n > 3 {
				t.Errorf("restarts leave %d segments", n)
			}
		}
		if got := namesOf(drain(t, w)); !slices.Equal(got, []string{"a"}) {
			t.Errorf("read %v", got)
		}
		must(t, w.Close())
	})
}

// TestFailingForLongLeavesNoHeap: a disk that takes headers and nothing else.
func TestFailingForLongLeavesNoHeap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem(t)
		f := vfs.NewFault(m, func(op vfs.Op) vfs.Fault {
			if op.Kind == vfs.OpWrite && op.Len != headerWrite {
				return vfs.Fault{Err: errDisk, Short: 10}
			}
			return vfs.Fault{}
		})
		w := open(t, f, plain)
		for range 20 {
			if _, err := appendNames(w, "bad"); !errors.Is(err, ErrUnavailable) {
				t.Errorf("Append = %v", err)
			}
			pass(2 * time.Second)
		}
		if entries, err := m.ReadDir(dir); err != nil || len(entries) > 4 {
			t.Errorf("%d files, %v", len(entries), err)
		}
		must(t, w.Close())
	})
}

// TestOnlySyncedIsRead looks from inside the sync.
func TestOnlySyncedIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w *WAL
		looked := 0
		f := vfs.NewFault(newMem(t), func(op vfs.Op) vfs.Fault {
			if op.Kind == vfs.OpSync && w != nil {
				looked++
				if rec, ok, err := w.Reader().TryNext(); ok || err != nil {
					t.Errorf("read %v, %v before the sync", rec, err)
				}
			}
			return vfs.Fault{}
		})
		w = open(t, f, plain)
		_, err := appendNames(w, "a")
		must(t, err)
		if got := drain(t, w); looked != 1 || len(got) != 1 {
			t.Errorf("looked %d times, read %v", looked, got)
		}
		must(t, w.Close())
	})
}

// TestStagedBeforeFailureIsRefused: a unit that waited through failure and
// recovery has a number below the new segment's, and must not be written there.
func TestStagedBeforeFailureIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t, newMem(t), plain)
		w.mu.Lock()
		w.stageLocked([]Entry{entry("late")})
		g := w.cur
		g.led = true
		w.mu.Unlock()
		w.fail(errDisk)
		must(t, w.revive())
		w.lead(g)
		if !errors.Is(g.err, ErrRefused) {
			t.Errorf("err = %v", g.err)
		}
		_, err := appendNames(w, "next")
		must(t, err)
		if got := namesOf(drain(t, w)); !slices.Equal(got, []string{"next"}) {
			t.Errorf("read %v", got)
		}
		must(t, w.Close())
	})
}

// TestCheckpointSlots cuts the power, and fails, at each operation: what store
// confirmed is never lost, and something valid is always there.
func TestCheckpointSlots(t *testing.T) {
	m := newMem(t)
	must(t, m.MkdirAll(dir))
	must(t, m.SyncDir("d"))
	confirmed, ops := uint64(0), 0
	f := vfs.NewFault(m, func(op vfs.Op) vfs.Fault {
		if !op.Changes() || confirmed == 0 {
			return vfs.Fault{}
		}
		ops++
		for seed := range uint64(8) {
			checkSlots(t, m.CrashClone(rand.New(rand.NewPCG(uint64(ops), seed))), confirmed)
		}
		if ops%5 == 0 {
			return vfs.Fault{Err: errDisk, Short: 20, Lost: ops%2 == 0}
		}
		return vfs.Fault{}
	})
	s, _, err := openSlots(f, dir)
	must(t, err)
	for n := uint64(1); n < 30; n++ {
		if err := s.store(checkpoint{pos: seglog.Pos{Segment: n}}); err == nil {
			confirmed = n
			checkSlots(t, m.CrashClone(nil), n)
		}
	}
	must(t, s.f.Close())
}

func checkSlots(t *testing.T, m *vfs.Mem, confirmed uint64) {
	t.Helper()
	s, c, err := openSlots(m, dir)
	must(t, err)
	if c.pos.Segment < confirmed {
		t.Fatalf("confirmed %d, found %d", confirmed, c.pos.Segment)
	}
	must(t, s.f.Close())
}

// TestRemainsThatCouldNotBeRemoved: a torn unit in a segment of which nothing
// was acknowledged, and whose removal failed, is neither read nor damage.
func TestRemainsThatCouldNotBeRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem(t)
		var fail atomic.Bool
		f := vfs.NewFault(m, func(op vfs.Op) vfs.Fault {
			if fail.Load() && (op.Kind == vfs.OpRemove || op.Kind == vfs.OpWrite && op.Len != headerWrite) {
				return vfs.Fault{Err: errDisk, Short: 60}
			}
			return vfs.Fault{}
		})
		w := open(t, f, plain)
		fail.Store(true)
		if _, err := appendNames(w, "bad"); !errors.Is(err, ErrOutcomeUnknown) {
			t.Fatalf("Append = %v", err)
		}
		pass(1500 * time.Millisecond)
		fail.Store(false)
		if n := len(w.log.Segments()); n != 2 {
			t.Fatalf("%d segments", n)
		}
		_, err := appendNames(w, "a")
		must(t, err)
		must(t, w.Close())
		w = open(t, f, plain)
		if got := namesOf(drain(t, w)); !slices.Equal(got, []string{"a"}) || w.Stats().Damages != 0 {
			t.Errorf("read %v, %+v", got, w.Stats())
		}
		must(t, w.Close())
	})
}

// TestIdleFreesOldSegments: what earlier processes left and is done goes
// without a new record to push it.
func TestIdleFreesOldSegments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem(t)
		for range 3 {
			w := open(t, m, plain)
			_, err := appendNames(w, "a")
			must(t, err)
			must(t, w.Close())
		}
		w := open(t, m, plain)
		if n := len(w.log.Segments()); n != 4 {
			t.Fatalf("%d segments before", n)
		}
		for _, r := range drain(t, w) {
			w.Done(r.Position)
		}
		pass(time.Second)
		if n := len(w.log.Segments()); n != 1 {
			t.Errorf("%d segments after", n)
		}
		must(t, w.Close())
	})
}
