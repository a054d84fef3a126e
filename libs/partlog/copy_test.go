package partlog

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

func follow(t testing.TB, l *Log, epoch topic.Epoch) {
	t.Helper()
	if err := l.BeginFollow(epoch); err != nil {
		t.Fatal(err)
	}
}

// fetchAll copies everything that the leader has beyond the follower.
func fetchAll(t testing.TB, from, to *Log, maxBytes int) {
	t.Helper()
	for to.WrittenEnd() < from.WrittenEnd() {
		fetch(t, from, to, maxBytes)
	}
	syncLog(t, to)
}

func fetch(t testing.TB, from, to *Log, maxBytes int) {
	t.Helper()
	at := to.WrittenEnd()
	c, err := from.Read(at, math.MaxInt64, maxBytes, nil)
	if err != nil {
		t.Fatal(err)
	}
	end, err := to.AppendCopied(c.Batches, from.WrittenEnd(), 0)
	if err != nil || end != c.Next || end <= at {
		t.Fatalf("copied to %d of %d: %v", end, c.Next, err)
	}
}

// raw is the log as the batches on disk.
func raw(t testing.TB, l *Log) (b []byte) {
	t.Helper()
	for at := l.LogStart(); at < l.WrittenEnd(); {
		c, err := l.Read(at, math.MaxInt64, 1<<20, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, at = append(b, c.Batches...), c.Next
	}
	return b
}

func wantEqual(t testing.TB, a, b *Log) {
	t.Helper()
	if !bytes.Equal(raw(t, a), raw(t, b)) {
		t.Fatal("the copies differ in bytes")
	}
	if !slices.Equal(a.Epochs(), b.Epochs()) || a.LastCommitMS() != b.LastCommitMS() || a.WrittenEnd() != b.WrittenEnd() {
		t.Fatalf("epochs %v and %v, commit time %d and %d, end %d and %d",
			a.Epochs(), b.Epochs(), a.LastCommitMS(), b.LastCommitMS(), a.WrittenEnd(), b.WrittenEnd())
	}
	if !reflect.DeepEqual(numbersOf(a), numbersOf(b)) {
		t.Fatalf("numbers %v and %v", numbersOf(a), numbersOf(b))
	}
}

func numbersOf(l *Log) map[record.Stream]record.Number {
	out := map[record.Stream]record.Number{}
	for id, p := range l.track.now.streams {
		out[id] = p.highest
	}
	return out
}

// leader makes a log of some epochs in several segments, synced.
func leader(t testing.TB, batches int) *Log {
	t.Helper()
	l := lead(t, newFS(t), Options{SegmentBytes: 2000})
	for i := range batches {
		if i%7 == 3 {
			syncLog(t, l)
			begin(t, l)
			app(t, l, record.AppendLeaderChange(nil, l.began), int64(i))
		}
		app(t, l, batch(t, streamOf(uint64(i%3)), uint64(i*5+1), 1+i%4, 20+i%90), int64(i))
	}
	syncLog(t, l)
	return l
}

// A copy is the same bytes, and knows the same of them, whatever the pieces it
// came in and the size of its own segments, before and after it is opened again.
func TestCopyIsTheSame(t *testing.T) {
	from := leader(t, 60)
	for _, size := range []int64{600, 2000, 1 << 20} {
		for _, maxBytes := range []int{1, 700, 1 << 20} {
			fs := newFS(t)
			to := open(t, fs, Options{SegmentBytes: size})
			follow(t, to, from.began)
			fetchAll(t, from, to, maxBytes)
			wantEqual(t, from, to)
			if to.LEO() != from.LEO() {
				t.Fatalf("LEO %d", to.LEO())
			}
			for _, s := range to.seg.Segments() {
				if s.Size > size {
					t.Fatalf("a segment of %d bytes, the bound is %d", s.Size, size)
				}
			}
			save(t, to, to.LEO(), true)
			_ = to.Close()
			wantEqual(t, from, open(t, fs.CrashClone(nil), Options{}))
		}
	}
}

// What is not the continuation is refused as a whole.
func TestBadCopiesAreRefused(t *testing.T) {
	placed := func(base int64, epoch topic.Epoch, n int) []byte {
		b := batch(t, streamOf(1), uint64(base)*10+1, n, 20)
		record.Place(b, base, epoch, 1)
		return b
	}
	good := placed(4, 3, 2)
	flipped := func(at int) []byte { b := bytes.Clone(good); b[at] ^= 1; return b }
	for name, bad := range map[string][]byte{
		"body":                 flipped(len(good) - 1),
		"placement":            flipped(80),
		"epoch above":          placed(4, 6, 2),
		"epoch back":           placed(4, 2, 2),
		"no epoch":             placed(4, 0, 2),
		"base below":           placed(3, 3, 2),
		"gap above the HWM":    placed(6, 3, 2),
		"unplaced":             batch(t, streamOf(1), 1, 1, 1),
		"cut":                  good[:len(good)-1],
		"bytes behind":         append(bytes.Clone(good), 1),
		"second one body":      append(bytes.Clone(good), flipped(len(good)-1)...),
		"second one base":      append(bytes.Clone(good), good...),
		"second one epoch":     append(placed(4, 4, 2), placed(6, 3, 2)...),
		"gap before the HWM's": append(bytes.Clone(good), placed(7, 3, 1)...),
		"no batch":             []byte("no batch"),
	} {
		t.Run(name, func(t *testing.T) {
			mem := newFS(t)
			changes := 0
			fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
				if op.Changes() {
					changes++
				}
				return vfs.Fault{}
			})
			l := open(t, fs, Options{})
			follow(t, l, 5)
			if _, err := l.AppendCopied(placed(0, 3, 4), 0, 0); err != nil {
				t.Fatal(err)
			}
			syncLog(t, l)
			before := changes
			if end, err := l.AppendCopied(bad, 5, 0); !errors.Is(err, ErrBadCopy) || end != 4 {
				t.Fatalf("end %d, error %v", end, err)
			}
			if changes != before || l.WrittenEnd() != 4 || l.LastEpoch() != 3 || l.Failed() != nil {
				t.Fatalf("something was written: %d changes, end %d", changes-before, l.WrittenEnd())
			}
			if end, err := l.AppendCopied(good, 5, 0); err != nil || end != 6 {
				t.Fatalf("the right one afterwards: %d, %v", end, err)
			}
		})
	}
}

func TestFollowAndLeadTakeTurns(t *testing.T) {
	l := open(t, newFS(t), Options{})
	b := batch(t, streamOf(1), 1, 1, 10)
	record.Place(b, 0, 4, 1)
	if _, err := l.AppendCopied(b, 0, 0); !errors.Is(err, ErrStaleEpoch) {
		t.Errorf("copied before anything is followed: %v", err)
	}
	follow(t, l, 5)
	follow(t, l, 5)
	if _, err := l.Append(batch(t, streamOf(1), 1, 1, 10), 5, 1); !errors.Is(err, ErrStaleEpoch) {
		t.Errorf("a follower appended: %v", err)
	}
	if _, err := l.AppendCopied(b, 0, 0); err != nil {
		t.Error(err)
	}
	for _, e := range []topic.Epoch{0, 4} {
		if err := l.BeginFollow(e); !errors.Is(err, ErrStaleEpoch) {
			t.Errorf("follow %d after 5: %v", e, err)
		}
	}
	if err := l.BeginEpoch(5, 1); !errors.Is(err, ErrStaleEpoch) {
		t.Errorf("lead the epoch that was followed: %v", err)
	}
	if err := l.BeginEpoch(7, 1); err != nil {
		t.Fatal(err)
	}
	app(t, l, batch(t, streamOf(1), 2, 1, 10), 1)
	next := batch(t, streamOf(1), 3, 1, 10)
	record.Place(next, 2, 7, 1)
	if _, err := l.AppendCopied(next, 0, 0); !errors.Is(err, ErrStaleEpoch) {
		t.Errorf("a leader copied: %v", err)
	}
	if err := l.BeginFollow(7); !errors.Is(err, ErrStaleEpoch) {
		t.Errorf("follow the epoch that was led: %v", err)
	}
	follow(t, l, 8)
	if _, err := l.AppendCopied(next, 0, 0); err != nil {
		t.Error(err)
	}
	syncLog(t, l)
	if got := l.Epochs(); !slices.Equal(got, []EpochStart{{Epoch: 4, Start: 0}, {Epoch: 7, Start: 1}}) {
		t.Errorf("epochs %v", got)
	}
}

// A gap of the leader that ends at or below its HWM is a gap of the copy, and no
// damage: numbers behind it count, before and after it is opened again.
func TestCopiedGap(t *testing.T) {
	from := lead(t, newFS(t), Options{})
	app(t, from, batch(t, streamOf(1), 1, 3, 20), 1)
	syncLog(t, from)
	if err := from.BeginEpoch(2, 10); err != nil { // as a lone copy that lost 3..9
		t.Fatal(err)
	}
	app(t, from, batch(t, streamOf(1), 20, 2, 20), 2)
	syncLog(t, from)
	fs := newFS(t)
	to := open(t, fs, Options{})
	follow(t, to, 2)
	fetch(t, from, to, 1)
	c, err := from.Read(3, math.MaxInt64, 1, nil)
	if err != nil || c.Skipped != 7 || c.Next != 12 {
		t.Fatalf("%+v, %v", c, err)
	}
	if _, err := to.AppendCopied(c.Batches, 9, 0); !errors.Is(err, ErrBadCopy) {
		t.Fatalf("a gap above the HWM: %v", err)
	}
	if end, err := to.AppendCopied(c.Batches, 10, 0); err != nil || end != 12 {
		t.Fatalf("%d, %v", end, err)
	}
	syncLog(t, to)
	for range 2 {
		if n, _ := to.Producer(streamOf(1)); n.Seq != 21 || !slices.Equal(to.Epochs(), from.Epochs()) {
			t.Fatalf("number %d, epochs %v", n.Seq, to.Epochs())
		}
		got, skipped := readAll(t, to, 0, 12, 100)
		if skipped != 7 || len(got) != 5 {
			t.Fatalf("skipped %d, %v", skipped, got)
		}
		_ = to.Close()
		to = open(t, fs, Options{})
	}
}

// Two logs that grew apart come together by the rules of package quorum, and the one
// that truncated knows what the other one knows.
func TestDivergenceEndsInEqualCopies(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 3))
		logs := []*Log{lead(t, newFS(t), Options{SegmentBytes: 900}), lead(t, newFS(t), Options{SegmentBytes: 700})}
		common := 1 + rng.IntN(20)
		for i := range common {
			b := batch(t, streamOf(uint64(i%3)), uint64(i+1), 1+rng.IntN(3), 30)
			for _, l := range logs {
				app(t, l, bytes.Clone(b), 1)
			}
		}
		hwm := logs[0].WrittenEnd()
		for round := range 1 + rng.IntN(3) { // each led some epochs on its own
			for i, l := range logs {
				epoch := topic.Epoch(2 + round*2 + (i+int(seed))%2)
				if rng.IntN(3) == 0 {
					continue
				}
				if err := l.BeginEpoch(epoch, l.WrittenEnd()); err != nil {
					t.Fatal(err)
				}
				for k := range 1 + rng.IntN(8) {
					app(t, l, batch(t, streamOf(uint64(k%3)), 100*uint64(epoch)+uint64(k), 1+rng.IntN(3), 30), 1)
				}
			}
		}
		from, to := logs[0], logs[1]
		if to.LastEpoch() > from.LastEpoch() {
			from, to = to, from
		}
		for _, l := range logs {
			syncLog(t, l)
		}
		l := from
		if err := l.BeginEpoch(40, l.WrittenEnd()); err != nil {
			t.Fatal(err)
		}
		app(t, l, record.AppendLeaderChange(nil, 40), 2)
		syncLog(t, l)
		to.Committed(hwm)
		follow(t, to, 40)
		for {
			last, at := to.LastEpoch(), to.LEO()
			epoch, end, diverged := quorum.Diverging(from.Epochs(), from.WrittenEnd(), last, at)
			if !diverged {
				break
			}
			if err := to.Truncate(quorum.TruncateTo(to.Epochs(), at, epoch, end)); err != nil {
				t.Fatalf("seed %d: %v; %v ends at %d, %v", seed, err, to.Epochs(), to.LEO(), from.Epochs())
			}
			if to.LEO() >= at {
				t.Fatalf("seed %d: it does not get shorter than %d", seed, at)
			}
		}
		fetchAll(t, from, to, 200)
		wantEqual(t, from, to)
	}
}

// A follower whose disk failed ends at what was synced, and goes on under the same
// epoch, on a new file.
func TestFollowerAfterAFailure(t *testing.T) {
	from := leader(t, 30)
	for _, kind := range []vfs.OpKind{vfs.OpSync, vfs.OpWrite} {
		for i := range 8 {
			cutFails, again, piece := i%2 == 1, i/2%2 == 1, i/4*100
			t.Run(fmt.Sprintf("%s, cut fails %t, tried again %t, in pieces of %d", kind, cutFails, again, piece), func(t *testing.T) {
				mem := newFS(t)
				fail := false
				fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
					if fail && (op.Kind == kind || cutFails && op.Kind == vfs.OpTruncate) {
						return vfs.Fault{Err: syscall.EIO, Short: 50, Lost: true}
					}
					return vfs.Fault{}
				})
				l := open(t, fs, Options{})
				follow(t, l, from.began)
				fetch(t, from, l, 1000)
				synced := syncLog(t, l)
				fetch(t, from, l, 1000)
				fail = true
				var err error
				if kind == vfs.OpSync && piece == 0 {
					_, err = l.Sync()
				} else {
					c, _ := from.Read(l.WrittenEnd(), math.MaxInt64, 1000, nil)
					_, err = l.AppendCopied(c.Batches, 0, piece)
				}
				fail = false
				if !errors.Is(err, ErrFailed) || l.LEO() != synced || l.WrittenEnd() != synced {
					t.Fatalf("LEO %d of %d: %v", l.LEO(), synced, err)
				}
				if again { // which cuts the file, if that had failed
					c, _ := from.Read(synced, math.MaxInt64, 1000, nil)
					if _, err := l.AppendCopied(c.Batches, 0, 0); !errors.Is(err, ErrFailed) {
						t.Fatalf("copied after the failure: %v", err)
					}
				}
				follow(t, l, from.began)
				fetchAll(t, from, l, 1000)
				wantEqual(t, from, l)
				wantEqual(t, from, open(t, mem.CrashClone(nil), Options{}))
			})
		}
	}
}

// No room: what was written stays, the end tells, and the rest can be repeated.
func TestFollowerWithoutRoom(t *testing.T) {
	from := leader(t, 30)
	c, err := from.Read(0, math.MaxInt64, 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := raw(t, from)
	mem := newFS(t)
	l := open(t, mem, Options{SegmentBytes: 1000})
	follow(t, l, from.began)
	mem.SetCapacity(3500)
	end, err := l.AppendCopied(all, 0, 0)
	if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrFailed) || end <= 0 || end != l.WrittenEnd() || end >= from.LEO() {
		t.Fatalf("end %d after %d bytes, %v", end, len(c.Batches), err)
	}
	mem.SetCapacity(0)
	fetchAll(t, from, l, 1<<20)
	wantEqual(t, from, l)
}

// TestPowerCutWhileCopying looks at what a power cut before each change of the
// disk leaves of a follower that copies, truncates and saves.
func TestPowerCutWhileCopying(t *testing.T) {
	from := leader(t, 40)
	for seed := range uint64(3) {
		rng := rand.New(rand.NewPCG(seed, 11))
		mem := newFS(t)
		synced, hwm := int64(0), int64(0)
		check := func(disk vfs.FS, at string) {
			t.Helper()
			l, err := Open(disk, dir, Options{})
			if err != nil {
				t.Fatalf("%s: %v", at, err)
			}
			defer func() { _ = l.Close() }()
			if st, _ := l.State(); l.LEO() < synced || st.HWM < hwm || st.HWM > l.LEO() {
				t.Fatalf("%s: LEO %d of %d, HWM %d of %d", at, l.LEO(), synced, st.HWM, hwm)
			}
			got, want := raw(t, l), raw(t, from)
			if l.Recovery().GapOffsets == 0 && !bytes.HasPrefix(want, got) {
				t.Fatalf("%s: other bytes", at)
			}
		}
		fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
			if op.Changes() {
				at := fmt.Sprintf("seed %d, %s %s", seed, op.Kind, op.Path)
				check(mem.CrashClone(nil), at)
				check(mem.CrashClone(rng), at)
			}
			return vfs.Fault{}
		})
		l := open(t, fs, Options{SegmentBytes: 1500})
		follow(t, l, from.began)
		for l.WrittenEnd() < from.LEO() {
			fetch(t, from, l, 1+rng.IntN(3000))
			switch rng.IntN(4) {
			case 0:
			case 1:
				synced = hwm // what is taken back may go at any moment
				if err := l.Truncate(hwm); err != nil {
					t.Fatal(err)
				}
			default:
				if synced = syncLog(t, l); rng.IntN(2) == 0 {
					save(t, l, synced, true)
					hwm = synced
				}
			}
		}
	}
}
