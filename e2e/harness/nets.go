package harness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
)

// The ports of the nodes of a Net: the programs' defaults, each has its own address.
const (
	NetOpsPort    = 7941
	netClientPort = 7942
	netRaftPort   = 7943
	NetRPCPort    = 7944
)

// Net is a cluster whose nodes have a network namespace and an address each and
// reach each other through one router only, in a namespace of its own. A cut is a
// rule in that router: packets vanish, nothing is refused, and any direction or port
// can be cut alone. The test reaches every node whatever is cut.
type Net struct {
	t      testing.TB
	Dir    string // data directories and logs
	prefix string // of the names of namespaces and links
	subnet int    // second byte of every address
	nodes  []*netNode
	args   []string // further arguments of every program
	http   *http.Client
}

type netNode struct {
	id, role string
	number   int
	cmd      *exec.Cmd
	done     chan error
}

// Each Net has a subnet of its own, 10.x.0.0/16 from 100 on: some run beside each other.
const firstSubnet, subnetCount = 100, 150

// subnets counts the Nets, from a random one on: other processes may run tests too.
var subnets = func() *atomic.Int64 {
	var n atomic.Int64
	n.Store(rand.Int64N(subnetCount))
	return &n
}()

// StartNet runs a cluster until the test ends and waits until every node is ready and
// every voter has its vote.
// Without the right to make namespaces, or without ip or iptables, it skips the test, or
// fails it where that is required (Lacking).
func StartNet(t testing.TB, o Options) *Net {
	t.Helper()
	dir, err := os.MkdirTemp("", "narad-e2e-net-")
	if err != nil {
		t.Fatal(err)
	}
	n := &Net{
		t: t, Dir: dir, args: o.Args, prefix: fmt.Sprintf("nd%04x", rand.IntN(1<<16)), subnet: firstSubnet + int(subnets.Add(1))%subnetCount,
		http: &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	t.Cleanup(n.end)
	for _, r := range []struct {
		role, name string
		count      int
	}{{Voter, "voter", o.Voters}, {Storage, "storage", o.StorageNodes}, {Gateway, "gateway", o.Gateways}} {
		for i := range r.count {
			n.nodes = append(n.nodes, &netNode{id: fmt.Sprintf("%s-%d", r.name, i+1), role: r.role, number: len(n.nodes) + 1})
		}
	}
	n.build()
	for _, node := range n.nodes {
		n.start(node)
	}
	for _, node := range n.nodes {
		if err := Until(context.Background(), startLimit, func() bool { return n.Ready(node.id) }); err != nil {
			t.Fatalf("%s is not ready after %s; logs in %s", node.id, startLimit, dir)
		}
	}
	if err := Until(context.Background(), startLimit, n.allVote); err != nil {
		t.Fatalf("not every voter has its vote after %s; logs in %s", startLimit, dir)
	}
	return n
}

// allVote tells whether nobody who may vote waits to be let to. A voter that comes late,
// when the others have formed the cluster, is ready while it has no vote yet; a scenario
// that ended another voter then would end the majority.
func (n *Net) allVote() bool {
	return slices.ContainsFunc(n.IDs(Voter), func(id string) bool {
		return strings.Contains(n.Metrics(id), "\nnarad_raft_voters_pending 0\n") // the leader's
	})
}

// build makes the router and a namespace per node, each a link apart from it.
func (n *Net) build() {
	n.t.Helper()
	if os.Getuid() != 0 {
		Lacking(n.t, NeedNetns, "network namespaces need root")
	}
	for _, tool := range []string{"ip", "iptables"} {
		if _, err := exec.LookPath(tool); err != nil {
			Lacking(n.t, NeedNetns, "no %s on this machine (Debian: iproute2, iptables)", tool)
		}
	}
	hub := n.prefix + "r"
	if out, err := exec.Command("ip", "netns", "add", hub).CombinedOutput(); err != nil {
		Lacking(n.t, NeedNetns, "this machine allows no network namespace: %v: %s", err, out)
	}
	// One privilege more than making it: a container may have the one only.
	if out, err := exec.Command("ip", "netns", "exec", hub, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward && iptables -L FORWARD -n").CombinedOutput(); err != nil {
		Lacking(n.t, NeedNetns, "a namespace cannot be made a router on this machine: %v: %s", err, out)
	}
	n.ip("-n", hub, "link", "set", "lo", "up")
	n.link("", 255)
	n.ip("route", "add", fmt.Sprintf("10.%d.0.0/16", n.subnet), "via", n.addr(255, 1))
	for _, node := range n.nodes {
		n.ip("netns", "add", n.space(node))
		n.ip("-n", n.space(node), "link", "set", "lo", "up")
		n.link(n.space(node), node.number)
		n.ip("-n", n.space(node), "route", "add", "default", "via", n.addr(node.number, 1))
	}
	for _, side := range []string{"-s", "-d"} { // the test itself is never cut
		n.rule("-I", side, n.addr(255, 2), "-j", "ACCEPT")
	}
}

// link joins a namespace ("" is the test's own) to the router.
func (n *Net) link(space string, number int) {
	n.t.Helper()
	hub, inner, outer := n.prefix+"r", fmt.Sprintf("%sn%d", n.prefix, number), fmt.Sprintf("%sr%d", n.prefix, number)
	n.ip("link", "add", inner, "type", "veth", "peer", "name", outer, "netns", hub)
	n.ip("-n", hub, "addr", "add", n.addr(number, 1)+"/30", "dev", outer)
	n.ip("-n", hub, "link", "set", outer, "up")
	var in []string
	if space != "" {
		n.ip("link", "set", inner, "netns", space)
		in = []string{"-n", space}
	}
	n.ip(append(slices.Clone(in), "addr", "add", n.addr(number, 2)+"/30", "dev", inner)...)
	n.ip(append(slices.Clone(in), "link", "set", inner, "up")...)
}

func (n *Net) addr(number, host int) string {
	return fmt.Sprintf("10.%d.%d.%d", n.subnet, number, host)
}

func (n *Net) space(node *netNode) string { return n.prefix + node.id }

func (n *Net) ip(args ...string) { n.t.Helper(); n.run("ip", args...) }

func (n *Net) run(name string, args ...string) {
	n.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		n.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// rule adds (-I, -A) or deletes (-D) a rule of the router.
func (n *Net) rule(op string, args ...string) {
	n.t.Helper()
	n.run("ip", append([]string{"netns", "exec", n.prefix + "r", "iptables", "-w", op, "FORWARD"}, args...)...)
}

// Cut drops every packet between a node and all other nodes, both ways; heal ends it, once.
func (n *Net) Cut(id string) (heal func()) {
	n.t.Helper()
	a := n.Addr(id)
	return n.cut([][]string{{"-s", a, "-j", "DROP"}, {"-d", a, "-j", "DROP"}})
}

// CutBetween drops every packet between a node and some others, both ways; to the rest
// it still talks.
func (n *Net) CutBetween(id string, others ...string) (heal func()) {
	n.t.Helper()
	var rules [][]string
	for _, other := range others {
		a, b := n.Addr(id), n.Addr(other)
		rules = append(rules, []string{"-s", a, "-d", b, "-j", "DROP"}, []string{"-s", b, "-d", a, "-j", "DROP"})
	}
	return n.cut(rules)
}

// CutPort drops every packet to one port of a node, from all other nodes; what the
// node itself sends, it still sends.
func (n *Net) CutPort(id string, port int) (heal func()) {
	n.t.Helper()
	return n.cut([][]string{{"-d", n.Addr(id), "-p", "tcp", "--dport", fmt.Sprint(port), "-j", "DROP"}})
}

func (n *Net) cut(rules [][]string) (heal func()) {
	n.t.Helper()
	for _, r := range rules {
		n.rule("-A", r...)
	}
	return sync.OnceFunc(func() {
		for _, r := range rules {
			n.rule("-D", r...)
		}
	})
}

func (n *Net) node(id string) *netNode {
	n.t.Helper()
	for _, node := range n.nodes {
		if node.id == id {
			return node
		}
	}
	n.t.Fatalf("no node %s", id)
	return nil
}

// Addr is the address of a node, without a port.
func (n *Net) Addr(id string) string { n.t.Helper(); return n.addr(n.node(id).number, 2) }

// IDs lists the nodes of a role.
func (n *Net) IDs(role string) (ids []string) {
	for _, node := range n.nodes {
		if node.role == role {
			ids = append(ids, node.id)
		}
	}
	return ids
}

// URL is the client endpoint of a gateway.
func (n *Net) URL(id string) string { return fmt.Sprintf("http://%s:%d", n.Addr(id), netClientPort) }

// URLs lists the client endpoints of all gateways.
func (n *Net) URLs() (urls []string) {
	for _, id := range n.IDs(Gateway) {
		urls = append(urls, n.URL(id))
	}
	return urls
}

// start runs a node's program in its namespace.
func (n *Net) start(node *netNode) {
	n.t.Helper()
	var initial, join []string
	for _, id := range n.IDs(Voter) {
		initial = append(initial, fmt.Sprintf("%s=%s:%d", id, n.Addr(id), netRaftPort))
		join = append(join, fmt.Sprintf("%s:%d", n.Addr(id), NetRPCPort))
	}
	all := append([]string{
		"netns", "exec", n.space(node), Binary(n.t, node.role), "--node-id", node.id, "--data-dir", filepath.Join(n.Dir, node.id),
		"--insecure", "--advertise", n.Addr(node.id), "--join", strings.Join(join, ","),
	}, n.args...)
	switch node.role {
	case Voter:
		all = append(all, "--initial-members", strings.Join(initial, ","))
	case Gateway:
		all = append(all, "--auth", "none", "--drain-delay", "0s")
	}
	log, err := os.OpenFile(filepath.Join(n.Dir, node.id+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()                     // the child has its own
	node.cmd = exec.Command("ip", all...) // ip becomes the program: its process id is the node's
	node.cmd.Stdout, node.cmd.Stderr = log, log
	node.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := node.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	cmd, done := node.cmd, make(chan error, 1)
	node.done = done
	go func() { done <- cmd.Wait() }()
}

// Ready tells whether a node's /readyz is 200 now.
func (n *Net) Ready(id string) bool {
	status, _ := n.get(id, "/readyz")
	return status == http.StatusOK
}

// Metrics returns a node's /metrics text; empty when it does not answer.
func (n *Net) Metrics(id string) string {
	return patient(func() (int, string) { return n.get(id, "/metrics") })
}

func (n *Net) get(id, path string) (int, string) {
	return fetch(n.http, fmt.Sprintf("http://%s:%d%s", n.Addr(id), NetOpsPort, path))
}

// end is the cleanup: no process, namespace, link or route of ours stays.
func (n *Net) end() {
	for _, node := range n.nodes {
		if node.cmd != nil {
			_ = node.cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	limit := time.After(stopLimit)
	for _, node := range n.nodes {
		if node.cmd == nil {
			continue
		}
		select {
		case err := <-node.done:
			if err != nil {
				n.t.Errorf("%s ended with %v; see %s", node.id, err, n.Dir)
			}
		case <-limit:
			n.t.Errorf("%s did not end within %s; see %s", node.id, stopLimit, n.Dir)
			_ = node.cmd.Process.Kill()
			<-node.done
			limit = time.After(time.Second)
		}
	}
	errs := make([]error, 0, len(n.nodes)+1)
	for _, space := range n.spaces() { // links and routes go with them
		errs = append(errs, exec.Command("ip", "netns", "del", space).Run())
	}
	if err := errors.Join(errs...); err != nil {
		n.t.Errorf("remove the namespaces %s*: %v", n.prefix, err)
	}
	if n.t.Failed() {
		n.t.Logf("data and logs are kept in %s", n.Dir)
		return
	}
	if err := os.RemoveAll(n.Dir); err != nil {
		n.t.Errorf("remove %s: %v", n.Dir, err)
	}
}

// spaces lists the namespaces that were made.
func (n *Net) spaces() (names []string) {
	out, err := exec.Command("ip", "netns", "list").Output()
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(out)) {
		if name, _, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(name, n.prefix) {
			names = append(names, name)
		}
	}
	return names
}
