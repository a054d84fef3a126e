package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// missed is what a node's last heartbeat said of lone copies that are not there. It is
// kept in the leader's memory only: a node says it again within seconds.
type missed struct {
	disk topic.ID64
	told bool // false: its release does not tell
	metaapi.LostCopies
}

// missedBy takes what a heartbeat of a registered member says, cut to what is allowed.
func missedBy(req *metaapi.HeartbeatRequest) missed {
	out := missed{disk: req.DiskID}
	if req.Lost != nil {
		out.told, out.LostCopies = true, *req.Lost
		out.Named = out.Named[:min(len(out.Named), metaapi.MaxLostNamed)]
	}
	return out
}

// LostCopies implements metaapi.Losses.
func (c *Controller) LostCopies(context.Context) (*metaapi.LostCopiesResult, error) {
	t, err := c.leading()
	if err != nil {
		return nil, err
	}
	return lostCopies(c.raft.View(), t.missing())
}

// heardMissing is what this node has heard of lost copies, while it leads.
func (c *Controller) heardMissing() (map[string]missed, bool) {
	t := c.term.Load()
	if t == nil {
		return nil, false
	}
	return t.missing(), true
}

// miss notes what a registered member has said.
func (t *term) miss(id string, m missed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.missed[id] = m
}

// missing is what was heard in this term, by node.
func (t *term) missing() map[string]missed {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[string]missed, len(t.missed))
	for id, m := range t.missed {
		out[id] = m
	}
	return out
}

// lostCopies compares what nodes have said with what they are to have by the records. Of
// copies that were not named as many are believed as may be.
func lostCopies(v metastate.View, heard map[string]missed) (*metaapi.LostCopiesResult, error) {
	out := &metaapi.LostCopiesResult{Nodes: []metaapi.LostOnNode{}, Unknown: []string{}}
	for id, m := range v.Members().ByID {
		said, ok := heard[id]
		ok = ok && said.disk == m.DiskID
		if m.Role != topic.RoleStorage || ok && said.Count == 0 {
			continue
		}
		list, err := v.AssignmentsOf(id)
		if err != nil {
			return nil, fmt.Errorf("read what %s is to have: %w", id, err)
		}
		lone := map[topic.Ref]bool{}
		for i := range list {
			a := &list[i]
			if own, in := a.ReplicaOn(id); in && len(a.Replicas) == 1 && own.DiskID == m.DiskID && own.CopyID != 0 {
				lone[a.Ref] = true
			}
		}
		if !ok {
			if len(lone) > 0 && m.Status == topic.StatusAlive { // of one that is dead that is said anyway
				out.Unknown = append(out.Unknown, id)
			}
			continue
		}
		unnamed := max(said.Count-len(said.Named), 0)
		node := metaapi.LostOnNode{Node: id}
		for _, c := range said.Named {
			if lone[c.Ref] {
				node.Named = append(node.Named, c)
			}
		}
		if node.Count = min(len(node.Named)+unnamed, len(lone)); node.Count > 0 {
			out.Nodes = append(out.Nodes, node)
		}
	}
	slices.SortFunc(out.Nodes, func(a, b metaapi.LostOnNode) int { return strings.Compare(a.Node, b.Node) })
	slices.Sort(out.Unknown)
	return out, nil
}
