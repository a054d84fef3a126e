package partlog

import (
	"errors"
	"sync"
	"testing"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/vfs"
)

// Appenders, committers, readers, savers and retention at once: every offset is
// read once, in order, with what was appended there.
func TestConcurrentUse(t *testing.T) {
	const writers, each = 4, 200
	l := lead(t, newFS(t), Options{SegmentBytes: 8 << 10})
	var wg sync.WaitGroup
	for w := range uint64(writers) {
		wg.Go(func() {
			var b record.Builder
			for i := range uint64(each) {
				b.Reset(streamOf(w+1), 0, record.Oldest{})
				if err := errors.Join(b.Add(i*2+1, []byte{0, byte(w)}), b.Add(i*2+2, []byte{0, byte(w)})); err != nil {
					t.Error(err)
				}
				base, err := l.Append(b.Finish(record.CodecNone), 1, int64(i))
				if err != nil {
					t.Error(err)
					return
				}
				if end, err := l.Sync(); err != nil || end < base+2 {
					t.Errorf("synced to %d, appended at %d: %v", end, base, err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			st, _ := l.State()
			st.HWM = l.LEO()
			if err := errors.Join(l.SaveState(st, true), l.ReleaseFiles()); err != nil {
				t.Error(err)
			}
			if _, err := l.Retain(1<<40, 0, 40<<10, st.HWM-200); err != nil {
				t.Error(err)
			}
		}
	})
	next := [writers + 1]uint64{}
	var d record.Decoder
	for at := int64(0); at < writers*each*2; {
		c, err := l.Read(at, l.LEO(), 4<<10, nil)
		if errors.Is(err, ErrGone) {
			at = l.LogStart()
			continue
		}
		if err != nil || c.Skipped != 0 {
			t.Errorf("read at %d: %+v, %v", at, c, err)
			break
		}
		for b := c.Batches; len(b) > 0; {
			h, one, rest, err := record.Split(b)
			if err != nil || d.Reset(one) != nil {
				t.Fatal(err)
			}
			b = rest
			for r, ok := d.Next(); ok; r, ok = d.Next() {
				if w := h.Stream.ID; r.Number.Seq <= next[w] || r.Body[1] != byte(w-1) {
					t.Errorf("offset %d of %d: %d after %d", r.Offset, w, r.Number.Seq, next[w])
				}
				next[h.Stream.ID] = r.Number.Seq
			}
		}
		at = c.Next
	}
	close(done)
	wg.Wait()
}

// BenchmarkAppendSync is a commit as the partition does it: one batch of 100
// records of 256 bytes, one fsync.
func BenchmarkAppendSync(b *testing.B) {
	d := b.TempDir()
	l, err := Open(vfs.OS(), d+"/p00000", Options{})
	if err != nil {
		b.Fatal(err)
	}
	if err := l.BeginEpoch(1, 0); err != nil {
		b.Fatal(err)
	}
	data := batch(b, streamOf(1), 1, 100, 256)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Append(data, 1, 1); err != nil {
			b.Fatal(err)
		}
		if _, err := l.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	_ = l.Close()
}

// BenchmarkRead reads such batches one after another.
func BenchmarkRead(b *testing.B) {
	l := lead(b, newFS(b), Options{})
	data := batch(b, streamOf(1), 1, 100, 256)
	for range 500 {
		app(b, l, data, 1)
	}
	syncLog(b, l)
	buf := make([]byte, 128<<10)
	at := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		c, err := l.Read(at, l.LEO(), 100<<10, buf)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(c.Batches)))
		if at = c.Next; at >= l.LEO() {
			at = 0
		}
	}
}
