package raftnode

import (
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	// logAgainAfter is how long Raft's warnings and errors of one kind about one
	// peer stay silent after one was logged: a lost peer is tried many times a
	// second, and would bury what else the log has to say.
	logAgainAfter = 10 * time.Second
	// maxDamped bounds the kinds that are remembered: about 20 messages times the
	// servers of a cluster. Past it all are forgotten, which costs repeated lines.
	maxDamped = 1024
)

// damper lets one warning or error of a kind through per logAgainAfter and
// counts the others. A kind is the message and the peer that it is about.
type damper struct {
	now func() time.Time

	mu   sync.Mutex // guards seen
	seen map[string]damped
}

type damped struct {
	at         time.Time // when one was logged last
	suppressed int       // since then
}

func newDamper(now func() time.Time) *damper {
	return &damper{now: now, seen: map[string]damped{}}
}

// admit tells whether to log this one, and how many like it were kept back
// since the last one that was logged.
func (d *damper) admit(level hclog.Level, msg string, args []any) (ok bool, suppressed int) {
	if level < hclog.Warn {
		return true, 0
	}
	key := msg + "\x00" + peerOf(args)
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	s, known := d.seen[key]
	if known && now.Sub(s.at) < logAgainAfter {
		s.suppressed++
		d.seen[key] = s
		return false, 0
	}
	if !known && len(d.seen) >= maxDamped {
		clear(d.seen)
	}
	d.seen[key] = damped{at: now}
	return true, s.suppressed
}

// peerOf finds the peer in the arguments of a message: Raft names it in several ways.
func peerOf(args []any) string {
	for i := 0; i+1 < len(args); i += 2 {
		switch args[i] {
		case "peer", "server-id", "target", "candidate", "leader", "remote-address":
			return fmt.Sprint(args[i+1])
		}
	}
	return ""
}
