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

// BenchmarkSweep measures one pass over 10,000 topic directories on three storage
// nodes, 900 of them of deleted topics, while a client sends and receives; and what
// the pass costs that client. The directories are made by hand and share incarnations,
// so that it measures the pass and not the making of 10,000 topics. Run it once:
//
//	go test -tags e2e -run '^$' -bench Sweep -benchtime 1x ./scenarios/
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
	for i := range dead {
		if err := cl.DeleteTopic(ctx, dead[i].Name, dead[i].ETag()); err != nil {
			b.Fatal(err)
		}
	}
	for i := range sweepLive {
		leave(b, c, i, "live", live)
	}
	load := startTraffic(ctx, b, cl)
	alone := load.during(10 * time.Second)

	for i := range sweepDead {
		leave(b, c, i, "dead", dead)
	}
	begin := time.Now()
	mark := load.mark()
	out, errs, status := sweep(b, c, "--json")
	took := time.Since(begin)
	beside := load.since(mark)
	var report swept
	if err := json.Unmarshal([]byte(out), &report); err != nil || status != 0 {
		b.Fatalf("exit status %d, %v\n%s", status, err, errs)
	}
	if n := report.Summary.Reclaimed; n < sweepDead || len(report.Entries) < sweepLive+sweepDead {
		b.Errorf("%d of %d reclaimed, %d entries", n, sweepDead, len(report.Entries))
	}
	load.stop()
	b.ReportMetric(took.Seconds(), "s/sweep")
	b.ReportMetric(float64(percentile(alone, 99).Microseconds())/1000, "ms-p99-alone")
	b.ReportMetric(float64(percentile(beside, 99).Microseconds())/1000, "ms-p99-beside")
	b.ReportMetric(float64(len(beside)), "samples-beside")
	b.ReportMetric(0, "ns/op")
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
// notes how long each message took from its sending to its ack.
type traffic struct {
	mu     sync.Mutex // guards took
	took   []time.Duration
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func startTraffic(ctx context.Context, b *testing.B, cl *client.Client) *traffic {
	b.Helper()
	if _, err := cl.CreateTopic(ctx, client.TopicSpec{Name: "load", Partitions: 3}); err != nil {
		b.Fatal(err)
	}
	l := &traffic{}
	ctx, l.cancel = context.WithCancel(ctx)
	l.done.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if err := l.one(ctx, cl); err != nil && ctx.Err() == nil {
					b.Error(err)
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return l
}

func (l *traffic) one(ctx context.Context, cl *client.Client) error {
	begin := time.Now()
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
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took = append(l.took, time.Since(begin))
	return err
}

func (l *traffic) mark() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.took)
}

func (l *traffic) since(mark int) []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.took[mark:])
}

func (l *traffic) during(d time.Duration) []time.Duration {
	mark := l.mark()
	<-time.After(d)
	return l.since(mark)
}

func (l *traffic) stop() {
	l.cancel()
	l.done.Wait()
}

func percentile(list []time.Duration, p int) time.Duration {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[(len(list)-1)*p/100]
}
