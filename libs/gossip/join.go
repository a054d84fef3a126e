package gossip

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// joinMin and joinMax bound the pause between two rounds of joining, which
	// doubles as long as nobody answers. A member that is gone for hours costs its
	// peers a dial each joinMax.
	joinMin = 500 * time.Millisecond
	joinMax = 10 * time.Second
	// joinRound is how many of the missing one round tries: more are found through
	// those, or in the next round.
	joinRound = 3
	// lookupLimit bounds one question to DNS.
	lookupLimit = 2 * time.Second
)

// joinLoop asks members of record that are not heard, for ever: after a cut of
// the network nobody else would bring the parts together.
func (g *Gossip) joinLoop(ctx context.Context, list *memberlist.Memberlist) {
	pause := joinMin
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		missing := g.missing(list)
		found := false
		for _, addr := range missing {
			if ctx.Err() != nil {
				return
			}
			found = g.join(ctx, list, addr) || found
		}
		if pause *= 2; found || len(missing) == 0 {
			pause = joinMin
		}
		pause = min(pause, joinMax)
		timer.Reset(pause)
	}
}

// missing gives addresses of a few members of record that are not heard.
func (g *Gossip) missing(list *memberlist.Memberlist) []string {
	live := map[string]bool{g.cfg.NodeID: true}
	for _, n := range list.Members() {
		live[n.Name] = true
	}
	var out []string
	for id, addr := range *g.peers.Load() {
		if !live[id] && addr != "" {
			out = append(out, addr)
		}
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out[:min(len(out), joinRound)]
}

// join tells whether somebody at addr answered.
func (g *Gossip) join(ctx context.Context, list *memberlist.Memberlist, addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := lookup(ctx, host) // memberlist's own look-up asks DNS over TCP, and cannot be ended
	if err != nil {
		return false
	}
	n, err := list.Join([]string{net.JoinHostPort(ip.String(), port)})
	return err == nil && n > 0
}

// lookup finds the address of a host; IPv4 first, as a node says one address only.
func lookup(ctx context.Context, host string) (net.IP, error) {
	if ip := net.ParseIP(host); ip != nil {
		return ip, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	list, err := net.DefaultResolver.LookupIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	for _, ip := range list {
		if ip.To4() != nil {
			return ip, nil
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no address", host)
	}
	return list[0], nil
}

// advertiseIP finds this node's own address, trying until ctx ends: in a new
// container the name may come later than the process.
func (g *Gossip) advertiseIP(ctx context.Context) (net.IP, error) {
	said := false
	for pause := joinMin; ; pause = min(2*pause, joinMax) {
		ip, err := lookup(ctx, g.cfg.Advertise)
		if err == nil {
			return ip, nil
		}
		if !said && ctx.Err() == nil {
			said = true
			g.cfg.Log.Warn("gossip waits: the advertised host is not known", "host", g.cfg.Advertise, "err", err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		case <-timer.C:
		}
	}
}
