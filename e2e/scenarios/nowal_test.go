//go:build e2e

package scenarios

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// TestGatewayWithoutALog: it commits, consumes and settles, refuses 202s, stays in its
// Service while storage nodes are away and says then that nothing was stored; killed,
// another one under another name takes its place with an empty directory.
func TestGatewayWithoutALog(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 1, Gateways: 1})
	admin, ctx := connect(t, c)
	create(ctx, t, admin, client.TopicSpec{Name: "pay", Partitions: 2})
	committed := client.ProduceOptions{Committed: true}
	use := func(id string) (*program, *client.Client) {
		t.Helper()
		p := runNode(t, c, harness.Gateway, id, "--no-wal")
		cl, err := client.New(client.Config{URL: "http://" + p.http, Retry: client.Retry{Attempts: 1}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cl.Close)
		patient := netClient(t, "http://"+p.http) // of what is not refused for good
		if _, err := patient.Produce(ctx, "pay", client.Message{Payload: []byte("one")}, committed); err != nil {
			t.Fatalf("%v; %s", err, p.tail())
		}
		r, err := patient.ProduceBatch(ctx, "pay", []client.Message{{Payload: []byte("two")}, {Payload: []byte("three"), Partition: client.Pin(1)}}, committed)
		if err != nil || r.Committed != 2 {
			t.Fatalf("%+v, %v", r, err)
		}
		if _, err := cl.Produce(ctx, "pay", client.Message{Payload: []byte("x")}, client.ProduceOptions{}); !client.HasCode(err, client.CodeWALUnavailable) {
			t.Errorf("a 202: %v", err)
		}
		for got := 0; got < 3; {
			ds, err := patient.Receive(ctx, "pay", client.ReceiveOptions{Max: 10, Wait: 5 * time.Second})
			if err != nil || len(ds.Deliveries) == 0 {
				t.Fatalf("%d of 3 messages came: %v", got, err)
			}
			for _, d := range ds.Deliveries {
				if err := patient.Ack(ctx, "pay", d.ReceiptHandle); err != nil {
					t.Fatal(err)
				}
			}
			got += len(ds.Deliveries)
		}
		if got := accepts(p); got != http.StatusOK {
			t.Errorf("/readyz/accept: %d", got)
		}
		if _, err := os.Stat(filepath.Join(c.Dir, id, "wal")); err == nil {
			t.Error("there is a log on its disk")
		}
		return p, cl
	}
	p, _ := use("gateway-pod-a")
	p.signal(syscall.SIGKILL)
	<-p.ended
	p.ended <- nil // for the cleanup
	p, cl := use("gateway-pod-b")

	storage := c.IDs(harness.Storage)[0]
	c.Hold(storage)
	c.Kill(storage)
	// The first may have left on a connection whose end the gateway had not read yet: then
	// nobody knows. Once it has, nothing leaves.
	var refused error
	if err := harness.Until(ctx, 10*time.Second, func() bool {
		_, refused = cl.Produce(ctx, "pay", client.Message{Payload: []byte("four")}, client.ProduceOptions{Committed: true, Timeout: 300 * time.Millisecond})
		return !client.HasCode(refused, client.CodeOutcomeUnknown)
	}); err != nil {
		t.Error("the outcome stays unknown while there is no storage node")
	}
	var refusal *client.Error
	if !client.HasCode(refused, client.CodePartitionUnavailable) || !errors.As(refused, &refusal) || refusal.Applied != client.AppliedNo {
		t.Errorf("without a storage node: %v", refused)
	}
	if got := accepts(p); got != http.StatusOK {
		t.Errorf("/readyz/accept without a storage node: %d", got)
	}
	c.Free(storage)
	if r, err := cl.Produce(ctx, "pay", client.Message{Payload: []byte("five")}, client.ProduceOptions{Committed: true, Timeout: 20 * time.Second}); err != nil || r.Offset == nil {
		t.Errorf("when it is back: %+v, %v", r, err)
	}
	begin := time.Now()
	p.signal(syscall.SIGTERM)
	if exit, took := p.wait(begin, 20*time.Second); exit != 0 {
		t.Errorf("stopped with status %d after %s: %s", exit, took, p.tail())
	}
}

// accepts is the answer of a gateway to whether it is to stay in its Service; a busy one
// may not answer at once.
func accepts(p *program) (status int) {
	p.t.Helper()
	_ = harness.Until(p.t.Context(), 20*time.Second, func() bool { status = p.status("/readyz/accept"); return status != 0 })
	return status
}
