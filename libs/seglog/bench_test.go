package seglog

import (
	"path/filepath"
	"testing"

	"github.com/narad-mq/narad/libs/vfs"
)

// BenchmarkWriteSync writes 4 KiB and syncs, in a loop: into a file that grows,
// one filled with zeros ahead, and a recycled one. The run that FillAhead and
// Recycle were chosen by took 323, 144 and 138 microseconds.
func BenchmarkWriteSync(b *testing.B) {
	const segment = 16 << 20
	b.Run("grow", func(b *testing.B) { writeSync(b, segment, Options{}) })
	b.Run("fill", func(b *testing.B) { writeSync(b, segment, Options{FillAhead: 4 << 20}) })
	b.Run("recycle", func(b *testing.B) { writeSync(b, segment, Options{FillAhead: 4 << 20, Recycle: 2}) })
}

func writeSync(b *testing.B, segment int64, opt Options) {
	opt.Format, opt.MaxFrame = testFormat{}, 64<<10
	l, err := Open(vfs.OS(), filepath.Join(b.TempDir(), "log"), opt)
	must(b, err)
	must(b, l.Roll(1, nil))
	buf := make([]byte, 4096)
	for n := range uint64(b.N) {
		if l.End().Offset+int64(len(buf)) > segment {
			must(b, l.Roll(n+2, nil))
			must(b, l.RemoveBelow(n+2))
		}
		_, err := l.Append(buf)
		must(b, err)
		must(b, l.Sync())
	}
	must(b, l.Close())
}
