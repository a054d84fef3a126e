package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// partitions finds those that nobody serves.
func (l *look) partitions() {
	if !l.Known {
		l.add(Ticket, PartitionsUnknown, l.Own.ID, time.Time{},
			"this gateway's replica has not caught up since its start, so no partition was judged", "ask another gateway, or look again when /readyz of this one is 200")
		return
	}
	list := slices.Clone(l.Assignments)
	slices.SortFunc(list, func(a, b topic.Assignment) int {
		if c := strings.Compare(a.Topic, b.Topic); c != 0 {
			return c
		}
		return int(a.Partition) - int(b.Partition)
	})
	list = slices.CompactFunc(list, func(a, b topic.Assignment) bool { return a.Ref == b.Ref })
	for i := range list {
		a := &list[i]
		l.total++
		if a.Leader != "" {
			l.led[a.Leader]++
		}
		detail, do := l.orphaned(a)
		if detail == "" {
			l.copies(a)
			continue
		}
		if l.orphans++; l.orphans <= MaxPartitions {
			since := l.heard(a.Leader)
			if missing, _ := l.missing(a); a.Leader == "" || metastate.Lost(a, l.members) && len(missing) > 1 {
				since = l.lastOf(missing) // with the last of them the majority went, not with the leader
			}
			if c, ok := l.missed[a.Ref]; ok {
				since = time.UnixMilli(c.SinceMS)
			}
			l.add(Page, PartitionNoLeader, fmt.Sprintf("%s/%d", a.Topic, a.Partition), since, detail, do)
		}
	}
	if more := l.orphans - MaxPartitions; more > 0 {
		l.add(Page, PartitionNoLeader, fmt.Sprintf("%d more", more), time.Time{},
			fmt.Sprintf("%d partitions have no leader, the first %d are named", l.orphans, MaxPartitions), "bring the dead storage nodes back on their own disks")
	}
	if more := l.thin - MaxPartitions; more > 0 {
		l.add(Ticket, PartitionDegraded, fmt.Sprintf("%d more", more), time.Time{},
			fmt.Sprintf("%d partitions lack copies, the first %d are named", l.thin, MaxPartitions), "bring the storage nodes named here back")
	}
}

// hears takes what nodes have told the leader of lone copies that are not there, counts
// those that were not named, and says of whom nothing is known.
func (l *look) hears() {
	if l.Missed == nil {
		return
	}
	for i := range l.Missed.Nodes {
		n := &l.Missed.Nodes[i]
		for _, c := range n.Named {
			l.missed[c.Ref] = c
		}
		if more := n.Count - len(n.Named); more > 0 {
			l.add(Page, PartitionNoLeader, fmt.Sprintf("%d more on %s", more, n.Node), time.Time{},
				fmt.Sprintf("lost: %d lone copies are recorded to be on the disk of %s and are not there; the first are named", n.Count, n.Node),
				fmt.Sprintf("put their directories back under topics/ of %s's data directory; reset those for which that cannot be", n.Node))
		}
	}
	if len(l.Missed.Unknown) > 0 {
		l.add(Ticket, LostCopiesUnknown, "metastore", time.Time{},
			"the leader has not heard yet whether these nodes miss lone copies: "+strings.Join(l.Missed.Unknown, ", "), "look again in a few seconds; if it stays, find what keeps their heartbeats from the leader")
	}
}

// copies judges a led partition of several copies: one that has no more than the
// majority it needs stops at the next failure.
func (l *look) copies(a *topic.Assignment) {
	missing, usable := l.missing(a)
	if len(a.Replicas) < 2 || len(missing) == 0 {
		return
	}
	if l.thin++; l.thin > MaxPartitions {
		return
	}
	severity, next := Ticket, "it is served"
	if majority := len(a.Replicas)/2 + 1; usable <= majority {
		severity, next = Page, fmt.Sprintf("it is served, and stops when one more of the other %d goes", usable)
	}
	l.add(severity, PartitionDegraded, fmt.Sprintf("%s/%d", a.Topic, a.Partition), l.lastOf(missing),
		fmt.Sprintf("its copies on %s cannot be used now; %s", strings.Join(missing, ", "), next),
		"bring them back; one with a new disk gets everything again by itself")
}

// lastOf is when the last of some nodes that are dead or were removed was heard or removed.
// Of one that lives on another disk nothing tells since when.
func (l *look) lastOf(ids []string) (since time.Time) {
	for _, id := range ids {
		if at := l.members[id]; (at == nil || at.Status == topic.StatusDead) && l.heard(id).After(since) {
			since = l.heard(id)
		}
	}
	return since
}

// lastHeard is when the last of some members was heard that are silent now.
func (l *look) lastHeard(silent []string) (since time.Time) {
	for _, id := range silent {
		if at := l.heard(id); at.After(since) {
			since = at
		}
	}
	return since
}

// missing lists the replicas of a partition that cannot be used: their node is dead or
// gone, or has another disk than the one that is recorded.
func (l *look) missing(a *topic.Assignment) (ids []string, usable int) {
	for _, r := range a.Replicas {
		if at := l.members[r.Node]; at == nil || at.Status == topic.StatusDead || at.DiskID != r.DiskID {
			ids = append(ids, r.Node)
		}
	}
	return ids, len(a.Replicas) - len(ids)
}

// orphaned says why nobody serves a partition and what helps; "": somebody does.
func (l *look) orphaned(a *topic.Assignment) (detail, do string) {
	back := "bring it back on its own disk; new messages without a pinned partition go elsewhere meanwhile"
	leader := l.members[a.Leader]
	if metastate.Lost(a, l.members) {
		return "lost: no majority of its copies is on a disk of record", "bring a node back with the disk that has a copy; if there is none any more: " +
			fmt.Sprintf("narad topic reset %s %d --accept-data-loss", a.Topic, a.Partition)
	}
	if _, ok := l.missed[a.Ref]; ok {
		return fmt.Sprintf("lost: its only copy is recorded to be on the disk of %s, and its directory is not there", a.Leader),
			fmt.Sprintf("put the directory p%05d back under topics/%s of %s's data directory; if there is none any more: narad topic reset %s %d --accept-data-loss",
				a.Partition, a.Topic, a.Leader, a.Topic, a.Partition)
	}
	if len(a.Replicas) > 1 {
		missing, usable := l.missing(a)
		majority := len(a.Replicas)/2 + 1
		switch {
		case a.Leader == "" && usable < majority:
			return fmt.Sprintf("%d of its %d copies can be used, an election needs %d; %s cannot", usable, len(a.Replicas), majority, strings.Join(missing, ", ")),
				"bring one of them back on its own disk; accepted messages wait for it"
		case a.Leader == "":
			return "an election is under way, or its replicas do not promise one", "look again in a few seconds; if it stays, the log of the leading voter says why"
		}
		back = "another replica is elected within seconds; if it stays, bring a storage node with a copy back on its own disk"
	}
	switch {
	case a.Leader == "":
		return "no replica was elected", "bring a storage node with a replica back on its own disk"
	case leader == nil:
		return fmt.Sprintf("its leader %s is no member any more", a.Leader), back
	case leader.Status == topic.StatusDead:
		return fmt.Sprintf("its leader %s is dead", a.Leader), back
	}
	if r, ok := a.ReplicaOn(a.Leader); ok && r.DiskID != leader.DiskID {
		return fmt.Sprintf("%s runs on another disk than the one that holds it", a.Leader), "give it its old disk back: what was not consumed is there"
	}
	return "", ""
}

// metastore judges the voters.
func (l *look) metastore() {
	voters, silent := 0, []string(nil)
	for i := range l.Quorum.Servers {
		s := &l.Quorum.Servers[i]
		if s.Suffrage != "voter" {
			continue
		}
		voters++
		if s.Reachable {
			continue
		}
		silent = append(silent, s.ID)
		l.down[s.ID] = true
		do := "start it on its own disk, or find what is between it and the others"
		if !s.Member {
			do = fmt.Sprintf("start it; or, if it shall never come, `narad cluster forget %s`", s.ID)
		}
		l.add(Ticket, VoterUnreachable, s.ID, l.heard(s.ID), "this voter does not answer", do)
	}
	answer := fmt.Sprintf("%d of %d voters answer, a majority is %d", voters-len(silent), voters, l.Quorum.Majority)
	switch names := strings.Join(silent, ", "); {
	case l.Quorum.LeaderID != nil && len(silent) > 0 && voters-len(silent) <= l.Quorum.Majority:
		l.add(Page, QuorumAtRisk, "metastore", l.lastHeard(silent), answer+": one more failure stops all changes of topics and members", "bring a voter back: "+names)
	case l.Quorum.LeaderID != nil:
	case voters == 0:
		l.add(Page, NoMetastoreLeader, "metastore", l.Own.LeaderLost, "this gateway was admitted to no cluster yet", "check its --join and whether the voters run; its log says who refused it")
	case voters-len(silent) >= l.Quorum.Majority:
		l.add(Page, NoMetastoreLeader, "metastore", l.Own.LeaderLost, answer+": an election is under way, or the voters do not reach each other",
			"look again in a few seconds; if it stays, check the Raft port between the voters; messages flow meanwhile")
	default:
		l.add(Page, NoMetastoreLeader, "metastore", l.Own.LeaderLost, answer,
			"bring voters back on their own disks: "+names+"; messages flow meanwhile, topics and members cannot change")
	}
	if l.Refused {
		subject := "metastore"
		if l.Quorum.LeaderID != nil {
			subject = *l.Quorum.LeaderID
		}
		l.add(Page, DeadMarkingRefused, subject, time.Time{}, "so many members are silent to the leader that it marks none of them dead",
			"if they run, find what keeps their heartbeats from the leader's RPC port; else start them")
	}
}

// nodes judges the members, apart from voters that do not answer.
func (l *look) nodes() {
	answers := map[string]bool{}
	for i := range l.Quorum.Servers {
		answers[l.Quorum.Servers[i].ID] = l.Quorum.Servers[i].Reachable
	}
	for i := range l.Members {
		m := &l.Members[i]
		severity, holds := Ticket, ""
		if n := l.led[m.ID]; n > 0 {
			severity, holds = Page, fmt.Sprintf("; it leads %d partitions", n)
		}
		reachable, server := answers[m.ID]
		switch {
		case l.down[m.ID]:
		case m.Status == topic.StatusDead:
			l.add(severity, MemberDead, m.ID, l.heard(m.ID), fmt.Sprintf("this %s sends no heartbeats%s", m.Role, holds), revive(m.Role))
		case server && !reachable:
			l.add(severity, MemberUnreachable, m.ID, l.heard(m.ID), fmt.Sprintf("this %s does not answer%s", m.Role, holds),
				"if it runs, find what is between it and the others; "+revive(m.Role))
		}
		if m.Status == topic.StatusDead || m.DiskUsedPercent < DiskTicket {
			continue
		}
		severity = Ticket
		if m.DiskUsedPercent >= DiskPage {
			severity = Page
		}
		l.add(severity, DiskNearlyFull, m.ID, time.Time{}, fmt.Sprintf("the data disk is %d%% full", m.DiskUsedPercent), makeRoom(m.Role))
	}
}

func makeRoom(role topic.MemberRole) string {
	if role == topic.RoleVoter {
		return "enlarge the disk; delete no file: a voter whose disk is full takes no change of the metadata"
	}
	return "shorten retention or enlarge the disk; delete no file"
}

func revive(role topic.MemberRole) string {
	if role == topic.RoleGateway {
		return "start it on its own disk: what it accepted may be there only"
	}
	return "start it on its own disk"
}

// gateway judges the one that looks.
func (l *look) gateway() {
	if l.Own.Refuses != "" {
		l.add(Page, GatewayRefuses, l.Own.ID, time.Time{}, "this gateway accepts no message: "+l.Own.Refuses, "use another gateway; its /readyz/accept and log say more")
	}
	if l.Own.OldestAcceptMS == 0 {
		return
	}
	oldest := time.UnixMilli(l.Own.OldestAcceptMS)
	if age := l.Now.Sub(oldest); age >= BacklogOld {
		l.add(Ticket, WALBacklogOld, l.Own.ID, oldest,
			fmt.Sprintf("%d accepted messages wait on this gateway, the oldest for %s", l.Own.Backlog, age.Round(time.Second)),
			"they are safe on its disk and leave when their partitions have leaders again: see what else stands here")
	}
}
