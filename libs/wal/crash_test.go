package wal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// ledger is what a run of a WAL was told.
type ledger struct {
	acked   []string        // in order, by name
	never   map[string]bool // refused, or failed and a new segment taken since
	done    map[string]bool
	pending map[string]bool // failed, no new segment yet
	ids     map[ID]string
}

// TestPowerCutAtEveryOperation cuts the power before each operation of a run
// with rolls, recycling, checkpoints, failed writes and syncs. Every
// acknowledged record that is not done is read, in order and whole units only;
// none that was refused is. Then the WAL goes on, with numbers that were never used.
func TestPowerCutAtEveryOperation(t *testing.T) {
	for _, lost := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) { cutRun(t, lost) })
	}
}

func cutRun(t *testing.T, lost bool) {
	m := newMem(t)
	l := &ledger{never: map[string]bool{}, done: map[string]bool{}, pending: map[string]bool{}, ids: map[ID]string{}}
	var failKind vfs.OpKind
	quiet, ops := true, 0
	f := vfs.NewFault(m, func(op vfs.Op) vfs.Fault {
		if quiet || !op.Changes() {
			return vfs.Fault{}
		}
		ops++
		l.check(t, m.CrashClone(nil), uint64(ops))
		for seed := range uint64(5) {
			l.check(t, m.CrashClone(rand.New(rand.NewPCG(uint64(ops), seed))), uint64(ops))
		}
		if op.Kind == failKind && op.Len != headerWrite {
			failKind = ""
			return vfs.Fault{Err: errDisk, Lost: lost, Short: 50}
		}
		return vfs.Fault{}
	})
	opt := small()
	if lost {
		opt.FillAhead = -1
	}
	w := open(t, f, opt)
	quiet = false
	for i := range 40 {
		switch {
		case i%11 == 5:
			failKind = vfs.OpSync
		case i%11 == 9:
			failKind = vfs.OpWrite
		}
		l.append(t, w, fmt.Sprintf("r%d", i), fmt.Sprintf("r%dx%0*d", i, i, 0))
		if i%3 == 2 {
			for _, r := range drain(t, w) {
				if r.Seq%5 != 0 || i > 20 {
					w.Done(r.Position)
					l.done[nameOf(r)] = true
				}
			}
		}
		if w.failedNow() || i%7 == 6 {
			pass(1100 * time.Millisecond)
			if !w.failedNow() {
				for n := range l.pending {
					l.never[n] = true
				}
				clear(l.pending)
			}
		}
	}
	must(t, w.Close())
	quiet = true
	if ops < 100 || len(l.never) < 4 {
		t.Errorf("%d operations cut, %d records refused", ops, len(l.never))
	}
}

// headerWrite is the size of the write of a segment header, which these faults spare.
const headerWrite = 128

func (l *ledger) append(t *testing.T, w *WAL, names ...string) {
	t.Helper()
	first, err := appendNames(w, names...)
	switch {
	case err == nil:
		l.acked = append(l.acked, names...)
		for i, n := range names {
			id := ID{first.Identity, first.Seq + uint64(i)}
			if old, ok := l.ids[id]; ok {
				t.Fatalf("%v is %s and %s", id, old, n)
			}
			l.ids[id] = n
		}
	case errors.Is(err, ErrRefused):
		for _, n := range names {
			l.never[n] = true
		}
	default:
		for _, n := range names {
			l.pending[n] = true
		}
	}
}

func (l *ledger) check(t *testing.T, m *vfs.Mem, seed uint64) {
	t.Helper()
	opt := small()
	opt.Identity = func() topic.ID64 { return topic.ID64(1000 + seed) }
	w := open(t, m, opt)
	recs := drain(t, w)
	got := namesOf(recs)
	at := 0
	for _, n := range l.acked {
		i := slices.Index(got[at:], n)
		if i >= 0 {
			at += i + 1
		} else if !l.done[n] {
			t.Fatalf("acknowledged %s is missing or out of order\nread %v\nacked %v", n, got, l.acked)
		}
	}
	for i, r := range recs {
		if l.never[got[i]] {
			t.Fatalf("refused %s is read", got[i])
		}
		if slices.Index(got, got[i]) != i {
			t.Fatalf("%s is read twice", got[i])
		}
		if want, ok := l.ids[r.ID]; ok && want != got[i] {
			t.Fatalf("%v was %s and is %s", r.ID, want, got[i])
		}
	}
	id, err := appendNames(w, "new")
	must(t, err)
	for _, r := range recs {
		if r.ID == id {
			t.Fatalf("%v is used again", id)
		}
	}
	must(t, w.Close())
	w = open(t, m, opt)
	if again := namesOf(drain(t, w)); !slices.Equal(again, append(got, "new")) {
		t.Fatalf("read %v, then %v", got, again)
	}
	must(t, w.Close())
}

// plain keeps files as long as their frames, so that tests can cut them.
var plain = Options{FillAhead: -1}

// TestAnyFlippedBit: a flipped bit costs the unit that holds it, and is counted and
// copied aside; in the last unit too, unless it hits what tells that a unit stood
// there at all.
func TestAnyFlippedBit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem(t)
		w := open(t, m, plain)
		last := strings.Repeat("d", 90) // entry pads it with no zeros: they look like a write that did not get there
		all := []string{"a", "b1", "b2", "c", last}
		for _, unit := range [][]string{{"a"}, {"b1", "b2"}, {"c"}} {
			_, err := appendNames(w, unit...)
			must(t, err)
		}
		from := w.log.End().Offset
		_, err := appendNames(w, last)
		must(t, err)
		name := fmt.Sprintf("%s/%020d.log", dir, w.log.End().Segment)
		end := w.log.End().Offset
		must(t, w.Close())
		for at := range end {
			c := m.Copy()
			f, err := c.Open(name)
			must(t, err)
			var b [1]byte
			_, err = f.ReadAt(b[:], at)
			must(t, err)
			b[0] ^= 1 << (at % 8)
			_, err = f.WriteAt(b[:], at)
			must(t, err)
			w := open(t, c, plain)
			got, s := namesOf(drain(t, w)), w.Stats()
			switch {
			case at < headerWrite:
				if !slices.Equal(got, all) || s.Damages != 0 {
					t.Fatalf("header byte %d: %v", at, got)
				}
			case slices.Equal(got, all[:4]):
				if known := at >= from+16; known && (s.Damages != 1 || s.DamagedBytes != end-from) {
					t.Fatalf("byte %d of the last unit: %+v", at-from, s)
				}
				if copies, err := c.ReadDir(dir + "/damaged"); s.Damages == 1 && (err != nil || len(copies) != 1) {
					t.Fatalf("byte %d of the last unit: copied aside %v, %v", at-from, copies, err)
				}
			case len(got) < 3 || len(got) > 4 || s.Damages != 1 || s.DamagedBytes == 0 || s.Backlog != int64(len(got)):
				t.Fatalf("byte %d: %v, %+v", at, got, s)
			}
			must(t, w.Close())
		}
	})
}

// TestTornTail cuts the file at every byte of the last unit.
func TestTornTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem(t)
		w := open(t, m, plain)
		_, err := appendNames(w, "a")
		must(t, err)
		from := w.log.End()
		_, err = appendNames(w, "b", "c", "d")
		must(t, err)
		to := w.log.End()
		must(t, w.Close())
		for cut := int64(0); cut <= to.Offset; cut++ {
			c := m.Copy()
			f, err := c.Open(fmt.Sprintf("%s/%020d.log", dir, to.Segment))
			must(t, err)
			must(t, f.Truncate(cut))
			w := open(t, c, plain)
			_, err = appendNames(w, "e")
			must(t, err)
			want := []string{"a", "e"}
			switch {
			case cut == to.Offset:
				want = []string{"a", "b", "c", "d", "e"}
			case cut < from.Offset:
				want = []string{"e"}
			}
			if got := namesOf(drain(t, w)); !slices.Equal(got, want) || w.Stats().Damages != 0 {
				t.Fatalf("cut at %d: %v", cut, got)
			}
			must(t, w.Close())
		}
	})
}
