package node

import (
	"context"

	"github.com/narad-mq/narad/libs/nodeapi"
)

// Settle implements nodeapi.Node. Ops of one partition that follow each other
// are settled under one lock.
func (n *Node) Settle(_ context.Context, req *nodeapi.SettleRequest) (*nodeapi.SettleResult, error) {
	res := &nodeapi.SettleResult{Statuses: make([]nodeapi.SettleStatus, len(req.Ops))}
	for from := 0; from < len(req.Ops); {
		to := from + 1
		for to < len(req.Ops) && req.Ops[to].Ref == req.Ops[from].Ref {
			to++
		}
		n.settle(req.Ops[from:to], res.Statuses[from:to])
		from = to
	}
	return res, nil
}

// settle settles ops of one partition. A partition that is not open has no
// leases: nothing is opened for a handle.
func (n *Node) settle(ops []nodeapi.SettleOp, out []nodeapi.SettleStatus) {
	j := judge(n.view, n.self, n.disk, ops[0].Ref)
	for i := range ops {
		switch {
		case j.standing == gone:
			out[i] = nodeapi.SettleLost
		case j.standing != leads || ops[i].Epoch > j.a.LeaderEpoch:
			out[i] = nodeapi.SettleUnavailable
		default:
			out[i] = nodeapi.SettleLost
		}
	}
	if j.standing != leads {
		return
	}
	p := n.peek(ops[0].Ref)
	if p == nil {
		return
	}
	q := p.Queue()
	if q == nil { // it may not serve: whether the lease lives is not known
		for i := range out {
			out[i] = nodeapi.SettleUnavailable
		}
		return
	}
	for from := 0; from < len(ops); {
		to := from
		for to < len(ops) && ops[to].Epoch <= j.a.LeaderEpoch {
			to++
		}
		q.Settle(ops[from:to], out[from:to])
		from = to + 1
	}
	if p == n.peek(ops[0].Ref) || judge(n.view, n.self, n.disk, ops[0].Ref).standing != gone {
		return
	}
	for i := range out { // its life ended on the way: what was not settled never will be
		if out[i] == nodeapi.SettleUnavailable {
			out[i] = nodeapi.SettleLost
		}
	}
}
