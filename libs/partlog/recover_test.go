package partlog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"testing"

	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/vfs"
)

func segFile(base int64) string { return path.Join(dir, fmt.Sprintf("%020d.log", base)) }

// change rewrites a file in place, as damage or an operator would.
func change(t testing.TB, fs vfs.FS, name string, f func(b []byte) []byte) {
	t.Helper()
	file, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	size, _ := file.Size()
	b := make([]byte, size)
	if _, err := file.ReadAt(b, 0); err != nil && size > 0 {
		t.Fatal(err)
	}
	b = f(b)
	if err := errors.Join(file.Truncate(0), file.Truncate(int64(len(b)))); err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		t.Fatal(err)
	}
}

// ledger is what a test was told: the oracle of a crash.
type ledger struct {
	seqs    []uint64 // by offset, everything ever appended in this epoch
	acked   int64    // synced end that was returned
	hwm     int64    // saved with sync
	removed int64    // log start that was returned
}

// checkCrash opens what a power cut left and compares it with the ledger.
func checkCrash(t *testing.T, disk vfs.FS, opt Options, led ledger, at string) {
	t.Helper()
	l, err := Open(disk, dir, opt)
	if err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	defer func() { _ = l.Close() }()
	st, _ := l.State()
	if l.LEO() < led.acked || l.LEO() > int64(len(led.seqs)) || l.LEO() != l.WrittenEnd() {
		t.Fatalf("%s: LEO %d, acknowledged %d of %d", at, l.LEO(), led.acked, len(led.seqs))
	}
	if st.HWM < led.hwm || st.HWM > l.LEO() || l.LogStart() > max(st.HWM, led.hwm) || l.LogStart() < led.removed {
		t.Fatalf("%s: start %d (%d), HWM %d (%d), LEO %d", at, l.LogStart(), led.removed, st.HWM, led.hwm, l.LEO())
	}
	// Of what was not synced any write may be lost, the last ones not first: a log whose
	// high watermark is known ends before them, another one has a gap above everything
	// acknowledged.
	if r := l.Recovery(); r.StateFound && r.GapOffsets > 0 {
		t.Fatalf("%s: what was never promised is missed: %+v", at, r)
	}
	got, skipped := readAll(t, l, l.LogStart(), l.LEO(), 700)
	gap := l.LEO()
	for i, r := range got {
		if r.seq != led.seqs[r.offset] {
			t.Fatalf("%s: offset %d holds %d, not %d", at, r.offset, r.seq, led.seqs[r.offset])
		}
		if r.offset != l.LogStart()+int64(i) {
			gap = min(gap, l.LogStart()+int64(i))
		}
	}
	if gap < led.acked || int64(len(got))+skipped != l.LEO()-l.LogStart() || l.Recovery().GapOffsets > skipped {
		t.Fatalf("%s: acknowledged %d, gap at %d, %d lost, recovery %+v", at, led.acked, gap, skipped, l.Recovery())
	}
	// The numbers stand at the last record of each stream in front of the gap.
	for id := range uint64(3) {
		want := uint64(0)
		for o := range gap {
			if s := led.seqs[o]; s>>32 == id {
				want = s
			}
		}
		if n, _ := l.Producer(streamOf(id)); n.Seq != want {
			t.Fatalf("%s: stream %d at %d, want %d", at, id, n.Seq&0xffff, want&0xffff)
		}
	}
	begin(t, l)
	if base := app(t, l, batch(t, streamOf(9), 1, 1, 10), 1_000_000); base != l.LEO() || base < st.HWM {
		t.Fatalf("%s: appended at %d", at, base)
	}
	syncLog(t, l)
}

// TestPowerCutAtEveryOperation appends, syncs, saves, rolls and removes, and
// looks at what a power cut before each change of the disk would leave.
func TestPowerCutAtEveryOperation(t *testing.T) {
	opt := Options{SegmentBytes: 1200}
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 7))
		mem := newFS(t)
		var led ledger
		fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
			if op.Changes() {
				at := fmt.Sprintf("seed %d, %s %s", seed, op.Kind, op.Path)
				checkCrash(t, mem.CrashClone(nil), opt, led, at)
				checkCrash(t, mem.CrashClone(rng), opt, led, at)
			}
			return vfs.Fault{}
		})
		l := lead(t, fs, opt)
		next := [3]uint64{1, 1<<32 + 1, 2<<32 + 1}
		for i := range 30 {
			id, n := rng.IntN(3), 1+rng.IntN(3)
			for k := range n {
				led.seqs = append(led.seqs, next[id]+uint64(k))
			}
			app(t, l, batch(t, streamOf(uint64(id)), next[id], n, 1+rng.IntN(120)), int64(i)*1000)
			next[id] += uint64(n)
			if rng.IntN(2) == 0 {
				led.acked = syncLog(t, l)
			}
			if led.acked = max(led.acked, l.LEO()); rng.IntN(3) == 0 {
				sync := rng.IntN(2) == 0
				save(t, l, led.acked, sync)
				if sync {
					led.hwm = led.acked
				}
			}
			if rng.IntN(8) == 0 {
				r, err := l.Retain(int64(i)*1000, 8000, 0, led.hwm)
				if err != nil {
					t.Fatal(err)
				}
				led.removed, led.acked = r.LogStart, l.LEO()
			}
		}
	}
}

// five makes a log of five batches of two records, synced, in one segment.
func five(t *testing.T, opt Options) (*vfs.Mem, []int64) {
	t.Helper()
	mem := newFS(t)
	l := lead(t, mem, opt)
	ends := []int64{seglog.HeaderSize}
	for i := range uint64(5) {
		app(t, l, batch(t, streamOf(1), i*2+1, 2, 30), int64(i))
		ends = append(ends, l.writtenPos.Offset)
	}
	syncLog(t, l)
	save(t, l, 0, true)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return mem, ends
}

func TestTornTailAtEveryByte(t *testing.T) {
	mem, ends := five(t, Options{})
	for cut := int64(0); cut <= ends[5]; cut++ {
		fs := mem.Copy()
		change(t, fs, segFile(0), func(b []byte) []byte { return b[:cut] })
		l := open(t, fs, Options{})
		whole := int64(0)
		for i, e := range ends[1:] {
			if cut >= e {
				whole = int64(i+1) * 2
			}
		}
		if l.LEO() != whole {
			t.Fatalf("cut at %d: LEO %d, want %d", cut, l.LEO(), whole)
		}
		begin(t, l)
		if base := app(t, l, batch(t, streamOf(2), 77, 1, 10), 9); base != whole {
			t.Fatalf("cut at %d: appended at %d", cut, base)
		}
		syncLog(t, l)
		got, _ := readAll(t, l, 0, whole+1, 1<<10)
		if int64(len(got)) != whole+1 || got[whole].seq != 77 {
			t.Fatalf("cut at %d: %v", cut, got)
		}
	}
}

// A damaged batch costs its own records only; what follows stays, is read, and
// the offsets between are counted. Numbers behind damage are not raised.
func TestFlippedBits(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		opt := Options{}
		mem, ends := five(t, opt)
		if sealed {
			l := lead(t, mem, opt)
			if err := l.rollLocked(10); err != nil {
				t.Fatal(err)
			}
			app(t, l, batch(t, streamOf(1), 11, 2, 30), 9)
			syncLog(t, l)
			_ = l.Close()
		}
		for at := ends[0]; at < ends[5]; at++ {
			hit := int64(0)
			for at >= ends[hit+1] {
				hit++
			}
			if hit == 4 && !sealed {
				break // the last batch of the active segment: a torn tail
			}
			fs := mem.Copy()
			change(t, fs, segFile(0), func(b []byte) []byte { b[at] ^= 1 << (at % 8); return b })
			l := open(t, fs, opt)
			end := int64(10)
			if sealed {
				end = 12
			}
			if l.LEO() != end {
				t.Fatalf("byte %d: LEO %d", at, l.LEO())
			}
			for _, maxBytes := range []int{1, 1 << 20} {
				got, skipped := readAll(t, l, 0, end, maxBytes)
				if skipped != 2 || int64(len(got)) != end-2 {
					t.Fatalf("byte %d: %d skipped, %v", at, skipped, got)
				}
				for _, r := range got {
					if r.seq != uint64(r.offset)+1 || r.offset/2 == hit {
						t.Fatalf("byte %d: %v", at, got)
					}
				}
			}
			if n, _ := l.Producer(streamOf(1)); n.Seq != uint64(hit)*2 || l.Recovery().GapOffsets != 2 {
				t.Fatalf("byte %d: producer at %d, recovery %+v", at, n.Seq, l.Recovery())
			}
			_ = l.Close()
		}
	}
}

func TestLogThatLostItsTailGoesOnAtItsHWM(t *testing.T) {
	for _, cut := range []int{-1, 0, 50, 128, 300} { // -1: the file is gone
		mem, _ := five(t, Options{})
		l := open(t, mem, Options{})
		save(t, l, 10, true)
		_ = l.Close()
		if cut < 0 {
			if err := errors.Join(mem.Remove(segFile(0)), mem.SyncDir(dir)); err != nil {
				t.Fatal(err)
			}
		} else {
			change(t, mem, segFile(0), func(b []byte) []byte { return b[:cut] })
		}
		l = open(t, mem, Options{})
		st, _ := l.State()
		lost := 10 - l.LEO()
		if st.HWM != 10 || lost <= 0 {
			t.Fatalf("cut at %d: HWM %d, LEO %d", cut, st.HWM, l.LEO())
		}
		if n, _ := l.Producer(streamOf(1)); n.Seq != 10 {
			t.Fatalf("cut at %d: producer at %d, the snapshot says 10", cut, n.Seq)
		}
		begin(t, l)
		if base := app(t, l, batch(t, streamOf(1), 50, 1, 10), 9); base != 10 {
			t.Fatalf("cut at %d: appended at %d", cut, base)
		}
		syncLog(t, l)
		for range 2 {
			got, skipped := readAll(t, l, l.LogStart(), 11, 1<<10)
			want := lost
			if l.LogStart() == 10 {
				want = 0 // nothing is left in front of the gap: it is below the log start
			}
			if skipped != want || int64(len(got)) != 11-lost {
				t.Fatalf("cut at %d: %d lost, %d skipped, %v", cut, lost, skipped, got)
			}
			if got[len(got)-1] != (rec{10, 50}) {
				t.Fatalf("cut at %d: %v", cut, got)
			}
			if n, _ := l.Producer(streamOf(1)); n.Seq != 50 {
				t.Fatalf("cut at %d: producer at %d", cut, n.Seq)
			}
			_ = l.Close()
			l = open(t, mem, Options{})
		}
	}
}

// A state file that is behind the log costs a longer replay, nothing else.
func TestStaleStateAndBadSlots(t *testing.T) {
	mem := newFS(t)
	opt := Options{SegmentBytes: 1000}
	l := lead(t, mem, opt)
	var stale []*vfs.Mem
	for i := range uint64(20) {
		app(t, l, batch(t, streamOf(i%3), i+1, 1, 100), int64(i))
		syncLog(t, l)
		save(t, l, l.LEO(), i%2 == 0)
		stale = append(stale, mem.Copy())
	}
	_ = l.Close()
	slots := []string{dir + "/state.0", dir + "/state.1"}
	check := func(fs vfs.FS, what string) {
		t.Helper()
		l := open(t, fs, opt)
		got, skipped := readAll(t, l, 0, 20, 300)
		if len(got) != 20 || skipped != 0 || l.LEO() != 20 {
			t.Fatalf("%s: %d records, LEO %d", what, len(got), l.LEO())
		}
		for id := range uint64(3) {
			if n, _ := l.Producer(streamOf(id)); n.Seq != 20-(19-id)%3 {
				t.Fatalf("%s: stream %d at %d", what, id, n.Seq)
			}
		}
		_ = l.Close()
	}
	for i, old := range stale {
		fs := mem.Copy()
		for _, slot := range slots {
			var content []byte
			if _, err := old.Stat(slot); err == nil {
				change(t, old, slot, func(b []byte) []byte { content = b; return b })
			}
			change(t, fs, slot, func([]byte) []byte { return content })
		}
		check(fs, fmt.Sprintf("state of step %d", i))
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{0, 1, 19, 20, 24, 400} {
		for _, which := range [][]string{slots[:1], slots[1:], slots} {
			fs := mem.Copy()
			for _, slot := range which {
				change(t, fs, slot, func(b []byte) []byte {
					g := make([]byte, n)
					for i := range g {
						g[i] = byte(rng.Uint32())
					}
					copy(g, b[:min(n, 12)]) // a head that looks right
					return g
				})
			}
			check(fs, fmt.Sprintf("%d bytes of garbage in %v", n, which))
		}
	}
}

// The slot that is known to be durable is never written to.
func TestTwoSlots(t *testing.T) {
	mem := newFS(t)
	l := lead(t, mem, Options{})
	for i := range int64(40) {
		app(t, l, batch(t, streamOf(1), uint64(i+1), 1, 10), i)
		syncLog(t, l)
	}
	durable := int64(-1)
	for i := range int64(40) {
		sync := i%5 == 0
		save(t, l, i, sync)
		if sync {
			durable = i
		}
		disk := mem.CrashClone(rand.New(rand.NewPCG(uint64(i), 3)))
		st, _ := open(t, disk, Options{}).State()
		if st.HWM < durable || st.HWM > i {
			t.Fatalf("saved %d, synced %d: HWM %d after a power cut", i, durable, st.HWM)
		}
	}
	st, _ := l.State()
	st.HWM = 3
	if err := l.SaveState(st, true); err != nil {
		t.Fatal(err)
	}
	if st, _ := l.State(); st.HWM != 39 {
		t.Errorf("the HWM went back to %d", st.HWM)
	}
	st.Position = make([]byte, MaxPosition+1)
	if err := l.SaveState(st, true); err == nil {
		t.Error("a position above the limit was saved")
	}
}

// A segment whose name is lost, or whose header is damaged: the others are read,
// what is missing is skipped and counted, and the log goes on at its end.
func TestLostSegmentAndBrokenHeader(t *testing.T) {
	for _, lost := range []bool{true, false} {
		mem := newFS(t)
		opt := Options{SegmentBytes: 500}
		l := lead(t, mem, opt)
		for i := range uint64(12) {
			app(t, l, batch(t, streamOf(1), i+1, 1, 50), int64(i))
		}
		syncLog(t, l)
		bases := slices.Clone(l.bases)
		_ = l.Close()
		gone := int64(0)
		if lost {
			gone = bases[2] - bases[1]
			if err := mem.Remove(segFile(bases[1])); err != nil {
				t.Fatal(err)
			}
		} else {
			for _, base := range []int64{bases[1], bases[len(bases)-1]} {
				change(t, mem, segFile(base), func(b []byte) []byte { b[20] ^= 1; return b })
			}
		}
		l = open(t, mem, opt)
		got, skipped := readAll(t, l, 0, 12, 1<<10)
		if skipped != gone || int64(len(got)) != 12-gone || l.LEO() != 12 {
			t.Fatalf("lost %t: %d skipped, LEO %d, %v", lost, skipped, l.LEO(), got)
		}
		if at, err := l.OffsetAt(11, 12); err != nil || at != 11 {
			t.Fatalf("lost %t: OffsetAt %d, %v", lost, at, err)
		}
		begin(t, l)
		if base := app(t, l, batch(t, streamOf(1), 99, 1, 10), 100); base != 12 {
			t.Fatalf("lost %t: appended at %d", lost, base)
		}
		syncLog(t, l)
		if r, err := l.Retain(1_000_000, 1000, 0, 13); err != nil || r.LogStart < 11 {
			t.Fatalf("lost %t: %+v, %v", lost, r, err)
		}
	}
}
