//go:build e2e

package scenarios

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// The size of BenchmarkCatchUp.
const (
	lackedBytes   = 1 << 30
	lackedPayload = 64 << 10
	lackedBatch   = 16 // messages of one request; what all send at once makes batches of 1 MiB
	lackedSenders = 8
	lackedParts   = 6 // partitions that share it
)

// The times of BenchmarkCatchUp.
const (
	liveEvery    = 5 * time.Millisecond // between two committed messages
	catchUpAlone = 15 * time.Second     // of live traffic, before and after: 3,000 samples
	catchUpRest  = 5 * time.Second      // after what leaves dirty pages behind
	catchUpLook  = 50 * time.Millisecond
	catchUpLimit = 2 * time.Minute
)

// BenchmarkCatchUp measures how fast a storage node that was down while 1 GiB was
// committed has it too, and what that costs a client that commits 200 messages a
// second meanwhile; beside it what the disk writes in sequence, on the same file
// system before and after, because a shared disk is not the same from one minute to
// the next. The three nodes, the client and the disk are one machine's: what a
// cluster spreads over four competes here. Run it once, on a machine that does
// nothing else:
//
//	go test -tags e2e -run '^$' -bench CatchUp -benchtime 1x ./scenarios/
func BenchmarkCatchUp(b *testing.B) {
	c := harness.Start(b, harness.Options{Voters: 1, StorageNodes: 3, Gateways: 1})
	cl, err := client.New(client.Config{URLs: c.URLs()})
	if err != nil {
		b.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for name, partitions := range map[string]int{"bulk": lackedParts, "live": 3} {
		if _, err := cl.CreateTopic(ctx, client.TopicSpec{Name: name, Partitions: partitions, ReplicationFactor: 3}); err != nil {
			b.Fatal(err)
		}
	}
	const down = "storage-3"
	c.Hold(down)
	c.Kill(down)
	began := time.Now()
	fillBulk(ctx, b, cl)
	b.ReportMetric(mib(lackedBytes, time.Since(began)), "MiB/s-fill")
	settle()
	diskBefore := diskRate(b, c.Dir)
	settle()

	load := startCommitter(ctx, b, cl)
	defer load.stop()
	load.during(3 * time.Second) // connections, and the first batches of new leaders
	alone := workOf(b, c, "storage-1", "storage-2")
	before := load.during(catchUpAlone)
	start := workOf(b, c, "storage-1", "storage-2")
	mark := load.mark()
	began = time.Now()
	c.Free(down)
	first, done, busy := caughtUp(ctx, b, cl)
	beside := load.since(mark)
	leaders := workOf(b, c, "storage-1", "storage-2").less(start).less(start.less(alone).times(done.Sub(began).Seconds() / catchUpAlone.Seconds()))
	follower := workOf(b, c, down)
	settle()
	after := load.during(catchUpAlone)
	load.stop()
	settle()
	diskAfter := diskRate(b, c.Dir)

	rate, disk := mib(lackedBytes, done.Sub(first)), (diskBefore+diskAfter)/2
	b.ReportMetric(done.Sub(began).Seconds(), "s/return")
	b.ReportMetric(done.Sub(first).Seconds(), "s/catch-up")
	b.ReportMetric(rate, "MiB/s-catch-up")
	b.ReportMetric(diskBefore, "MiB/s-disk-before")
	b.ReportMetric(diskAfter, "MiB/s-disk-after")
	b.ReportMetric(rate/disk, "x-disk")
	b.ReportMetric(busy, "x-processor")                    // busy meanwhile, of all of the machine
	b.ReportMetric(leaders.seconds, "s-processor-leaders") // without what the commits take
	b.ReportMetric(leaders.collections, "GCs-leaders")
	b.ReportMetric(follower.seconds, "s-processor-follower") // since it was started
	b.ReportMetric(follower.collections, "GCs-follower")
	for name, list := range map[string][]time.Duration{"before": before, "beside": beside, "after": after} {
		for _, p := range []int{50, 99, 100} {
			b.ReportMetric(ms(percentile(list, p)), fmt.Sprintf("ms-p%d-%s", p, name))
		}
		b.ReportMetric(float64(len(list)), "samples-"+name)
	}
	b.ReportMetric(ms(percentile(beside, 99))/ms(percentile(slices.Concat(before, after), 99)), "x-p99")
	b.ReportMetric(ms(percentile(after, 99))/ms(percentile(before, 99)), "x-p99-noise") // far from 1 the run says nothing
	b.ReportMetric(0, "ns/op")
}

func mib(bytes int64, d time.Duration) float64 { return float64(bytes) / (1 << 20) / d.Seconds() }

// settle leaves no dirty pages to the next measurement.
func settle() {
	syscall.Sync()
	<-time.After(catchUpRest)
}

// fillBulk commits what the node that is down will lack. It does not compress.
func fillBulk(ctx context.Context, b *testing.B, cl *client.Client) {
	b.Helper()
	var all sync.WaitGroup
	for range lackedSenders {
		all.Go(func() {
			msgs := make([]client.Message, lackedBatch)
			for i := range msgs {
				msgs[i].Payload = make([]byte, lackedPayload)
				_, _ = rand.Read(msgs[i].Payload) // never fails
			}
			for left := lackedBytes / lackedSenders / lackedPayload; left > 0; left -= lackedBatch {
				if err := commitAll(ctx, cl, msgs); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if b.Failed() {
		b.FailNow()
	}
}

// commitAll commits each message once or more often: those that an election refused
// are sent again.
func commitAll(ctx context.Context, cl *client.Client, msgs []client.Message) error {
	for {
		r, err := cl.ProduceBatch(ctx, "bulk", msgs, client.ProduceOptions{Committed: true, Timeout: 30 * time.Second, AllowDuplicates: true})
		if err != nil {
			return err
		}
		var again []client.Message
		for i, item := range r.Results {
			if !item.OK() {
				again = append(again, msgs[i])
			}
		}
		if len(again) == 0 {
			return nil
		}
		msgs = again
	}
}

// diskRate is what the disk under dir writes in sequence, in MiB/s: 1 GiB of 8 MiB
// writes, synced every 64 MiB as the log of a partition is at least.
func diskRate(b *testing.B, dir string) float64 {
	b.Helper()
	buf := make([]byte, 8<<20)
	_, _ = rand.Read(buf) // never fails
	f, err := os.Create(filepath.Join(dir, "sequential"))
	if err != nil {
		b.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	began := time.Now()
	for written := 0; written < lackedBytes; {
		n, err := f.Write(buf)
		if err != nil {
			b.Fatal(err)
		}
		if written += n; written%(64<<20) == 0 {
			err = f.Sync()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	return mib(lackedBytes, time.Since(began))
}

// caughtUp returns when the first bytes had come and when none was missing any more.
func caughtUp(ctx context.Context, b *testing.B, cl *client.Client) (first, done time.Time, busy float64) {
	b.Helper()
	total := uint64(0)
	work, all := ticks(b)
	err := harness.Until(ctx, catchUpLimit, func() bool {
		<-time.After(catchUpLook)
		lag, known := lagOf(ctx, cl)
		switch {
		case !known:
			return false
		case total == 0 && lag > 0:
			total = lag
		case first.IsZero() && lag < total:
			first = time.Now().Add(-catchUpLook)
			work, all = ticks(b)
		}
		done = time.Now()
		return !first.IsZero() && lag == 0
	})
	if err != nil {
		b.Fatalf("the node that came back still lacks something: %v", err)
	}
	workNow, allNow := ticks(b)
	return first, done, (workNow - work) / max(allNow-all, 1)
}

// ticks is what the processors of this machine have worked and been there since it
// started, in the unit of /proc/stat.
func ticks(b *testing.B) (busyTicks, all float64) {
	b.Helper()
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		b.Fatal(err)
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	for i, f := range strings.Fields(line)[1:9] { // guests are part of user
		n, err := strconv.ParseFloat(f, 64)
		if err != nil {
			b.Fatal(err)
		}
		if all += n; i != 3 && i != 4 { // idle, and idle while a disk works
			busyTicks += n
		}
	}
	return busyTicks, all
}

// work is what processes have done since they were started.
type work struct{ seconds, collections float64 } // of a processor; of garbage

func workOf(b *testing.B, c *harness.Cluster, ids ...string) (w work) {
	b.Helper()
	for _, id := range ids {
		for line := range strings.Lines(c.Metrics(id)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			v, err := strconv.ParseFloat(value, 64)
			switch {
			case err != nil:
			case name == "process_cpu_seconds_total":
				w.seconds += v
			case name == "go_gc_duration_seconds_count":
				w.collections += v
			}
		}
	}
	return w
}

func (w work) less(o work) work { return work{w.seconds - o.seconds, w.collections - o.collections} }

func (w work) times(f float64) work { return work{w.seconds * f, w.collections * f} }

// lagOf is how many records the copies of the topic lack together.
func lagOf(ctx context.Context, cl *client.Client) (lag uint64, known bool) {
	t, err := cl.Topic(ctx, "bulk")
	if err != nil {
		return 0, false
	}
	known = len(t.PartitionDetails) > 0
	for _, p := range t.PartitionDetails {
		for _, r := range p.Replicas {
			if r.Lag == nil {
				known = false
				continue
			}
			lag += *r.Lag
		}
	}
	return lag, known
}

// committer is a client that commits a message every liveEvery, whether or not the ones
// before are committed, and notes how long each took from when it was due.
type committer struct {
	latencies
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func startCommitter(ctx context.Context, b *testing.B, cl *client.Client) *committer {
	b.Helper()
	l := &committer{}
	ctx, l.cancel = context.WithCancel(ctx)
	l.done.Go(func() {
		var under sync.WaitGroup
		defer under.Wait()
		for due := time.Now(); ; due = due.Add(liveEvery) {
			select {
			case <-time.After(time.Until(due)):
				under.Go(func() { l.one(ctx, b, cl, due) })
			case <-ctx.Done():
				return
			}
		}
	})
	return l
}

// one commits a message. An election may refuse it or leave its outcome open: it is
// sent again, and the wait counts.
func (l *committer) one(ctx context.Context, b *testing.B, cl *client.Client, due time.Time) {
	_, err := cl.Produce(ctx, "live", client.Message{Payload: make([]byte, 256)}, client.ProduceOptions{Committed: true, AllowDuplicates: true})
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		b.Error(err)
	}
	l.note(due)
}

func (l *committer) stop() {
	l.cancel()
	l.done.Wait()
}
