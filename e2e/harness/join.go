package harness

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/narad-mq/narad/libs/testkit"
)

// restartDelay is that of `narad dev`.
const restartDelay = time.Second

// guestPorts are those of one node: client, rpc, raft, ops and gossip.
const guestPorts = 5

// guest is a node that the test adds to a running cluster. `narad dev` knows nothing
// of it, so the test keeps it running in the same way, hold file included.
type guest struct {
	node Node
	path string
	args []string
	stop chan struct{} // closed: for good
	done chan struct{} // closed: it has ended for good

	mu  sync.Mutex // guards pid
	pid int
}

// Join starts more nodes of a role in the running cluster and waits until they are ready.
func (c *Cluster) Join(role string, ids ...string) {
	c.t.Helper()
	for _, id := range ids {
		g := c.invite(role, id)
		c.guests = append(c.guests, g)
		go func() {
			defer close(g.done)
			for g.run(c) {
			}
		}()
	}
	for _, id := range ids {
		c.until(startLimit, id+" is ready", func() bool { return c.Ready(id) })
	}
}

// invite gives a node that is to join its addresses and its command line.
func (c *Cluster) invite(role, id string) *guest {
	c.t.Helper()
	at := func(port int) *string {
		a := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		return &a
	}
	base := testkit.FreePorts(c.t, guestPorts)
	g := &guest{
		node: Node{ID: id, Role: role, RPC: at(base + 1), Raft: at(base + 2), Ops: at(base + 3)},
		path: Binary(c.t, role), stop: make(chan struct{}), done: make(chan struct{}),
	}
	var join []string
	for _, n := range c.Nodes() {
		if n.Role == Voter {
			join = append(join, *n.RPC)
		}
	}
	g.args = []string{
		"--node-id", id, "--data-dir", filepath.Join(c.Dir, id), "--rpc-addr", *g.node.RPC, "--raft-addr", *g.node.Raft, "--ops-addr", *g.node.Ops,
		"--gossip-addr", *at(base + 4), "--advertise", "127.0.0.1", "--insecure", "--log-format", "text", "--join", strings.Join(join, ","),
	}
	if role == Gateway {
		g.node.HTTP = at(base)
		g.args = append(g.args, "--http-addr", *g.node.HTTP, "--auth", "none", "--drain-delay", "0s")
	}
	return g
}

// run is one life of the node's process; it tells whether there is to be another.
func (g *guest) run(c *Cluster) bool {
	for _, err := os.Stat(c.holdFile(g.node.ID)); err == nil; _, err = os.Stat(c.holdFile(g.node.ID)) {
		if !g.rest(lookEvery) {
			return false
		}
	}
	log, err := os.OpenFile(filepath.Join(c.Dir, "run", g.node.ID+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Error(err)
		return false
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(g.path, g.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		c.t.Errorf("start %s: %v", g.node.ID, err)
		return false
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	g.setPID(cmd.Process.Pid)
	defer g.setPID(0)
	select {
	case <-ended:
		return g.rest(restartDelay)
	case <-g.stop:
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-ended:
		if err != nil {
			c.t.Errorf("%s ended with %v; see %s", g.node.ID, err, c.Dir)
		}
	case <-time.After(stopLimit):
		c.t.Errorf("%s did not end within %s; see %s", g.node.ID, stopLimit, c.Dir)
		_ = cmd.Process.Kill()
		<-ended
	}
	return false
}

// rest waits; false: it is to stop for good.
func (g *guest) rest(d time.Duration) bool {
	select {
	case <-g.stop:
		return false
	case <-time.After(d):
		return true
	}
}

func (g *guest) setPID(pid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pid = pid
}

func (g *guest) now() Node {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.node
	n.PID = g.pid
	return n
}

// dismiss ends the nodes that were added.
func (c *Cluster) dismiss() {
	for _, g := range c.guests {
		close(g.stop)
	}
	for _, g := range c.guests {
		<-g.done
	}
	c.guests = nil
}

// Freeze stops a node's process without ending it, as a machine does that pauses, and
// waits until none of its threads runs; the function that it returns lets it go on, once.
func (c *Cluster) Freeze(id string) (thaw func()) {
	c.t.Helper()
	pid := c.Node(id).PID
	if pid <= 0 {
		return func() {} // it is down
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) {
		c.t.Fatal(fmt.Errorf("freeze %s: %w", id, err))
	}
	c.until(stopLimit, id+" stands still", func() bool { return standsStill(pid) })
	return sync.OnceFunc(func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
			c.t.Error(fmt.Errorf("thaw %s: %w", id, err))
		}
	})
}

// standsStill tells whether a process has stopped, or ended. The signal is one thread's to
// take, and while that one waits for a processor the others go on.
func standsStill(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return false
	}
	for _, name := range threads {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// The state comes after the name in parentheses: stopped, traced, dead or a zombie.
		if at := bytes.LastIndexByte(b, ')'); at < 0 || at+2 >= len(b) || !bytes.ContainsRune([]byte("TtXZ"), rune(b[at+2])) {
			return false
		}
	}
	return true
}
