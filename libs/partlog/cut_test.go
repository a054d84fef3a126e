package partlog

import (
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// A cut within a batch takes the batch, one within a gap or at its end what is
// above the gap; a batch that holds the HWM is never cut.
func TestCutWithinABatch(t *testing.T) {
	for to, want := range map[int64]int64{0: 0, 1: 0, 3: 3, 4: 3, 5: 3, 6: 6, 8: 6, 10: 10, 11: 10, 12: 12} {
		fs := newFS(t)
		l := lead(t, fs, Options{})
		app(t, l, batch(t, streamOf(1), 1, 3, 20), 1)
		app(t, l, batch(t, streamOf(1), 11, 3, 20), 1)
		syncLog(t, l)
		if err := l.BeginEpoch(2, 10); err != nil {
			t.Fatal(err)
		}
		app(t, l, batch(t, streamOf(1), 20, 2, 20), 2)
		syncLog(t, l)
		if to == 4 {
			l.Committed(4)
			if err := l.Truncate(to); !errors.Is(err, ErrBelowHWM) || l.WrittenEnd() != 12 {
				t.Errorf("a batch that holds the HWM: %v, end %d", err, l.WrittenEnd())
			}
			continue
		}
		if err := l.Truncate(to); err != nil || l.WrittenEnd() != want || l.LEO() != want {
			t.Errorf("truncated to %d: end %d, want %d, %v", to, l.WrittenEnd(), want, err)
		}
		numbers := numbersOf(l)
		_ = l.Close()
		l = lead(t, fs, Options{})
		if l.LEO() != want || !reflect.DeepEqual(numbers, numbersOf(l)) {
			t.Errorf("truncated to %d: opened again at %d with %v, was %v", to, l.LEO(), numbersOf(l), numbers)
		}
	}
}

// hookedFS calls hook before and after each read.
type hookedFS struct {
	*vfs.Mem
	hook func()
}

type hookedFile struct {
	vfs.File
	hook func()
}

func (f hookedFS) Open(name string) (vfs.File, error) {
	file, err := f.Mem.Open(name)
	return hookedFile{file, f.hook}, err
}

func (f hookedFS) Create(name string) (vfs.File, error) {
	file, err := f.Mem.Create(name)
	return hookedFile{file, f.hook}, err
}

func (f hookedFile) ReadAt(p []byte, off int64) (int, error) {
	f.hook()
	defer f.hook()
	return f.File.ReadAt(p, off)
}

// A read of what is not committed may run while the log is cut and filled with
// other batches, at any of its reads of the disk: it never sees a gap that is not
// there, nor does any later one by what it has left in memory.
func TestReadsWhileTheLogIsCut(t *testing.T) {
	fill := func(l *Log, epoch topic.Epoch, size int) {
		t.Helper()
		if err := l.BeginEpoch(epoch, l.WrittenEnd()); err != nil {
			t.Fatal(err)
		}
		for i := range uint64(30) {
			app(t, l, batch(t, streamOf(uint64(size)), i+1, 1, size+int(i)*3), 1)
		}
		syncLog(t, l)
	}
	for i := range 4 {
		sealed, before, after := i%2 == 0, 20+i/2*70, 90-i/2*70 // smaller ones, larger ones
		for n := 1; ; n++ {
			reads, armed := 0, false
			var l *Log
			fs := hookedFS{newFS(t), func() {
				if reads++; armed && reads == n {
					armed = false
					if err := l.Truncate(3); err != nil {
						t.Fatal(err)
					}
					fill(l, 7, after)
				}
			}}
			opt := Options{}
			if sealed {
				opt.SegmentBytes = 3000
			}
			l = open(t, fs, opt)
			fill(l, 5, before)
			l.index = newIndexes() // as after many other segments were read
			reads, armed = 0, true
			if _, skipped := readAll(t, l, 14, 30, 500); skipped != 0 {
				t.Fatalf("sealed %t, cut at read %d: %d skipped beside it", sealed, n, skipped)
			}
			hit := !armed
			armed = false
			for from := range l.WrittenEnd() {
				if _, skipped := readAll(t, l, from, l.WrittenEnd(), 500); skipped != 0 {
					t.Fatalf("sealed %t, cut at read %d: %d skipped from %d on", sealed, n, skipped, from)
				}
			}
			if !hit {
				break
			}
		}
	}
}

// A fetch asks for much and there is little: the memory is that of the little.
func TestReadAtTheTailTakesLittleMemory(t *testing.T) {
	l := lead(t, newFS(t), Options{})
	app(t, l, batch(t, streamOf(1), 1, 1, 100), 1)
	c, err := l.Read(0, math.MaxInt64, 8<<20, nil)
	if err != nil || c.Next != 1 || cap(c.Batches) > 64<<10 {
		t.Errorf("%d bytes of capacity, next %d, %v", cap(c.Batches), c.Next, err)
	}
}

// An index that was built while its segment was cut is not believed.
func TestIndexBuiltWhileTheLogIsCut(t *testing.T) {
	var l *Log
	calls := 0
	l = open(t, hookedFS{newFS(t), func() {
		if calls--; calls == 0 {
			if err := l.Truncate(4); err != nil {
				t.Fatal(err)
			}
		}
	}}, Options{SegmentBytes: 200 << 10})
	if err := l.BeginEpoch(1, 0); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(12) { // four a segment
		app(t, l, batch(t, streamOf(1), i+1, 1, 40<<10), 1)
	}
	syncLog(t, l)
	forget := func() { l.index.drop(func(base int64) bool { return base == 4 }) }
	for _, cut := range []bool{false, true} {
		forget()
		if cut {
			calls = 2 // behind the only read
		}
		if err := l.buildIndex(4, 8); err != nil {
			t.Fatal(err)
		}
		if n := len(l.index.bySegment[4]); cut && n > 0 || !cut && n != 4 || l.WrittenEnd() == 4 != cut {
			t.Errorf("%d entries, cut %t, end %d", n, cut, l.WrittenEnd())
		}
	}
}
