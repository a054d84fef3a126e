package partlog

import (
	"errors"
	"slices"
	"testing"
)

func TestTruncateTakesNumbersAndEpochsBack(t *testing.T) {
	mem := newFS(t)
	opt := Options{SegmentBytes: 600}
	l := lead(t, mem, opt)
	for i := range uint64(6) {
		app(t, l, batch(t, streamOf(i%2), i+1, 2, 40), int64(i))
	}
	syncLog(t, l)
	save(t, l, 4, true)
	if err := l.BeginEpoch(5, 12); err != nil {
		t.Fatal(err)
	}
	app(t, l, batch(t, streamOf(7), 1, 1, 40), 7)
	syncLog(t, l)
	if err := l.Truncate(2); !errors.Is(err, ErrBelowHWM) {
		t.Fatalf("below the HWM: %v", err)
	}
	if err := l.Truncate(9); err != nil { // within the batch at 8, which goes
		t.Fatal(err)
	}
	for range 2 {
		for id, want := range map[uint64]uint64{0: 4, 1: 5, 7: 0} {
			if n, _ := l.Producer(streamOf(id)); n.Seq != want {
				t.Errorf("stream %d at %d, want %d", id, n.Seq, want)
			}
		}
		if got := l.Epochs(); l.LEO() != 8 || l.WrittenEnd() != 8 || !slices.Equal(got, []EpochStart{{Epoch: 1, Start: 0}}) || l.LastCommitMS() != 3 {
			t.Errorf("LEO %d, epochs %v, commit %d", l.LEO(), got, l.LastCommitMS())
		}
		_ = l.Close()
		l = open(t, mem, opt)
	}
	if err := l.BeginEpoch(6, 8); err != nil {
		t.Fatal(err)
	}
	if base := app(t, l, batch(t, streamOf(7), 1, 1, 40), 9); base != 8 {
		t.Errorf("appended at %d", base)
	}
}

func TestRetention(t *testing.T) {
	mem := newFS(t)
	opt := Options{SegmentBytes: 500}
	l := lead(t, mem, opt)
	for i := range uint64(20) { // two batches a segment
		app(t, l, batch(t, streamOf(i), i+1, 1, 50), int64(i)*1000)
	}
	syncLog(t, l)
	if r, err := l.Retain(100_000, 1000, 0, 0); err != nil || r.Segments != 0 || l.LogStart() != 0 {
		t.Fatalf("above the HWM: %+v, %v", r, err)
	}
	r, err := l.Retain(20_000, 14_000, 0, 20)
	if err != nil || l.LogStart() == 0 || l.LogStart() > 7 || r.LogStart != l.LogStart() {
		t.Fatalf("by age: %+v, %v, start %d", r, err, l.LogStart())
	}
	start := l.LogStart()
	if _, err := l.Read(start-1, 20, 100, nil); !errors.Is(err, ErrGone) {
		t.Fatalf("below the start: %v", err)
	}
	r, err = l.Retain(20_000, 0, 1500, 11)
	if err != nil || r.LogStart > 11 || r.LogStart <= start {
		t.Fatalf("by bytes below HWM 11: %+v, %v", r, err)
	}
	if r, err = l.Retain(20_000, 0, 1500, 20); err != nil || l.Bytes() > 1500 {
		t.Fatalf("by bytes: %+v, %v, %d bytes", r, err, l.Bytes())
	}
	start = l.LogStart()
	_ = l.Close()
	l = open(t, mem.CrashClone(nil), opt) // what was removed is in a durable snapshot
	for i := range uint64(20) {
		if n, ok := l.Producer(streamOf(i)); !ok || n.Seq != i+1 {
			t.Fatalf("stream %d: %+v, %t", i, n, ok)
		}
	}
	got, skipped := readAll(t, l, start, 20, 100)
	if l.LogStart() != start || skipped != 0 || int64(len(got)) != 20-start || l.Epochs()[0].Epoch != 1 {
		t.Fatalf("start %d, %v, epochs %v", l.LogStart(), got, l.Epochs())
	}
	// Everything is old: the active segment rolls, then goes; the end stays.
	begin(t, l)
	for range 2 {
		if _, err := l.Retain(1_000_000, 1000, 0, 20); err != nil {
			t.Fatal(err)
		}
	}
	if l.LogStart() != 20 || l.LEO() != 20 {
		t.Fatalf("start %d, LEO %d", l.LogStart(), l.LEO())
	}
	fs := l.fs
	_ = l.Close()
	l = lead(t, fs, opt)
	if base := app(t, l, batch(t, streamOf(1), 99, 1, 10), 2_000_000); base != 20 || l.LastCommitMS() != 2_000_000 {
		t.Fatalf("appended at %d", base)
	}
}
