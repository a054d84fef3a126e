//go:build e2e

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/testkit"
)

// program is a node that the test runs itself, beside those of `narad dev`, to
// send it signals and see how it ends.
type program struct {
	t      *testing.T
	path   string
	args   []string
	cmd    *exec.Cmd
	ended  chan error
	log    string
	http   string // client port; empty but for gateways
	ops    string
	client *http.Client
}

// runNode starts a program as a further member of a cluster and waits until it is ready.
func runNode(t *testing.T, c *harness.Cluster, name, id string, args ...string) *program {
	t.Helper()
	p := newNode(t, c, name, id, args...)
	p.start()
	return p
}

// newNode prepares a program of this release without starting it.
func newNode(t *testing.T, c *harness.Cluster, name, id string, args ...string) *program {
	t.Helper()
	var join []string
	for _, v := range c.IDs(harness.Voter) {
		join = append(join, *c.Node(v).RPC)
	}
	p := &program{t: t, log: filepath.Join(c.Dir, id+".log"), ops: testkit.FreeAddr(t), client: &http.Client{Timeout: 10 * time.Second}}
	args = append([]string{
		"--node-id", id, "--data-dir", filepath.Join(c.Dir, id), "--insecure", "--advertise", "127.0.0.1", "--gossip-addr=",
		"--rpc-addr", testkit.FreeAddr(t), "--raft-addr", testkit.FreeAddr(t), "--ops-addr", p.ops, "--join", strings.Join(join, ","),
	}, args...)
	if name == harness.Gateway {
		p.http = testkit.FreeAddr(t)
		args = append(args, "--http-addr", p.http)
	}
	p.path, p.args = harness.Binary(t, name), args
	t.Cleanup(func() {
		if p.cmd == nil {
			return
		}
		select {
		case <-p.ended:
		default:
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
	})
	return p
}

// start runs the program, again after it has ended, and waits until it is ready.
func (p *program) start() {
	p.t.Helper()
	p.launch()
	if err := harness.Until(p.t.Context(), 60*time.Second, func() bool { return p.status("/readyz") == http.StatusOK }); err != nil {
		p.t.Fatalf("%s is not ready after 60 s: %s", p.path, p.tail())
	}
}

// launch runs the program and waits for nothing.
func (p *program) launch() {
	p.t.Helper()
	p.ended = make(chan error, 1)
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close() // the child has its own
	p.cmd = exec.Command(p.path, p.args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	cmd, ended := p.cmd, p.ended
	go func() { ended <- cmd.Wait() }()
}

// status asks the operator port; 0: it does not answer.
func (p *program) status(path string) int {
	resp, err := p.client.Get("http://" + p.ops + path)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

func (p *program) tail() string {
	raw, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return tail(string(raw))
}

func (p *program) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// wait returns the exit status and how long the end took from begin.
func (p *program) wait(begin time.Time, limit time.Duration) (exit int, took time.Duration) {
	p.t.Helper()
	select {
	case err := <-p.ended:
		p.ended <- err // for the cleanup
		took = time.Since(begin)
		var e *exec.ExitError
		if err != nil && !errors.As(err, &e) {
			p.t.Fatal(err)
		}
		return p.cmd.ProcessState.ExitCode(), took
	case <-time.After(limit):
		p.t.Fatalf("it has not ended after %s: %s", limit, p.tail())
		return 0, 0
	}
}

// TestGatewayStopsInOrder: SIGTERM with consumers parked and produces under way.
// During --drain-delay it answers as before and ends connections; parked consumers
// get their 204 at once; nothing that was accepted is lost.
func TestGatewayStopsInOrder(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 1, Gateways: 1})
	cl, ctx := connect(t, c)
	for _, name := range []string{"busy", "idle"} {
		create(ctx, t, cl, client.TopicSpec{Name: name})
	}
	p := runNode(t, c, harness.Gateway, "gateway-x", "--drain-delay", drainDelay.String())
	load := newBook()
	onceInTime(t, "parked consumes are answered within 1 s of the signal", func() (bool, string) {
		soonest := stopInOrder(ctx, t, p, load)
		load.drain(ctx, t, cl, "busy", 60*time.Second)
		kept := soonest <= time.Second // how late the last of so many hears of it is the machine's
		if !kept {
			p.start()
		}
		return kept, soonest.String()
	})
}

// drainDelay leaves a busy machine time to answer two hundred, and then what is asked of a
// gateway that drains.
const drainDelay = 8 * time.Second

// stopInOrder stops a gateway with consumers parked and produces under way, and returns
// how long after the signal the first of the consumers was answered.
func stopInOrder(ctx context.Context, t *testing.T, p *program, load *book) (soonest time.Duration) {
	t.Helper()
	base := "http://" + p.http + "/v1/topics/"
	const waiters = 200
	tr := &http.Transport{MaxConnsPerHost: 2 * waiters, MaxIdleConnsPerHost: 2 * waiters}
	defer tr.CloseIdleConnections()
	hc := &http.Client{Transport: tr, Timeout: 40 * time.Second}
	var parked sync.WaitGroup
	var signalled time.Time  // set before anybody is answered
	soonest = 2 * drainDelay // of the parked ones, from the signal
	var mu sync.Mutex        // guards signalled and soonest
	closing := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return !signalled.IsZero() && time.Since(signalled) >= drainDelay
	}
	for range waiters {
		parked.Go(func() {
			resp, err := hc.Post(base+"idle/consume?wait=30s", "", nil)
			if err != nil {
				t.Errorf("a parked consume was cut: %v", err)
				return
			}
			defer resp.Body.Close()
			mu.Lock()
			took := time.Since(signalled)
			soonest = min(soonest, took)
			mu.Unlock()
			if resp.StatusCode != 204 || !resp.Close || took > drainDelay {
				t.Errorf("a parked consume got %d (close %v) %s after the signal", resp.StatusCode, resp.Close, took)
			}
		})
	}
	direct := direct(t, "http://"+p.http)
	producing, stopProducing := context.WithCancel(ctx)
	var producers sync.WaitGroup
	for range 8 {
		producers.Go(func() { load.until(producing, t, direct, "busy", closing) })
	}
	parkedNow := func() bool {
		return strings.Contains(metricsOf(t, p), fmt.Sprintf("narad_consume_waiting %d", waiters))
	}
	if err := harness.Until(ctx, 20*time.Second, parkedNow); err != nil {
		t.Error("the consumers have not parked within 20 s")
	}

	mu.Lock()
	signalled = time.Now()
	begin := signalled
	p.signal(syscall.SIGTERM)
	mu.Unlock()
	parked.Wait()
	if ready, accept, health := p.status("/readyz"), p.status("/readyz/accept"), p.status("/healthz"); ready != 503 || accept != 503 || health != 200 {
		t.Errorf("while draining: /readyz %d, /readyz/accept %d, /healthz %d", ready, accept, health)
	}
	load.mu.Lock()
	load.number++
	late := fmt.Sprintf("m-%d", load.number)
	load.accepted[late] = true
	load.mu.Unlock()
	if status, body := call(t, "POST", base+"busy/produce", late); status != 202 { // the listener is open for the delay
		t.Errorf("a new connection while draining: %d %s", status, body)
	}
	exit, took := p.wait(begin, drainDelay+15*time.Second)
	stopProducing()
	producers.Wait()
	if exit != 0 || took < drainDelay {
		t.Errorf("exit status %d after %s: %s", exit, took, p.tail())
	}
	t.Logf("stopped in %s", took)
	return soonest
}

// until produces small messages until the gateway takes no more connections or ctx
// ends. What was answered 202 is accepted. Only once the listener is closing may a
// request fail, without an answer: a connection that waited in its queue is reset.
func (b *book) until(ctx context.Context, t *testing.T, cl *client.Client, topic string, closing func() bool) {
	for ctx.Err() == nil {
		b.mu.Lock()
		b.number++
		text := fmt.Sprintf("m-%d", b.number)
		b.mu.Unlock()
		_, err := cl.Produce(ctx, topic, client.Message{Payload: []byte(text)}, client.ProduceOptions{})
		b.mu.Lock()
		if err == nil {
			b.accepted[text] = true
		} else {
			b.unknown[text] = true
		}
		b.mu.Unlock()
		if err == nil || ctx.Err() != nil {
			continue
		}
		var e *client.Error
		if !closing() || errors.As(err, &e) && e.Status != 0 {
			t.Errorf("produce to a stopping gateway: %v, want 202 until the listener closes", err)
		}
		return
	}
}

func metricsOf(t *testing.T, p *program) string {
	t.Helper()
	status, body := call(t, "GET", "http://"+p.ops+"/metrics", "")
	if status != 200 {
		t.Errorf("/metrics: %d", status)
	}
	return body
}

// TestSecondSignalEndsAtOnce: within 1 s, and the drain delay would be a minute.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 1, Gateways: 1})
	cl, ctx := connect(t, c)
	create(ctx, t, cl, client.TopicSpec{Name: "busy"})
	p := runNode(t, c, harness.Gateway, "gateway-x", "--drain-delay", "1m")
	onceInTime(t, "a second signal ends a program within 1 s", func() (bool, string) {
		produceN(ctx, t, direct(t, "http://"+p.http), "busy", "a", 10)
		p.signal(syscall.SIGTERM)
		if err := harness.Until(ctx, 20*time.Second, func() bool { return p.status("/readyz") == 503 }); err != nil {
			t.Error("still ready 20 s after the signal")
		}
		begin := time.Now()
		p.signal(syscall.SIGTERM)
		exit, took := p.wait(begin, 30*time.Second) // half of the delay
		if exit != 1 {
			t.Errorf("exit status %d, %s after the second signal", exit, took)
		}
		p.start() // what it had accepted and not dispatched lies on its disk
		drain(ctx, t, cl, "busy", 10)
		return took <= time.Second, took.String()
	})
}

// TestStorageNodeStopsInOrder: what was acked before an ordered stop does not
// come again, to the last one; what was leased comes at once.
func TestStorageNodeStopsInOrder(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 1, Gateways: 1})
	cl, ctx := connect(t, c)
	create(ctx, t, cl, client.TopicSpec{Name: "keep", VisibilityTimeoutMS: 600_000})
	for round := range 3 {
		prefix := fmt.Sprintf("r%d", round)
		produceN(ctx, t, cl, "keep", prefix, 90)
		settled, leased := map[string]bool{}, map[string]bool{}
		for len(settled)+len(leased) < 90 {
			got, err := cl.Receive(ctx, "keep", client.ReceiveOptions{Max: 10, Wait: 30 * time.Second})
			if err != nil || len(got.Deliveries) == 0 {
				t.Fatalf("receive: %+v, %v", got, err)
			}
			for i, d := range got.Deliveries {
				if i%3 == 2 {
					leased[string(d.Payload)] = true
					continue
				}
				if err := cl.Ack(ctx, "keep", d.ReceiptHandle); err != nil {
					t.Fatal(err)
				}
				settled[string(d.Payload)] = true
			}
		}
		old := c.Node("storage-1").PID
		begin := time.Now()
		c.Terminate("storage-1")
		if took := time.Since(begin); took > 15*time.Second {
			t.Errorf("round %d: the stop took %s", round, took)
		}
		c.WaitReady("storage-1", old)
		for text, n := range drain(ctx, t, cl, "keep", len(leased)) {
			if settled[text] || !leased[text] || n > 1 {
				t.Errorf("round %d: %s came %d times again; it was settled: %v", round, text, n, settled[text])
			}
		}
		if got, err := cl.Receive(ctx, "keep", client.ReceiveOptions{Max: 10, Wait: client.NoWait}); err != nil || len(got.Deliveries) > 0 {
			t.Errorf("round %d: there is more: %+v, %v", round, got.Deliveries, err)
		}
	}
	dev, err := os.ReadFile(filepath.Join(c.Dir, "dev.log"))
	if err != nil || strings.Count(string(dev), "storage-1 ended (exit status 0)") != 3 {
		t.Errorf("the node did not end three times with status 0 (%v): %s", err, dev)
	}
}

const (
	leadingStops = 3
	// healedByRetry is how long a create may take over an ordered stop of the leader, with
	// the retry, 1 s later, that heals it: a stop that shows more is the machine's, once.
	healedByRetry = 3 * time.Second
)

// TestLeadingVoterStopsInOrder: metadata writes go on over ordered stops of the
// leader, and each that was answered with success is there afterwards.
func TestLeadingVoterStopsInOrder(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 1, Gateways: 1})
	cl, ctx := connect(t, c)
	writing, stop := context.WithCancel(ctx)
	created := map[string]bool{}
	type span struct{ begin, end time.Time }
	var creates, stops []span
	var finished atomic.Int64 // creates
	var slowest time.Duration
	var writer sync.WaitGroup
	writer.Go(func() {
		for n := 0; writing.Err() == nil; n++ {
			name := fmt.Sprintf("t-%d", n)
			begin := time.Now()
			_, _, err := cl.CreateTopicIfAbsent(ctx, client.TopicSpec{Name: name, Partitions: 1})
			if err != nil {
				t.Errorf("create %s: %v", name, err) // the client repeats what surely did nothing
				continue
			}
			created[name] = true
			creates = append(creates, span{begin, time.Now()})
			finished.Add(1)
			slowest = max(slowest, time.Since(begin))
		}
	})
	for range leadingStops {
		var leader string
		if err := harness.Until(ctx, 20*time.Second, func() bool {
			q, err := cl.Quorum(ctx)
			if err == nil && q.LeaderID != nil {
				leader = *q.LeaderID
			}
			return err == nil && q.LeaderID != nil
		}); err != nil {
			t.Fatal("no leader within 20 s")
		}
		old := c.Node(leader).PID
		begin := time.Now()
		c.Terminate(leader)
		c.WaitReady(leader, old)
		stops = append(stops, span{begin, time.Now()})
		// What this stop made late, and one more: the next stop finds nobody waiting.
		before := finished.Load()
		if err := harness.Until(ctx, 20*time.Second, func() bool { return finished.Load() >= before+2 }); err != nil {
			t.Error("no two creates within 20 s of an ordered stop of the leader")
			break
		}
	}
	stop()
	writer.Wait()
	worst := make([]time.Duration, leadingStops)
	for _, c := range creates {
		if i := slices.IndexFunc(stops, func(s span) bool { return c.begin.Before(s.end) && c.end.After(s.begin) }); i >= 0 {
			worst[i] = max(worst[i], c.end.Sub(c.begin))
		}
	}
	late := 0
	for _, w := range worst {
		if w > healedByRetry {
			late++
		}
	}
	if late > 1 {
		t.Errorf("over %d ordered stops of the leader a create took more than %s: %s", late, healedByRetry, worst)
	}
	if err := harness.Until(ctx, 20*time.Second, func() bool { // the gateway's replica may lag
		for topic, err := range cl.Topics(ctx, "") {
			if err != nil {
				return false
			}
			delete(created, topic.Name)
		}
		return len(created) == 0
	}); err != nil {
		t.Errorf("%d topics were created and are not listed: %v", len(created), created)
	}
	t.Logf("the slowest create over each stop took %s, of all %s", worst, slowest)
	if slowest > 10*time.Second {
		t.Errorf("a create took %s over an ordered stop of the leader", slowest)
	}
}
