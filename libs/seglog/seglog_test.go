package seglog

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"syscall"
	"testing"

	"github.com/narad-mq/narad/libs/vfs"
)

// testFormat: "TFRM", u32 length of all, u64 nonce, u64 number, content, u32 CRC.
type testFormat struct{}

const testHead = 24

func (testFormat) Magic() [4]byte { return [4]byte{'T', 'F', 'R', 'M'} }

func (testFormat) Parse(h *Header, b []byte) (int, Verdict) {
	if len(b) < testHead {
		return testHead, NeedMore
	}
	n := int(binary.LittleEndian.Uint32(b[4:]))
	nonce, num := binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	switch {
	case string(b[:4]) != "TFRM", n < testHead+4, num < h.Base, !h.Damaged && nonce != h.Nonce:
		return 0, NotFrame
	case len(b) < n:
		return n, NeedMore
	case binary.LittleEndian.Uint32(b[n-4:]) != crc32.ChecksumIEEE(b[:n-4]):
		return 0, NotFrame
	}
	return n, Whole
}

func frame(nonce, num uint64, content string) []byte {
	b := make([]byte, testHead, testHead+len(content)+4)
	copy(b, "TFRM")
	binary.LittleEndian.PutUint32(b[4:], uint32(testHead+len(content)+4))
	binary.LittleEndian.PutUint64(b[8:], nonce)
	binary.LittleEndian.PutUint64(b[16:], num)
	b = append(b, content...)
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

func number(f Frame) uint64 { return binary.LittleEndian.Uint64(f.Bytes[16:]) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const dir = "d/log"

func options(damage *[]Damage) Options {
	return Options{
		Format: testFormat{}, MaxFrame: 64 << 10, FillAhead: 1000, Recycle: 1,
		OnDamage: func(d Damage) {
			if damage != nil {
				*damage = append(*damage, d)
			}
		},
	}
}

func open(t testing.TB, f vfs.FS, damage *[]Damage) *Log {
	t.Helper()
	must(t, f.MkdirAll("d"))
	must(t, f.SyncDir("/"))
	l, err := Open(f, dir, options(damage))
	must(t, err)
	return l
}

// content varies in length with the number.
func content(num uint64) string { return fmt.Sprintf("%0*d", 1+int(num*37%300), num) }

func add(l *Log, num uint64) (Pos, error) {
	h, err := l.Header(l.End().Segment)
	if err != nil {
		return Pos{}, err
	}
	return l.Append(frame(h.Nonce, num, content(num)))
}

// numbers reads a whole log and checks each frame.
func numbers(t testing.TB, l *Log) []uint64 {
	t.Helper()
	var out []uint64
	for r := l.NewReader(Pos{}); ; {
		f, err := r.Next(l.End())
		if err == io.EOF {
			return out
		}
		must(t, err)
		if want := frame(f.Header.Nonce, number(f), content(number(f))); !f.Header.Damaged && !bytes.Equal(want, f.Bytes) {
			t.Fatalf("frame %d at %s has other content", number(f), f.Pos)
		}
		if f2, err := l.ReadFrame(f.Pos, 0, nil); err != nil || !bytes.Equal(f2.Bytes, f.Bytes) {
			t.Fatalf("ReadFrame(%s) = %v", f.Pos, err)
		}
		out = append(out, number(f))
	}
}

func upTo(from, to uint64) (out []uint64) {
	for n := from; n <= to; n++ {
		out = append(out, n)
	}
	return out
}

// build writes numbers 1..n, a new segment every per frames, all synced.
func build(t testing.TB, f vfs.FS, n, per uint64) *Log {
	t.Helper()
	l := open(t, f, nil)
	for num := uint64(1); num <= n; num++ {
		if (num-1)%per == 0 {
			must(t, l.Roll(num, []byte("meta")))
		}
		_, err := add(l, num)
		must(t, err)
	}
	must(t, l.Sync())
	return l
}

func TestHeaderGolden(t *testing.T) {
	b, err := (&Header{Base: 0x0102030405060708, Nonce: 9, Meta: []byte{0xaa, 0xbb}}).encode()
	must(t, err)
	want := "4e41524144534547" + "0100" + "0200" + "00000000" + "0807060504030201" + "0900000000000000" + "aabb"
	if got := hex.EncodeToString(b[:34]); got != want {
		t.Errorf("header\n%s, want\n%s", got, want)
	}
	if got := hex.EncodeToString(b[120:]); got != "000000004e701b36" {
		t.Errorf("tail %s", got)
	}
	for bit := range HeaderSize * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := parseHeader(b); err == nil {
			t.Errorf("bit %d flipped and not noticed", bit)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
	if _, err := (&Header{Meta: make([]byte, MaxMeta+1)}).encode(); err == nil {
		t.Error("meta too long was taken")
	}
}

func TestAppendRollReopen(t *testing.T) {
	m := vfs.NewMem()
	l := build(t, m, 10, 4)
	if got := numbers(t, l); !slices.Equal(got, upTo(1, 10)) {
		t.Fatalf("numbers %v", got)
	}
	must(t, l.ReleaseFiles())
	_, err := add(l, 11)
	must(t, err)
	must(t, l.Close())
	l = open(t, m, nil)
	if got := numbers(t, l); !slices.Equal(got, upTo(1, 11)) {
		t.Fatalf("after reopen %v", got)
	}
	if r := l.Recovery(); r.TornBytes != 0 || !l.Appendable() {
		t.Errorf("after a clean close: %+v, appendable %v", r, l.Appendable())
	}
	if h, err := l.Header(5); err != nil || string(h.Meta) != "meta" || h.Damaged {
		t.Errorf("header %+v, %v", h, err)
	}
	if err := l.Roll(9, nil); err == nil {
		t.Error("rolled onto a segment with frames")
	}
	if s := l.Segments(); len(s) != 3 || s[1].Base != 5 || l.Bytes() != s[0].Size+s[1].Size+s[2].Size {
		t.Errorf("segments %v of %d bytes", s, l.Bytes())
	}
}

func TestRemoveRecyclesWithoutShowingOldFrames(t *testing.T) {
	m := vfs.NewMem()
	l := build(t, m, 12, 4)
	must(t, l.RemoveBelow(9))
	if got := numbers(t, l); !slices.Equal(got, upTo(9, 12)) {
		t.Fatalf("numbers %v", got)
	}
	if _, err := l.ReadFrame(Pos{1, HeaderSize}, 0, nil); !errors.Is(err, ErrRemoved) {
		t.Errorf("a removed segment reads %v", err)
	}
	must(t, l.Roll(13, nil))
	if len(l.spares) != 0 || l.filled <= HeaderSize {
		t.Errorf("spares %v, filled %d: not recycled", l.spares, l.filled)
	}
	for range 2 { // empty, then with one frame, over the old content
		var damage []Damage
		l2 := open(t, m.Copy(), &damage)
		if got := numbers(t, l2); !slices.Equal(got, upTo(9, l.End().Segment-1+uint64(len(got))-4)) || len(damage) > 0 {
			t.Errorf("recycled file shows %v, %v", got, damage)
		}
		_, err := add(l, 13)
		must(t, err)
	}
}

func TestTruncateTo(t *testing.T) {
	m := vfs.NewMem()
	l := build(t, m, 12, 4)
	var at Pos
	must(t, l.ScanSegment(5, func(f Frame) error {
		if number(f) == 7 {
			at = f.Pos
		}
		return nil
	}))
	must(t, l.TruncateTo(at))
	if got := numbers(t, open(t, m.CrashClone(nil), nil)); !slices.Equal(got, upTo(1, 6)) {
		t.Errorf("right after truncation %v", got)
	}
	_, err := add(l, 7)
	must(t, err)
	must(t, l.Sync())
	for _, f := range []*vfs.Mem{m, m.CrashClone(nil)} {
		if got := numbers(t, open(t, f, nil)); !slices.Equal(got, upTo(1, 7)) {
			t.Errorf("after truncation %v", got)
		}
	}
}

func TestFailedSegmentTakesNoMore(t *testing.T) {
	m := vfs.NewMem()
	var fault vfs.Fault
	f := vfs.NewFault(m, func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpSync || op.Kind == vfs.OpWrite {
			return fault
		}
		return vfs.Fault{}
	})
	l := build(t, f, 2, 4)
	_, err := add(l, 3)
	must(t, err)
	fault = vfs.Fault{Err: syscall.EIO, Lost: true}
	if err := l.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("Sync = %v", err)
	}
	fault = vfs.Fault{}
	if _, err := add(l, 4); !errors.Is(err, ErrFailed) {
		t.Errorf("Append after a failed sync = %v", err)
	}
	if err := l.Roll(4, nil); !errors.Is(err, ErrFailed) {
		t.Errorf("Roll after a failed sync = %v", err)
	}
	must(t, l.Abandon(4, nil))
	_, err = add(l, 4)
	must(t, err)
	if got := numbers(t, l); !slices.Equal(got, []uint64{1, 2, 4}) {
		t.Errorf("this process shows %v", got)
	}
	fault = vfs.Fault{Err: syscall.ENOSPC, Short: 9}
	if _, err := add(l, 5); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Append = %v", err)
	}
	fault = vfs.Fault{}
	must(t, l.TruncateTo(l.Synced()))
	if _, err := add(l, 6); !errors.Is(err, ErrRollNeeded) {
		t.Errorf("the failed file took a frame: %v", err)
	}
	must(t, l.Roll(6, nil))
}

// TestAppendInPieces: the file is synced between the pieces of a frame; none of it counts
// as synced, and a sync that fails there fails the segment, whatever its reason.
func TestAppendInPieces(t *testing.T) {
	var fault vfs.Fault
	syncs := 0
	f := vfs.NewFault(vfs.NewMem(), func(op vfs.Op) vfs.Fault {
		if op.Kind != vfs.OpSync {
			return vfs.Fault{}
		}
		syncs++
		return fault
	})
	must(t, f.MkdirAll("d"))
	must(t, f.SyncDir("/"))
	opt := options(nil)
	opt.UndoFull = true
	l, err := Open(f, dir, opt)
	must(t, err)
	must(t, l.Roll(1, nil))
	h, err := l.Header(1)
	must(t, err)
	for parts := 1; parts <= 4; parts++ {
		num, before := uint64(parts), l.Synced()
		b := frame(h.Nonce, num, content(num))
		syncs = 0
		_, err = l.AppendInPieces(b, (len(b)+parts-1)/parts)
		must(t, err)
		if syncs != parts-1 || l.Synced() != before {
			t.Errorf("%d parts: %d syncs, synced up to %s of %s", parts, syncs, l.Synced(), before)
		}
		must(t, l.Sync())
	}
	if got := numbers(t, l); !slices.Equal(got, []uint64{1, 2, 3, 4}) {
		t.Errorf("the frames %v", got)
	}
	fault = vfs.Fault{Err: syscall.ENOSPC, Lost: true}
	if _, err := l.AppendInPieces(frame(h.Nonce, 5, "some content"), 10); !errors.Is(err, syscall.ENOSPC) || l.Appendable() {
		t.Errorf("a sync failed between pieces: %v; appendable %t", err, l.Appendable())
	}
}

// TestFileInUseIsNotRecycled: a reader in flight would see another segment's bytes.
func TestFileInUseIsNotRecycled(t *testing.T) {
	m := vfs.NewMem()
	l := build(t, m, 8, 4)
	seg := l.segs[0]
	f, err := l.acquire(seg)
	must(t, err)
	before := make([]byte, 200)
	_, err = f.ReadAt(before, 0)
	must(t, err)
	must(t, l.RemoveBelow(5))
	must(t, l.Roll(9, nil))
	after := make([]byte, 200)
	_, err = f.ReadAt(after, 0)
	must(t, err)
	if !bytes.Equal(before, after) {
		t.Error("the file was given new content under a reader")
	}
	l.release(seg)
	if _, err := f.ReadAt(after, 0); err == nil {
		t.Error("the removed file stays open")
	}
}

// TestManySegmentsNeedFewDescriptors: neither writing nor reading a log of many
// segments holds them all open (cases.md 81).
func TestManySegmentsNeedFewDescriptors(t *testing.T) {
	m := vfs.NewMem()
	l := open(t, m, nil)
	count := func() (n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, s := range l.segs {
			if s.file != nil {
				n++
			}
		}
		return n
	}
	for num := uint64(1); num <= 100; num++ {
		must(t, l.Roll(num, nil))
		_, err := add(l, num)
		must(t, err)
		must(t, l.Sync())
		if n := count(); n > maxOpenSealed+1 {
			t.Fatalf("%d files open after %d segments", n, num)
		}
	}
	if got := numbers(t, l); len(got) != 100 {
		t.Fatalf("%d frames", len(got))
	}
	if n := count(); n > maxOpenSealed+1 {
		t.Fatalf("%d files open after reading", n)
	}
	must(t, l.Close())
}
