package sweeper

import (
	"context"
	"slices"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
)

// reclaimBudget ends one call: a node stops in time to answer, and what it did not
// get to is asked for again.
const reclaimBudget = 20 * time.Second

// reclaimAtOnce is what a call names. A node removes one directory at a time and rests
// after each; these it has done, at its slowest pace, within the 5 s that it gives a call.
const reclaimAtOnce = 25

// reclaim has a node remove what is confirmed gone, and notes what became of it.
func (r *Role) reclaim(ctx context.Context, n *node) {
	var open []int // entries
	ours := 0
	for i := range n.entries {
		if known(n.entries[i].Kind) {
			ours++
		}
		if n.entries[i].Action == ActionReclaim {
			open = append(open, i)
		}
	}
	if !r.cfg.Yes && tooMany(len(open), ours) {
		for _, i := range open {
			n.entries[i].kept(nodeapi.ReasonLarge)
		}
		return
	}
	client := nodeapi.NewClient(r.rpc.Peer(n.ID, n.RPCAddr))
	for len(open) > 0 {
		var again []int
		progress := false
		for part := range slices.Chunk(open, reclaimAtOnce) {
			left, some := r.reclaimSome(ctx, client, n, part)
			again, progress = append(again, left...), progress || some
		}
		if !progress {
			return
		}
		open = again
	}
}

// reclaimSome makes one call. It returns what was kept, and whether anything was
// reclaimed: then the rest is worth another call.
func (r *Role) reclaimSome(ctx context.Context, client *nodeapi.Client, n *node, part []int) (left []int, some bool) {
	req := &nodeapi.ReclaimRequest{AllowLarge: r.cfg.Yes}
	for _, i := range part {
		e := &n.entries[i]
		req.Items = append(req.Items, nodeapi.ReclaimItem{Kind: e.Kind, Name: e.Name, Topic: e.Topic, Incarnation: *e.Incarnation})
	}
	ctx, cancel := context.WithTimeout(ctx, reclaimBudget)
	defer cancel()
	res, err := client.Reclaim(ctx, req)
	if err != nil {
		r.log.Warn("a storage node did not reclaim", "storage_node", n.ID, "directories", len(part), "error", err)
		for _, i := range part {
			n.entries[i].kept(failure(err))
		}
		return part, false
	}
	for k, i := range part {
		e, out := &n.entries[i], &res.Outcomes[k]
		switch out.Status {
		case nodeapi.Reclaimed:
			e.Outcome, e.Decided, e.Why, some = out.Status, true, "removed", true
			e.Bytes = &out.Bytes
		case nodeapi.Absent:
			e.Outcome, e.Decided, e.Why = out.Status, true, "somebody else has removed or renamed it"
		default: // kept, and what a later release may answer
			e.kept(out.Reason)
			left = append(left, i)
		}
	}
	return left, some
}

// kept notes that an entry that should go is still there.
func (e *Entry) kept(why string) {
	e.Outcome, e.Decided, e.Why = nodeapi.Kept, false, "not reclaimed: "+why
}
