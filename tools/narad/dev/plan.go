package dev

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/narad-mq/narad/libs/bus"
)

// The programs' names, which are the roles in endpoints.json.
const (
	Voter   = "metastore-voter"
	Storage = "storage-node"
	Gateway = "ingress-gateway"
)

const (
	// PortSpan is how many ports from BasePort a cluster may use.
	PortSpan = 60
	// portsPerNode are rpc, raft and ops; a gateway has its client port beside them.
	portsPerNode = 3
	loopback     = "127.0.0.1"
)

// ErrConfig is below every refusal of a setting.
var ErrConfig = errors.New("refused setting")

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...)
}

// Size is how many nodes of each role a cluster has.
type Size struct {
	Voters, StorageNodes, Gateways int
}

// node is one process to be: fixed once planned.
type node struct {
	id, role             string
	http, rpc, raft, ops string // host:port; http empty but for gateways
	gossip               string // host:port, TCP and UDP; empty: none
	args                 []string
}

// layout is a planned cluster.
type layout struct {
	nodes []node
	bus   string // host:port of the NATS server in this process; empty: there is none
}

// plan names the nodes, gives them addresses and writes their command lines. Gateways
// take the client ports from base upwards. The other ports are dealt from the end of
// the span downwards, voters first, so that a cluster that is started again with more
// storage nodes or gateways finds its voters where their Raft configuration says.
// Gossip, and then the bus, have the ports between, which may change with every start:
// members say theirs when they register. A cluster so large that they are too few does
// without.
func plan(cfg Config) (*layout, error) {
	size, base := cfg.Size, cfg.BasePort
	if err := size.check(); err != nil {
		return nil, err
	}
	if base < 1 || base+PortSpan-1 > 65535 {
		return nil, refused("--base-port %d: it and the %d ports after it must lie within 1..65535", base, PortSpan-1)
	}
	if err := (bus.Settings{URL: cfg.NATSURL}).Check(); err != nil {
		return nil, refused("%v", err)
	}
	top := base + PortSpan
	var nodes []node
	deal := func(role, name string, n int) {
		for i := 1; i <= n; i++ {
			top -= portsPerNode
			nodes = append(nodes, node{
				id: name + "-" + strconv.Itoa(i), role: role,
				rpc: address(top), raft: address(top + 1), ops: address(top + 2),
			})
		}
	}
	deal(Voter, "voter", size.Voters)
	deal(Storage, "storage", size.StorageNodes)
	deal(Gateway, "gateway", size.Gateways)
	for i := range size.Gateways {
		nodes[size.Voters+size.StorageNodes+i].http = address(base + i)
	}
	free := base + size.Gateways
	if !cfg.NoGossip && top-free >= len(nodes) {
		for i := range nodes {
			nodes[i].gossip = address(free + i)
		}
		free += len(nodes)
	}
	l := &layout{nodes: nodes}
	if cfg.NATSURL == "" && free < top {
		l.bus = address(free)
		cfg.NATSURL = "nats://" + l.bus
	}
	var join, members []string
	for _, v := range nodes[:size.Voters] {
		join = append(join, v.rpc)
		members = append(members, v.id+"="+v.raft)
	}
	for i := range nodes {
		nodes[i].args = arguments(&nodes[i], cfg, strings.Join(join, ","), strings.Join(members, ","))
	}
	return l, nil
}

func (s Size) check() error {
	switch {
	case s.Voters < 1 || s.StorageNodes < 0 || s.Gateways < 0:
		return refused("want at least one voter and no negative number, got %d voters, %d storage nodes, %d gateways", s.Voters, s.StorageNodes, s.Gateways)
	case s.Voters%2 == 0:
		return refused("--voters %d: an even number of voters survives no more failures than one less; use 1, 3 or 5", s.Voters)
	}
	if need := s.Gateways + portsPerNode*(s.Voters+s.StorageNodes+s.Gateways); need > PortSpan {
		return refused("so many nodes need %d ports, and there are %d; start fewer", need, PortSpan)
	}
	return nil
}

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

func arguments(n *node, cfg Config, join, members string) []string {
	args := []string{
		"--node-id", n.id, "--data-dir", filepath.Join(cfg.DataDir, n.id),
		"--rpc-addr", n.rpc, "--raft-addr", n.raft, "--ops-addr", n.ops,
		"--gossip-addr=" + n.gossip, "--nats-url=" + cfg.NATSURL, "--advertise", loopback, "--log-format", "text", "--log-level", cfg.LogLevel,
	}
	args = append(args, planeArguments(n.id, cfg.DataDir, cfg.TLS)...)
	if cfg.TLS && n.gossip != "" {
		args = append(args, "--cluster-secret-file", secretFile(cfg.DataDir))
	}
	switch {
	case n.role == Voter && cfg.Size.Voters == 1:
		return append(args, "--single")
	case n.role == Voter:
		return append(args, "--initial-members", members, "--join", join)
	case n.role == Gateway:
		// No balancer stands before a loopback cluster: nothing to wait for while draining.
		args = append(args, "--http-addr", n.http, "--auth", "none", "--drain-delay", "0s")
	}
	return append(args, "--join", join)
}

// busy returns the first address of the cluster that something else listens on.
func (l *layout) busy() (addr string) {
	all := []string{l.bus}
	for _, n := range l.nodes {
		all = append(all, n.http, n.rpc, n.raft, n.ops, n.gossip)
	}
	for _, a := range all {
		if a == "" {
			continue
		}
		l, err := net.Listen("tcp", a)
		if err != nil {
			return a
		}
		if l.Close() != nil {
			return a
		}
	}
	return ""
}
