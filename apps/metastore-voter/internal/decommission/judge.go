package decommission

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// MinVoters stay: with two, one failure stops every change of the metadata.
	MinVoters = 3
	// maxTopicsNamed bounds the topics in one reason.
	maxTopicsNamed = 100
)

// Server is one server of the Raft configuration as the leader sees it.
type Server struct {
	Node      string // node id
	RaftID    string
	Voter     bool
	Reachable bool // it answers this leader, or is it
}

// State is everything that decides about one member.
type State struct {
	Member  topic.Member
	Members map[string]*topic.Member // everybody of record, it included
	Self    string                   // node id of the leading voter
	Servers []Server
	Server  *Server // of the member and its disk of record; nil: in the configuration no more
	// Copies are the partitions of which it has a copy, as a replica or an observer.
	Copies []topic.Assignment
	// Factors are the replication factors of their topics, by name.
	Factors map[string]int
	Running int // moves under way that are not blocked
	// Moving are the partitions under way.
	Moving map[topic.Ref]bool
	// Gateway is what the gateway answered now; nil: it did not, or nobody asked.
	Gateway *gatewayapi.DrainedResult
	// OldGateway: its release does not know the question; it goes unasked.
	OldGateway bool
}

// Step is what follows.
type Step uint8

const (
	Wait     Step = iota // for what the reasons name, or for what is under way
	Transfer             // leadership of the metastore goes to another voter
	Remove               // the server leaves the Raft configuration
	Bury                 // the record goes, the tombstone stays
)

// Verdict is what Judge says of a member.
type Verdict struct {
	Step    Step
	Reasons []metaapi.Reason // what keeps it back, or would
	Left    int              // partitions of which it has copies that are to move
	Lost    []topic.Ref      // what goes with it, by somebody's word
}

// unsafe are the reasons that do not pass by themselves: a decommission is not begun
// with one of them.
func unsafe(code string) bool {
	switch code {
	case metaapi.BelowMinVoters, metaapi.NoHealthyMajority, metaapi.NoReceivers, metaapi.BelowReplicationFactor, metaapi.OwnerDead, metaapi.MemberAlive:
		return true
	}
	return false
}

// Unsafe gives those of the reasons for which a decommission is not begun.
func Unsafe(reasons []metaapi.Reason) []metaapi.Reason {
	var out []metaapi.Reason
	for _, r := range reasons {
		if unsafe(r.Code) {
			out = append(out, r)
		}
	}
	return out
}

// Judge says what follows for a member that drains, or would. It is a pure function.
func Judge(s *State) Verdict {
	var v Verdict
	switch s.Member.Role {
	case topic.RoleStorage:
		v = s.storage()
	case topic.RoleGateway:
		v.Reasons = s.gateway()
	case topic.RoleVoter:
		v.Reasons = s.voter()
		if len(v.Reasons) == 0 && s.Member.ID == s.Self {
			return Verdict{Step: Transfer, Reasons: []metaapi.Reason{reason(metaapi.LeaderTransfer, "%s leads the metastore; it hands leadership off first", s.Member.ID)}}
		}
	}
	switch {
	case s.Server == nil && s.Member.Role != topic.RoleStorage:
		v.Step, v.Reasons = Bury, nil // what could be asked of it was asked before it was removed
	case len(v.Reasons) > 0 || v.Left > 0:
		v.Step = Wait // with copies left the record stays, too
	case s.Server == nil:
		v.Step = Bury
	default:
		v.Step = Remove
	}
	return v
}

func reason(code, format string, args ...any) metaapi.Reason {
	return metaapi.Reason{Code: code, Message: fmt.Sprintf(format, args...)}
}

// accepted tells whether somebody's word stands for a member that does not come back.
func (s *State) accepted() bool { return s.Member.LossAcceptedBy != "" }

// Living is why nobody can give up what the member has: it is not marked dead, and has the
// disk of each of its copies. nil: its loss can be accepted. A word about a member that
// lives would hold for a silence that nobody has seen yet.
func (s *State) Living() *metaapi.Reason {
	if s.dead() {
		return nil
	}
	for i := range s.Copies {
		if own, replica := s.Copies[i].ReplicaOn(s.Member.ID); replica && own.DiskID != s.Member.DiskID {
			return nil
		}
	}
	r := reason(metaapi.MemberAlive, "%s is not marked dead, and none of its copies is on a disk that it lost: there is no loss to accept; leave accept_data_loss out", s.Member.ID)
	return &r
}

func (s *State) dead() bool { return s.Member.Status == topic.StatusDead }

// storage: every copy has to be elsewhere, but for those that are lost with a dead
// node by somebody's word.
func (s *State) storage() Verdict {
	var v Verdict
	stuck := 0
	var stuckIn []string
	for i := range s.Copies {
		a := &s.Copies[i]
		switch {
		case !s.orphan(a):
			v.Left++
		case s.accepted():
			v.Lost = append(v.Lost, a.Ref)
		default:
			stuck++
			stuckIn = append(stuckIn, a.Topic)
		}
	}
	slices.SortFunc(v.Lost, byRef)
	if stuck > 0 {
		r := reason(metaapi.OwnerDead, "%s cannot give away the only usable copies of %d partitions: bring it back on its own disk, or accept their loss by name", s.Member.ID, stuck)
		v.Reasons = append(v.Reasons, about(r, stuckIn))
	}
	if v.Left > 0 {
		v.Reasons = append(v.Reasons, s.receivers()...)
		v.Reasons = append(v.Reasons, s.turn()...)
	}
	return v
}

// orphan tells whether a copy on this node can be moved by nobody: the node is dead,
// or has another disk, and the others are no majority of the set.
func (s *State) orphan(a *topic.Assignment) bool {
	own, replica := a.ReplicaOn(s.Member.ID)
	if !replica {
		return false // an observer counts for nothing: its move is taken back
	}
	usable := 0
	for _, r := range a.Replicas {
		if m := s.Members[r.Node]; m != nil && m.Status == topic.StatusAlive && m.DiskID == r.DiskID {
			usable++
		}
	}
	return (s.dead() || own.DiskID != s.Member.DiskID) && usable < len(a.Replicas)/2+1
}

// Settled are the partitions that can move away and are not moving yet.
func (s *State) Settled() []topic.Assignment {
	var out []topic.Assignment
	for i := range s.Copies {
		if a := &s.Copies[i]; !s.Moving[a.Ref] && !s.orphan(a) {
			out = append(out, *a)
		}
	}
	return out
}

// receivers: somebody has to be there for what is left, and as many nodes as a topic is to
// have replicas. How many a partition has is no measure: it has fewer after a reset, and
// one more in the middle of a move.
func (s *State) receivers() []metaapi.Reason {
	live := 0
	for id, m := range s.Members {
		if id != s.Member.ID && m.Role == topic.RoleStorage && m.Status == topic.StatusAlive && !m.Draining {
			live++
		}
	}
	if live == 0 {
		return []metaapi.Reason{reason(metaapi.NoReceivers, "no other live storage node takes the partitions of %s", s.Member.ID)}
	}
	var short []string
	for i := range s.Copies {
		if a := &s.Copies[i]; !s.orphan(a) && s.Factors[a.Topic] > live {
			short = append(short, a.Topic)
		}
	}
	if len(short) == 0 {
		return s.room()
	}
	r := reason(metaapi.BelowReplicationFactor, "%d other live storage nodes are fewer than the replicas that some topics are to have", live)
	return []metaapi.Reason{about(r, short)}
}

// room: a full disk takes nothing, so that what could go to such nodes only stays.
func (s *State) room() []metaapi.Reason {
	free, full := []string{}, 0
	for id, m := range s.Members {
		switch {
		case id == s.Member.ID || m.Role != topic.RoleStorage || m.Status != topic.StatusAlive || m.Draining:
		case placement.Full(m):
			full++
		default:
			free = append(free, id)
		}
	}
	if full == 0 {
		return nil
	}
	var stay []string
	for _, a := range s.Settled() {
		_, replica := a.ReplicaOn(s.Member.ID)
		if replica && !slices.ContainsFunc(free, func(id string) bool { return !a.On(id) }) {
			stay = append(stay, a.Topic)
		}
	}
	if len(stay) == 0 {
		return nil
	}
	r := reason(metaapi.NoReceivers, "%d partitions of %s have nowhere to go: the disks of %d live storage nodes are %d %% full or more", len(stay), s.Member.ID, full, placement.FullPercent)
	return []metaapi.Reason{about(r, stay)}
}

// turn says that partitions wait until other moves have ended.
func (s *State) turn() []metaapi.Reason {
	waiting := len(s.Settled())
	if waiting == 0 || s.Running < metaapi.MaxRunningMoves {
		return nil
	}
	return []metaapi.Reason{reason(metaapi.MoveBudgetFull, "%d partitions of %s wait: %d moves run at once", waiting, s.Member.ID, metaapi.MaxRunningMoves)}
}

// gateway: only its own word of now lets it go, or an operator's while it is dead.
func (s *State) gateway() []metaapi.Reason {
	g := s.Gateway
	switch {
	case !s.otherGateway():
		return []metaapi.Reason{reason(metaapi.NoReceivers, "no other live gateway takes the clients of %s", s.Member.ID)}
	case s.OldGateway, g == nil && s.accepted() && s.dead():
		return nil
	case g == nil:
		return []metaapi.Reason{reason(metaapi.NodeStatusUnavailable, "%s does not answer, and may hold accepted messages: bring it back on its own disk; when it is dead, their loss can be accepted by name", s.Member.ID)}
	case g.Drained, !s.Member.Draining && g.Backlog == 0:
		return nil
	}
	return []metaapi.Reason{reason(metaapi.DispatchBacklog, "%s holds %d accepted messages that are not committed, or has not sealed its log yet", s.Member.ID, g.Backlog)}
}

func (s *State) otherGateway() bool {
	for id, m := range s.Members {
		if id != s.Member.ID && m.Role == topic.RoleGateway && m.Status == topic.StatusAlive && !m.Draining {
			return true
		}
	}
	return false
}

// voter: the floor, and a majority of those that stay. A server without a vote counts
// toward neither.
func (s *State) voter() []metaapi.Reason {
	if s.Server == nil || !s.Server.Voter {
		return nil
	}
	stay, answer, floor := 0, 0, 0
	for i := range s.Servers {
		srv := &s.Servers[i]
		if !srv.Voter || srv.RaftID == s.Server.RaftID {
			continue
		}
		stay++
		if srv.Reachable {
			answer++
		}
		// Of two that drain at once, each counts the other as gone, so that both are
		// not let begin where one has to stay; the one that was asked first goes.
		if m := s.Members[srv.Node]; m == nil || !m.Draining || s.before(m) {
			floor++
		}
	}
	var out []metaapi.Reason
	if floor < MinVoters {
		out = append(out, reason(metaapi.BelowMinVoters, "%d voters would stay, %d have to", floor, MinVoters))
	}
	if answer < stay/2+1 {
		out = append(out, reason(metaapi.NoHealthyMajority, "%d of the %d voters that would stay answer, a majority is %d", answer, stay, stay/2+1))
	}
	return out
}

// before tells whether this member's decommission began before that of another one.
func (s *State) before(other *topic.Member) bool {
	if !s.Member.Draining {
		return false
	}
	return cmp.Or(cmp.Compare(s.Member.DrainingMS, other.DrainingMS), cmp.Compare(s.Member.ID, other.ID)) < 0
}

// about names topics, each once.
func about(r metaapi.Reason, topics []string) metaapi.Reason {
	slices.Sort(topics)
	topics = slices.Compact(topics)
	r.TopicCount = len(topics)
	r.Topics = topics[:min(len(topics), maxTopicsNamed)]
	return r
}

func byRef(a, b topic.Ref) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
}
