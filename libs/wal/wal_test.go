package wal

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/vfs"
)

const dir = "d/wal"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newMem(t testing.TB) *vfs.Mem {
	t.Helper()
	m := vfs.NewMem()
	must(t, m.MkdirAll("d"))
	must(t, m.SyncDir("/"))
	return m
}

// small makes rolls, fills and recycling happen within a few records.
func small() Options { return Options{SegmentBytes: 2000, FillAhead: 700, Recycle: 1} }

func open(t testing.TB, f vfs.FS, opt Options) *WAL {
	t.Helper()
	w, err := Open(f, dir, opt)
	must(t, err)
	return w
}

func entry(name string) Entry {
	return Entry{
		Topic: "orders", Incarnation: 7, Partition: int32(len(name)), Pinned: len(name)%2 == 0,
		AcceptMS: 1000 + int64(len(name)), Body: []byte(name + string(make([]byte, len(name)*29%90))),
	}
}

func appendNames(w *WAL, names ...string) (ID, error) {
	es := make([]Entry, len(names))
	for i, n := range names {
		es[i] = entry(n)
	}
	return w.Append(es)
}

func nameOf(rec Record) string {
	for i, c := range rec.Body {
		if c == 0 {
			return string(rec.Body[:i])
		}
	}
	return string(rec.Body)
}

// drain reads everything that is there, and checks that ReadAt agrees.
func drain(t testing.TB, w *WAL) []Record {
	t.Helper()
	var out []Record
	for {
		rec, ok, err := w.Reader().TryNext()
		must(t, err)
		if !ok {
			return out
		}
		rec.Body = slices.Clone(rec.Body)
		again, err := w.ReadAt(rec.Position, nil)
		must(t, err)
		want := entry(nameOf(rec))
		for _, r := range []Record{rec, again} {
			if r.ID != rec.ID || r.Topic != want.Topic || r.Incarnation != want.Incarnation || r.Partition != want.Partition ||
				r.Pinned != want.Pinned || r.AcceptMS != want.AcceptMS || string(r.Body) != string(want.Body) {
				t.Fatalf("read %+v, want %+v", r, want)
			}
		}
		out = append(out, rec)
	}
}

func namesOf(recs []Record) []string {
	var out []string
	for _, r := range recs {
		out = append(out, nameOf(r))
	}
	return out
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestFrameGolden(t *testing.T) {
	b := appendHead(nil, 1, ID{0x1122334455667788, 5})
	b = appendRecord(b, 0, 0, &Entry{Topic: "o", Incarnation: 9, Partition: 3, Pinned: true, AcceptMS: 258, Body: []byte("hi")})
	sealFrame(b, 0)
	setNonce(b, 0xabcd)
	const want = "4e57414c" + "4d000000" + "cdab000000000000" + "b589154c" + "01000000" + "8877665544332211" + "0500000000000000" +
		"25000000" + "40f7ae11" + "00000000" + "0201000000000000" + "0900000000000000" + "03000000" + "01" + "01" + "6f" + "6869"
	if got := hex.EncodeToString(b); got != want {
		t.Errorf("frame\n%s, want\n%s", got, want)
	}
	c := checkpoint{gen: 1, pos: seglog.Pos{Segment: 2, Offset: 3}, next: 4, seq: 5}
	const slot = "4e41524144434b50" + "0100000000000000" + "0200000000000000" + "0300000000000000" + "0400000000000000" + "0500000000000000" + "a84c8d68"
	if got := hex.EncodeToString(c.encode()); got != slot {
		t.Errorf("slot\n%s, want\n%s", got, slot)
	}
	if back, ok := parseCheckpoint(c.encode()); !ok || back != c {
		t.Errorf("slot reads %+v", back)
	}
}

func TestAppendReadReopen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem(t)
		w := open(t, m, Options{})
		first, err := appendNames(w, "a", "bb", "ccc")
		must(t, err)
		second, err := appendNames(w, "dddd")
		must(t, err)
		if second != (ID{first.Identity, first.Seq + 3}) || first.Identity != w.Identity() {
			t.Errorf("numbers %v then %v", first, second)
		}
		if s := w.Stats(); s.Backlog != 4 || s.BacklogBytes == 0 || s.Failed {
			t.Errorf("stats before reading %+v", s)
		}
		recs := drain(t, w)
		if got := namesOf(recs); !slices.Equal(got, []string{"a", "bb", "ccc", "dddd"}) {
			t.Fatalf("read %v", got)
		}
		w.Done(recs[1].Position, recs[0].Position, recs[1].Position)
		if s := w.Stats(); s.Backlog != 2 || s.OldestAcceptMS != 1001 {
			t.Errorf("stats in the middle %+v", s)
		}
		must(t, w.Close())
		w = open(t, m, Options{})
		again := drain(t, w)
		if got := namesOf(again); !slices.Equal(got, []string{"a", "bb", "ccc", "dddd"}) || again[3].ID != second {
			t.Fatalf("after a reopen with half a unit done: %v, %v", got, again[3].ID)
		}
		for _, r := range again {
			w.Done(r.Position)
		}
		pass(time.Second)
		if s := w.Stats(); s.Backlog != 0 || s.BacklogBytes != 0 || s.OldestAcceptMS != 0 {
			t.Errorf("stats at the end %+v", s)
		}
		must(t, w.Close())
		w = open(t, m, Options{})
		if got := drain(t, w); len(got) != 0 {
			t.Errorf("done records came back: %v", namesOf(got))
		}
		if s := w.Stats(); s.Backlog != 0 {
			t.Errorf("stats after a restart %+v", s)
		}
		must(t, w.Close())
	})
}

func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t, newMem(t), Options{})
		if _, err := w.Append([]Entry{{Topic: "o", Body: make([]byte, MaxUnitBytes)}}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("too large: %v", err)
		}
		if _, err := Open(w.fs, dir, Options{}); err == nil {
			t.Error("opened twice")
		}
		must(t, w.Close())
		if _, err := appendNames(w, "a"); !errors.Is(err, ErrClosed) || !errors.Is(err, ErrRefused) {
			t.Errorf("closed: %v", err)
		}
		if _, err := w.Reader().Next(context.Background()); !errors.Is(err, ErrClosed) {
			t.Errorf("reader of a closed wal: %v", err)
		}
	})
}

func TestReaderWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t, newMem(t), Options{})
		got := make(chan string)
		go func() {
			rec, err := w.Reader().Next(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- nameOf(rec)
		}()
		synctest.Wait()
		_, err := appendNames(w, "a")
		must(t, err)
		if name := <-got; name != "a" {
			t.Errorf("read %q", name)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := w.Reader().Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		must(t, w.Close())
	})
}

// TestFullDisk: nothing is acknowledged while the disk is full, no heap of
// segments is left, what was acknowledged can be read, and it recovers by itself.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem(t)
		w := open(t, m, small())
		_, err := appendNames(w, "before")
		must(t, err)
		total, free, _ := m.Usage("/")
		m.SetCapacity(int64(total - free + 300))
		refused := 0
		for i := range 30 {
			if _, err := appendNames(w, fmt.Sprintf("full%d-%0200d", i, 0)); err != nil {
				refused++
				if !errors.Is(err, ErrUnavailable) {
					t.Errorf("full disk: %v", err)
				}
			}
			pass(500 * time.Millisecond)
		}
		if n := len(w.log.Segments()); refused < 25 || n > 4 {
			t.Errorf("%d refused, %d segments", refused, n)
		}
		m.SetCapacity(0)
		pass(2 * time.Second)
		_, err = appendNames(w, "after")
		must(t, err)
		got := namesOf(drain(t, w))
		if len(got) != 2+30-refused || got[0] != "before" || got[len(got)-1] != "after" {
			t.Errorf("read %v", got)
		}
		must(t, w.Close())
	})
}

// TestOpenOnFullDisk: old records are dispatched, which is what makes room.
func TestOpenOnFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem(t)
		w := open(t, m, small())
		_, err := appendNames(w, "a")
		must(t, err)
		must(t, w.Close())
		total, free, _ := m.Usage("/")
		m.SetCapacity(int64(total - free))
		w = open(t, m, small())
		if _, err := appendNames(w, "b"); !errors.Is(err, ErrRefused) || !w.Stats().Failed {
			t.Errorf("full disk at open: %v", err)
		}
		if got := namesOf(drain(t, w)); !slices.Equal(got, []string{"a"}) {
			t.Errorf("read %v", got)
		}
		m.SetCapacity(0)
		pass(2 * time.Second)
		_, err = appendNames(w, "c")
		must(t, err)
		must(t, w.Close())
		w = open(t, m, small())
		if got := namesOf(drain(t, w)); !slices.Equal(got, []string{"a", "c"}) {
			t.Errorf("read %v", got)
		}
		must(t, w.Close())
	})
}

// TestManyAppenders: every unit is whole, in its appender's order, once.
func TestManyAppenders(t *testing.T) {
	w := open(t, newMem(t), Options{SegmentBytes: 20_000, FillAhead: 4000})
	const workers, each = 32, 40
	var wg sync.WaitGroup
	for k := range workers {
		wg.Go(func() {
			for i := range each {
				a, b := fmt.Sprintf("%d-%d-x", k, i), fmt.Sprintf("%d-%d-y", k, i)
				if _, err := appendNames(w, a, b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	next := map[int]int{}
	recs := drain(t, w)
	for i, r := range recs {
		var k, n int
		var half byte
		if _, err := fmt.Sscanf(nameOf(r), "%d-%d-%c", &k, &n, &half); err != nil {
			t.Fatal(err)
		}
		if n != next[k] || (half == 'x') != (i%2 == 0) {
			t.Fatalf("record %d is %s, appender %d is at %d", i, nameOf(r), k, next[k])
		}
		if half == 'y' {
			next[k]++
		}
		if i > 0 && r.Seq != recs[i-1].Seq+1 {
			t.Fatalf("sequence %d after %d", r.Seq, recs[i-1].Seq)
		}
	}
	if len(recs) != 2*workers*each {
		t.Errorf("%d records", len(recs))
	}
	rand.Shuffle(len(recs), func(i, j int) { recs[i], recs[j] = recs[j], recs[i] })
	for _, r := range recs {
		w.Done(r.Position)
	}
	must(t, w.Close())
	if s := &w.tracker; s.count != 0 || s.head != len(s.open) {
		t.Errorf("%d not done, %d of %d units", s.count, s.head, len(s.open))
	}
}

// TestCopyNeverReusesNumbers: a directory that was copied, and goes on in two
// places, gives no two records one ID.
func TestCopyNeverReusesNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem(t)
		w := open(t, m, small())
		_, err := appendNames(w, "a")
		must(t, err)
		c := m.Copy()
		ids := map[ID]string{}
		for i, f := range []*vfs.Mem{m, c} {
			if i == 0 {
				must(t, w.Close())
			}
			for range 3 {
				w := open(t, f, small())
				_, err := appendNames(w, fmt.Sprintf("copy%d", i), "x")
				must(t, err)
				for _, r := range drain(t, w) {
					name := nameOf(r)
					if name != "a" {
						name = fmt.Sprintf("%d/%s", i, name)
					}
					if old, ok := ids[r.ID]; ok && old != name {
						t.Fatalf("%v is %s and %s", r.ID, old, name)
					}
					ids[r.ID] = name
				}
				must(t, w.Close())
			}
		}
	})
}

// TestAnyCheckpoint: a lost, old, torn or senseless checkpoint repeats records
// and loses none.
func TestAnyCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem(t)
		w := open(t, m, Options{})
		for _, n := range []string{"a", "b", "c"} {
			_, err := appendNames(w, n)
			must(t, err)
		}
		recs := drain(t, w)
		w.Done(recs[0].Position)
		must(t, w.Close())
		far := checkpoint{gen: 99, pos: seglog.Pos{Segment: 1 << 40, Offset: 7}, seq: 3}
		for name, b := range map[string][]byte{
			"kept": nil, "empty": {}, "one byte": {1}, "garbage": []byte("garbage garbage garbage garbage garbage garbage garbage"),
			"zeros": make([]byte, 8192), "far": far.encode(),
		} {
			c := m.Copy()
			if b != nil {
				f, err := c.Open(dir + "/" + checkpointName)
				must(t, err)
				must(t, f.Truncate(0))
				_, err = f.WriteAt(b, 0)
				must(t, err)
			}
			w := open(t, c, Options{})
			want := []string{"a", "b", "c"}
			if b == nil {
				want = want[1:]
			}
			if got := namesOf(drain(t, w)); !slices.Equal(got, want) {
				t.Errorf("checkpoint %s: read %v", name, got)
			}
			must(t, w.Close())
		}
	})
}

var errDisk = syscall.EIO
