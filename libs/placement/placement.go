// Package placement decides on which storage nodes the partitions of topics lie, and
// which of these lead. Its functions are pure: the same of what the metastore knows gives
// the same answer.
//
// Invariant: the replicas of a partition are on distinct nodes, and on distinct
// zones as far as there are zones; a node that is dead or draining gets nothing, and
// one whose disk is full gets nothing that a node with room can have: of a new topic
// only what fits nowhere else, of what is placed already nothing. Where zones and full
// disks do not force otherwise, the numbers of replicas of the nodes come closer to
// each other or stay within one.
//
// Rebalance, Evacuate and Complete plan what is to move of that later, Lead who is to lead.
// It carries nothing out: that is done by the moves and elections of the leading voter.
// TestAssignProperties, TestFullNodesComeLast and TestLeadIsAsEvenAsCanBe show what
// always holds.
package placement

import (
	"fmt"

	"github.com/narad-mq/narad/libs/topic"
)

// firstEpoch is the leader epoch of a partition that nobody led before.
const firstEpoch topic.Epoch = 1

// FullPercent is the use of a data disk, in percent, from which on it counts as full
// here and for moves: a storage node refuses commits at about that, so that a replica
// that is sent there cannot become whole, and one that leads there serves nothing.
const FullPercent = 95

// Node is a storage node that may get replicas, and its load.
type Node struct {
	ID       string
	DiskID   topic.ID64
	Zone     string // "" counts as a zone of its own
	Full     bool   // its disk is: it gets only what no other node can have
	Replicas int    // of all topics
	Leads    int    // partitions of all topics
}

// NotEnoughNodesError tells that the replicas of a partition do not fit on distinct nodes.
type NotEnoughNodesError struct {
	Live   int // usable nodes
	Wanted int // replication factor
}

// Error names both numbers.
func (e *NotEnoughNodesError) Error() string {
	return fmt.Sprintf("%d usable storage nodes for %d replicas", e.Live, e.Wanted)
}

// Candidates is Loaded with what the assignments put on the nodes.
func Candidates(members []topic.Member, assignments []topic.Assignment) []Node {
	loads := make(topic.Loads, len(members))
	for i := range assignments {
		loads.Add(&assignments[i])
	}
	return Loaded(members, loads)
}

// Loaded returns the live storage nodes that are not draining, with their loads,
// in the order of members.
func Loaded(members []topic.Member, loads topic.Loads) []Node {
	var nodes []Node
	for i := range members {
		m := &members[i]
		if m.Role != topic.RoleStorage || m.Status != topic.StatusAlive || m.Draining {
			continue
		}
		has := loads[m.ID]
		nodes = append(nodes, Node{ID: m.ID, DiskID: m.DiskID, Zone: m.Zone, Full: Full(m), Replicas: has.Replicas, Leads: has.Leads})
	}
	return nodes
}

// Full tells whether a member's disk is, as far as the record says. The records of a
// metastate.View say it as of the registration: give those that heartbeats refresh.
func Full(m *topic.Member) bool { return m.DiskUsedPercent >= FullPercent }

// Assign places the partitions of a new topic, index by index: each replica on
// the node with the fewest replicas so far, each leader on that one of its
// replicas that leads least, full nodes only where no other is left. The leader stands first in the set: it is the one
// that leads when all is well. A replicated partition begins without a leader:
// its first one, too, is elected by a majority that promised the epoch. It
// leaves nodes as they are. The error is a
// *NotEnoughNodesError.
func Assign(t *topic.Topic, nodes []Node) ([]topic.Assignment, error) {
	return AssignAway(t, nodes, nil)
}

// AssignAway is Assign for a topic that gets its messages from another one: a
// partition keeps away from the node in away at its index, as far as that costs no
// node more than one replica beyond the others. The disk and the network that
// read are then not those that write.
func AssignAway(t *topic.Topic, nodes []Node, away []string) ([]topic.Assignment, error) {
	if len(nodes) < t.ReplicationFactor {
		return nil, &NotEnoughNodesError{Live: len(nodes), Wanted: t.ReplicationFactor}
	}
	load := append([]Node(nil), nodes...)
	out := make([]topic.Assignment, t.Partitions)
	for p := range out {
		avoid := ""
		if p < len(away) {
			avoid = away[p]
		}
		chosen := choose(load, t.ReplicationFactor, avoid)
		out[p] = topic.Assignment{
			Ref:         topic.Ref{Topic: t.Name, Incarnation: t.Incarnation, Partition: int32(p)},
			LeaderEpoch: firstEpoch, ConfigVersion: 1,
		}
		first := 0
		for i, n := range chosen {
			n.Replicas++
			if leadsBetter(n, chosen[first], avoid) {
				first = i
			}
		}
		chosen[0], chosen[first] = chosen[first], chosen[0]
		for _, n := range chosen {
			out[p].Replicas = append(out[p].Replicas, topic.Replica{Node: n.ID, DiskID: n.DiskID})
		}
		chosen[0].Leads++
		if t.ReplicationFactor == 1 {
			out[p].Leader = chosen[0].ID
		}
	}
	return out, nil
}

// leadsBetter tells whether a is to lead rather than b, of the replicas of a partition.
func leadsBetter(a, b *Node, avoid string) bool {
	if a.Full != b.Full {
		return b.Full
	}
	return a.Leads < b.Leads || a.Leads == b.Leads && b.ID == avoid
}

// choose picks n distinct nodes, one by one.
func choose(nodes []Node, n int, avoid string) []*Node {
	chosen := make([]*Node, 0, n)
	for range n {
		var best *Node
		for i := range nodes {
			c := &nodes[i]
			if !contains(chosen, c) && (best == nil || better(c, best, chosen, avoid)) {
				best = c
			}
		}
		chosen = append(chosen, best)
	}
	return chosen
}

// better tells whether a is the better next choice: room on its disk, then a zone that
// has no replica yet, then fewer replicas, then fewer leaderships, then the lower id.
func better(a, b *Node, chosen []*Node, avoid string) bool {
	if a.Full != b.Full {
		return b.Full
	}
	switch freshA, freshB := freshZone(a, chosen), freshZone(b, chosen); {
	case freshA != freshB:
		return freshA
	case a.cost(avoid) != b.cost(avoid):
		return a.cost(avoid) < b.cost(avoid)
	case (a.ID == avoid) != (b.ID == avoid):
		return b.ID == avoid
	case a.Leads != b.Leads:
		return a.Leads < b.Leads
	}
	return a.ID < b.ID
}

// cost is what the node holds; to be avoided counts as one replica more.
func (n *Node) cost(avoid string) int {
	if n.ID == avoid {
		return n.Replicas + 1
	}
	return n.Replicas
}

func freshZone(n *Node, chosen []*Node) bool {
	if n.Zone == "" {
		return true
	}
	for _, c := range chosen {
		if c.Zone == n.Zone {
			return false
		}
	}
	return true
}

func contains(list []*Node, n *Node) bool {
	for _, c := range list {
		if c == n {
			return true
		}
	}
	return false
}
