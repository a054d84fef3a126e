// Package diagnosis says in one look what is wrong with a cluster, since when,
// and what to do: what a person needs at 3 a.m.
//
// It is a pure function of what one gateway could learn: the members with their
// last stamps, the assignments, what the Raft servers said and the gateway's own
// state. It asks nobody, decides nothing and needs no leader. Unknown is not
// broken: what could not be learnt is no problem here, except that it could not.
// TestLook has a row per problem.
package diagnosis

import (
	"cmp"
	"slices"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/topic"
)

// The states of a cluster.
const (
	OK       = "ok"
	Degraded = "degraded" // something needs a person
	Down     = "down"     // no partition has a living leader: nothing is committed or consumed
)

// The severities: Page must wake somebody, Ticket can wait for the morning.
const (
	Page   = "page"
	Ticket = "ticket"
)

// The codes of problems.
const (
	NoMetastoreLeader  = "no_metastore_leader"
	QuorumAtRisk       = "quorum_at_risk"
	VoterUnreachable   = "voter_unreachable"
	MemberDead         = "member_dead"
	MemberUnreachable  = "member_unreachable"
	DeadMarkingRefused = "dead_marking_refused"
	PartitionNoLeader  = "partition_no_leader"
	PartitionDegraded  = "partition_under_replicated"
	PartitionsUnknown  = "partitions_unknown"
	LostCopiesUnknown  = "lost_copies_unknown"
	GatewayRefuses     = "gateway_refuses"
	WALBacklogOld      = "wal_backlog_old"
	DiskNearlyFull     = "disk_nearly_full"
)

const (
	// BacklogOld is the age of an accepted message at which somebody should look:
	// dispatch takes milliseconds, and a reroute a few seconds.
	BacklogOld = time.Minute
	// DiskTicket is the use of a data disk, in percent, at which there is still time.
	DiskTicket = 85
	// DiskPage is where a gateway refuses by default; a storage node does at about 95.
	DiskPage = 90
	// MaxPartitions bounds the partitions that are named one by one; the rest is
	// counted in one more problem.
	MaxPartitions = 100
)

// Own is what the gateway that looks knows of itself.
type Own struct {
	ID             string
	Refuses        string // why it would not answer 202 now; "": it would
	Backlog        int64  // accepted messages that are not committed
	OldestAcceptMS int64  // Unix milliseconds, of the oldest of them; 0: none
	LeaderLost     time.Time
}

// Scene is what a look sees.
type Scene struct {
	Now     time.Time
	Own     Own
	Members []topic.Member // with their last stamps
	// RemovedMS is when nodes that are no members any more were removed, in Unix
	// milliseconds, by id, as far as tombstones tell.
	RemovedMS map[string]int64
	// Assignments of every partition, in any order; repeated ones count once.
	Assignments []topic.Assignment
	Known       bool // whether Assignments are what the metastore has
	Quorum      *metaapi.QuorumResult
	Refused     bool // the leader keeps silent members from being marked dead
	// Missed is what nodes have told the leader of lone copies that are not there; nil:
	// nobody could tell.
	Missed *metaapi.LostCopiesResult
}

// Problem is one thing that is wrong.
type Problem struct {
	Code, Severity string
	Subject        string    // what it is about: a node id, topic/partition, "metastore"
	Since          time.Time // zero: nothing tells; see Memory
	Detail, Do     string
}

// Report is the outcome of a look.
type Report struct {
	Status   string
	AsOf     time.Time
	Problems []Problem // pages first
}

// Look judges a scene.
func Look(s *Scene) *Report {
	l := look{Scene: s, members: map[string]*topic.Member{}, led: map[string]int{}, down: map[string]bool{}, missed: map[topic.Ref]metaapi.LostCopy{}}
	for i := range s.Members {
		l.members[s.Members[i].ID] = &s.Members[i]
	}
	l.hears()
	l.partitions()
	l.metastore()
	l.nodes()
	l.gateway()
	slices.SortStableFunc(l.found, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Subject, b.Subject))
	})
	out := &Report{Status: OK, AsOf: s.Now, Problems: l.found}
	if len(l.found) > 0 {
		out.Status = Degraded
	}
	if l.total > 0 && l.orphans == l.total {
		out.Status = Down
	}
	return out
}

func rank(p Problem) int {
	if p.Severity == Page {
		return 0
	}
	return 1
}

// look is a scene with what was made of it so far.
type look struct {
	*Scene
	members        map[string]*topic.Member
	led            map[string]int // partitions, by leader
	total, orphans int            // partitions; those without a living leader
	thin           int            // led ones of which some copies cannot be used
	down           map[string]bool
	found          []Problem
	missed         map[topic.Ref]metaapi.LostCopy // lone copies that their nodes miss
}

func (l *look) add(severity, code, subject string, since time.Time, detail, do string) {
	l.found = append(l.found, Problem{code, severity, subject, since, detail, do})
}

// heard is when a member's last heartbeat was stamped, or a member that was was removed;
// zero when that is unknown.
func (l *look) heard(id string) time.Time {
	if at := l.RemovedMS[id]; at > 0 && l.members[id] == nil {
		return time.UnixMilli(at)
	}
	if m := l.members[id]; m != nil && m.HeartbeatMS > 0 {
		return time.UnixMilli(m.HeartbeatMS)
	}
	return time.Time{}
}
