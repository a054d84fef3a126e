//go:build e2e

package scenarios

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// The size of BenchmarkSweep.
const (
	sweepLive = 9100
	sweepDead = 900
	sweepIDs  = 90 // topics of each kind whose incarnations the directories carry in turn
)

// The times of BenchmarkSweep. A percentile of 99 is as good as the samples above it:
// thousands of them leave dozens there.
const (
	sweepAlone  = 25 * time.Second // before the pass, and after it
	sweepLooks  = 10 * time.Second // of dry runs, one after the other
	sweepSettle = 20 * time.Second // after the directories were made: what that left to the disk is not the pass's
)

// BenchmarkSweep measures one pass over 10,000 topic directories on three storage
// nodes, 900 of them of deleted topics, while a client sends and receives; and what
// the pass costs that client. The directories are made by hand and share incarnations,
// so that it measures the pass and not the making of 10,000 topics. Alone is measured
// with the same load and directories right before and right after, each by itself: how
// far the two are apart is the noise of the figure. Dry runs show what looking costs
// when there is nothing else. Run it once (make bench-sweep), on a machine that does
// nothing else.
func BenchmarkSweep(b *testing.B) {
	c := harness.Start(b, harness.Options{Voters: 1, StorageNodes: 3, Gateways: 1})
	cl, err := client.New(client.Config{URLs: c.URLs()})
	if err != nil {
		b.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	live, dead := topics(ctx, b, cl, "live"), topics(ctx, b, cl, "dead")
	load := startTraffic(ctx, b, cl)
	defer load.stop()
	for i := range sweepLive {
		leave(b, c, i, "live", live)
	}
	for i := range sweepDead { // their topics live as yet: no node's own sweep takes them
		leave(b, c, i, "dead", dead)
	}
	syscall.Sync()
	load.during(sweepSettle)
	before := load.during(sweepAlone)
	mark := load.mark()
	looks := 0
	for begin := time.Now(); time.Since(begin) < sweepLooks; looks++ {
		pass(b, c, "--dry-run")
	}
	looking := load.since(mark)
	for i := range dead {
		if err := cl.DeleteTopic(ctx, dead[i].Name, dead[i].ETag()); err != nil {
			b.Fatal(err)
		}
	}
	load.during(time.Second)

	begin := time.Now()
	mark = load.mark()
	report := pass(b, c)
	took := time.Since(begin)
	beside := load.since(mark)
	after := load.during(sweepAlone)
	if n := report.Summary.Reclaimed; n < sweepDead || len(report.Entries) < sweepLive+sweepDead {
		b.Errorf("%d of %d reclaimed, %d entries", n, sweepDead, len(report.Entries))
	}
	b.ReportMetric(took.Seconds(), "s/sweep")
	b.ReportMetric(float64(looks), "looks")
	for name, list := range map[string][]time.Duration{"before": before, "looking": looking, "beside": beside, "after": after} {
		b.ReportMetric(ms(percentile(list, 50)), "ms-p50-"+name)
		b.ReportMetric(ms(percentile(list, 99)), "ms-p99-"+name)
		b.ReportMetric(ms(percentile(list, 100)), "ms-max-"+name)
		b.ReportMetric(float64(len(list)), "samples-"+name)
	}
	one, other := usualP99(before), usualP99(after)
	b.ReportMetric(max(one, other)/min(one, other), "x-p99-noise") // above 1.2 the run says nothing
	b.ReportMetric(usualP99(beside)/usualP99(slices.Concat(before, after)), "x-p99")
	b.ReportMetric(0, "ns/op")
}

// sweepWindow is how many messages, in the order in which they were due, have a 99th
// percentile of their own: those of 5 s.
const sweepWindow = 500

// usualP99 is the median of the windows' 99th percentiles, in ms: a machine that
// stands still for a moment, which a virtual one does, is in one of them.
func usualP99(list []time.Duration) float64 {
	var windows []time.Duration
	for w := range slices.Chunk(list, sweepWindow) {
		if len(w) == sweepWindow || len(windows) == 0 {
			windows = append(windows, percentile(w, 99))
		}
	}
	return ms(percentile(windows, 50))
}

// pass runs the sweeper once.
func pass(b *testing.B, c *harness.Cluster, args ...string) (report swept) {
	b.Helper()
	out, errs, status := sweep(b, c, append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), &report); err != nil || status != 0 {
		b.Fatalf("exit status %d, %v\n%s", status, err, errs)
	}
	return report
}

func topics(ctx context.Context, b *testing.B, cl *client.Client, kind string) []client.Topic {
	b.Helper()
	list := make([]client.Topic, sweepIDs)
	for i := range list {
		var err error
		if list[i], err = cl.CreateTopic(ctx, client.TopicSpec{Name: fmt.Sprintf("%s-%d", kind, i), Partitions: 1}); err != nil {
			b.Fatal(err)
		}
	}
	return list
}

// leave puts the i-th directory of a kind on a node, with one partition of 16 KiB.
func leave(b *testing.B, c *harness.Cluster, i int, kind string, ids []client.Topic) {
	b.Helper()
	dir := filepath.Join(c.Dir, fmt.Sprintf("storage-%d", i%3+1), "topics", fmt.Sprintf("dir-%s-%05d", kind, i))
	err := errors.Join(os.MkdirAll(filepath.Join(dir, "p00000"), 0o700),
		os.WriteFile(filepath.Join(dir, "incarnation"), markerOf(ids[i%len(ids)].Incarnation), 0o600),
		os.WriteFile(filepath.Join(dir, "p00000", "00000000000000000000.log"), make([]byte, 16<<10), 0o600))
	if err != nil {
		b.Fatal(err)
	}
}

// traffic is a client that sends, receives and acks, a hundred times a second, and
// notes how long each message took from when it was due to its ack: one that waits
// behind a slow one counts the wait, else a stall would be one sample.
type traffic struct {
	latencies
	cancel context.CancelFunc
	done   sync.WaitGroup
}

const trafficEvery = 10 * time.Millisecond

func startTraffic(ctx context.Context, b *testing.B, cl *client.Client) *traffic {
	b.Helper()
	if _, err := cl.CreateTopic(ctx, client.TopicSpec{Name: "load", Partitions: 3}); err != nil {
		b.Fatal(err)
	}
	l := &traffic{}
	ctx, l.cancel = context.WithCancel(ctx)
	l.done.Go(func() {
		for due := time.Now(); ; due = due.Add(trafficEvery) {
			select {
			case <-time.After(time.Until(due)):
				if err := l.one(ctx, cl, due); err != nil && ctx.Err() == nil {
					b.Error(err)
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return l
}

func (l *traffic) one(ctx context.Context, cl *client.Client, due time.Time) error {
	if _, err := cl.Produce(ctx, "load", client.Message{Payload: make([]byte, 100)}, client.ProduceOptions{}); err != nil {
		return err
	}
	r, err := cl.Receive(ctx, "load", client.ReceiveOptions{Max: 1, Wait: 10 * time.Second})
	if err != nil {
		return err
	}
	for _, d := range r.Deliveries {
		err = errors.Join(err, cl.Ack(ctx, "load", d.ReceiptHandle))
	}
	l.note(due)
	return err
}

func (l *traffic) stop() {
	l.cancel()
	l.done.Wait()
}
