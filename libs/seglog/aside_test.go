package seglog

import (
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/vfs"
)

// spoiled is a log of two segments with damage in the first one, and the damaged bytes.
func spoiled(t *testing.T) (*vfs.Mem, []byte) {
	t.Helper()
	m := vfs.NewMem()
	l := build(t, m, 8, 4)
	var at, end int64
	must(t, l.ScanSegment(1, func(f Frame) error {
		if number(f) == 2 {
			at, end = f.Pos.Offset, f.Pos.Offset+int64(len(f.Bytes))
		}
		return nil
	}))
	must(t, l.Close())
	f, _ := segmentFile(t, m, 1)
	b := make([]byte, end-at)
	_, err := f.ReadAt(b, at)
	must(t, err)
	for i := range b {
		b[i] ^= 0x55
	}
	_, err = f.WriteAt(b, at)
	must(t, errors.Join(err, f.Sync(), f.Close()))
	return m, b
}

// aside1 is Log.Aside of a log that is not open: opening it may keep more.
func aside1(t *testing.T, m vfs.FS) (pieces []Piece, whole bool) {
	t.Helper()
	entries, there, err := readAside(m, dir)
	must(t, err)
	if !there {
		return nil, true
	}
	pieces, whole, err = asidePieces(m, dir, entries)
	must(t, err)
	return pieces, whole
}

// holds tells whether a list is of these very bytes.
func holds(pieces []Piece, b []byte) bool {
	return len(pieces) == 1 && pieces[0].Size == int64(len(b)) && pieces[0].CRC == crc32.Checksum(b, castagnoli)
}

// TestPiecesAreWholeOrTold: wherever the power goes, what lies there is no part of the
// damaged bytes that could be taken for all of them; and the next process keeps them.
func TestPiecesAreWholeOrTold(t *testing.T) {
	m, want := spoiled(t)
	cuts := 0
	f := vfs.NewFault(m, func(op vfs.Op) vfs.Fault {
		if !op.Changes() {
			return vfs.Fault{}
		}
		cuts++
		for seed := range uint64(8) {
			c := m.CrashClone(rand.New(rand.NewPCG(uint64(op.N), seed)))
			if got, whole := aside1(t, c); whole && len(got) > 0 && !holds(got, want) {
				t.Fatalf("before %s of %s: %+v", op.Kind, op.Path, got)
			}
			numbers(t, open(t, c, nil))
			if got, whole := aside1(t, c.CrashClone(nil)); !whole || !holds(got, want) {
				t.Fatalf("before %s of %s, then: %+v, whole %t", op.Kind, op.Path, got, whole)
			}
		}
		return vfs.Fault{}
	})
	numbers(t, open(t, f, nil))
	if got, whole := aside1(t, m.CrashClone(nil)); !whole || !holds(got, want) || cuts < 8 {
		t.Fatalf("%+v, whole %t after %d operations", got, whole, cuts)
	}
}

// TestAsideWaitsForAPieceThatIsBeingKept: at whatever step of keeping it is asked, the
// bytes are not called lost. A copy would note that for good.
func TestAsideWaitsForAPieceThatIsBeingKept(t *testing.T) {
	m, want := spoiled(t)
	type answer struct {
		pieces []Piece
		whole  bool
		err    error
	}
	var l *Log
	var answers []answer
	var waiting []chan answer
	f := vfs.NewFault(m, func(op vfs.Op) vfs.Fault {
		if op.Changes() && l != nil {
			got := make(chan answer, 1)
			go func() {
				var a answer
				a.pieces, a.whole, a.err = l.Aside()
				got <- a
			}()
			select {
			case a := <-got:
				answers = append(answers, a)
			case <-time.After(10 * time.Millisecond): // it waits, as it should
				waiting = append(waiting, got)
			}
		}
		return vfs.Fault{}
	})
	l = open(t, f, nil)
	numbers(t, l)
	for _, got := range waiting {
		answers = append(answers, <-got)
	}
	for i, a := range answers {
		if a.err != nil || !a.whole || len(a.pieces) > 0 && !holds(a.pieces, want) {
			t.Errorf("answer %d: %+v, whole %t, %v", i, a.pieces, a.whole, a.err)
		}
	}
	if len(answers) < 5 {
		t.Errorf("asked %d times", len(answers))
	}
}

// TestHeaderIsKeptWithTheFrame: once a damaged frame is known, what the same mishap did to
// the header of its segment is kept too. A follower that sees the gap asks for both then.
func TestHeaderIsKeptWithTheFrame(t *testing.T) {
	m, frameBytes := spoiled(t)
	var l *Log
	opt := options(nil)
	opt.Headers = true
	told := 0
	opt.OnDamage = func(Damage) {
		told++
		pieces, whole, err := l.Aside()
		if err != nil || !whole || len(pieces) != 2 || pieces[1].Size != int64(len(frameBytes)) {
			t.Errorf("%+v, whole %t, %v", pieces, whole, err)
		}
	}
	l, err := Open(m, dir, opt)
	must(t, err)
	_, err = l.header(l.segs[0]) // known from before it rots
	must(t, err)
	file, _ := segmentFile(t, m, 1)
	_, err = file.WriteAt(make([]byte, HeaderSize), 0)
	must(t, errors.Join(err, file.Close()))
	_ = numbers(t, l)
	if told != 2 {
		t.Errorf("told of %d ranges", told)
	}
}

// A range that cannot be kept is told of by what lies there, and tried again.
func TestUnkeptDamageIsTold(t *testing.T) {
	for _, kind := range []vfs.OpKind{vfs.OpWrite, vfs.OpSync, vfs.OpRename} {
		m, want := spoiled(t)
		fail := true
		f := vfs.NewFault(m, func(op vfs.Op) vfs.Fault {
			if fail && op.Kind == kind && strings.Contains(op.Path, asideDir) {
				return vfs.Fault{Err: syscall.ENOSPC}
			}
			return vfs.Fault{}
		})
		var damage []Damage
		l := open(t, f, &damage)
		numbers(t, l)
		if got, whole := aside1(t, m.CrashClone(nil)); whole || len(got) > 0 || len(damage) != 1 || damage[0].Copied || !l.WasDamaged() {
			t.Errorf("with %s failing: %+v, whole %t, %+v", kind, got, whole, damage)
		}
		fail = false
		numbers(t, l)
		if got, whole := aside1(t, m.CrashClone(nil)); !whole || !holds(got, want) || len(damage) != 1 {
			t.Errorf("after %s failed: %+v, whole %t, %+v", kind, got, whole, damage)
		}
	}
}

// What a process of before had not written to its end is written again; what is kept of
// more damage takes the place of less.
func TestShorterPieceIsReplaced(t *testing.T) {
	m, want := spoiled(t)
	numbers(t, open(t, m, nil))
	list, _ := aside1(t, m)
	f, err := m.Open(dir + "/" + asideDir + "/" + list[0].Name)
	must(t, err)
	must(t, errors.Join(f.Truncate(3), f.Sync(), f.Close()))
	numbers(t, open(t, m, nil))
	if got, whole := aside1(t, m.CrashClone(nil)); !whole || !holds(got, want) || !got[0].Own {
		t.Errorf("%+v, whole %t", got, whole)
	}
}

func TestKeepPiece(t *testing.T) {
	m := vfs.NewMem()
	l := build(t, m, 8, 4)
	if l.WasDamaged() {
		t.Fatal("it was damaged before it was")
	}
	for _, name := range []string{
		"", ".", "..", "../x", "00000000000000000001-128", "0123456789abcdef-00000000000000000001-128.tmp", "0123456789abcdef-00000000000000000001-0128",
		"0123456789ABCDEF-00000000000000000001-128", "0123456789abcdef/00000000000000000001-128", "0123456789abcdef-0000000000000000001-128",
		"0123456789abcdef-00000000000000000001--1", "0123456789abcdef-00000000000000000001-", awaited,
	} {
		if err := l.KeepPiece(name, []byte("x")); !errors.Is(err, errPieceName) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if list, whole := aside1(t, m); l.WasDamaged() || len(list) > 0 || !whole {
		t.Fatalf("refused names left %+v", list)
	}
	const name = "0123456789abcdef-00000000000000000001-128"
	must(t, l.KeepPiece(name, []byte("hello")))
	must(t, l.KeepPiece(name, []byte("HELLO")))
	list, whole := aside1(t, m.CrashClone(nil))
	if !whole || !holds(list, []byte("hello")) || list[0].Own || !l.WasDamaged() {
		t.Fatalf("%+v, whole %t", list, whole)
	}
	if err := l.KeepPiece("1"+name[1:], make([]byte, MaxAsideBytes)); !errors.Is(err, ErrAsideFull) {
		t.Errorf("above the bound: %v", err)
	}
	if _, whole := aside1(t, m); !whole {
		t.Error("bytes of another log that have no room here are no damage of this one")
	}
	must(t, l.Close())
	if err := l.KeepPiece("2"+name[1:], []byte("x")); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if l = open(t, m, nil); !l.WasDamaged() || l.aside.files != 1 || l.aside.bytes != 5 {
		t.Errorf("the next process finds %+v", l.aside)
	}
}

// That bytes are awaited outlives a power cut, and leaves nothing when none came.
func TestAwaitPieces(t *testing.T) {
	m := vfs.NewMem()
	l := build(t, m, 8, 4)
	must(t, l.AwaitPieces())
	m = m.CrashClone(nil)
	l = open(t, m, nil)
	if _, whole := aside1(t, m); !l.PiecesAwaited() || !whole {
		t.Fatalf("awaited %t, whole %t", l.PiecesAwaited(), whole)
	}
	must(t, l.PiecesCame())
	if was, err := WasDamaged(m.CrashClone(nil), dir); err != nil || was || l.PiecesAwaited() || l.WasDamaged() {
		t.Fatalf("damaged %t, %v", was, err)
	}
	must(t, l.AwaitPieces())
	must(t, l.KeepPiece("0123456789abcdef-00000000000000000001-128", []byte("x")))
	must(t, l.PiecesCame())
	l = open(t, m.CrashClone(nil), nil)
	if l.PiecesAwaited() || !l.WasDamaged() {
		t.Fatal("what came is gone, or is awaited still")
	}
}
