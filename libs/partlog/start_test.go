package partlog

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/vfs"
)

func TestStartGolden(t *testing.T) {
	p := newProducers()
	p.at, p.lastMS, p.sweptMS = 5, 0x1000, 0x1000
	p.streams[record.Stream{Kind: record.StreamWAL, ID: 0x11, A: 2}] = producer{highest: record.Number{Seq: 0x99}, base: 3, lastMS: 0xfff}
	l := &Log{track: newTracked(p), epochs: epochs{{Epoch: 1, Start: 0}, {Epoch: 3, Start: 4}, {Epoch: 7, Start: 5}}, written: 5}
	l.track.now.streams[streamOf(9)] = producer{base: 5} // behind the start
	start, got, err := l.ExportStart()
	const want = "4e41524144505831" + "0000000000000005" + "0000000000001000" + "0000000000001000" +
		"00000001" + "01" + "0000000000000011" + "00000002" + "00000000" + "00000000" + "0000000000000099" +
		"0000000000000003" + "0000000000000fff" + "0000000000000000" + "0000000000000000" +
		"00000000" + "00000002" + "00000001" + "0000000000000000" + "00000003" + "0000000000000004" + "3eaf279f"
	if err != nil || start != 5 || hex.EncodeToString(got) != want {
		t.Errorf("start %d, %v\n got %x\nwant %s", start, err, got, want)
	}
	if at, last, err := StartOf(got); at != 5 || last != 3 || err != nil {
		t.Errorf("read back %d, %d, %v", at, last, err)
	}
	for bit := range len(got) * 8 {
		b := bytes.Clone(got)
		b[bit/8] ^= 1 << (bit % 8)
		if _, _, err := StartOf(b); !errors.Is(err, ErrBadStart) {
			t.Errorf("bit %d flipped: %v", bit, err)
		}
	}
	for cut := range len(got) {
		if _, _, err := StartOf(got[:cut]); !errors.Is(err, ErrBadStart) {
			t.Errorf("cut at %d: %v", cut, err)
		}
	}
}

// retained makes a leader whose first segments are gone, with streams that ended
// below the start, streams that went on, and epochs on both sides.
func retained(t testing.TB, seed uint64) *Log {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 17))
	l := lead(t, newFS(t), Options{SegmentBytes: 1500})
	var next [12]uint64
	for i := range 80 {
		if rng.IntN(9) == 0 {
			syncLog(t, l)
			begin(t, l)
			app(t, l, record.AppendLeaderChange(nil, l.began), int64(i))
		}
		id := uint64(rng.IntN(3) + i/10) // the first ones fall silent
		n := 1 + rng.IntN(3)
		app(t, l, batch(t, streamOf(id), next[id]+1, n, 20+rng.IntN(80)), int64(i))
		next[id] += uint64(n) + uint64(rng.IntN(2))
	}
	hwm := syncLog(t, l) - int64(rng.IntN(10))
	save(t, l, hwm, rng.IntN(2) == 0)
	r, err := l.Retain(1000, 1000-20-int64(rng.IntN(40)), 0, hwm)
	if err != nil || r.Segments == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	return l
}

// A copy that was replaced by the leader's start and has fetched what is committed
// knows what the leader knows; before that it never knows a number that is neither
// in its log nor was below its start; and a truncation takes back what it took.
func TestReplacedCopyKnowsTheSameNumbers(t *testing.T) {
	for seed := range uint64(30) {
		from := retained(t, seed)
		start, exported, err := from.ExportStart()
		if err != nil || start != from.LogStart() {
			t.Fatalf("start %d, %v", start, err)
		}
		fs := newFS(t)
		old := lead(t, fs, Options{})
		app(t, old, batch(t, streamOf(77), 1, 3, 20), 1)
		syncLog(t, old)
		_ = old.Close()
		st := State{CopyID: 1, DiskID: 2, LogID: 3, PositionGeneration: 4, Position: []byte("pos")}
		if err := Replace(fs, dir, st, exported); err != nil {
			t.Fatal(err)
		}
		to := open(t, fs, Options{SegmentBytes: 900})
		got, found := to.State()
		if !found || got.CopyID != 1 || got.DiskID != 2 || got.LogID != 3 || got.HWM != start || got.PositionGeneration != 4 || string(got.Position) != "pos" {
			t.Fatalf("state %+v", got)
		}
		if to.LEO() != start || to.LogStart() != start || to.LastCommitMS() > from.LastCommitMS() {
			t.Fatalf("LEO %d, start %d, want %d; commit time %d", to.LEO(), to.LogStart(), start, to.LastCommitMS())
		}
		if _, _, diverged := quorum.Diverging(from.Epochs(), from.WrittenEnd(), to.LastEpoch(), start); diverged {
			t.Fatalf("epoch %d at %d is not on the leader's history %v", to.LastEpoch(), start, from.Epochs())
		}
		follow(t, to, from.began)
		states := []map[record.Stream]record.Number{numbersOf(to)}
		ends := []int64{start}
		for to.WrittenEnd() < from.WrittenEnd() {
			fetch(t, from, to, 1)
			states, ends = append(states, numbersOf(to)), append(ends, to.WrittenEnd())
			for id, n := range numbersOf(to) {
				if full, _ := from.Producer(id); full.Less(n) {
					t.Fatalf("seed %d at %d: %v at %v, the leader at %v", seed, to.WrittenEnd(), id, n, full)
				}
			}
		}
		syncLog(t, to)
		if !equalNumbers(numbersOf(from), numbersOf(to)) || from.LastCommitMS() != to.LastCommitMS() {
			t.Fatalf("seed %d: %v, the leader has %v", seed, numbersOf(to), numbersOf(from))
		}
		_ = to.Close()
		to = open(t, fs.CrashClone(nil), Options{})
		if !equalNumbers(numbersOf(from), numbersOf(to)) || !bytes.Equal(raw(t, from), raw(t, to)) || to.LEO() != from.LEO() {
			t.Fatalf("seed %d: opened again with %v", seed, numbersOf(to))
		}
		for i := len(ends) - 1; i >= 0; i -= 3 {
			if err := to.Truncate(ends[i]); err != nil || !equalNumbers(numbersOf(to), states[i]) {
				t.Fatalf("seed %d: truncated to %d: %v, was %v, %v", seed, ends[i], numbersOf(to), states[i], err)
			}
		}
	}
}

func equalNumbers(a, b map[record.Stream]record.Number) bool {
	if len(a) != len(b) {
		return false
	}
	for id, n := range a {
		if b[id] != n {
			return false
		}
	}
	return true
}

// A stored HWM above the start stays: what lies between is lost until it is copied.
func TestReplaceKeepsTheHWM(t *testing.T) {
	from := retained(t, 1)
	start, exported, _ := from.ExportStart()
	fs := fenceFS(t)
	if err := Replace(fs, dir, State{HWM: start + 7}, exported); err != nil {
		t.Fatal(err)
	}
	l := open(t, fs, Options{})
	if st, _ := l.State(); st.HWM != start+7 || l.LEO() != start {
		t.Fatalf("HWM %d, LEO %d", st.HWM, l.LEO())
	}
	if err := Replace(fs, dir, State{}, exported[1:]); !errors.Is(err, ErrBadStart) {
		t.Errorf("a broken start: %v", err)
	}
	if err := Replace(fs, dir, State{Position: make([]byte, MaxPosition+1)}, exported); err == nil {
		t.Error("a position that is too long")
	}
}

// replaceRun makes a log of three segments and a fence, and replaces it.
func replaceRun(t *testing.T, fs vfs.FS, exported []byte) (oldRaw []byte, oldHWM int64, replace func() error) {
	t.Helper()
	l := lead(t, fs, Options{SegmentBytes: 800})
	for i := range uint64(20) {
		app(t, l, batch(t, streamOf(1), i+1, 1, 60), 1)
	}
	hwm := syncLog(t, l) - 5
	save(t, l, hwm, true)
	promise(t, openFence(t, fs), 6)
	oldRaw = raw(t, l)
	_ = l.Close()
	return oldRaw, hwm, func() error { return Replace(fs, dir, State{CopyID: 42}, exported) }
}

// TestPowerCutAtEveryOperationOfReplace: what is found is the old log or the new
// one, also when the power goes again while it is opened; once Replace or an Open
// has shown the new one it is never the old one.
func TestPowerCutAtEveryOperationOfReplace(t *testing.T) {
	for _, killed := range []bool{false, true} { // before the decision is on disk
		powerCutsOfReplace(t, killed)
	}
}

func powerCutsOfReplace(t *testing.T, killed bool) {
	t.Helper()
	from := retained(t, 3)
	start, exported, _ := from.ExportStart()
	rng := rand.New(rand.NewPCG(1, 2))
	mem := newFS(t)
	var oldRaw []byte
	var oldHWM int64
	armed, decided, olds, news := false, false, 0, 0
	var look func(disk *vfs.Mem, at string, depth int)
	look = func(disk *vfs.Mem, at string, depth int) {
		t.Helper()
		fs := vfs.FS(disk)
		if depth > 0 {
			fs = vfs.NewFault(disk, func(op vfs.Op) vfs.Fault {
				if op.Changes() {
					look(disk.CrashClone(nil), at+", then "+string(op.Kind), depth-1)
					look(disk.CrashClone(rng), at+", then "+string(op.Kind), depth-1)
				}
				return vfs.Fault{}
			})
		}
		l, err := Open(fs, dir, Options{})
		if err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		st, found := l.State()
		switch {
		case found && st.CopyID == 42 && st.HWM == start && l.LEO() == start && l.LogStart() == start && len(raw(t, l)) == 0:
			news++
		case !decided && found && st.HWM == oldHWM && bytes.Equal(raw(t, l), oldRaw):
			olds++
		default:
			t.Fatalf("%s: neither: %+v, LEO %d, start %d, decided %t", at, st, l.LEO(), l.LogStart(), decided)
		}
		if e, found := openFence(t, disk).Promised(); e != 6 || !found {
			t.Fatalf("%s: the fence says %d", at, e)
		}
		_ = l.Close()
	}
	fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
		if armed && op.Changes() {
			at := fmt.Sprintf("%s %s", op.Kind, op.Path)
			look(mem.CrashClone(nil), at, 1)
			for range 2 {
				look(mem.CrashClone(rng), at, 1)
			}
			if killed && op.Kind == vfs.OpSyncDir {
				killed = false
				return vfs.Fault{Err: syscall.EIO}
			}
		}
		return vfs.Fault{}
	})
	oldRaw, oldHWM, replace := replaceRun(t, fs, exported)
	armed, decided = true, false
	kill := killed
	if err := replace(); err == nil == kill {
		t.Fatal(err)
	}
	decided = !kill
	l := open(t, fs, Options{})
	follow(t, l, from.began)
	armed = false
	fetchAll(t, from, l, 1<<20)
	again := open(t, mem.CrashClone(nil), Options{})
	if !bytes.Equal(raw(t, again), raw(t, from)) || olds == 0 || news == 0 {
		t.Fatalf("%d old ones and %d new ones were seen", olds, news)
	}
	for _, e := range listOf(t, mem) {
		if strings.HasPrefix(e, "replace") {
			t.Errorf("%s is left", e)
		}
	}
}

func listOf(t testing.TB, fs vfs.FS) (names []string) {
	t.Helper()
	entries, err := fs.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Every operation may fail: it is the old log or the new one, and repeating helps.
func TestReplaceFaults(t *testing.T) {
	from := retained(t, 3)
	start, exported, _ := from.ExportStart()
	for n := 1; ; n++ {
		mem := newFS(t)
		count, hit := -1<<30, false
		fs := vfs.NewFault(mem, func(vfs.Op) vfs.Fault {
			if count++; count == n {
				hit = true
				return vfs.Fault{Err: syscall.EIO, Short: 5, Lost: true}
			}
			return vfs.Fault{}
		})
		oldRaw, oldHWM, replace := replaceRun(t, fs, exported)
		count = 0
		rerr := replace()
		l, err := Open(fs, dir, Options{})
		if err != nil {
			l, err = Open(fs, dir, Options{})
		}
		if err != nil {
			t.Fatalf("fault %d: %v", n, err)
		}
		st, found := l.State()
		isOld := found && st.HWM == oldHWM && bytes.Equal(raw(t, l), oldRaw)
		isNew := found && st.CopyID == 42 && l.LEO() == start && l.LogStart() == start
		if !isNew && (!isOld || rerr == nil) {
			t.Fatalf("fault %d: neither: %+v, LEO %d, %v", n, st, l.LEO(), rerr)
		}
		_ = l.Close()
		if err := replace(); err != nil {
			if err := replace(); err != nil {
				t.Fatalf("fault %d: again: %v", n, err)
			}
		}
		l = open(t, mem.CrashClone(nil), Options{})
		if l.LEO() != start || l.LogStart() != start {
			t.Fatalf("fault %d: LEO %d", n, l.LEO())
		}
		if !hit {
			break
		}
	}
}

// A decision that has rotted is no decision.
func TestRottenReplace(t *testing.T) {
	from := retained(t, 3)
	_, exported, _ := from.ExportStart()
	mem := newFS(t)
	oldRaw, _, replace := replaceRun(t, mem, exported)
	if err := replace(); err != nil {
		t.Fatal(err)
	}
	change(t, mem, path.Join(dir, replaceName), func(b []byte) []byte { b[30] ^= 1; return b })
	l := open(t, mem, Options{})
	if !bytes.Equal(raw(t, l), oldRaw) || slices.Contains(listOf(t, mem), replaceName) {
		t.Errorf("LEO %d, %v", l.LEO(), listOf(t, mem))
	}
}

func FuzzParseStart(f *testing.F) {
	p := newProducers()
	p.at = 7
	p.streams[streamOf(1)] = producer{highest: record.Number{Seq: 4}}
	l := &Log{track: newTracked(p), epochs: epochs{{Epoch: 1, Start: 0}}, written: 7}
	_, good, _ := l.ExportStart()
	f.Add(good[8 : len(good)-4])
	f.Fuzz(func(t *testing.T, payload []byte) {
		snap, err := parseStart(sealStart(append([]byte(startMagic), payload...)))
		if err != nil {
			return
		}
		if again, err := parseStart(sealStart(appendSnapshot([]byte(startMagic), snap))); err != nil || len(again.producers.streams) != len(snap.producers.streams) {
			t.Fatalf("not the same when written again: %v", err)
		}
		mem := fenceFS(t)
		if err := Replace(mem, dir, State{}, sealStart(appendSnapshot([]byte(startMagic), snap))); err != nil {
			t.Fatal(err)
		}
		if l, err := Open(mem, dir, Options{}); err != nil || l.LEO() != snap.start {
			t.Fatalf("a log at %d: %v", l.LEO(), err)
		}
	})
}
