package partlog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// copyOf makes a copy of a leader's log, with everything committed, closed.
func copyOf(t testing.TB, from *Log) *vfs.Mem {
	t.Helper()
	fs := newFS(t)
	to := open(t, fs, Options{SegmentBytes: 1500})
	follow(t, to, from.began)
	fetchAll(t, from, to, 1<<20)
	save(t, to, to.LEO(), true)
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	return fs
}

// allGaps goes through the log once.
func allGaps(t testing.TB, l *Log) (out []Gap) {
	t.Helper()
	for at := int64(0); at < l.WrittenEnd(); {
		gaps, next, err := l.Gaps(at, l.WrittenEnd())
		if err != nil || next <= at {
			t.Fatalf("gaps from %d: next %d, %v", at, next, err)
		}
		out, at = append(out, gaps...), next
	}
	return out
}

// repairAll closes every gap with batches of the leader.
func repairAll(t testing.TB, from, to *Log) {
	t.Helper()
	for _, g := range allGaps(t, to) {
		for at := g.From; at < g.To; {
			c, err := from.Read(at, g.To, 1000, nil)
			if err != nil || len(c.Batches) == 0 {
				t.Fatalf("the leader has nothing at %d: %+v, %v", at, c, err)
			}
			next, err := to.Repair(c.Batches)
			if err != nil || next <= at || next > c.Next {
				t.Fatalf("repaired from %d to %d: %v", at, next, err)
			}
			at = next
		}
	}
	if g := allGaps(t, to); len(g) > 0 {
		t.Fatalf("gaps are left: %v", g)
	}
}

func segments(t testing.TB, fs vfs.FS) (bases []int64) {
	t.Helper()
	for _, name := range listOf(t, fs) {
		var base int64
		if n, _ := fmt.Sscanf(name, "%020d.log", &base); n == 1 {
			bases = append(bases, base)
		}
	}
	return bases
}

// Damage anywhere below the HWM, of any width, is found and repaired: the copy has
// the leader's bytes again, now and when it is opened again.
func TestRepairAfterDamage(t *testing.T) {
	from := leader(t, 40)
	good := copyOf(t, from)
	bases := segments(t, good)
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 23))
		fs := good.Copy()
		for range 1 + rng.IntN(3) {
			change(t, fs, segFile(bases[rng.IntN(len(bases)-1)]), func(b []byte) []byte {
				at := seglog.HeaderSize + rng.IntN(len(b)-seglog.HeaderSize)
				if rng.IntN(6) == 0 {
					at = rng.IntN(seglog.HeaderSize)
				}
				for i := at; i < min(len(b), at+1+rng.IntN(600)); i++ {
					b[i] ^= byte(1 + rng.IntN(255))
				}
				return b
			})
		}
		if rng.IntN(3) == 0 {
			if err := fs.Remove(segFile(bases[1+rng.IntN(len(bases)-2)])); err != nil {
				t.Fatal(err)
			}
		}
		to := open(t, fs, Options{})
		if to.LEO() != from.LEO() {
			t.Fatalf("seed %d: LEO %d", seed, to.LEO())
		}
		repairAll(t, from, to)
		if !bytes.Equal(raw(t, from), raw(t, to)) {
			t.Fatalf("seed %d: other bytes", seed)
		}
		_ = to.Close()
		to = open(t, fs.CrashClone(nil), Options{})
		if !bytes.Equal(raw(t, from), raw(t, to)) || !slices.Equal(from.Epochs(), to.Epochs()) || len(allGaps(t, to)) > 0 {
			t.Fatalf("seed %d: opened again: epochs %v, gaps %v", seed, to.Epochs(), allGaps(t, to))
		}
		follow(t, to, from.began)
	}
}

// The last segment is repaired too, and goes on taking batches; an epoch that only
// the lost batches told of is known again.
func TestRepairOfTheLastSegment(t *testing.T) {
	from := lead(t, newFS(t), Options{})
	for epoch := range uint64(4) {
		if epoch > 0 {
			begin(t, from)
		}
		app(t, from, batch(t, streamOf(1), epoch*10+1, 2, 30), 1)
		syncLog(t, from)
	}
	fs := copyOf(t, from)
	l := open(t, fs, Options{})
	size := l.writtenPos.Offset / 4 * 2
	_ = l.Close()
	for i := range 2 { // the state too, so that the epochs come from the batches
		if err := remove(fs, l.slots.name(i)); err != nil {
			t.Fatal(err)
		}
	}
	change(t, fs, segFile(0), func(b []byte) []byte { b[size] ^= 1; return b })
	to := open(t, fs, Options{})
	gaps := allGaps(t, to)
	if len(gaps) != 1 || gaps[0].To-gaps[0].From != 2 || gaps[0].Intended || len(to.Epochs()) != 3 {
		t.Fatalf("gaps %v, epochs %v", gaps, to.Epochs())
	}
	to.Committed(to.LEO())
	repairAll(t, from, to)
	if !bytes.Equal(raw(t, from), raw(t, to)) || !slices.Equal(from.Epochs(), to.Epochs()) {
		t.Fatalf("epochs %v", to.Epochs())
	}
	begin(t, from)
	app(t, from, record.AppendLeaderChange(nil, from.began), 2)
	follow(t, to, from.began)
	fetchAll(t, from, to, 1000)
	if !bytes.Equal(raw(t, from), raw(t, to)) {
		t.Fatal("other bytes after it went on")
	}
}

func TestRepairRefusals(t *testing.T) {
	l := lead(t, newFS(t), Options{})
	app(t, l, batch(t, streamOf(1), 1, 3, 20), 1)
	syncLog(t, l)
	if err := l.BeginEpoch(4, 10); err != nil { // 3..9 are a gap
		t.Fatal(err)
	}
	app(t, l, batch(t, streamOf(1), 20, 2, 20), 2)
	syncLog(t, l)
	if g := allGaps(t, l); !slices.Equal(g, []Gap{{3, 10, true}}) {
		t.Fatalf("gaps %v", g)
	}
	before := raw(t, l)
	placed := func(base int64, epoch topic.Epoch, n int) []byte {
		b := batch(t, streamOf(2), uint64(base)+1, n, 20)
		record.Place(b, base, epoch, 1)
		return b
	}
	refused := func(what string, b []byte) {
		t.Helper()
		if _, err := l.Repair(b); !errors.Is(err, ErrBadCopy) || !bytes.Equal(raw(t, l), before) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("above the HWM", placed(3, 2, 2))
	l.Committed(12)
	broken := placed(3, 2, 2)
	broken[len(broken)-1] ^= 1
	for what, b := range map[string][]byte{
		"nothing": nil, "a broken body": broken, "over what is before": placed(2, 2, 2), "over what is behind": placed(8, 2, 3),
		"in what is there": placed(0, 1, 3), "an older epoch": placed(3, 0, 2), "a newer epoch": placed(3, 5, 2),
		"a gap in it": append(placed(3, 2, 2), placed(6, 2, 1)...), "above the end": placed(12, 4, 1),
		"an epoch back in it": append(placed(3, 3, 2), placed(5, 2, 1)...),
	} {
		refused(what, b)
	}
	if next, err := l.Repair(placed(4, 2, 2)); err != nil || next != 6 {
		t.Fatalf("a part of the gap: %d, %v", next, err)
	}
	if g := allGaps(t, l); !slices.Equal(g, []Gap{{3, 4, false}, {6, 10, false}}) {
		t.Errorf("gaps %v", g)
	}
}

// TestPowerCutAtEveryOperationOfRepair: the segment is the old one or the new one.
func TestPowerCutAtEveryOperationOfRepair(t *testing.T) {
	from := leader(t, 24)
	fs := copyOf(t, from)
	change(t, fs, segFile(0), func(b []byte) []byte { b[300] ^= 1; return b })
	last := segments(t, fs)
	change(t, fs, segFile(last[len(last)-1]), func(b []byte) []byte { b[seglog.HeaderSize+50] ^= 1; return b })
	whole := raw(t, from)
	var damaged []byte
	rng := rand.New(rand.NewPCG(5, 5))
	for fault := 0; ; fault++ {
		mem := fs.Copy()
		armed, count, hit := false, 0, false
		to := open(t, vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
			if !armed {
				return vfs.Fault{}
			}
			if count++; count == fault {
				hit = true
				return vfs.Fault{Err: syscall.EIO, Short: 99, Lost: true}
			}
			if !op.Changes() || fault > 0 {
				return vfs.Fault{}
			}
			for _, disk := range []*vfs.Mem{mem.CrashClone(nil), mem.CrashClone(rng)} {
				l, err := Open(disk, dir, Options{})
				if err != nil {
					t.Fatal(err)
				}
				if got := raw(t, l); l.LEO() != from.LEO() || len(got) < len(damaged) || len(got) > len(whole) {
					t.Fatalf("%s %s: LEO %d of %d, %d bytes of %d to %d", op.Kind, op.Path, l.LEO(), from.LEO(), len(got), len(damaged), len(whole))
				}
				repairAll(t, from, l)
				if !bytes.Equal(raw(t, l), whole) {
					t.Fatalf("%s %s: other bytes", op.Kind, op.Path)
				}
				_ = l.Close()
			}
			return vfs.Fault{}
		}), Options{})
		damaged = raw(t, to)
		gaps := allGaps(t, to)
		if len(gaps) != 2 {
			t.Fatalf("gaps %v", gaps)
		}
		armed = true
		for _, g := range gaps {
			c, err := from.Read(g.From, g.To, 1<<20, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := to.Repair(c.Batches); err != nil && !hit {
				t.Fatal(err)
			}
		}
		armed = false
		if to.Failed() != nil {
			follow(t, to, from.began)
		}
		repairAll(t, from, to)
		if !bytes.Equal(raw(t, to), whole) {
			t.Fatalf("fault %d: other bytes", fault)
		}
		if again := open(t, mem.CrashClone(nil), Options{}); again.LEO() != from.LEO() {
			t.Fatalf("fault %d: opened again at %d", fault, again.LEO())
		}
		if fault > 0 && !hit {
			break
		}
	}
}
