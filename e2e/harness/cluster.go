package harness

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/testkit"
)

// Options says how large a cluster is.
type Options struct {
	Voters, StorageNodes, Gateways int
	Args                           []string  // further arguments of `narad dev`
	Programs                       *Programs // nil: the built ones
}

// Node is one line of endpoints.json.
type Node struct {
	ID   string  `json:"id"`
	Role string  `json:"role"`
	PID  int     `json:"pid"`
	HTTP *string `json:"http"`
	RPC  *string `json:"rpc"`
	Raft *string `json:"raft"`
	Ops  *string `json:"ops"`
}

// The roles in endpoints.json.
const (
	Voter   = "metastore-voter"
	Storage = "storage-node"
	Gateway = "ingress-gateway"
)

// Limits of waiting: generous, because two cores run everything at once. A node with
// another disk is ready when its old self is dead, 30 s after the last election: a busy
// machine makes more of them.
const (
	startLimit = 90 * time.Second
	stopLimit  = 40 * time.Second
	readyLimit = 2 * time.Minute
	lookEvery  = 20 * time.Millisecond
)

// portSpan is how many ports from the base `narad dev` may use.
const portSpan = 60

// Cluster is a running `narad dev`.
type Cluster struct {
	t    testing.TB
	Dir  string // data directory
	Base int    // first port
	cmd  *exec.Cmd
	done chan error
	http *http.Client

	guests []*guest // nodes that were added by Join
}

// Binary is the path of a built program.
func Binary(t testing.TB, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run `make build` first", err)
	}
	return path
}

// Start runs a cluster until the test ends and waits until every node is ready and
// every voter has its vote.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "narad-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{t: t, Dir: dir, Base: testkit.FreePorts(t, portSpan), done: make(chan error, 1), http: &http.Client{Timeout: 2 * time.Second}}
	t.Cleanup(c.end)
	c.launch(o)
	return c
}

// launch starts `narad dev` over the cluster's directory and waits for the ready file,
// which is there when every voter has its vote.
func (c *Cluster) launch(o Options) {
	c.t.Helper()
	ready := filepath.Join(c.Dir, "ready")
	args := append([]string{
		"dev", "--voters", strconv.Itoa(o.Voters), "--storage-nodes", strconv.Itoa(o.StorageNodes),
		"--gateways", strconv.Itoa(o.Gateways), "--base-port", strconv.Itoa(c.Base),
		"--data-dir", c.Dir, "--ready-file", ready,
	}, o.Args...)
	log, err := os.OpenFile(filepath.Join(c.Dir, "dev.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	narad := ""
	if o.Programs != nil {
		narad = filepath.Join(o.Programs.dir, "narad")
	} else {
		narad = Binary(c.t, "narad")
	}
	c.cmd = exec.Command(narad, args...)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	go func() { c.done <- c.cmd.Wait() }()
	c.until(startLimit, "the cluster is ready", func() bool {
		select {
		case err := <-c.done:
			c.done <- err
			c.t.Fatalf("narad dev ended: %v; see %s", err, c.Dir)
		default:
		}
		_, err := os.Stat(ready)
		return err == nil
	})
}

// until polls without sleeping in the test itself.
func (c *Cluster) until(limit time.Duration, what string, ok func() bool) {
	c.t.Helper()
	if err := Until(context.Background(), limit, ok); err != nil {
		c.t.Fatalf("gave up after %s waiting until %s; logs in %s", limit, what, c.Dir)
	}
}

// Until polls ok until it is true, ctx ends or limit passes.
func Until(ctx context.Context, limit time.Duration, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Nodes reads endpoints.json, and adds the nodes that joined.
func (c *Cluster) Nodes() []Node {
	c.t.Helper()
	var nodes []Node
	raw, err := os.ReadFile(filepath.Join(c.Dir, "run", "endpoints.json"))
	if err == nil {
		err = json.Unmarshal(raw, &nodes)
	}
	if err != nil {
		c.t.Fatalf("read endpoints.json: %v", err)
	}
	for _, g := range c.guests {
		nodes = append(nodes, g.now())
	}
	return nodes
}

// Node finds one node.
func (c *Cluster) Node(id string) Node {
	c.t.Helper()
	for _, n := range c.Nodes() {
		if n.ID == id {
			return n
		}
	}
	c.t.Fatalf("no node %s in endpoints.json", id)
	return Node{}
}

// IDs lists the nodes of a role.
func (c *Cluster) IDs(role string) []string {
	var ids []string
	for _, n := range c.Nodes() {
		if n.Role == role {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// URLs lists the client endpoints of all gateways.
func (c *Cluster) URLs() []string {
	var urls []string
	for _, n := range c.Nodes() {
		if n.HTTP != nil {
			urls = append(urls, "http://"+*n.HTTP)
		}
	}
	return urls
}

// Kill sends SIGKILL to a node and waits until that process is gone; `narad dev`
// starts it again after a second unless it is held.
func (c *Cluster) Kill(id string) { c.signalAndWait(id, syscall.SIGKILL) }

// Terminate sends SIGTERM to a node and waits until that process is gone.
func (c *Cluster) Terminate(id string) { c.signalAndWait(id, syscall.SIGTERM) }

func (c *Cluster) signalAndWait(id string, s syscall.Signal) {
	c.t.Helper()
	pid := c.Node(id).PID
	if pid <= 0 {
		return // already down
	}
	if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		c.t.Fatalf("signal %s: %v", id, err)
	}
	c.until(stopLimit, id+" has ended", func() bool { return syscall.Kill(pid, 0) != nil })
}

// Hold keeps a node down once it has died; Free lets it start again.
func (c *Cluster) Hold(id string) {
	c.t.Helper()
	if err := os.WriteFile(c.holdFile(id), nil, 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// Free removes the hold of a node.
func (c *Cluster) Free(id string) {
	c.t.Helper()
	if err := os.Remove(c.holdFile(id)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *Cluster) holdFile(id string) string { return filepath.Join(c.Dir, "run", id+".hold") }

// Ready tells whether a node's /readyz is 200 now.
func (c *Cluster) Ready(id string) bool {
	n := c.Node(id)
	if n.Ops == nil {
		return false
	}
	status, _ := c.get("http://" + *n.Ops + "/readyz")
	return status == http.StatusOK
}

// WaitReady waits until a node has another process than oldPID and is ready.
func (c *Cluster) WaitReady(id string, oldPID int) {
	c.t.Helper()
	c.until(readyLimit, id+" is ready again", func() bool { return c.Node(id).PID != oldPID && c.Ready(id) })
}

// Metrics returns a node's /metrics text; empty when it does not answer.
func (c *Cluster) Metrics(id string) string {
	c.t.Helper()
	n := c.Node(id)
	if n.Ops == nil {
		c.t.Fatalf("%s has no operator port", id)
	}
	return patient(func() (int, string) { return c.get("http://" + *n.Ops + "/metrics") })
}

// metricsTries: whoever reads a series once must not read nothing from a node that stands
// still for a moment. One that is down refuses each at once.
const metricsTries = 3

// patient answers the first page that comes; empty: none did.
func patient(get func() (int, string)) string {
	for range metricsTries {
		if status, body := get(); status == http.StatusOK {
			return body
		}
	}
	return ""
}

func (c *Cluster) get(url string) (int, string) { return fetch(c.http, url) }

// fetch answers a page and its status; 0: there was no whole answer.
func fetch(hc *http.Client, url string) (int, string) {
	resp, err := hc.Get(url)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, ""
	}
	return resp.StatusCode, string(body)
}

// Stop ends the cluster in order, as Ctrl-C does, and fails the test when that
// takes too long or says that something went wrong.
func (c *Cluster) Stop() {
	c.t.Helper()
	c.dismiss()
	if err := c.cmd.Process.Signal(os.Interrupt); err != nil {
		c.t.Fatal(err)
	}
	select {
	case err := <-c.done:
		c.done <- err
		if err != nil {
			c.t.Errorf("narad dev ended with %v; see %s", err, c.Dir)
		}
	case <-time.After(stopLimit):
		c.t.Errorf("narad dev did not end within %s; see %s", stopLimit, c.Dir)
	}
}

// Restart stops the whole cluster and starts it again over the same data.
func (c *Cluster) Restart(o Options) {
	c.t.Helper()
	c.Stop()
	<-c.done
	if err := os.Remove(filepath.Join(c.Dir, "ready")); err != nil && !errors.Is(err, os.ErrNotExist) {
		c.t.Fatal(err)
	}
	c.launch(o)
}

// end is the cleanup: whatever happened, no process of ours stays.
func (c *Cluster) end() {
	c.dismiss() // while there are voters
	if c.cmd != nil && c.cmd.Process != nil {
		select {
		case <-c.done:
		default:
			_ = c.cmd.Process.Signal(os.Interrupt)
			select {
			case <-c.done:
			case <-time.After(stopLimit):
				_ = c.cmd.Process.Kill()
				<-c.done
			}
		}
	}
	if c.t.Failed() {
		c.t.Logf("data and logs are kept in %s", c.Dir)
		return
	}
	if err := os.RemoveAll(c.Dir); err != nil {
		c.t.Errorf("remove %s: %v", c.Dir, err)
	}
}
