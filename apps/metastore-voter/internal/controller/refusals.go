package controller

import (
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/metaapi/lifecycle"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// refusedAgainAfter is how long a node's refusals stay silent after one was
	// logged: it asks every few seconds for as long as it runs.
	refusedAgainAfter = lifecycle.OlderReleaseLogEvery
	// maxRefused bounds the nodes that are remembered for it.
	maxRefused = 256
)

// refusalLog remembers when a node's refusal was logged last. Safe for concurrent use.
type refusalLog struct {
	mu sync.Mutex // guards at
	at map[string]time.Duration
}

// due tells whether to log now, and notes it.
func (l *refusalLog) due(node string, now time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.at[node]; ok && now-at < refusedAgainAfter {
		return false
	}
	if l.at == nil || len(l.at) >= maxRefused {
		l.at = map[string]time.Duration{}
	}
	l.at[node] = now
	return true
}

// complain logs that a node was refused, once a minute and node, unless that
// passes, and returns the refusal.
func (c *Controller) complain(what, node string, role topic.MemberRole, addr string, err error) error {
	// These pass by themselves, or are no fault of who asked.
	for _, code := range []problem.Code{
		problem.NotMetastoreLeader, problem.NoRaftConfiguration, problem.Overloaded, problem.OutcomeUnknown, problem.MemberNotFound,
	} {
		if problem.HasCode(err, code) {
			return err
		}
	}
	if c.refusals.due(what+" "+node, c.mono()) {
		c.log.Error("refused a "+what, "node", node, "role", string(role), "addr", addr, "err", err)
	}
	return err
}

func knownRole(r topic.MemberRole) bool {
	return r == topic.RoleVoter || r == topic.RoleStorage || r == topic.RoleGateway
}
