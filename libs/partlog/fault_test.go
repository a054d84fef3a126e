package partlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/vfs"
)

// A sync vouches for what was written before it began, not for what an appender
// adds while it runs.
func TestSyncVouchesForWhatWasBefore(t *testing.T) {
	mem := newFS(t)
	var l *Log
	during := false
	fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
		if during && op.Kind == vfs.OpSync {
			during = false
			app(t, l, batch(t, streamOf(1), 9, 1, 10), 2)
		}
		return vfs.Fault{}
	})
	l = lead(t, fs, Options{})
	app(t, l, batch(t, streamOf(1), 1, 1, 10), 1)
	during = true
	if end := syncLog(t, l); end != 1 || l.LEO() != 1 || l.WrittenEnd() != 2 {
		t.Fatalf("synced to %d, LEO %d, written %d", end, l.LEO(), l.WrittenEnd())
	}
	if end := syncLog(t, l); end != 2 {
		t.Fatalf("then to %d", end)
	}
}

// After a kill of the process what it wrote is in the page cache only: it is on
// disk before it is believed, records and state alike.
func TestWhatAKillLeftIsSyncedBeforeItIsBelieved(t *testing.T) {
	mem := newFS(t)
	l := lead(t, mem, Options{})
	app(t, l, batch(t, streamOf(1), 1, 4, 10), 1)
	syncLog(t, l)
	save(t, l, 2, true)
	save(t, l, 4, false)
	app(t, l, batch(t, streamOf(1), 5, 2, 10), 1)
	second := open(t, mem, Options{}) // the first was killed
	st, _ := second.State()
	if second.LEO() != 6 || st.HWM != 4 {
		t.Fatalf("LEO %d, HWM %d", second.LEO(), st.HWM)
	}
	third := open(t, mem.CrashClone(nil), Options{})
	st, _ = third.State()
	if third.LEO() != 6 || st.HWM != 4 {
		t.Fatalf("after the power cut: LEO %d, HWM %d", third.LEO(), st.HWM)
	}
}

// What a synced save told is there after a power cut, whatever failed before it: a slot
// whose name could not be synced when it was made is not durable because it is there.
func TestStateFaults(t *testing.T) {
	for n := 1; ; n++ {
		mem := newFS(t)
		armed, count, hit := false, 0, false
		l := lead(t, vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
			if armed && op.Changes() {
				count++
			}
			if armed && op.Changes() && count == n {
				hit = true
				return vfs.Fault{Err: syscall.EIO, Lost: true}
			}
			return vfs.Fault{}
		}), Options{})
		app(t, l, batch(t, streamOf(1), 1, 4, 10), 1)
		syncLog(t, l)
		armed = true
		for hwm := int64(1); hwm <= 4; hwm++ {
			st := State{CopyID: 7, HWM: hwm}
			if l.SaveState(st, true) != nil {
				if err := l.SaveState(st, true); err != nil {
					t.Fatalf("fault %d: %v", n, err)
				}
			}
			after := open(t, mem.CrashClone(nil), Options{})
			if got, found := after.State(); !found || got.CopyID != 7 || got.HWM != hwm {
				t.Fatalf("fault %d: found %t, copy %s up to %d; up to %d was saved", n, found, got.CopyID, got.HWM, hwm)
			}
		}
		if !hit {
			break
		}
	}
}

// A length that was changed to end exactly at a later batch must not hide the
// one between.
func TestBrokenChainOfHeadersHidesNothing(t *testing.T) {
	mem, ends := five(t, Options{})
	change(t, mem, segFile(0), func(b []byte) []byte {
		binary.BigEndian.PutUint32(b[ends[0]+8:], uint32(ends[2]-ends[0])-record.HeaderSize)
		binary.BigEndian.PutUint32(b[ends[0]+12:], uint32(ends[2]-ends[0])-record.HeaderSize)
		return b
	})
	l := open(t, mem, Options{})
	l.index = newIndexes() // as after many other segments were read
	l.index.put(0, []indexEntry{{0, ends[0], 0}})
	got, skipped := readAll(t, l, 3, 10, 1<<10)
	if len(got) != 7 || skipped != 0 || got[0].offset != 3 {
		t.Fatalf("%d skipped, %v", skipped, got)
	}
}

// A short write of any length is cut before the next append.
func TestShortWrites(t *testing.T) {
	data := batch(t, streamOf(1), 3, 2, 10)
	for short := range len(data) {
		mem := newFS(t)
		full := false
		fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
			if full && op.Kind == vfs.OpWrite {
				return vfs.Fault{Err: syscall.EIO, Short: short}
			}
			return vfs.Fault{}
		})
		l := lead(t, fs, Options{})
		app(t, l, batch(t, streamOf(1), 1, 2, 10), 1)
		syncLog(t, l)
		full = true
		if _, err := l.Append(data, l.began, 1); !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.EIO) {
			t.Fatal(err)
		}
		full = false
		begin(t, l)
		app(t, l, batch(t, streamOf(1), 5, 2, 10), 1)
		syncLog(t, l)
		l = open(t, mem.CrashClone(nil), Options{})
		got, skipped := readAll(t, l, 0, 4, 1<<10)
		wantRecords(t, got, 0, 1, 2, 5, 6)
		if skipped != 0 {
			t.Fatalf("%d bytes written: %d skipped", short, skipped)
		}
	}
}

// A write that finds no room, whatever it left, did nothing: the log goes on when
// there is room, with another batch too, and before a restart and after one.
func TestNoRoom(t *testing.T) {
	data := batch(t, streamOf(1), 3, 2, 10)
	for short := range len(data) {
		mem := newFS(t)
		full := false
		fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
			if full && op.Kind == vfs.OpWrite {
				return vfs.Fault{Err: syscall.ENOSPC, Short: short}
			}
			return vfs.Fault{}
		})
		l := lead(t, fs, Options{FillAhead: int64(short % 2 * 4096)})
		app(t, l, batch(t, streamOf(1), 1, 2, 10), 1) // not synced when the disk is full
		full = true
		for range 2 {
			if _, err := l.Append(data, l.began, 1); !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrFailed) || l.Failed() != nil {
				t.Fatal(err)
			}
		}
		crashed := mem.Copy()
		full = false
		app(t, l, batch(t, streamOf(1), 3, 1, 1), 1)
		syncLog(t, l)
		app(t, l, batch(t, streamOf(1), 5, 2, 10), 1)
		syncLog(t, l)
		got, _ := readAll(t, l, 0, 5, 1<<10)
		wantRecords(t, got, 0, 1, 2, 3, 5, 6)
		got, skipped := readAll(t, open(t, mem.CrashClone(nil), Options{}), 0, 5, 1<<10)
		wantRecords(t, got, 0, 1, 2, 3, 5, 6)
		if skipped != 0 {
			t.Fatalf("%d bytes written: %d skipped", short, skipped)
		}
		got, _ = readAll(t, open(t, crashed, Options{}), 0, 2, 1<<10)
		wantRecords(t, got, 0, 1, 2)
	}
}

// One operation fails, whichever: nothing acknowledged is lost, then or after a
// power cut, and the log goes on.
func TestFaultAtEveryOperation(t *testing.T) {
	for _, cause := range []syscall.Errno{syscall.EIO, syscall.EMFILE, syscall.ENOSPC} {
		for n := 0; ; n++ {
			mem := newFS(t)
			count, hit := 0, ""
			fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
				if count++; count-1 == n {
					hit = fmt.Sprintf("%s %s", op.Kind, op.Path)
					return vfs.Fault{Err: cause, Short: 7, Lost: true}
				}
				return vfs.Fault{}
			})
			faultRun(t, fs, mem, fmt.Sprintf("%v at operation %d", cause, n))
			if hit == "" {
				break
			}
		}
	}
}

func faultRun(t *testing.T, fs vfs.FS, mem *vfs.Mem, at string) {
	t.Helper()
	opt := Options{SegmentBytes: 600}
	retry := func(f func() error) {
		t.Helper()
		if f() == nil {
			return
		}
		if err := f(); err != nil {
			t.Fatalf("%s: again: %v", at, err)
		}
	}
	var l *Log
	retry(func() (err error) { l, err = Open(fs, dir, opt); return err })
	begin(t, l)
	acked := map[int64]uint64{}
	written := map[int64]uint64{}
	hwm := int64(0)
	for i := range uint64(12) {
		data := batch(t, streamOf(1), i+1, 1, 60)
		retry(func() error {
			base, err := l.Append(data, l.began, int64(i))
			if errors.Is(err, ErrFailed) {
				begin(t, l)
			}
			if err == nil {
				written[base] = i + 1
			}
			return err
		})
		if i%2 == 0 {
			continue
		}
		if end, err := l.Sync(); err == nil {
			for o := range end {
				acked[o] = written[o]
			}
			hwm = end
		} else if errors.Is(err, ErrFailed) {
			begin(t, l)
		}
		retry(func() error {
			st, _ := l.State()
			st.HWM = hwm
			return l.SaveState(st, i%3 == 0)
		})
		retry(l.ReleaseFiles)
	}
	retry(func() error { _, err := l.Retain(1000, 997, 0, hwm); return err })
	for _, disk := range []*vfs.Mem{mem.CrashClone(nil), mem.Copy()} {
		again, err := Open(disk, dir, opt)
		if err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		got, _ := readAll(t, again, again.LogStart(), again.LEO(), 200)
		have := map[int64]uint64{}
		for _, r := range got {
			have[r.offset] = r.seq
		}
		for o, seq := range acked {
			if o >= again.LogStart() && have[o] != seq {
				t.Fatalf("%s: offset %d holds %d, acknowledged was %d; start %d, %v", at, o, have[o], seq, again.LogStart(), got)
			}
		}
		if again.LogStart() > hwm || again.LEO() < hwm {
			t.Fatalf("%s: start %d, HWM %d, LEO %d", at, again.LogStart(), hwm, again.LEO())
		}
		_ = again.Close()
	}
	_ = l.Close()
}

// A log whose state is lost knows no HWM: what it keeps in memory of uncommitted
// batches is bounded all the same, and no snapshot above the HWM is written.
func TestTailIsBounded(t *testing.T) {
	tr := newTracked(newProducers())
	for i := range int64(maxTail + 10) {
		tr.apply(&entry{stream: streamOf(1), last: record.Number{Seq: uint64(i + 1)}, base: i, end: i + 1, raise: true})
	}
	if len(tr.tail) > maxTail || tr.base.at == 0 {
		t.Fatalf("%d batches in the tail", len(tr.tail))
	}
	l := &Log{track: tr}
	l.snapLocked()
	if l.encoded != nil {
		t.Error("a snapshot above the HWM")
	}
	tr.committed(maxTail + 10)
	l.snapLocked()
	if l.encodedAt != maxTail+10 {
		t.Errorf("snapshot at %d", l.encodedAt)
	}
}
