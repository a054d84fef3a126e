package wal

import (
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

func openParked(t testing.TB, f vfs.FS, q Queue) *Parked {
	t.Helper()
	p, err := OpenParked(f, dir, q, Options{})
	must(t, err)
	return p
}

func drainParked(t testing.TB, p *Parked) []Record {
	t.Helper()
	var out []Record
	for {
		rec, err := p.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		must(t, err)
		again, err := p.ReadAt(rec.Position, nil)
		must(t, err)
		if again.ID != rec.ID || string(again.Body) != string(rec.Body) {
			t.Fatalf("ReadAt gives %v, Next gave %v", again.ID, rec.ID)
		}
		rec.Body = slices.Clone(rec.Body)
		out = append(out, rec)
	}
}

func idsOf(recs []Record) []ID {
	var out []ID
	for _, r := range recs {
		out = append(out, r.ID)
	}
	return out
}

// TestPark moves records of two identities, with gaps, and finds them in order
// with their IDs after a power cut, until the queue is removed.
func TestPark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem(t)
		w := open(t, m, small())
		_, err := appendNames(w, "a", "b", "c")
		must(t, err)
		must(t, w.Close())
		w = open(t, m, small())
		_, err = appendNames(w, "d", "e")
		must(t, err)
		recs := drain(t, w)
		recs = slices.Delete(recs, 1, 2)
		q := Queue{7, 3, true}
		p := openParked(t, m, q)
		must(t, p.Append(recs[:1]))
		must(t, p.Append(recs[1:]))
		for range 2 {
			for _, f := range []*vfs.Mem{m, m.CrashClone(nil)} {
				if qs, err := ListParked(f, dir); err != nil || !slices.Equal(qs, []Queue{q}) {
					t.Fatalf("ListParked = %v, %v", qs, err)
				}
			}
			c := openParked(t, m.CrashClone(nil), q)
			for _, p := range []*Parked{p, c} {
				got := drainParked(t, p)
				if !slices.Equal(idsOf(got), idsOf(recs)) || !slices.Equal(namesOf(got), namesOf(recs)) {
					t.Fatalf("parked %v, drained %v", namesOf(recs), namesOf(got))
				}
			}
			must(t, p.Close())
			p = openParked(t, m, q)
		}
		must(t, p.Remove())
		if qs, err := ListParked(m.CrashClone(nil), dir); err != nil || len(qs) != 0 {
			t.Errorf("after Remove: %v, %v", qs, err)
		}
		must(t, w.Close())
	})
}

// TestParkedIsReadOnAFullDisk: what lies there must be drained for room to come
// back, and opening it again and again leaves nothing behind.
func TestParkedIsReadOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem(t)
		w := open(t, m, small())
		_, err := appendNames(w, "a", "b")
		must(t, err)
		recs := drain(t, w)
		q := Queue{7, 3, true}
		p := openParked(t, m, q)
		must(t, p.Append(recs))
		must(t, p.Close())
		must(t, w.Close())
		m.SetCapacity(1)
		for range 3 {
			p = openParked(t, m, q)
			if got := drainParked(t, p); !slices.Equal(idsOf(got), idsOf(recs)) {
				t.Fatalf("drained %v", namesOf(got))
			}
			if n := len(p.log.Segments()); n != 1 {
				t.Fatalf("%d segments", n)
			}
			must(t, p.Close())
		}
		must(t, openParked(t, m, q).Remove())
	})
}

// TestParkFailsAndRepeats: what was not synced is not parked; the repeat keeps
// the order.
func TestParkFailsAndRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem(t)
		w := open(t, m, small())
		_, err := appendNames(w, "a", "b", "c", "d")
		must(t, err)
		recs := drain(t, w)
		var fail atomic.Bool
		f := vfs.NewFault(m, func(op vfs.Op) vfs.Fault {
			if op.Kind == vfs.OpSync && fail.Swap(false) {
				return vfs.Fault{Err: errDisk, Lost: true}
			}
			return vfs.Fault{}
		})
		p := openParked(t, f, Queue{7, 3, false})
		must(t, p.Append(recs[:2]))
		fail.Store(true)
		if err := p.Append(recs[2:]); !errors.Is(err, errDisk) {
			t.Fatalf("Append = %v", err)
		}
		must(t, p.Append(recs[2:]))
		if got := drainParked(t, p); !slices.Equal(namesOf(got), []string{"a", "b", "c", "d"}) {
			t.Errorf("drained %v", namesOf(got))
		}
		must(t, p.Close())
		p = openParked(t, m.CrashClone(nil), Queue{7, 3, false})
		if got := drainParked(t, p); !slices.Equal(namesOf(got), []string{"a", "b", "c", "d"}) {
			t.Errorf("after the cut %v", namesOf(got))
		}
		must(t, p.Close())
		must(t, w.Close())
	})
}

// TestParkedOutlivesItsDirectory: the name of the queue's directory is durable before a
// record counts as parked, also when the process that made it could not sync it.
func TestParkedOutlivesItsDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem(t)
		w := open(t, m, small())
		_, err := appendNames(w, "a")
		must(t, err)
		recs := drain(t, w)
		must(t, w.Close())
		q := Queue{7, 3, true}
		failed := false
		f := vfs.NewFault(m, func(op vfs.Op) vfs.Fault {
			if !failed && op.Kind == vfs.OpSyncDir && path.Base(op.Path) == parkedDir {
				failed = true
				return vfs.Fault{Err: errDisk}
			}
			return vfs.Fault{}
		})
		if _, err := OpenParked(f, dir, q, Options{}); !errors.Is(err, errDisk) {
			t.Fatalf("OpenParked = %v", err)
		}
		p := openParked(t, f, q)
		must(t, p.Append(recs))
		must(t, p.Close())
		p = openParked(t, m.CrashClone(nil), q)
		if got := drainParked(t, p); !slices.Equal(namesOf(got), []string{"a"}) {
			t.Errorf("after the cut %v", namesOf(got))
		}
		must(t, p.Close())
	})
}

func TestQueueNames(t *testing.T) {
	for _, q := range []Queue{{1, 0, false}, {0xffffffffffffffff, 1023, true}} {
		if got, ok := parseQueue(q.String()); !ok || got != q {
			t.Errorf("%s reads %v, %v", q, got, ok)
		}
	}
	for _, s := range []string{"", "x", "0000000000000001-0", "0000000000000001-0-else", "0000000000000001-01-free", "1-0-free"} {
		if q, ok := parseQueue(s); ok {
			t.Errorf("%q reads %v", s, q)
		}
	}
}

// FuzzSegment puts any bytes behind a segment's header. The WAL opens, reads,
// takes a record and reads that one last.
func FuzzSegment(f *testing.F) {
	m := newMem(f)
	opt := plain
	opt.Identity = func() topic.ID64 { return 1 }
	w := open(f, m, opt)
	for i := range 3 {
		_, err := appendNames(w, fmt.Sprintf("r%d", i), "x")
		must(f, err)
	}
	name := fmt.Sprintf("%s/%020d.log", dir, w.log.End().Segment)
	end := w.log.End().Offset
	must(f, w.Close())
	file, err := m.Open(name)
	must(f, err)
	frames := make([]byte, end-headerWrite)
	_, err = file.ReadAt(frames, headerWrite)
	must(f, err)
	f.Add(frames)
	f.Add(frames[len(frames)/2:])
	f.Add(append(slices.Clone(frames[:100]), frames...))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := m.Copy()
		file, err := c.Open(name)
		must(t, err)
		must(t, file.Truncate(headerWrite))
		_, err = file.WriteAt(b, headerWrite)
		must(t, err)
		w := open(t, c, plain)
		_, err = appendNames(w, "last")
		must(t, err)
		var last Record
		for {
			rec, ok, err := w.Reader().TryNext()
			must(t, err)
			if !ok {
				break
			}
			last = rec
			w.Done(rec.Position)
		}
		if nameOf(last) != "last" || w.Stats().Backlog != 0 {
			t.Errorf("read %q last, %+v", nameOf(last), w.Stats())
		}
		must(t, w.Close())
	})
}
