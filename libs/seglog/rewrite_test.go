package seglog

import (
	"slices"
	"testing"

	"github.com/narad-mq/narad/libs/vfs"
)

// A rewritten segment shows its new frames, now and when it is opened again, keeps
// its header, and lets the old file go; the last one is never rewritten.
func TestRewrite(t *testing.T) {
	m := vfs.NewMem()
	l := build(t, m, 9, 3)
	f, _ := segmentFile(t, m, 4)
	_, err := f.WriteAt([]byte("damage"), HeaderSize)
	must(t, err)
	must(t, f.Sync())
	if got := numbers(t, l); !slices.Equal(got, []uint64{1, 2, 3, 5, 6, 7, 8, 9}) {
		t.Fatalf("before: %v", got)
	}
	nonce := uint64(0)
	fill := func(emit func([]byte) error) error {
		h, err := l.Header(4)
		must(t, err)
		nonce = h.Nonce
		for num := uint64(4); num <= 6; num++ {
			must(t, emit(frame(h.Nonce, num, content(num))))
		}
		return nil
	}
	if err := l.Rewrite(7, nil, fill); err == nil {
		t.Fatal("the last segment was rewritten")
	}
	old := l.segs[1]
	must(t, l.Rewrite(4, nil, fill))
	if old.file != nil || !old.doomed {
		t.Error("the old file stays open")
	}
	for range 2 {
		if got := numbers(t, l); !slices.Equal(got, upTo(1, 9)) {
			t.Fatalf("after: %v", got)
		}
		if h, err := l.Header(4); err != nil || h.Nonce != nonce || string(h.Meta) != "meta" {
			t.Errorf("header %+v, %v", h, err)
		}
		must(t, l.Close())
		l = open(t, m.CrashClone(nil), nil)
	}
}
