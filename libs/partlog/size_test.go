package partlog

import (
	"testing"

	"github.com/narad-mq/narad/libs/topic"
)

// A copy that is near must be told from one that is far without reading, and
// never the far one taken for near.
func TestBytesFromIsNeverTooLittle(t *testing.T) {
	l := lead(t, newFS(t), Options{SegmentBytes: 64 << 10})
	var sizes []int64 // of the batch at each offset
	for i := range 400 {
		b := batch(t, streamOf(1), uint64(i), 1, 1000)
		app(t, l, b, int64(i))
		sizes = append(sizes, int64(len(b)))
	}
	if n := len(l.seg.Segments()); n < 4 {
		t.Fatalf("%d segments show nothing", n)
	}
	if got := l.BytesFrom(l.WrittenEnd()); got != 0 {
		t.Fatalf("%d bytes above the end", got)
	}
	if l.MoreThan(l.WrittenEnd(), -1) {
		t.Fatal("something above the end")
	}
	exact := int64(0)
	for at := len(sizes) - 1; at >= 0; at-- {
		exact += sizes[at]
		got := l.BytesFrom(int64(at))
		if got < exact || got > exact+64<<10+(32<<10) {
			t.Fatalf("from %d: %d bytes, exactly %d", at, got, exact)
		}
		if l.MoreThan(int64(at), got) || !l.MoreThan(int64(at), got-1) {
			t.Fatalf("from %d: whether it is more than %d bytes", at, got)
		}
	}
}

// What a process that was killed left is told as that which opens it next finds it.
func TestExamine(t *testing.T) {
	fs := newFS(t)
	l := lead(t, fs, Options{})
	if err := l.SaveState(State{CopyID: 7, DiskID: 8, HWM: 1}, true); err != nil {
		t.Fatal(err)
	}
	app(t, l, batch(t, streamOf(1), 1, 3, 100), 1)
	if _, err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	left := fs.Copy()
	for range 2 { // it changes nothing
		r, err := Examine(left, dir, Options{})
		if err != nil || !r.Found || r.State.CopyID != topic.ID64(7) || r.State.HWM != 1 || r.LEO != l.LEO() || len(r.Epochs) != 1 || r.LEO == 0 {
			t.Fatalf("%+v, %v; the log ends at %d", r, err, l.LEO())
		}
	}
	if r, err := Examine(newFS(t), dir, Options{}); err != nil || r.Found || r.LEO != 0 || len(r.Epochs) != 0 {
		t.Fatalf("where nothing is: %+v, %v", r, err)
	}
}
