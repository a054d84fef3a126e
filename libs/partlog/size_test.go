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
	exact := int64(0)
	for at := len(sizes) - 1; at >= 0; at-- {
		exact += sizes[at]
		got := l.BytesFrom(int64(at))
		if got < exact || got > exact+64<<10+(32<<10) {
			t.Fatalf("from %d: %d bytes, exactly %d", at, got, exact)
		}
	}
}

func TestPeekState(t *testing.T) {
	fs := newFS(t)
	if _, found, err := PeekState(fs, dir); found || err != nil {
		t.Fatalf("where nothing is: found %v, %v", found, err)
	}
	l := open(t, fs, Options{})
	for i := range int64(3) {
		if err := l.SaveState(State{CopyID: 7, DiskID: 8, HWM: i, Position: []byte("x")}, true); err != nil {
			t.Fatal(err)
		}
	}
	st, found, err := PeekState(fs, dir)
	if err != nil || !found || st.CopyID != topic.ID64(7) || st.HWM != 2 {
		t.Fatalf("%+v, found %v, %v", st, found, err)
	}
}
