package gossip

import (
	"errors"
	"log"
	"net"
	"time"

	"github.com/hashicorp/memberlist"
)

// Times of the plane. A killed node is suspected after, on average, one interval
// until somebody probes it, one for the probe, three for the suspicion (times the
// decimal logarithm of the members above ten) and one to spread the word: about
// 1.2 s, and under 2 s nearly always.
const (
	probeInterval = 200 * time.Millisecond
	// probeTimeout is for the direct probe; what is left of the interval is for
	// those over others and over TCP.
	probeTimeout   = 100 * time.Millisecond
	suspicionMult  = 3
	gossipInterval = 100 * time.Millisecond
	// toTheDead is how long a lost node is still told what is said of it, so that it
	// can object; beyond it the join loop finds it again.
	toTheDead = 30 * time.Second
	// pushPull is how often two members compare all they know.
	pushPull = 10 * time.Second
	// streamTimeout bounds a dial, and each read and write, over TCP.
	streamTimeout = time.Second
)

// listen tries a few ports where any will do: one may be free for TCP only.
func listen(host string, port int, logger *log.Logger) (wire *memberlist.NetTransport, err error) {
	tries := 1
	if port == 0 {
		tries = 10
	}
	for range tries {
		wire, err = memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{host}, BindPort: port, Logger: logger})
		if err == nil {
			return wire, nil
		}
	}
	return nil, err
}

// bindAddr splits a listen address; memberlist takes IP addresses only, and "" for all.
func bindAddr(addr string) (host string, port int, err error) {
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return "", 0, err
	}
	if tcp.IP != nil && !tcp.IP.IsUnspecified() {
		host = tcp.IP.String()
	}
	return host, tcp.Port, nil
}

func (g *Gossip) options(label string, ip net.IP) *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name, c.Label, c.Transport = g.cfg.NodeID, label, g.wire
	c.BindPort, c.AdvertisePort, c.AdvertiseAddr = g.port, g.port, ip.String()
	c.SecretKey = g.cfg.Key
	c.ProbeInterval, c.ProbeTimeout = probeInterval, probeTimeout
	c.SuspicionMult, c.SuspicionMaxTimeoutMult = suspicionMult, 1 // no longer for want of others who agree
	c.AwarenessMaxMultiplier = 2                                  // a slow node must not be late as well
	c.GossipInterval, c.GossipToTheDeadTime, c.PushPullInterval = gossipInterval, toTheDead, pushPull
	c.TCPTimeout = streamTimeout
	c.DeadNodeReclaimTime = time.Nanosecond // a lost node may come back with another address at once
	c.EnableCompression = false             // messages are small
	c.Logger = g.logger()
	d := &delegate{g}
	c.Events, c.Alive = d, d
	return c
}

// delegate hears memberlist's events, under its lock: it only hands over.
type delegate struct{ g *Gossip }

func (d *delegate) poke() {
	select {
	case d.g.poked <- struct{}{}:
	default:
	}
}

// NotifyJoin implements memberlist.EventDelegate.
func (d *delegate) NotifyJoin(*memberlist.Node) { d.poke() }

// NotifyLeave implements memberlist.EventDelegate.
func (d *delegate) NotifyLeave(*memberlist.Node) { d.poke() }

// NotifyUpdate implements memberlist.EventDelegate.
func (d *delegate) NotifyUpdate(*memberlist.Node) {}

var errNoMember = errors.New("no member of record")

// NotifyAlive implements memberlist.AliveDelegate: members of record only. One that
// is not known here yet is found by the join loop once it is.
func (d *delegate) NotifyAlive(n *memberlist.Node) error {
	if n.Name == d.g.cfg.NodeID || (*d.g.peers.Load())[n.Name] != "" {
		return nil
	}
	return errNoMember
}
