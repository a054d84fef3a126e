package gateway

import (
	"errors"
	"fmt"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/diagnosis"
	"github.com/narad-mq/narad/libs/ops"
	"github.com/narad-mq/narad/libs/problem"
)

// ready lists why the gateway is not ready, for operators and rollouts.
func (g *Gateway) ready() (reasons, degraded []ops.Reason) {
	reasons = g.member.Ready()
	if g.leaving.Leaving() {
		reasons = append(reasons, ops.Reason{Code: ops.ReasonDraining, Detail: "the gateway is being decommissioned"})
	}
	if g.draining.Load() {
		reasons = append(reasons, ops.Reason{Code: ops.ReasonDraining, Detail: "the gateway is draining"})
	}
	if r, ok := g.cannotAccept(); ok && (r.Code == ops.ReasonWALUnavailable || r.Code == ops.ReasonDiskFull) && !g.cfg.NoWAL {
		reasons = append(reasons, r)
	}
	if n := g.damaged.Load(); n > 0 {
		degraded = append(degraded, ops.Reason{Code: "wal_damaged", Detail: fmt.Sprintf("%d damaged ranges of the write-ahead log were skipped", n)})
	}
	return reasons, degraded
}

// acceptReasons lists why a produce would not get its 202, or without a log why an
// ack=committed would not be passed on: what a load balancer asks. No leader is needed.
func (g *Gateway) acceptReasons() []ops.Reason {
	var out []ops.Reason
	if g.draining.Load() {
		out = append(out, ops.Reason{Code: ops.ReasonDraining, Detail: "the gateway is draining"})
	}
	if g.member.Removed() {
		out = append(out, ops.Reason{Code: ops.ReasonNotAdmitted, Detail: "the gateway was decommissioned"})
	}
	if r, ok := g.cannotAccept(); ok {
		out = append(out, r)
	}
	return out
}

// own is what a look at the cluster shows of this gateway.
func (g *Gateway) own() diagnosis.Own {
	out := diagnosis.Own{ID: g.cfg.Member.NodeID, LeaderLost: g.member.LeaderLost(), OldestAcceptMS: g.producer.Oldest()}
	out.Backlog, _ = g.producer.Load()
	if reasons := g.acceptReasons(); len(reasons) > 0 {
		out.Refuses = reasons[0].Detail
	}
	return out
}

func (g *Gateway) cannotAccept() (ops.Reason, bool) {
	err := g.producer.CanAccept()
	if g.cfg.NoWAL {
		err = g.commit.CanCommit()
	}
	if err == nil {
		return ops.Reason{}, false
	}
	r := ops.Reason{Code: ops.ReasonStarting, Detail: err.Error()}
	var p *problem.Problem
	if errors.As(err, &p) {
		r = ops.Reason{Code: string(p.Code), Detail: p.Detail}
		if p.Code == problem.NotReady {
			r.Code = ops.ReasonNotCaughtUp
		}
	}
	return r, true
}
