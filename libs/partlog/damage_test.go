package partlog

import (
	"bytes"
	"errors"
	iofs "io/fs"
	"path"
	"testing"
)

// TestPiecesOfACopy: what is damaged in a copy is kept by the one that is made of it, and
// by the one that is made of that, each under one name, whose it was; what is not what was
// announced is not.
func TestPiecesOfACopy(t *testing.T) {
	mem := newFS(t)
	l := lead(t, mem, Options{SegmentBytes: 500})
	for i := range uint64(12) {
		app(t, l, batch(t, streamOf(1), i+1, 1, 50), int64(i))
	}
	syncLog(t, l)
	mustSave(t, l, State{CopyID: 0xa1, HWM: 12})
	base := l.bases[1]
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	change(t, mem, segFile(base), func(b []byte) []byte { b[20] ^= 1; b[len(b)/2] ^= 1; return b })
	l = open(t, mem, Options{SegmentBytes: 500})
	if l.WasDamaged() {
		t.Fatal("damage that nobody has met")
	}
	readAll(t, l, 0, 12, 1<<10)
	list, whole, err := l.Pieces()
	if err != nil || !whole || len(list) != 2 || list[0].Name[:17] != "00000000000000a1-" {
		t.Fatalf("%+v, %v", list, err)
	}
	from := l
	for id := range 2 {
		fs := newFS(t)
		to := lead(t, fs, Options{})
		mustSave(t, to, State{CopyID: 0xb1 + 1})
		for _, p := range list {
			b := make([]byte, p.Size)
			if n, err := from.ReadPiece(p.Name, b, 0); n != len(b) {
				t.Fatalf("%d bytes of %+v: %v", n, p, err)
			}
			wrong := bytes.Clone(b)
			wrong[0] ^= 1
			other := p
			other.Name = p.Name[17:]
			for what, err := range map[string]error{
				"other bytes": to.KeepPiece(p, wrong), "fewer": to.KeepPiece(p, b[1:]), "more": to.KeepPiece(p, append(wrong, 0)),
				"a name of its own": to.KeepPiece(other, b), "none": to.KeepPiece(Piece{Name: p.Name}, nil),
			} {
				if !errors.Is(err, ErrBadPiece) {
					t.Fatalf("%s: %v", what, err)
				}
			}
			if id == 0 && p == list[0] && to.WasDamaged() {
				t.Fatal("what was refused has left something")
			}
			if err := to.KeepPiece(p, b); err != nil {
				t.Fatal(err)
			}
		}
		got, whole, err := to.Pieces()
		if err != nil || !whole || len(got) != len(list) || got[0] != list[0] || got[1] != list[1] {
			t.Fatalf("copy %d: %+v, %v; want %+v", id+1, got, err, list)
		}
		if err := to.Close(); err != nil {
			t.Fatal(err)
		}
		if r, err := Examine(fs, dir, Options{}); err != nil || !r.Damaged || !r.Whole || len(r.Pieces) != 2 || r.Pieces[0] != list[0] {
			t.Fatalf("copy %d holds %+v, %v", id+1, r, err)
		}
		from = open(t, fs, Options{})
	}
	if _, err := from.ReadPiece("../state.0", make([]byte, 1), 0); !errors.Is(err, ErrBadPiece) {
		t.Errorf("a path: %v", err)
	}
}

func mustSave(t *testing.T, l *Log, st State) {
	t.Helper()
	if err := l.SaveState(st, true); err != nil {
		t.Fatal(err)
	}
}

// TestUnwrittenBelowTheHighWatermarkIsDamage: what was counted once is missed, however it
// looks, and what stands behind it stays.
func TestUnwrittenBelowTheHighWatermarkIsDamage(t *testing.T) {
	for name, tc := range map[string]struct {
		hwm, end, gap int64
		stateless     bool
	}{
		"below":      {hwm: 8, end: 10, gap: 1},
		"at":         {hwm: 5, end: 5},
		"state lost": {hwm: 5, end: 10, gap: 1, stateless: true},
	} {
		fs := newFS(t)
		l := lead(t, fs, Options{})
		var at []int64
		for i := range int64(10) {
			at = append(at, l.seg.End().Offset)
			app(t, l, batch(t, streamOf(1), uint64(i+1), 1, 1200), 1)
		}
		syncLog(t, l)
		save(t, l, tc.hwm, true)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		change(t, fs, segFile(0), func(b []byte) []byte {
			sector := at[5]/512*512 + 512
			clear(b[sector : sector+512])
			return b
		})
		if tc.stateless {
			for _, slot := range []string{"state.0", "state.1"} {
				if err := fs.Remove(path.Join(dir, slot)); err != nil && !errors.Is(err, iofs.ErrNotExist) {
					t.Fatal(err)
				}
			}
		}
		l = open(t, fs, Options{})
		if r := l.Recovery(); l.LEO() != tc.end || r.GapOffsets != tc.gap || (r.TornBytes > 0) == (tc.gap > 0) {
			t.Errorf("%s: the log ends at %d, %+v", name, l.LEO(), r)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
