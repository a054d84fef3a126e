package harness

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Kill sends SIGKILL to a node of the network and waits until it is gone; Restart
// starts it again over its directory, and does not wait until it is ready.
func (n *Net) Kill(id string) {
	n.t.Helper()
	node := n.node(id)
	if err := node.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		n.t.Fatalf("kill %s: %v", id, err)
	}
	<-node.done
	node.cmd = nil
}

// Restart starts a node that was killed.
func (n *Net) Restart(id string) { n.t.Helper(); n.start(n.node(id)) }

// WaitReady waits until a node is ready.
func (n *Net) WaitReady(id string) {
	n.t.Helper()
	if err := Until(context.Background(), readyLimit, func() bool { return n.Ready(id) }); err != nil {
		n.t.Fatalf("%s is not ready after %s; logs in %s", id, readyLimit, n.Dir)
	}
}

// CutRaft drops every packet to the Raft port of a node: its replica falls behind, while
// it asks and is asked as ever; heal ends it, once.
func (n *Net) CutRaft(id string) (heal func()) { n.t.Helper(); return n.CutPort(id, netRaftPort) }

// CutBytes drops every packet from a node to the Raft ports of all others of its role
// that has some bytes in it: an entry with them does not get there, while heartbeats and
// all other entries do. caught counts what was dropped; heal ends it, once.
//
// TCP sends what was dropped again, and it is dropped again: the connection that
// carries it is stuck, others are not. So it goes on when the sender is dead.
//
// Without a kernel that looks into packets it skips the test, or fails it (Lacking).
func (n *Net) CutBytes(from string, part []byte) (caught func() int, heal func()) {
	n.t.Helper()
	// kmp: bm misses what lies across the pieces that the kernel keeps a packet in.
	contains := func(b []byte) []string {
		return []string{"-m", "string", "--algo", "kmp", "--hex-string", fmt.Sprintf("|%x|", b)}
	}
	// A rule that only counts, for packets of the router's own.
	probe := append([]string{"netns", "exec", n.prefix + "r", "iptables", "-w", "-I", "OUTPUT"}, contains([]byte{1})...)
	if out, err := exec.Command("ip", probe...).CombinedOutput(); err != nil {
		Lacking(n.t, NeedPayload, "this machine's kernel does not look into packets: %v: %s", err, out)
	}
	var rules [][]string
	for _, id := range n.IDs(n.node(from).role) {
		if id != from {
			to := []string{"-s", n.Addr(from), "-d", n.Addr(id), "-p", "tcp", "--dport", strconv.Itoa(netRaftPort)}
			rules = append(rules, slices.Concat(to, contains(part), []string{"-j", "DROP"}))
		}
	}
	return func() int { return n.dropped(from) }, n.cut(rules)
}

// dropped sums the packets that CutBytes dropped of a node.
func (n *Net) dropped(from string) (packets int) {
	n.t.Helper()
	out, err := exec.Command("ip", "netns", "exec", n.prefix+"r", "iptables", "-w", "-nvxL", "FORWARD").Output()
	if err != nil {
		n.t.Fatalf("read the router's counters: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "STRING match") || !strings.Contains(line, " "+n.Addr(from)+" ") {
			continue
		}
		fields := strings.Fields(line)
		count, err := strconv.Atoi(fields[0])
		if err != nil {
			n.t.Fatalf("the router's counters: %q", line)
		}
		if fields[7] == n.Addr(from) { // source, before the destination
			packets += count
		}
	}
	return packets
}
