package moves

import (
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
)

// TestProgress: what a far copy has is what its leader has without what it lacks, and the
// rate is what came per second since it was measured last.
func TestProgress(t *testing.T) {
	s := newStage(t, 1)
	s.move("s1")
	m := s.moves()[0]
	row := func(total, missing int64) metaapi.MoveRow {
		v := nodeapi.Vouch{Bytes: total, Copies: []nodeapi.VouchedCopy{{Replica: rep("s9"), MissingBytes: missing}}}
		s.runner.note(&m, step{phase: metaapi.MoveCopying}, &v)
		res, err := s.runner.List()
		if err != nil {
			t.Fatal(err)
		}
		return res.Moves[0]
	}
	for _, c := range []struct {
		what           string
		passed         int64 // looks since the one before
		total, missing int64
		copied, rate   int64
	}{
		{"at first", 1, 1000, 900, 100, 0},
		{"soon", 1, 1000, 800, 200, 500},
		{"too soon to measure again", 1, 1000, 700, 200, 500},
		{"later", 9, 1200, 500, 700, 250},
		{"more is removed than comes", 10, 400, 500, 0, 0},
	} {
		s.mono += lookEvery * time.Duration(c.passed)
		if got := row(c.total, c.missing); got.CopiedBytes != c.copied || got.TotalBytes != c.total || got.BytesPerSecond != c.rate {
			t.Errorf("%s: %d of %d bytes, %d/s", c.what, got.CopiedBytes, got.TotalBytes, got.BytesPerSecond)
		}
	}
}
