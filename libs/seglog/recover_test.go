package seglog

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/narad-mq/narad/libs/vfs"
)

// TestPowerCutAtEveryOperation cuts the power before each operation of a run of
// appends, syncs, rolls, a failed sync and removals. Every frame that Sync
// confirmed and RemoveBelow did not take is there, in order, and none twice;
// and the log takes frames again.
func TestPowerCutAtEveryOperation(t *testing.T) {
	m := vfs.NewMem()
	must(t, m.MkdirAll("d"))
	must(t, m.SyncDir("/"))
	var synced, removed uint64
	cuts := 0
	f := vfs.NewFault(m, func(op vfs.Op) vfs.Fault {
		if !op.Changes() {
			return vfs.Fault{}
		}
		cuts++
		checkCut(t, m.CrashClone(nil), synced, removed)
		for seed := range uint64(6) {
			checkCut(t, m.CrashClone(rand.New(rand.NewPCG(uint64(op.N), seed))), synced, removed)
		}
		return vfs.Fault{}
	})
	l := open(t, f, nil)
	for num := uint64(1); num <= 40; num++ {
		if num%6 == 1 {
			must(t, l.Roll(num, nil))
			synced = num - 1
		}
		_, err := add(l, num)
		must(t, err)
		if num%3 == 0 {
			must(t, l.Sync())
			synced = num
		}
		if num%13 == 0 {
			removed = num - 5
			must(t, l.RemoveBelow(removed))
		}
	}
	must(t, l.Close())
	if cuts < 60 {
		t.Errorf("only %d operations were cut", cuts)
	}
}

func checkCut(t *testing.T, m *vfs.Mem, synced, removed uint64) {
	t.Helper()
	l := open(t, m, nil)
	got := numbers(t, l)
	next := uint64(0)
	for i, n := range got {
		if i > 0 && n <= got[i-1] {
			t.Fatalf("out of order: %v", got)
		}
		next = n
	}
	for n := removed + 1; n <= synced; n++ {
		if !slices.Contains(got, n) {
			t.Fatalf("synced %d, removed below %d, found %v", synced, removed, got)
		}
	}
	next = max(next+1, l.End().Segment)
	if !l.Appendable() {
		must(t, l.Roll(next, nil))
	}
	_, err := add(l, next)
	must(t, err)
	must(t, l.Close())
	if again := numbers(t, open(t, m, nil)); !slices.Equal(again, append(got, next)) {
		t.Fatalf("found %v, added %d, then found %v", got, next, again)
	}
}

func segmentFile(t *testing.T, m *vfs.Mem, base uint64) (vfs.File, int64) {
	t.Helper()
	f, err := m.Open(dir + "/" + fileName(base, logSuffix))
	must(t, err)
	size, err := f.Size()
	must(t, err)
	return f, size
}

// TestAnyTailLength cuts the last segment at every length: what is whole stays,
// and the log takes frames again under a number that was never shown.
func TestAnyTailLength(t *testing.T) {
	m := vfs.NewMem()
	l := build(t, m, 7, 4)
	var ends []int64
	must(t, l.ScanSegment(5, func(f Frame) error {
		ends = append(ends, f.Pos.Offset+int64(len(f.Bytes)))
		return nil
	}))
	must(t, l.Close())
	_, size := segmentFile(t, m, 5)
	for cut := range size + 1 {
		c := m.Copy()
		f, _ := segmentFile(t, c, 5)
		must(t, f.Truncate(cut))
		var damage []Damage
		l := open(t, c, &damage)
		want := upTo(1, 4)
		for i, end := range ends {
			if end <= cut {
				want = append(want, 5+uint64(i))
			}
		}
		if got := numbers(t, l); !slices.Equal(got, want) || len(damage) > 0 {
			t.Fatalf("cut at %d: %v, want %v; %v", cut, got, want, damage)
		}
		if !l.Appendable() {
			must(t, l.Roll(5, nil))
		}
		_, err := add(l, 8)
		must(t, err)
		must(t, l.Close())
		if got := numbers(t, open(t, c, nil)); !slices.Equal(got, append(want, 8)) {
			t.Fatalf("cut at %d, then 8 added: %v", cut, got)
		}
	}
}

// TestAnyFlippedBit: only the frame that holds the bit is lost, and unless it
// is the very last one the loss is reported and copied aside.
func TestAnyFlippedBit(t *testing.T) {
	m := vfs.NewMem()
	must(t, build(t, m, 8, 4).Close())
	all := upTo(1, 8)
	for _, base := range []uint64{1, 5} {
		_, size := segmentFile(t, m, base)
		for at := range size {
			c := m.Copy()
			f, _ := segmentFile(t, c, base)
			var b [1]byte
			_, err := f.ReadAt(b[:], at)
			must(t, err)
			b[0] ^= 1 << (at % 8)
			_, err = f.WriteAt(b[:], at)
			must(t, err)
			var damage []Damage
			l := open(t, c, &damage)
			got := numbers(t, l)
			numbers(t, l) // does not report again
			if at < HeaderSize {
				if !slices.Equal(got, all) {
					t.Fatalf("segment %d, header byte %d: %v", base, at, got)
				}
				continue
			}
			tail := slices.Equal(got, upTo(1, 7)) && len(damage) == 0 && base == 5
			if !tail && (len(got) != 7 || len(damage) != 1 || !damage[0].Copied || damage[0].From > at || damage[0].To <= at) {
				t.Fatalf("segment %d, byte %d: %v, %v", base, at, got, damage)
			}
		}
	}
}

// TestDamageOutlivesAPowerCut: that damage was met, and the bytes that were set aside, are
// on disk when it is reported: they may be cut next.
func TestDamageOutlivesAPowerCut(t *testing.T) {
	m := vfs.NewMem()
	must(t, build(t, m, 8, 4).Close())
	f, _ := segmentFile(t, m, 1)
	_, err := f.WriteAt([]byte{0xff}, HeaderSize+testHead)
	must(t, errors.Join(err, f.Sync(), f.Close()))
	var damage []Damage
	numbers(t, open(t, m, &damage))
	if len(damage) != 1 || !damage[0].Copied {
		t.Fatalf("damage %v", damage)
	}
	after := m.CrashClone(nil)
	if was, err := WasDamaged(after, dir); err != nil || !was {
		t.Errorf("after the cut: damaged %t, %v", was, err)
	}
	if list, err := after.ReadDir(dir + "/" + asideDir); err != nil || len(list) != 1 {
		t.Errorf("after the cut: %v, %v", list, err)
	}
}

func TestFailingOpenAndReadAreNotDamage(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.EIO, syscall.EACCES, syscall.ENOMEM} {
		for _, kind := range []vfs.OpKind{vfs.OpOpen, vfs.OpRead, vfs.OpReadDir, vfs.OpStat, vfs.OpSync} {
			m := vfs.NewMem()
			must(t, build(t, m, 8, 4).Close())
			var fail bool
			f := vfs.NewFault(m, func(op vfs.Op) vfs.Fault {
				if fail && op.Changes() && op.Kind != vfs.OpSync {
					t.Errorf("%s of %s while %s fails", op.Kind, op.Path, kind)
				}
				if fail && op.Kind == kind {
					return vfs.Fault{Err: errno}
				}
				return vfs.Fault{}
			})
			must(t, f.MkdirAll("d"))
			fail = true
			var damage []Damage
			if _, err := Open(f, dir, options(&damage)); !errors.Is(err, errno) {
				t.Errorf("Open with %s failing = %v", kind, err)
			}
			fail = false
			l := open(t, f, &damage)
			r := l.NewReader(Pos{})
			fail = kind == vfs.OpRead || kind == vfs.OpOpen
			must(t, l.ReleaseFiles())
			if _, err := r.Next(l.End()); fail && !errors.Is(err, errno) {
				t.Errorf("Next with %s failing = %v", kind, err)
			}
			fail = false
			if got := numbers(t, l); len(got) != 8 || len(damage) > 0 {
				t.Errorf("afterwards %v, %v", got, damage)
			}
		}
	}
}

// TestRollFailingAnywhere: whatever operation of a roll fails, nothing stays
// behind and the next attempt works.
func TestRollFailingAnywhere(t *testing.T) {
	for n := 1; ; n++ {
		m := vfs.NewMem()
		ops := -1
		f := vfs.NewFault(m, func(op vfs.Op) vfs.Fault {
			if ops < 0 || !op.Changes() || op.Kind == vfs.OpRemove {
				return vfs.Fault{}
			}
			if ops++; ops == n {
				return vfs.Fault{Err: syscall.ENOSPC}
			}
			return vfs.Fault{}
		})
		l := build(t, f, 3, 4)
		ops = 0
		err := l.Roll(4, nil)
		if err == nil {
			if n < 6 {
				t.Errorf("a roll has only %d operations", n-1)
			}
			return
		}
		ops = -1
		entries, rerr := m.ReadDir(dir)
		must(t, rerr)
		if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return !strings.HasSuffix(e.Name(), logSuffix) }) || len(entries) != 1 {
			t.Errorf("operation %d failed and left %v", n, entries)
		}
		if l.Appendable() {
			must(t, l.Roll(4, nil))
		} else {
			must(t, l.Abandon(4, nil))
		}
		_, err = add(l, 4)
		must(t, err)
		must(t, l.Close())
		if got := numbers(t, open(t, m, nil)); !slices.Equal(got, upTo(1, 4)) {
			t.Errorf("operation %d failed, then %v", n, got)
		}
	}
}

// TestSectorsThatWereNeverWritten: a power cut in the middle of a sync may leave frames
// behind a sector that it lost. Where nobody was promised them the log ends before it;
// where somebody was, and where the sector was written and has rotted, they stay.
func TestSectorsThatWereNeverWritten(t *testing.T) {
	const frames, size = 12, 300
	m := vfs.NewMem()
	l := open(t, m, nil)
	must(t, l.Roll(1, nil))
	h, err := l.Header(1)
	must(t, err)
	var starts []int64
	for num := uint64(1); num <= frames; num++ {
		pos, err := l.Append(frame(h.Nonce, num, strings.Repeat("x", size)))
		must(t, err)
		starts = append(starts, pos.Offset)
	}
	must(t, l.Close())
	last := starts[frames-1]
	for from := int64(HeaderSize); from < last/sector*sector; from++ {
		end := from/sector*sector + sector
		if from%sector != 0 && !slices.Contains(starts, from) {
			continue // bytes that stand before it in its sector were written with it
		}
		damaged := uint64(0) // the first frame that lost bytes
		for damaged+1 < frames && starts[damaged+1] <= from {
			damaged++
		}
		for name, tc := range map[string]struct {
			lost, promised, cut bool
		}{
			"never written":               {lost: true, cut: true},
			"never written, but promised": {lost: true, promised: true},
			"rotten":                      {},
		} {
			c := m.Copy()
			f, _ := segmentFile(t, c, 1)
			b := make([]byte, end-from)
			if !tc.lost {
				_, err := f.ReadAt(b, from)
				must(t, err)
				b[0] ^= 1
			}
			_, err := f.WriteAt(b, from)
			must(t, errors.Join(err, f.Close()))
			var damage []Damage
			shown := uint64(0)
			opt := options(&damage)
			opt.Visit = func(f Frame) error { shown = number(f); return nil }
			opt.Unpromised = func(h *Header) bool {
				if h.Base != 1 || shown != damaged {
					t.Errorf("from %d: asked behind frame %d of segment %d, want %d", from, shown, h.Base, damaged)
				}
				return !tc.promised
			}
			l, err := Open(c, dir, opt)
			must(t, err)
			if cut := l.Recovery().TornBytes > 0; cut != tc.cut || cut == (len(damage) > 0) {
				t.Fatalf("%s, %d to %d: cut %v, damage %v", name, from, end, l.Recovery(), damage)
			}
			if tc.cut && l.End() != (Pos{1, starts[damaged]}) {
				t.Fatalf("%s, %d to %d: it ends at %s", name, from, end, l.End())
			}
			if _, err := l.Append(frame(h.Nonce, 99, "y")); err != nil {
				t.Fatalf("%s, %d to %d: then %v", name, from, end, err)
			}
			must(t, l.Close())
		}
	}
}
