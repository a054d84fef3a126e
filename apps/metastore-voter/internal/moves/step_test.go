package moves

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metaapi/lifecycle"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

func rep(node string) topic.Replica { return topic.Replica{Node: node, DiskID: 1, CopyID: 7} }

// at makes the scene of a move from s1 to s9 of a partition with these replicas;
// the first one leads. All is well: everybody lives, the leader answers and has
// everything settled.
func at(nodes ...string) *scene {
	s := &scene{
		move:    topic.Move{Ref: topic.Ref{Topic: "t", Incarnation: 1}, From: "s1", To: "s9", ToDisk: 1},
		members: map[string]*topic.Member{},
		part:    &topic.Assignment{LeaderEpoch: 5, ConfigVersion: 4, Leader: nodes[0]},
	}
	for _, n := range append([]string{"s9"}, nodes...) {
		s.members[n] = &topic.Member{ID: n, Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 1}
	}
	s.vouch = nodeapi.Vouch{Epoch: 5, ConfigVersion: 4, Settled: true, Proven: true}
	for _, n := range nodes {
		s.part.Replicas = append(s.part.Replicas, rep(n))
		s.vouch.Copies = append(s.vouch.Copies, nodeapi.VouchedCopy{Replica: rep(n)})
	}
	return s
}

// observing has the destination as an observer that is near.
func observing(nodes ...string) *scene {
	s := at(nodes...)
	s.part.Observers = []topic.Replica{{Node: "s9", DiskID: 1}}
	s.vouch.Copies = append(s.vouch.Copies, nodeapi.VouchedCopy{Replica: rep("s9"), Near: true})
	return s
}

// returning has a destination that was a replica before the last change, and observes again.
func returning(nodes ...string) *scene {
	s := observing(nodes...)
	s.part.Before = append(slices.Clone(s.part.Replicas), rep("s9"))
	s.part.Since = 4
	return s
}

func far(s *scene) { s.vouch.Copies[len(s.vouch.Copies)-1].Near = false }

// mute: the leader has said nothing for long; unled: there is none.
func mute(s *scene) { s.vouch, s.muteFor = nodeapi.Vouch{}, muteAfter }

func unled(s *scene) {
	mute(s)
	s.part.Leader = ""
}

// paired has the destination as the last replica that was added.
func paired(nodes ...string) *scene {
	s := at(nodes...)
	for _, r := range s.part.Replicas {
		if r.Node != "s9" {
			s.part.Before = append(s.part.Before, r)
		}
	}
	s.part.Since = 4
	return s
}

func dead(s *scene, node string) { s.members[node].Status = topic.StatusDead }

// show is a step in one word or two.
func show(st step) string {
	out := ""
	switch st.do {
	case wait:
		out = "wait"
	case change:
		names := []string{}
		for _, r := range st.replicas {
			names = append(names, r.Node)
		}
		out = "set " + strings.Join(names, ",")
	case elect:
		out = "elect " + st.to
	case depose:
		out = "depose"
	case end:
		out = "end"
	}
	if st.blocked != "" {
		out += " " + string(st.blocked)
	}
	return out
}

// Every phase with everything that can go wrong in it.
func TestNext(t *testing.T) {
	for _, c := range []struct {
		name  string
		scene *scene
		do    func(*scene)
		want  string
		phase metaapi.MovePhase
	}{
		{"lone: nothing fetched", observing("s1"), func(s *scene) { s.vouch.Copies = s.vouch.Copies[:1] }, "wait", metaapi.MovePending},
		{"lone: far", observing("s1"), far, "wait", metaapi.MoveCopying},
		{"lone: near", observing("s1"), nil, "set s9,s1", metaapi.MoveCopying},
		{"lone: far, a replica before", returning("s1"), far, "wait", metaapi.MoveCopying},
		{"lone: near, a replica before", returning("s1"), nil, "set s9,s1", metaapi.MoveCopying},
		{"lone: not settled, a replica before", returning("s1"), func(s *scene) { s.vouch.Settled = false }, "wait", metaapi.MoveCopying},
		{"lone: copy of the source not recorded", observing("s1"), func(s *scene) { s.part.Replicas[0].CopyID = 0 }, "wait", metaapi.MovePending},
		{"lone: not settled", observing("s1"), func(s *scene) { s.vouch.Settled = false }, "wait", metaapi.MoveCopying},
		{"lone: the word of another epoch", observing("s1"), func(s *scene) { s.vouch.Epoch = 4 }, "wait", metaapi.MovePending},
		{"lone: the word of another set", observing("s1"), func(s *scene) { s.vouch.ConfigVersion = 3 }, "wait", metaapi.MovePending},
		{"lone: no word", observing("s1"), func(s *scene) { s.vouch = nodeapi.Vouch{} }, "wait", metaapi.MovePending},
		{"lone: another disk fetches", observing("s1"), func(s *scene) { s.vouch.Copies[1].DiskID = 2 }, "wait", metaapi.MovePending},
		{"lone: source dead, however near", observing("s1"), func(s *scene) { dead(s, "s1") }, "wait source_dead", metaapi.MovePending},
		{"lone: source on another disk", observing("s1"), func(s *scene) { s.members["s1"].DiskID = 2 }, "wait copy_unverifiable", metaapi.MovePending},
		{"lone: source's member gone", observing("s1"), func(s *scene) { delete(s.members, "s1") }, "end", ""},
		{"three: source's member gone", observing("s2", "s1", "s3"), func(s *scene) { delete(s.members, "s1") }, "set s2,s9,s3,s1", metaapi.MoveCopying},
		{"destination dead", observing("s1"), func(s *scene) { dead(s, "s9") }, "wait target_dead", metaapi.MoveCopying},
		{"destination dead for long", observing("s1"), func(s *scene) { dead(s, "s9"); s.deadFor = lifecycle.DeadMoveAfter }, "end", ""},
		{"destination with another disk", observing("s1"), func(s *scene) { s.members["s9"].DiskID = 2 }, "end", ""},
		{"destination removed", observing("s1"), func(s *scene) { delete(s.members, "s9") }, "end", ""},
		{"destination full", observing("s1"), func(s *scene) { s.vouch.Copies[1].Near = false; s.members["s9"].DiskUsedPercent = 97 }, "wait target_disk_full", metaapi.MoveCopying},
		{"lone: destination full, nothing fetched", observing("s1"), func(s *scene) { s.vouch.Copies = s.vouch.Copies[:1]; s.members["s9"].DiskUsedPercent = 100 }, "wait target_disk_full", metaapi.MoveCopying},
		{"lone: destination full and near", observing("s1"), func(s *scene) { s.members["s9"].DiskUsedPercent = 97 }, "wait target_disk_full", metaapi.MoveCopying},
		{"three: destination full and near", observing("s2", "s1", "s3"), func(s *scene) { s.members["s9"].DiskUsedPercent = 97 }, "set s2,s9,s3,s1", metaapi.MoveCopying},
		{"pair: destination full", paired("s1", "s9"), func(s *scene) { s.members["s9"].DiskUsedPercent = 97 }, "set s1", metaapi.MoveJoined},
		{"pair: destination full and leads", paired("s9", "s1"), func(s *scene) { s.members["s9"].DiskUsedPercent = 97 }, "set s9", metaapi.MoveRemoving},
		{"four: destination full", paired("s1", "s2", "s3", "s9"), func(s *scene) { s.members["s9"].DiskUsedPercent = 97 }, "elect s9", metaapi.MoveElecting},
		{"lone: destination to be removed", observing("s1"), func(s *scene) { s.members["s9"].Draining = true }, "end", ""},
		{"three: destination to be removed", observing("s2", "s1", "s3"), func(s *scene) { s.members["s9"].Draining = true }, "end", ""},
		{"pair: destination to be removed", paired("s1", "s9"), func(s *scene) { s.members["s9"].Draining = true }, "elect s9", metaapi.MoveElecting},
		{"aborted while copying", observing("s1"), func(s *scene) { s.move.Aborted = true }, "end", ""},
		{"topic gone", observing("s1"), func(s *scene) { s.part = nil }, "end", ""},
		{"changed otherwise", at("s1", "s2"), nil, "end", ""},
		{"source no replica any more", observing("s2"), nil, "end", ""},

		{"three: near", observing("s2", "s1", "s3"), nil, "set s2,s9,s3,s1", metaapi.MoveCopying},
		{"three: the source that leads gives its place", observing("s1", "s2", "s3"), nil, "set s9,s2,s3,s1", metaapi.MoveCopying},
		{"three: far, a replica before", returning("s2", "s1", "s3"), far, "wait", metaapi.MoveCopying},
		{"three: source dead", observing("s2", "s1", "s3"), func(s *scene) { dead(s, "s1") }, "set s2,s9,s3,s1", metaapi.MoveCopying},
		{"three: no leader", observing("s2", "s1", "s3"), func(s *scene) { s.part.Leader = "" }, "wait", metaapi.MovePending},

		{"pair: source leads", paired("s1", "s9"), nil, "elect s9", metaapi.MoveElecting},
		{"pair: source leads and does not answer", paired("s1", "s9"), func(s *scene) { s.vouch = nodeapi.Vouch{} }, "wait", metaapi.MoveJoined},
		{"pair: source dead", paired("s1", "s9"), func(s *scene) { dead(s, "s1") }, "wait source_dead", metaapi.MoveElecting},
		{"pair: nobody leads", paired("s1", "s9"), func(s *scene) { s.part.Leader = "" }, "wait", metaapi.MoveElecting},
		{"pair: nobody leads, source dead", paired("s1", "s9"), func(s *scene) { s.part.Leader = ""; dead(s, "s1") }, "wait source_dead", metaapi.MoveElecting},
		{"pair: source wiped, destination dead", paired("s1", "s9"), func(s *scene) { s.part.Leader = ""; s.members["s1"].DiskID = 2; dead(s, "s9") }, "wait copy_unverifiable", metaapi.MoveJoined},
		{"pair: source wiped, aborted", paired("s1", "s9"), func(s *scene) { s.part.Leader = ""; s.members["s1"].DiskID = 2; s.move.Aborted = true }, "wait copy_unverifiable", metaapi.MoveJoined},
		{"pair: source's member gone", paired("s1", "s9"), func(s *scene) { s.part.Leader = ""; delete(s.members, "s1") }, "end", ""},
		{"pair: source's member gone, aborted", paired("s1", "s9"), func(s *scene) { s.part.Leader = ""; delete(s.members, "s1"); s.move.Aborted = true }, "end", ""},
		{"pair: source's member gone, destination dead", paired("s1", "s9"), func(s *scene) { s.part.Leader = ""; delete(s.members, "s1"); dead(s, "s9") }, "end", ""},
		{"pair: source's member gone, destination leads", paired("s9", "s1"), func(s *scene) { delete(s.members, "s1") }, "set s9", metaapi.MoveRemoving},
		{"pair: destination dead", paired("s1", "s9"), func(s *scene) { dead(s, "s9") }, "set s1", metaapi.MoveJoined},
		{"pair: destination dead, nobody leads", paired("s1", "s9"), func(s *scene) { s.part.Leader = ""; dead(s, "s9") }, "set s1", metaapi.MoveJoined},
		{"pair: destination wiped", paired("s1", "s9"), func(s *scene) { s.members["s9"].DiskID = 2 }, "set s1", metaapi.MoveJoined},
		{"pair: destination silent", paired("s1", "s9"), func(s *scene) { s.silentFor = silentAfter }, "set s1", metaapi.MoveJoined},
		{"pair: aborted", paired("s1", "s9"), func(s *scene) { s.move.Aborted = true }, "set s1", metaapi.MoveJoined},
		{"pair: destination leads", paired("s9", "s1"), nil, "set s9", metaapi.MoveRemoving},
		{"pair: destination leads, source dead", paired("s9", "s1"), func(s *scene) { dead(s, "s1"); s.vouch = nodeapi.Vouch{} }, "set s9", metaapi.MoveRemoving},
		{"pair: destination leads since before the pair", paired("s9", "s1"), func(s *scene) { s.part.Since = 5; s.vouch.Settled = false }, "wait", metaapi.MoveRemoving},
		{"pair: destination leads and dies", paired("s9", "s1"), func(s *scene) { dead(s, "s9") }, "depose", metaapi.MoveElecting},
		{"pair: aborted, destination leads", paired("s9", "s1"), func(s *scene) { s.move.Aborted = true }, "elect s1", metaapi.MoveElecting},
		{"pair: aborted, destination leads, source dead", paired("s9", "s1"), func(s *scene) { s.move.Aborted = true; dead(s, "s1") }, "set s9", metaapi.MoveRemoving},

		{"four: source leads", paired("s1", "s2", "s3", "s9"), nil, "elect s9", metaapi.MoveElecting},
		{"four: another one leads", paired("s2", "s9", "s3", "s1"), nil, "set s2,s9,s3", metaapi.MoveRemoving},
		{"four: another one leads, not settled", paired("s2", "s9", "s3", "s1"), func(s *scene) { s.vouch.Settled = false }, "wait", metaapi.MoveRemoving},
		{"four: another one leads, no word", paired("s2", "s9", "s3", "s1"), func(s *scene) { s.vouch = nodeapi.Vouch{} }, "wait", metaapi.MoveRemoving},
		{"four: source dead", paired("s2", "s9", "s3", "s1"), func(s *scene) { dead(s, "s1") }, "set s2,s9,s3", metaapi.MoveRemoving},
		{"four: destination dead", paired("s2", "s9", "s3", "s1"), func(s *scene) { dead(s, "s9") }, "wait target_dead", metaapi.MoveJoined},
		{"four: destination dead for long", paired("s2", "s9", "s3", "s1"), func(s *scene) { dead(s, "s9"); s.deadFor = lifecycle.DeadMoveAfter }, "set s2,s1,s3", metaapi.MoveJoined},
		{"four: aborted", paired("s2", "s9", "s3", "s1"), func(s *scene) { s.move.Aborted = true }, "set s2,s1,s3", metaapi.MoveJoined},
		{"four: aborted, destination leads, source dead", paired("s9", "s2", "s3", "s1"), func(s *scene) { s.move.Aborted = true; dead(s, "s1") }, "elect s2", metaapi.MoveElecting},
		{"four: destination leads and dies for long", paired("s9", "s2", "s3", "s1"), func(s *scene) { dead(s, "s9"); s.deadFor = lifecycle.DeadMoveAfter }, "elect s1", metaapi.MoveElecting},
		{"four: aborted after another change, no word", paired("s2", "s9", "s3", "s1"), func(s *scene) { s.move.Aborted = true; s.part.Before = nil; s.vouch = nodeapi.Vouch{} }, "wait", metaapi.MoveJoined},

		{"lone: no word for a while", observing("s1"), func(s *scene) { s.vouch, s.muteFor = nodeapi.Vouch{}, muteAfter-1 }, "wait", metaapi.MovePending},
		{"lone: no word for long", observing("s1"), mute, "wait leader_unavailable", metaapi.MovePending},
		{"lone: no word for long, source dead", observing("s1"), func(s *scene) { mute(s); dead(s, "s1") }, "wait source_dead", metaapi.MovePending},
		{"lone: no word for long, destination dead", observing("s1"), func(s *scene) { mute(s); dead(s, "s9") }, "wait target_dead", metaapi.MoveCopying},
		{"lone: no word for long, aborted", observing("s1"), func(s *scene) { mute(s); s.move.Aborted = true }, "end", ""},
		{"three: nobody leads for long", observing("s2", "s1", "s3"), unled, "wait leader_unavailable", metaapi.MovePending},
		{"pair: no word for long", paired("s1", "s9"), mute, "wait leader_unavailable", metaapi.MoveJoined},
		{"pair: nobody leads for long", paired("s1", "s9"), unled, "wait leader_unavailable", metaapi.MoveElecting},
		{"pair: no word for long, aborted", paired("s1", "s9"), func(s *scene) { mute(s); s.move.Aborted = true }, "set s1", metaapi.MoveJoined},
		{"four: no word for long", paired("s2", "s9", "s3", "s1"), mute, "wait leader_unavailable", metaapi.MoveRemoving},
		{"four: aborted, the destination that leads gives no word", paired("s9", "s2", "s3", "s1"), func(s *scene) { mute(s); s.move.Aborted = true }, "elect s1 leader_unavailable", metaapi.MoveElecting},

		{"done", at("s9"), nil, "end", metaapi.MoveReclaiming},
		{"done with three", at("s2", "s9", "s3"), nil, "end", metaapi.MoveReclaiming},
		{"done with two, whose other one was removed", at("s2", "s9"), func(s *scene) { s.part.Leader = ""; delete(s.members, "s2") }, "end", metaapi.MoveReclaiming},
		{"aborted too late", at("s9"), func(s *scene) { s.move.Aborted = true }, "end", metaapi.MoveReclaiming},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.do != nil {
				c.do(c.scene)
			}
			st := next(c.scene)
			if got := show(st); got != c.want || st.phase != c.phase {
				t.Errorf("%s in phase %q, want %s in %q (%s)", got, st.phase, c.want, c.phase, st.why)
			}
		})
	}
}

// Whatever fails, a set never loses its leader, never changes by more than one
// replica, and a lone copy never goes to a node that its leader has not vouched for.
func TestNoStepIsUnsafe(t *testing.T) {
	statuses := []topic.MemberStatus{topic.StatusAlive, topic.StatusDead}
	n := 0
	for _, make := range []func() *scene{
		func() *scene { return observing("s1") }, func() *scene { return observing("s2", "s1", "s3") },
		func() *scene { return returning("s1") }, func() *scene { return returning("s2", "s1", "s3") },
		func() *scene { return growing(observing("s1")) }, func() *scene { return growing(returning("s1", "s2")) },
		func() *scene { return paired("s1", "s9") }, func() *scene { return paired("s9", "s1") },
		func() *scene { return paired("s2", "s9", "s3", "s1") }, func() *scene { return paired("s1", "s9", "s2", "s3") },
	} {
		for bits := range 1 << 10 {
			s := make()
			bit := func(i int) bool { return bits>>i&1 == 1 }
			s.members["s1"].Status, s.members["s9"].Status = statuses[bits&1], statuses[bits>>1&1]
			s.move.Aborted = bit(2)
			s.vouch.Settled = bit(3)
			if bit(4) {
				s.vouch = nodeapi.Vouch{}
			}
			if bit(5) {
				s.part.Leader = ""
			}
			for i := range s.vouch.Copies {
				s.vouch.Copies[i].Near = s.vouch.Copies[i].Near && bit(6)
			}
			if bit(7) {
				s.deadFor = time.Hour
			}
			if bit(8) {
				s.members["s1"].DiskID = 2
			}
			if bit(9) {
				delete(s.members, "s1")
			}
			st := next(s)
			if st.do != change {
				continue
			}
			n++
			if err := unsafe(s, st); err != nil {
				t.Fatalf("%v: %s of %+v", err, show(st), s.part)
			}
		}
	}
	if n < 100 {
		t.Fatalf("only %d changes were looked at", n)
	}
}

func unsafe(s *scene, st step) error {
	added := 0
	for _, r := range st.replicas {
		if !slices.Contains(s.part.Replicas, r) {
			added++
			if !s.vouch.Settled || !slices.ContainsFunc(s.vouch.Copies, func(c nodeapi.VouchedCopy) bool { return c.Replica == r && c.Near }) {
				return fmt.Errorf("%s was not vouched for", r.Node)
			}
		}
	}
	gone := len(s.part.Replicas) + added - len(st.replicas)
	if added+gone != 1 {
		return fmt.Errorf("%d added, %d gone", added, gone)
	}
	if s.part.Leader != "" && !slices.ContainsFunc(st.replicas, func(r topic.Replica) bool { return r.Node == s.part.Leader }) {
		return fmt.Errorf("without the leader")
	}
	if len(st.replicas) == 1 && s.moved(st.replicas[0]) {
		return fmt.Errorf("alone, a copy that is on no disk of record")
	}
	if len(st.replicas) == 1 && st.replicas[0].Node == "s9" && s.part.Leader != "s9" {
		return fmt.Errorf("the destination alone, though it never led")
	}
	return nil
}

// growing scenes: nobody gives a replica up.
func growing(s *scene) *scene {
	s.move.From = ""
	return s
}

func TestNextOfAGrowth(t *testing.T) {
	near := func() *scene { return growing(observing("s1", "s2")) }
	for _, c := range []struct {
		name  string
		scene *scene
		do    func(*scene)
		want  string
		phase metaapi.MovePhase
	}{
		{"lone: near", growing(observing("s1")), nil, "set s1,s9", metaapi.MoveCopying},
		{"lone: far", growing(observing("s1")), far, "wait", metaapi.MoveCopying},
		{"lone: far, a replica before", growing(returning("s1")), far, "wait", metaapi.MoveCopying},
		{"lone: not recorded", growing(observing("s1")), func(s *scene) { s.part.Replicas[0].CopyID = 0 }, "wait", metaapi.MovePending},
		{"lone: its node is dead", growing(observing("s1")), func(s *scene) { dead(s, "s1") }, "wait source_dead", metaapi.MovePending},
		{"lone: its node was removed", growing(observing("s1")), func(s *scene) { delete(s.members, "s1") }, "end", ""},
		{"pair: its node was removed", growing(paired("s1", "s9")), func(s *scene) { s.part.Leader = ""; delete(s.members, "s1") }, "end", ""},
		{"two: near", near(), nil, "set s1,s2,s9", metaapi.MoveCopying},
		{"two: nothing fetched", near(), func(s *scene) { s.vouch.Copies = s.vouch.Copies[:2] }, "wait", metaapi.MovePending},
		{"two: the last change is not settled", near(), func(s *scene) { s.vouch.Settled = false }, "wait", metaapi.MoveCopying},
		{"two: no word", near(), func(s *scene) { s.vouch = nodeapi.Vouch{} }, "wait", metaapi.MovePending},
		{"two: no word for long", near(), mute, "wait leader_unavailable", metaapi.MovePending},
		{"pair: no word for long", growing(paired("s1", "s9")), mute, "wait leader_unavailable", metaapi.MoveJoined},
		{"two: destination dead", near(), func(s *scene) { dead(s, "s9") }, "wait target_dead", metaapi.MoveCopying},
		{"two: destination dead for long", near(), func(s *scene) { dead(s, "s9"); s.deadFor = time.Hour }, "end", ""},
		{"two: destination to be removed", near(), func(s *scene) { s.members["s9"].Draining = true }, "end", ""},
		{"two: aborted", near(), func(s *scene) { s.move.Aborted = true }, "end", ""},
		{"no observer", growing(at("s1", "s2")), nil, "end", ""},
		{"pair: settled", growing(paired("s1", "s9")), nil, "end", metaapi.MoveReclaiming},
		{"pair: not settled", growing(paired("s1", "s9")), func(s *scene) { s.vouch.Settled = false }, "wait", metaapi.MoveJoined},
		{"pair: no word", growing(paired("s1", "s9")), func(s *scene) { s.vouch = nodeapi.Vouch{} }, "wait", metaapi.MoveJoined},
		{"pair: destination dead", growing(paired("s1", "s9")), func(s *scene) { dead(s, "s9"); s.vouch.Settled = false }, "set s1", metaapi.MoveJoined},
		{"pair: destination silent", growing(paired("s1", "s9")), func(s *scene) { s.silentFor = silentAfter; s.vouch.Settled = false }, "set s1", metaapi.MoveJoined},
		{"pair: destination full", growing(paired("s1", "s9")), func(s *scene) { s.members["s9"].DiskUsedPercent = 95; s.vouch.Settled = false }, "set s1", metaapi.MoveJoined},
		{"pair: destination was elected", growing(paired("s9", "s1")), func(s *scene) { s.vouch = nodeapi.Vouch{} }, "end", metaapi.MoveReclaiming},
		{"pair: aborted", growing(paired("s1", "s9")), func(s *scene) { s.move.Aborted = true }, "set s1", metaapi.MoveJoined},
		{"three: settled", growing(paired("s1", "s2", "s9")), nil, "end", metaapi.MoveReclaiming},
		{"three: destination dead", growing(paired("s1", "s2", "s9")), func(s *scene) { dead(s, "s9"); s.vouch.Settled = false }, "wait", metaapi.MoveJoined},
	} {
		if c.do != nil {
			c.do(c.scene)
		}
		st := next(c.scene)
		if got := show(st); got != c.want || st.phase != c.phase {
			t.Errorf("%s: %s in %q (%s), want %s in %q", c.name, got, st.phase, st.why, c.want, c.phase)
		}
	}
}
