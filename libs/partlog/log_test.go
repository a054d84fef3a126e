package partlog

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

const dir = "data/topics/orders/p00000"

func newFS(t testing.TB) *vfs.Mem {
	t.Helper()
	m := vfs.NewMem()
	if err := m.MkdirAll("data/topics/orders"); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"/", "data", "data/topics", "data/topics/orders"} {
		if err := m.SyncDir(d); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func open(t testing.TB, fs vfs.FS, opt Options) *Log {
	t.Helper()
	l, err := Open(fs, dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// lead opens and begins the next epoch at the end, or at the stored HWM.
func lead(t testing.TB, fs vfs.FS, opt Options) *Log {
	t.Helper()
	l := open(t, fs, opt)
	begin(t, l)
	return l
}

func begin(t testing.TB, l *Log) {
	t.Helper()
	st, _ := l.State()
	if err := l.BeginEpoch(max(l.LastEpoch(), l.began)+1, max(l.LEO(), st.HWM)); err != nil {
		t.Fatal(err)
	}
}

func streamOf(id uint64) record.Stream {
	return record.Stream{Kind: record.StreamWAL, ID: topic.ID64(id)}
}

// batch makes a batch of n records, numbered from seq, of some bytes each.
func batch(t testing.TB, s record.Stream, seq uint64, n, size int) []byte {
	t.Helper()
	var b record.Builder
	b.Reset(s, 0, record.Oldest{})
	for i := range n {
		body := append([]byte{0}, bytes.Repeat([]byte{byte(seq) + byte(i)}, size)...)
		if err := b.Add(seq+uint64(i), body); err != nil {
			t.Fatal(err)
		}
	}
	return b.Finish(record.CodecNone)
}

func app(t testing.TB, l *Log, b []byte, ms int64) int64 {
	t.Helper()
	base, err := l.Append(b, l.began, ms)
	if err != nil {
		t.Fatal(err)
	}
	return base
}

func syncLog(t testing.TB, l *Log) int64 {
	t.Helper()
	end, err := l.Sync()
	if err != nil {
		t.Fatal(err)
	}
	return end
}

func save(t testing.TB, l *Log, hwm int64, sync bool) {
	t.Helper()
	st, _ := l.State()
	st.HWM = hwm
	if err := l.SaveState(st, sync); err != nil {
		t.Fatal(err)
	}
}

type rec struct {
	offset int64
	seq    uint64
}

// readAll reads everything by chunks and returns records and skipped offsets.
func readAll(t testing.TB, l *Log, from, limit int64, maxBytes int) (out []rec, skipped int64) {
	t.Helper()
	var d record.Decoder
	for at := from; at < limit; {
		c, err := l.Read(at, limit, maxBytes, nil)
		if err != nil {
			t.Fatalf("read at %d: %v", at, err)
		}
		if c.Next <= at {
			t.Fatalf("read at %d stays there: %+v", at, c)
		}
		skipped += c.Skipped
		for b := c.Batches; len(b) > 0; {
			h, one, rest, err := record.Split(b)
			if err != nil {
				t.Fatal(err)
			}
			b = rest
			if err := d.Reset(one); err != nil {
				t.Fatal(err)
			}
			for r, ok := d.Next(); ok; r, ok = d.Next() {
				if r.Offset < from {
					continue
				}
				out = append(out, rec{r.Offset, r.Number.Seq})
			}
			if h.Control {
				out = append(out, rec{h.BaseOffset, math.MaxUint64})
			}
		}
		at = c.Next
	}
	return out, skipped
}

func wantRecords(t testing.TB, got []rec, first int64, seqs ...uint64) {
	t.Helper()
	var want []rec
	for i, s := range seqs {
		want = append(want, rec{first + int64(i), s})
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestAppendSyncReadReopen(t *testing.T) {
	fs := newFS(t)
	l := lead(t, fs, Options{})
	if base := app(t, l, batch(t, streamOf(1), 10, 3, 20), 1000); base != 0 {
		t.Fatalf("first base %d", base)
	}
	if base := app(t, l, batch(t, streamOf(2), 70, 2, 20), 1005); base != 3 {
		t.Fatalf("second base %d", base)
	}
	if l.LEO() != 0 || l.WrittenEnd() != 5 {
		t.Fatalf("unsynced: LEO %d, written %d", l.LEO(), l.WrittenEnd())
	}
	if end := syncLog(t, l); end != 5 || l.LEO() != 5 {
		t.Fatalf("synced end %d", end)
	}
	for range 2 {
		got, skipped := readAll(t, l, 0, 5, 1)
		wantRecords(t, got, 0, 10, 11, 12, 70, 71)
		if skipped != 0 || l.LEO() != 5 || l.LogStart() != 0 || l.LastEpoch() != 1 || l.LastCommitMS() != 1005 {
			t.Fatalf("skipped %d, LEO %d, start %d, epoch %d, commit %d", skipped, l.LEO(), l.LogStart(), l.LastEpoch(), l.LastCommitMS())
		}
		for id, want := range map[uint64]uint64{1: 12, 2: 71, 3: 0} {
			if n, ok := l.Producer(streamOf(id)); n.Seq != want || ok != (want > 0) {
				t.Fatalf("producer %d: %+v, %t", id, n, ok)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = open(t, fs, Options{})
	}
}

func TestReadErrorsAndLimits(t *testing.T) {
	l := lead(t, newFS(t), Options{})
	app(t, l, batch(t, streamOf(1), 1, 4, 10), 1)
	if _, err := l.Read(5, 10, 100, nil); !errors.Is(err, ErrOutOfRange) {
		t.Errorf("above the end: %v", err)
	}
	if c, err := l.Read(4, 10, 100, nil); err != nil || len(c.Batches) != 0 || c.Next != 4 {
		t.Errorf("at the end: %+v, %v", c, err)
	}
	if c, err := l.Read(0, 2, 100, nil); err != nil || len(c.Batches) != 0 || c.Next != 0 {
		t.Errorf("a limit within a batch: %+v, %v", c, err)
	}
	if c, err := l.Read(2, 4, 1, make([]byte, 1<<16)); err != nil || c.Next != 4 || c.Skipped != 0 {
		t.Errorf("an offset within a batch: %+v, %v", c, err)
	}
}

func TestBeginEpochRules(t *testing.T) {
	fs := newFS(t)
	l := open(t, fs, Options{})
	b := batch(t, streamOf(1), 1, 1, 10)
	if _, err := l.Append(b, 1, 1); !errors.Is(err, ErrStaleEpoch) {
		t.Errorf("append before any epoch: %v", err)
	}
	if err := l.BeginEpoch(3, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(b, 2, 1); !errors.Is(err, ErrStaleEpoch) {
		t.Errorf("append under another epoch: %v", err)
	}
	app(t, l, b, 1)
	if err := l.BeginEpoch(3, 1); !errors.Is(err, ErrStaleEpoch) {
		t.Errorf("the same epoch again: %v", err)
	}
	if err := l.BeginEpoch(4, 0); err == nil {
		t.Error("began below the end")
	}
	if err := l.BeginEpoch(7, 1); err != nil {
		t.Fatal(err)
	}
	app(t, l, record.AppendLeaderChange(nil, 7), 1)
	if got := l.Epochs(); !slices.Equal(got, []EpochStart{{Epoch: 3, Start: 0}, {Epoch: 7, Start: 1}}) {
		t.Errorf("epochs %v", got)
	}
	syncLog(t, l)
	_ = l.Close()
	l = open(t, fs, Options{})
	if got := l.Epochs(); !slices.Equal(got, []EpochStart{{Epoch: 3, Start: 0}, {Epoch: 7, Start: 1}}) {
		t.Errorf("epochs %v after reopening", got)
	}
	if err := l.BeginEpoch(7, 2); !errors.Is(err, ErrStaleEpoch) {
		t.Errorf("reopened in its own epoch: %v", err)
	}
}

func TestSegmentsRollAndReadsCrossThem(t *testing.T) {
	fs := newFS(t)
	opt := Options{SegmentBytes: 4 << 10}
	l := lead(t, fs, opt)
	var want []uint64
	for i := range uint64(100) {
		app(t, l, batch(t, streamOf(1), i*3+1, 3, 50), int64(i))
		want = append(want, i*3+1, i*3+2, i*3+3)
	}
	syncLog(t, l)
	if n := len(l.bases); n < 5 {
		t.Fatalf("%d segments", n)
	}
	for _, maxBytes := range []int{1, 1000, 1 << 20} {
		got, skipped := readAll(t, l, 0, 300, maxBytes)
		wantRecords(t, got, 0, want...)
		if skipped != 0 {
			t.Fatalf("skipped %d", skipped)
		}
	}
	_ = l.Close()
	l = open(t, fs, opt)
	for from := int64(0); from < 300; from += 7 { // random access, without hints
		got, _ := readAll(t, l, from, 300, 700)
		wantRecords(t, got, from, want[from:]...)
	}
	if n, _ := l.Producer(streamOf(1)); n.Seq != 300 {
		t.Fatalf("producer at %d", n.Seq)
	}
	for _, ms := range []int64{-1, 0, 1, 50, 99, 100} {
		at, err := l.OffsetAt(ms, 300)
		if want := min(max(ms, 0)*3, 300); err != nil || at != want {
			t.Errorf("OffsetAt(%d) = %d, %v, want %d", ms, at, err, want)
		}
	}
}

func TestPayloadSizes(t *testing.T) {
	fs := newFS(t)
	l := lead(t, fs, Options{SegmentBytes: 1 << 20})
	var want []uint64
	for i, size := range []int{1, 100, 4 << 10, 64 << 10, 1 << 20, 1, 2 << 20} {
		app(t, l, batch(t, streamOf(1), uint64(i+1), 1, size), 1)
		want = append(want, uint64(i+1))
	}
	syncLog(t, l)
	_ = l.Close()
	l = open(t, fs, Options{})
	got, _ := readAll(t, l, 0, 7, 1<<10)
	wantRecords(t, got, 0, want...)
}

func TestIdleLogHoldsNoFile(t *testing.T) {
	opened := 0
	mem := newFS(t)
	fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpOpen || op.Kind == vfs.OpCreate {
			opened++
		}
		return vfs.Fault{}
	})
	l := lead(t, fs, Options{})
	app(t, l, batch(t, streamOf(1), 1, 1, 10), 1)
	syncLog(t, l)
	save(t, l, 1, true)
	if err := l.ReleaseFiles(); err != nil {
		t.Fatal(err)
	}
	before := opened
	app(t, l, batch(t, streamOf(1), 2, 1, 10), 1)
	syncLog(t, l)
	if opened != before+1 {
		t.Errorf("%d opens for an append after idling", opened-before)
	}
	got, _ := readAll(t, l, 0, 2, 100)
	wantRecords(t, got, 0, 1, 2)
}

// A shortage of descriptors is no failure: nothing was written, nothing is cut.
func TestNoDescriptorsIsNotAFailure(t *testing.T) {
	mem := newFS(t)
	short := false
	fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
		if short && (op.Kind == vfs.OpOpen || op.Kind == vfs.OpCreate) {
			return vfs.Fault{Err: syscall.EMFILE}
		}
		return vfs.Fault{}
	})
	l := lead(t, fs, Options{})
	short = true
	for range 2 {
		if _, err := l.Append(batch(t, streamOf(1), 1, 1, 10), 1, 1); !errors.Is(err, syscall.EMFILE) || errors.Is(err, ErrFailed) {
			t.Fatalf("first segment: %v", err)
		}
	}
	short = false
	app(t, l, batch(t, streamOf(1), 1, 1, 10), 1)
	syncLog(t, l)
	_ = l.ReleaseFiles()
	short = true
	if _, err := l.Append(batch(t, streamOf(1), 2, 1, 10), 1, 1); !errors.Is(err, syscall.EMFILE) || l.Failed() != nil {
		t.Fatalf("append: %v", err)
	}
	if _, err := l.Read(0, 1, 100, nil); !errors.Is(err, syscall.EMFILE) {
		t.Fatalf("read: %v", err)
	}
	short = false
	if base := app(t, l, batch(t, streamOf(1), 2, 1, 10), 1); base != 1 {
		t.Fatalf("base %d", base)
	}
}

func TestFailedSyncOrWriteEndsTheEpoch(t *testing.T) {
	for _, kind := range []vfs.OpKind{vfs.OpSync, vfs.OpWrite} {
		for _, cutFails := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, cut fails %t", kind, cutFails), func(t *testing.T) {
				mem := newFS(t)
				fail := false
				fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
					if fail && (op.Kind == kind || cutFails && op.Kind == vfs.OpTruncate) {
						return vfs.Fault{Err: syscall.EIO}
					}
					return vfs.Fault{}
				})
				l := lead(t, fs, Options{})
				app(t, l, batch(t, streamOf(1), 1, 2, 10), 1)
				syncLog(t, l)
				app(t, l, batch(t, streamOf(1), 3, 2, 10), 1)
				fail = true
				var err error
				if kind == vfs.OpSync {
					_, err = l.Sync()
				} else {
					_, err = l.Append(batch(t, streamOf(1), 5, 2, 10), 1, 1)
				}
				if !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.EIO) {
					t.Fatalf("failure: %v", err)
				}
				fail = false
				if _, err := l.Append(batch(t, streamOf(1), 5, 2, 10), 1, 1); !errors.Is(err, ErrFailed) {
					t.Fatalf("append in the failed epoch: %v", err)
				}
				if _, err := l.Sync(); !errors.Is(err, ErrFailed) {
					t.Fatalf("sync in the failed epoch: %v", err)
				}
				if n, _ := l.Producer(streamOf(1)); n.Seq != 2 || l.WrittenEnd() != 2 || l.LEO() != 2 {
					t.Fatalf("after the failure: producer %d, written %d, LEO %d", n.Seq, l.WrittenEnd(), l.LEO())
				}
				begin(t, l)
				if base := app(t, l, batch(t, streamOf(1), 9, 1, 10), 1); base != 2 {
					t.Fatalf("base %d", base)
				}
				syncLog(t, l)
				for range 2 {
					got, _ := readAll(t, l, 0, 3, 1<<10)
					wantRecords(t, got, 0, 1, 2, 9)
					_ = l.Close()
					l = open(t, mem.Copy(), Options{})
				}
			})
		}
	}
}

// An abandoned file that could not be cut still holds what is not believed.
func TestAbandonedFileIsNotBelieved(t *testing.T) {
	mem := newFS(t)
	fail := false
	fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
		if fail && (op.Kind == vfs.OpSync || op.Kind == vfs.OpTruncate) && strings.HasPrefix(op.Path, dir+"/00000000000000000000") {
			return vfs.Fault{Err: syscall.EIO}
		}
		return vfs.Fault{}
	})
	l := lead(t, fs, Options{})
	app(t, l, batch(t, streamOf(1), 1, 2, 10), 1)
	syncLog(t, l)
	app(t, l, batch(t, streamOf(1), 3, 2, 10), 1)
	fail = true
	if _, err := l.Sync(); !errors.Is(err, ErrFailed) {
		t.Fatal(err)
	}
	begin(t, l)
	app(t, l, batch(t, streamOf(1), 20, 1, 10), 1)
	syncLog(t, l)
	save(t, l, 0, true)
	for range 2 {
		got, skipped := readAll(t, l, 0, 3, 1<<10)
		wantRecords(t, got, 0, 1, 2, 20)
		if n, _ := l.Producer(streamOf(1)); n.Seq != 20 || skipped != 0 {
			t.Fatalf("producer %d, skipped %d", n.Seq, skipped)
		}
		l = open(t, mem.Copy(), Options{})
	}
}
