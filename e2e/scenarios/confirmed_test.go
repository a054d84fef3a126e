//go:build e2e

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

const (
	registerLoad    = 20 * time.Second
	registerPause   = 60 * time.Millisecond // of a worker between two operations: the checker's work grows fast
	registerWorkers = 3                     // per gateway, half of them readers
	registerFaults  = 3
	registerCheck   = 30 * time.Second
)

// append is the input of an operation that adds a value to the log; "" reads it.
type registerInput struct{ value string }

// registerOutput is what came of it: the whole log of a read, the offset of an
// append; known is false for an append whose outcome is unknown.
type registerOutput struct {
	log    string
	offset int64
	known  bool
}

// registerState is the values in their order, and the offset of the last.
type registerState struct {
	log  string
	last int64
}

// registerModel is one partition as an append-only register: its state is the
// values in their order, which is that of the offsets.
func registerModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return registerState{last: -1} },
		Step: func(state, input, output any) (bool, any) {
			st, in, out := state.(registerState), input.(registerInput), output.(registerOutput)
			if in.value == "" {
				return out.log == st.log, st
			}
			return out.offset > st.last, registerState{st.log + in.value + ";", out.offset}
		},
		DescribeOperation: func(input, output any) string {
			in, out := input.(registerInput), output.(registerOutput)
			if in.value == "" {
				return fmt.Sprintf("read of %d values", strings.Count(out.log, ";"))
			}
			return fmt.Sprintf("append %s, known %t", in.value, out.known)
		},
	}
}

// register runs the load on one partition and remembers every operation.
type register struct {
	begin time.Time
	mu    sync.Mutex // guards all below
	ops   []porcupine.Operation
	made  int // appends and reads that were answered
	reads int
	// offsets are those of the values that the last read showed.
	offsets map[string]int64
}

func (r *register) note(client int, in registerInput, call time.Duration, out registerOutput) {
	end := time.Since(r.begin).Nanoseconds()
	if !out.known {
		end = math.MaxInt64 // it may take effect at any time from now on, or never be seen
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, porcupine.Operation{ClientId: client, Input: in, Call: call.Nanoseconds(), Output: out, Return: end})
	if out.known {
		r.made++
		if in.value == "" {
			r.reads++
		}
	}
}

// appendOnce makes one committed produce. What was surely refused did not happen.
func (r *register) appendOnce(ctx context.Context, cl *client.Client, id, n int) {
	value := fmt.Sprintf("%d-%d", id, n)
	call := time.Since(r.begin)
	receipt, err := cl.Produce(ctx, "register", client.Message{Payload: []byte(value), Partition: client.Pin(0)}, client.ProduceOptions{Committed: true, Timeout: 2 * time.Second})
	var refused *client.Error
	if errors.As(err, &refused) && refused.Applied == client.AppliedNo {
		return
	}
	out := registerOutput{known: err == nil}
	if err == nil {
		out.offset = int64(*receipt.Offset)
	}
	r.note(id, registerInput{value}, call, out)
}

// readOnce reads the whole partition, confirmed by a majority.
func (r *register) readOnce(ctx context.Context, cl *client.Client, id int) {
	call := time.Since(r.begin)
	page, err := cl.ReplayOnce(ctx, "register", client.ReplayOptions{Confirmed: true})
	if err != nil {
		return
	}
	var log strings.Builder
	offsets := map[string]int64{}
	for i := range page.Records {
		log.Write(page.Records[i].Payload)
		log.WriteByte(';')
		offsets[string(page.Records[i].Payload)] = int64(page.Records[i].Offset)
	}
	r.mu.Lock()
	r.offsets = offsets
	r.mu.Unlock()
	r.note(id, registerInput{}, call, registerOutput{log: log.String(), known: true})
}

// finalLog reads until an answer comes.
func (r *register) finalLog(ctx context.Context, t *testing.T, cl *client.Client) string {
	t.Helper()
	for before := len(r.ops); len(r.ops) == before; {
		if ctx.Err() != nil {
			t.Fatal("the partition cannot be read after the last fault")
		}
		r.readOnce(ctx, cl, len(r.ops))
	}
	return r.ops[len(r.ops)-1].Output.(registerOutput).log
}

// settle tells of the appends with an unknown outcome what the end shows: one that
// is not in the final log never took effect, and one that is had done so before the
// first read that shows it was answered. Without that a checker would have to try
// each of them at every later moment.
func (r *register) settle(final string) {
	kept := r.ops[:0]
	for _, op := range r.ops {
		value := op.Input.(registerInput).value
		if !op.Output.(registerOutput).known {
			if !strings.Contains(";"+final, ";"+value+";") {
				continue
			}
			for _, read := range r.ops {
				if read.Input.(registerInput).value == "" && read.Return < op.Return && strings.Contains(";"+read.Output.(registerOutput).log, ";"+value+";") {
					op.Return = max(read.Return, op.Call)
				}
			}
			op.Output = registerOutput{offset: r.offsets[value]}
		}
		kept = append(kept, op)
	}
	r.ops = kept
}

// against compares every operation with the order that the final log shows, and
// says what does not fit: it tells which of them a checker's "no" is about.
func against(ops []porcupine.Operation, final string) (wrong []string) {
	at := map[string]int{}
	for i, v := range strings.Split(strings.TrimSuffix(final, ";"), ";") {
		at[v] = i
	}
	for _, a := range ops {
		in, out := a.Input.(registerInput), a.Output.(registerOutput)
		pos, ok := at[in.value]
		switch {
		case in.value == "" && !strings.HasPrefix(final, out.log):
			wrong = append(wrong, fmt.Sprintf("a read of %d values is no prefix of the final log", strings.Count(out.log, ";")))
		case in.value != "" && !ok:
			wrong = append(wrong, fmt.Sprintf("append %s (known %t) is lost", in.value, out.known))
		}
		for _, b := range ops {
			if b.Input.(registerInput).value != "" {
				continue
			}
			n := strings.Count(b.Output.(registerOutput).log, ";")
			switch {
			case in.value == "" && a.Return < b.Call && strings.Count(out.log, ";") > n:
				wrong = append(wrong, fmt.Sprintf("a read at %s shows %d values, one before it %d", time.Duration(b.Call), n, strings.Count(out.log, ";")))
			case in.value != "" && ok && a.Return < b.Call && pos >= n:
				wrong = append(wrong, fmt.Sprintf("append %s, answered at %s, is missing in a read that began at %s", in.value, time.Duration(a.Return), time.Duration(b.Call)))
			}
		}
	}
	return wrong
}

// TestCommittedIsLinearizable appends to one partition of three copies and reads it
// confirmed through both gateways, while its leaders are killed and paused, and looks
// for an order of all operations, each within its time, in which every read shows
// exactly the appends before it. A leader that was paused and replaced must not
// answer from what it knew.
func TestCommittedIsLinearizable(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 3, Gateways: 2})
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	r := &register{begin: time.Now()}
	var clients []*client.Client
	for _, u := range c.URLs() {
		cl, err := client.New(client.Config{URL: u, Retry: client.Retry{Attempts: 1}})
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		clients = append(clients, cl)
	}
	var err error
	if harness.Until(ctx, 20*time.Second, func() bool { // these clients try once
		_, _, err = clients[0].CreateTopicIfAbsent(ctx, client.TopicSpec{Name: "register", Partitions: 1, ReplicationFactor: 3})
		return err == nil
	}) != nil {
		t.Fatal(err)
	}
	loading, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	for g, cl := range clients {
		for w := range registerWorkers {
			id := g*registerWorkers + w
			running.Go(func() {
				pause := time.NewTicker(registerPause)
				defer pause.Stop()
				for n := 0; loading.Err() == nil; n++ {
					if w%2 == 0 {
						r.appendOnce(ctx, cl, id, n)
					} else {
						r.readOnce(ctx, cl, id)
					}
					<-pause.C
				}
			})
		}
	}
	faults := troubleLeaders(loading, c, clients[0])
	stop()
	running.Wait()
	final := r.finalLog(ctx, t, clients[0])
	r.settle(final)
	t.Logf("%d faults, %d operations answered, %d of them reads, %d in all", faults, r.made, r.reads, len(r.ops))
	if r.made < 100 || r.reads < 30 || faults < registerFaults {
		t.Error("too little happened to show anything")
	}
	for _, wrong := range against(r.ops, final) {
		t.Error(wrong)
	}
	if got, _ := porcupine.CheckOperationsVerbose(registerModel(), r.ops, registerCheck); got != porcupine.Ok {
		t.Errorf("%d operations on one partition are not linearizable: %s", len(r.ops), got)
	}
	if got, _ := porcupine.CheckOperationsVerbose(registerModel(), withoutOneAppend(r.ops), registerCheck); got == porcupine.Ok {
		t.Error("a history with a lost append passes too: the check shows nothing")
	}
}

// troubleLeaders kills and pauses whoever leads, in turn, for as long as the load is to
// take, or longer where that is too short for registerFaults of them.
func troubleLeaders(ctx context.Context, c *harness.Cluster, cl *client.Client) (faults int) {
	for end := time.Now().Add(registerLoad); ctx.Err() == nil && (time.Now().Before(end) || faults < registerFaults); {
		leader := ""
		if d, err := cl.Topic(ctx, "register"); err == nil && len(d.PartitionDetails) == 1 && d.PartitionDetails[0].Leader != nil {
			leader = *d.PartitionDetails[0].Leader
		}
		if leader != "" {
			faults++
			if pid := c.Node(leader).PID; faults%2 == 0 {
				c.Kill(leader)
				c.WaitReady(leader, pid)
			} else {
				_ = syscall.Kill(pid, syscall.SIGSTOP)
				waitFor(ctx, 4*time.Second) // longer than its word holds, and than its replacement takes
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
		}
		waitFor(ctx, time.Second)
	}
	return faults
}

func waitFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// withoutOneAppend returns a history without one acknowledged append of its middle.
func withoutOneAppend(ops []porcupine.Operation) []porcupine.Operation {
	out := append([]porcupine.Operation(nil), ops...)
	for i := len(out) / 3; i < len(out); i++ {
		if out[i].Input.(registerInput).value != "" && out[i].Output.(registerOutput).known {
			return append(out[:i], out[i+1:]...)
		}
	}
	return out
}
