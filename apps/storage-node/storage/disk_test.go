package storage_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/storage-node/storage"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// ledger is what the outside world knows at one moment.
type ledger struct {
	mu        sync.Mutex
	committed []string // answered, in order
	tried     map[string]bool
	acked     map[string]bool // acks sent, answered or not
}

func (l *ledger) copy() *ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &ledger{committed: slices.Clone(l.committed), tried: map[string]bool{}, acked: map[string]bool{}}
	for s := range l.tried {
		c.tried[s] = true
	}
	for s := range l.acked {
		c.acked[s] = true
	}
	return c
}

// work commits, takes and acks, one thing after the other.
func (l *ledger) work(p *process, rng *rand.Rand, steps int) {
	seq := uint64(0)
	var held []nodeapi.Delivery
	for range steps {
		switch rng.IntN(4) {
		case 0, 1:
			n := uint64(rng.IntN(5) + 1)
			l.mu.Lock()
			for _, s := range seqs(seq, n) {
				l.tried[fmt.Sprintf("1-%d", s)] = true
			}
			l.mu.Unlock()
			if _, err := p.commit("orders", 0, batch(1, seqs(seq, n)...)); err != nil {
				return // a disk that failed: the process ends
			}
			l.mu.Lock()
			for _, s := range seqs(seq, n) {
				l.committed = append(l.committed, fmt.Sprintf("1-%d", s))
			}
			l.mu.Unlock()
			seq += n
		case 2:
			held = append(held, p.take("orders", rng.IntN(8)+1)...)
		case 3:
			rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
			n := rng.IntN(len(held) + 1)
			l.mu.Lock()
			for _, d := range held[:n] {
				l.acked[payload(d)] = true
			}
			l.mu.Unlock()
			p.settle("orders", nodeapi.SettleAck, 0, held[:n]...)
			held = held[n:]
		}
		if rng.IntN(3) == 0 {
			pass(time.Duration(rng.IntN(500)) * time.Millisecond)
		}
	}
}

// check starts a node on what a crash left and compares: every committed record
// is there, once, in order; nothing comes that was never sent; and every record
// that nobody acked is delivered.
func (l *ledger) check(t *testing.T, c *cluster, what string) {
	t.Helper()
	p := c.start()
	defer p.shutDown()
	got := p.replay("orders", 0)
	if len(got) < len(l.committed) || !slices.Equal(got[:len(l.committed)], l.committed) {
		t.Fatalf("%s: committed %v, the log holds %v", what, l.committed, got)
	}
	seen := map[string]bool{}
	for _, s := range got {
		if seen[s] || !l.tried[s] {
			t.Fatalf("%s: %s is twice in the log, or was never sent", what, s)
		}
		seen[s] = true
	}
	delivered := map[string]bool{}
	for _, d := range p.take("orders", 1000) {
		delivered[payload(d)] = true
	}
	for _, s := range got {
		if !delivered[s] && !l.acked[s] {
			t.Fatalf("%s: %s was never acked and is not delivered", what, s)
		}
	}
	// The producer repeats its last batch: nothing is appended twice.
	if n := len(l.committed); n > 0 {
		var g, s int
		_, _ = fmt.Sscanf(l.committed[n-1], "%d-%d", &g, &s)
		if res := p.mustCommit("orders", 0, batch(1, uint64(s))); res.Appended != 0 {
			t.Fatalf("%s: a committed record was appended again", what)
		}
	}
}

// A power cut before each operation that changes the disk.
func TestEverySyncPoint(t *testing.T) {
	for seed := range uint64(6) {
		testkit.Bubble(t, func(t *testing.T) {
			type cut struct {
				fs  *vfs.Mem
				led *ledger
				op  string
			}
			var mu sync.Mutex
			var cuts []cut
			mem := vfs.NewMem()
			rng, dice := seeded(seed), seeded(seed+100)
			l := &ledger{tried: map[string]bool{}, acked: map[string]bool{}}
			fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
				if op.Changes() {
					mu.Lock()
					defer mu.Unlock()
					led := l.copy()
					cuts = append(cuts, cut{mem.CrashClone(dice), led, fmt.Sprintf("seed %d, before op %d: %s %s", seed, op.N, op.Kind, op.Path)})
				}
				return vfs.Fault{}
			})
			c := newCluster(t, fs, "data")
			c.segment = 600
			c.put("orders", 1, onePartition())
			p := c.start()
			l.work(p, rng, 40)
			p.shutDown()
			cuts = append(cuts, cut{mem.CrashClone(nil), l, fmt.Sprintf("seed %d, at the end", seed)})
			for _, k := range cuts {
				if _, err := k.fs.Stat("data"); err != nil {
					continue // before the data directory itself
				}
				c.fs = k.fs
				k.led.check(t, c, k.op)
			}
		})
	}
}

// Every write, sync and rename fails once, in turn: the process ends or goes
// on, and its next start holds everything that was answered.
func TestEveryDiskFault(t *testing.T) {
	for n := int64(1); ; n++ {
		reached := false
		testkit.Bubble(t, func(t *testing.T) {
			mem := vfs.NewMem()
			what := ""
			fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
				if op.N != n {
					return vfs.Fault{}
				}
				reached = true
				what = fmt.Sprintf("op %d: %s %s failed", op.N, op.Kind, op.Path)
				return vfs.Fault{Err: syscall.EIO, Short: op.Len / 2, Lost: true}
			})
			c := newCluster(t, mem, "data")
			c.fs = fs
			c.segment = 600
			c.put("orders", 1, onePartition())
			l := &ledger{tried: map[string]bool{}, acked: map[string]bool{}}
			if p := c.tryStart(); p != nil {
				l.work(p, seeded(3), 30)
				_ = p.stop()
				_ = p.role.Close()
			}
			for _, after := range []*vfs.Mem{mem.Copy(), mem.CrashClone(nil)} {
				c.fs = after
				l.check(t, c, what)
			}
		})
		if !reached {
			if n < 50 {
				t.Fatalf("only %d operations", n)
			}
			return
		}
	}
}

// tryStart is start, but a node that cannot open its directory is no failure.
func (c *cluster) tryStart() (p *process) {
	defer func() {
		if recover() != nil {
			p = nil
		}
	}()
	ok := *c
	ok.t = giveUp{c.t}
	p = ok.start()
	c.epoch = ok.epoch
	return p
}

// giveUp turns a fatal failure of a start into a panic that tryStart catches.
type giveUp struct{ testing.TB }

func (giveUp) Fatal(...any) { panic("start failed") }

// A failed fsync: whoever waits hears that the outcome is unknown, nothing is
// taken any more, and the process is told to end.
func TestFailedFsyncEndsTheProcess(t *testing.T) {
	mem := vfs.NewMem()
	var mu sync.Mutex
	fail := false
	fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
		mu.Lock()
		defer mu.Unlock()
		if fail && op.Kind == vfs.OpSync && !strings.Contains(op.Path, "/state") { // not of the state, which may be due just before
			return vfs.Fault{Err: syscall.EIO, Lost: true}
		}
		return vfs.Fault{}
	})
	c, p := startOrders(t, fs)
	p.mustCommit("orders", 0, batch(1, 1))
	mu.Lock()
	fail = true
	mu.Unlock()
	if _, err := p.commit("orders", 0, batch(1, 2)); !problem.HasCode(err, problem.OutcomeUnknown) {
		t.Fatalf("during the failure: %v", err)
	}
	if _, err := p.commit("orders", 0, batch(1, 3)); !problem.HasCode(err, problem.PartitionUnavailable) {
		t.Fatalf("after the failure: %v", err)
	}
	if got := p.replay("orders", 0); !slices.Equal(got, []string{"1-1"}) {
		t.Fatalf("shown after the failure: %v", got)
	}
	if err := <-p.err; !errors.Is(err, syscall.EIO) {
		t.Fatalf("Run ended with %v", err)
	}
	mu.Lock()
	fail = false
	mu.Unlock()
	_ = p.role.Close()
	p = c.start()
	defer p.shutDown()
	if res := p.mustCommit("orders", 0, batch(1, 2, 3)); res.Appended+res.Duplicates != 2 {
		t.Fatalf("%+v", res)
	}
	if got := p.replay("orders", 0); !slices.Equal(got, []string{"1-1", "1-2", "1-3"}) {
		t.Fatalf("after the restart: %v", got)
	}
}

// The disk fills up between two looks at it: commits are refused with applied no,
// the leadership and the process go on, and with room the same batch is taken once.
func TestFullDiskIsARefusal(t *testing.T) {
	for _, tc := range []struct {
		kind  vfs.OpKind
		cause syscall.Errno
		code  problem.Code
	}{
		{vfs.OpWrite, syscall.ENOSPC, problem.DiskFull},
		{vfs.OpWrite, syscall.EDQUOT, problem.DiskFull},
		{vfs.OpCreate, syscall.EMFILE, problem.Overloaded},
	} {
		mem := vfs.NewMem()
		var full atomic.Bool
		fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
			if full.Load() && op.Kind == tc.kind && strings.Contains(op.Path, "/p0") {
				return vfs.Fault{Err: tc.cause, Short: op.Len / 2}
			}
			return vfs.Fault{}
		})
		c, p := startOrders(t, fs)
		want := []string{"1-1", "1-2"}
		if tc.kind == vfs.OpWrite { // else the partition is to have no file yet
			p.mustCommit("orders", 0, batch(1, 1))
		}
		full.Store(true)
		for range 3 {
			if _, err := p.commit("orders", 0, batch(1, 1, 2)); !problem.HasCode(err, tc.code) {
				t.Fatalf("%v: %v", tc.cause, err)
			}
		}
		full.Store(false)
		p.mustCommit("orders", 0, batch(1, 1, 2))
		if got := p.replay("orders", 0); !slices.Equal(got, want) {
			t.Fatalf("%v: %v", tc.cause, got)
		}
		p.shutDown()
		p = c.start()
		if got := p.replay("orders", 0); !slices.Equal(got, want) {
			t.Fatalf("%v, after a restart: %v", tc.cause, got)
		}
		p.shutDown()
	}
}

// damageRecord flips a byte of the payload in every file that holds it.
func damageRecord(t *testing.T, fs vfs.FS, dir, payload string) {
	t.Helper()
	entries, err := fs.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".log") {
			continue
		}
		f, err := fs.Open(dir + "/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		size, _ := f.Size()
		b := make([]byte, size)
		_, _ = f.ReadAt(b, 0)
		if at := strings.Index(string(b), payload); at >= 0 {
			if _, err := f.WriteAt([]byte{b[at] ^ 1}, int64(at)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// A record that this only copy cannot read is passed over, counted, and never
// blocks; the records around it come.
func TestUnreadableRecordIsSkipped(t *testing.T) {
	for _, whileOpen := range []bool{true, false} {
		mem := vfs.NewMem()
		c, p := startOrders(t, mem)
		for s := range uint64(5) {
			p.mustCommit("orders", 0, batch(1, 100+s))
		}
		if !whileOpen {
			p.shutDown()
		}
		damageRecord(t, mem, "data/topics/orders/p00000", "1-102")
		if !whileOpen {
			p = c.start()
		}
		ds := p.take("orders", 10)
		if got := payloads(ds); !slices.Equal(got, []string{"1-100", "1-101", "1-103", "1-104"}) {
			t.Fatalf("open %t: took %v", whileOpen, got)
		}
		p.ack("orders", ds...)
		if d := p.details("orders", 0); d.Frontier != d.HighWatermark {
			t.Fatalf("open %t: %+v", whileOpen, d)
		}
		if v := gauge(t, p, "narad_consumer_corrupt_skipped_total"); v != 1 {
			t.Fatalf("open %t: %v records counted", whileOpen, v)
		}
		p.shutDown()
	}
}

func TestRetentionDropsAndCounts(t *testing.T) {
	cfg := onePartition()
	cfg.RetentionMS = topic.MinRetentionMS
	testkit.Bubble(t, func(t *testing.T) {
		c := newCluster(t, vfs.NewMem(), "data")
		c.segment = 600
		c.put("orders", 1, cfg)
		p := c.start()
		for s := range uint64(20) {
			p.mustCommit("orders", 0, batch(1, s))
		}
		ds := p.take("orders", 2)
		p.ack("orders", ds[0])
		pass(2 * time.Hour)
		synctest.Wait()
		d := p.details("orders", 0)
		if d.LogStart != 20 || d.Frontier != 20 || d.DroppedUnsettled != 19 || d.HighWatermark != 20 {
			t.Fatalf("%+v", d)
		}
		_, err := p.node.Read(t.Context(), &nodeapi.ReadRequest{Target: p.target("orders", 0), Offset: 3, Limit: 1, MaxBytes: 1})
		if !problem.HasCode(err, problem.OffsetGone) {
			t.Fatalf("read below the log start: %v", err)
		}
		p.mustCommit("orders", 0, batch(1, 20))
		if got := payloads(p.take("orders", 10)); !slices.Equal(got, []string{"1-20"}) {
			t.Fatalf("after retention %v", got)
		}
		p.shutDown()
		p = c.start()
		defer p.shutDown()
		if d := p.details("orders", 0); d.DroppedUnsettled != 19 || d.LogStart != 20 {
			t.Fatalf("after a restart %+v", d)
		}
	})
}

// A full disk refuses commits with applied no and takes them again when there is room,
// also while the pass over all partitions stands at one of them.
func TestFullDisk(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		mem, hangs := vfs.NewMem(), make(chan struct{})
		mem.SetCapacity(1 << 20)
		c := newCluster(t, vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
			if strings.Contains(op.Path, "hangs") {
				<-hangs
			}
			return vfs.Fault{}
		}), "data")
		c.put("hangs", 2, onePartition())
		c.put("orders", 1, onePartition())
		p := c.start()
		defer p.shutDown()
		defer close(hangs)
		p.mustCommit("orders", 0, batch(1, 1))
		pass(storage.DefaultRetentionEvery + time.Second)
		f, err := mem.Create("data/ballast")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(make([]byte, 1000<<10), 0); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		pass(2 * time.Second)
		if _, err := p.commit("orders", 0, batch(1, 2)); !problem.HasCode(err, problem.DiskFull) {
			t.Fatalf("on a full disk: %v", err)
		}
		if p.role.Degraded() == nil {
			t.Error("a full disk is not reported")
		}
		p.ack("orders", p.take("orders", 1)...)
		if err := mem.Remove("data/ballast"); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Second)
		p.mustCommit("orders", 0, batch(1, 2))
	})
}

// Real files, real fsyncs: a restart finds what was committed and settled.
func TestRealFiles(t *testing.T) {
	c := newCluster(t, vfs.OS(), t.TempDir())
	c.put("orders", 1, onePartition())
	p := c.start()
	p.mustCommit("orders", 0, batch(1, seqs(0, 500)...))
	p.ack("orders", p.take("orders", 200)...)
	p.shutDown()
	p = c.start()
	defer p.shutDown()
	if got := p.replay("orders", 0); len(got) != 500 {
		t.Fatalf("%d records", len(got))
	}
	if got := p.take("orders", 1000); len(got) != 300 || payload(got[0]) != "1-200" {
		t.Fatalf("%d records come", len(got))
	}
}

func TestMetricNames(t *testing.T) {
	c := newCluster(t, vfs.NewMem(), "data")
	p := c.start()
	defer p.shutDown()
	families, err := p.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, f := range families {
		have[f.GetName()] = true
	}
	for _, name := range []string{
		"narad_commit_seconds", "narad_commit_records_total", "narad_duplicates_dropped_total", "narad_partition_fsync_seconds",
		"narad_leases", "narad_consumer_corrupt_skipped_total", "narad_damage_ranges_total", "narad_disk_free_bytes",
	} {
		if !have[name] {
			t.Errorf("no metric %s", name)
		}
	}
	var _ prometheus.Gatherer = p.reg
}
