//go:build e2e

package scenarios

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/testkit"
)

// composeLimit bounds building, starting and using the containers.
const composeLimit = 4 * time.Minute

// TestComposeCluster builds the images from the local binaries, starts
// deploy/compose, and sends and consumes through it across a container's kill.
func TestComposeCluster(t *testing.T) {
	compose, ok := composeCommand()
	if !ok {
		t.Skip("no Docker engine with compose on this machine")
	}
	ctx, cancel := context.WithTimeout(context.Background(), composeLimit)
	defer cancel()
	project := "narad-e2e-" + strings.ToLower(rand.Text()[:8])
	file, err := filepath.Abs("../../deploy/compose/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	ports := []int{freePort(t), freePort(t)}
	run := func(args ...string) string {
		t.Helper()
		all := append(append(compose[1:len(compose):len(compose)], "-p", project, "-f", file), args...)
		cmd := exec.CommandContext(ctx, compose[0], all...)
		cmd.Env = append(os.Environ(), fmt.Sprintf("NARAD_PORT_1=%d", ports[0]), fmt.Sprintf("NARAD_PORT_2=%d", ports[1]))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	t.Cleanup(func() {
		ctx, cancel = context.WithTimeout(context.Background(), composeLimit)
		defer cancel()
		if t.Failed() {
			t.Log(run("logs", "--tail", "40"))
		}
		run("down", "-v", "--timeout", "20")
	})
	run("up", "-d", "--build")

	cl, err := client.New(client.Config{URLs: []string{
		fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1]),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := harness.Until(ctx, time.Minute, func() bool {
		_, err := cl.CreateTopic(ctx, client.TopicSpec{Name: "orders", Partitions: 6})
		return err == nil || client.HasCode(err, client.CodeTopicExists)
	}); err != nil {
		t.Fatalf("the cluster takes no topic: %v", err)
	}
	produceN(ctx, t, cl, "orders", "before", 50)
	run("kill", "-s", "KILL", "storage-2", "gateway-1")
	for i := range 50 { // the first may leave on a connection whose end the client has not read
		m := client.Message{Payload: fmt.Appendf(nil, "during-%d", i)}
		if _, err := cl.Produce(ctx, "orders", m, client.ProduceOptions{AllowDuplicates: true}); err != nil {
			t.Fatal(err)
		}
	}
	run("start", "storage-2", "gateway-1")
	// What the gateway does not remember to have sent may come twice.
	got := map[string]bool{}
	if err := harness.Until(ctx, time.Minute, func() bool {
		r, err := cl.Receive(ctx, "orders", client.ReceiveOptions{Max: 100, Wait: time.Second})
		if err != nil {
			return false
		}
		for _, d := range r.Deliveries {
			got[string(d.Payload)] = true
			if err := cl.Ack(ctx, "orders", d.ReceiptHandle); err != nil {
				t.Logf("ack: %v", err) // the lease was lost: it comes again
			}
		}
		return len(got) >= 100
	}); err != nil || len(got) != 100 {
		t.Errorf("%d different messages, want 100", len(got))
	}
}

// composeCommand finds compose, as a plugin or as a program, with a live engine.
func composeCommand() ([]string, bool) {
	if exec.Command("docker", "info").Run() != nil {
		return nil, false
	}
	if exec.Command("docker", "compose", "version").Run() == nil {
		return []string{"docker", "compose"}, true
	}
	path, err := exec.LookPath("docker-compose")
	return []string{path}, err == nil
}

func freePort(t *testing.T) int {
	t.Helper()
	_, port, err := net.SplitHostPort(testkit.FreeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
