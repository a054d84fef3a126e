package controller

import (
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/topic"
)

// confOf writes a configuration as "v1 v2#7 s1-": Raft server ids, "-" after one
// without a vote.
func confOf(text string) (conf raftnode.Configuration) {
	for _, id := range strings.Fields(text) {
		raftID, nonvoter := strings.CutSuffix(id, "-")
		if node, disk, ok := strings.Cut(raftID, "#"); ok {
			raftID = raftnode.ServerID(node, topic.ID64(disk[0]-'0'))
		}
		conf.Servers = append(conf.Servers, raftnode.Server{
			ID: raftnode.NodeOf(raftID), Addr: raftID + ":1", Voter: !nonvoter, RaftID: raftID,
		})
	}
	return conf
}

// TestSeat: who v3 is that asks with disk 7, and whether it may come in. v1 is
// the leader.
func TestSeat(t *testing.T) {
	for name, tc := range map[string]struct {
		conf    string
		as      string     // as which server it takes part; "": not at all
		disk    topic.ID64 // of its record; 0: it has none
		alive   bool
		hears   string // servers that answer the leader, besides itself
		leader  string // "": v1
		seat    string // "" : plain v3
		former  string
		refused problem.Code
		removal problem.Code // of the former server
	}{
		"new":                                       {conf: "v1 v2", seat: "v3#7"},
		"asking again before it was told":           {conf: "v1 v2 v3#7-", seat: "v3#7"},
		"an initial member that restarted":          {conf: "v1 v2 v3", as: "v3", disk: 7, alive: true},
		"one that never registered":                 {conf: "v1 v2 v3", as: "v3", hears: "v2 v3"},
		"another disk while the old one lives":      {conf: "v1 v2 v3", disk: 6, alive: true, hears: "v2", seat: "v3#7", former: "v3", refused: problem.IDInUse},
		"another disk, the old one is dead":         {conf: "v1 v2 v3", disk: 6, hears: "v2", seat: "v3#7", former: "v3"},
		"another disk, the old one never heard":     {conf: "v1 v2 v3", hears: "v2", seat: "v3#7", former: "v3"},
		"another disk, the old server answers Raft": {conf: "v1 v2 v3", hears: "v2 v3", seat: "v3#7", former: "v3", refused: problem.IDInUse},
		"the leader's own id":                       {conf: "v1 v2 v3", leader: "v3", hears: "v1 v2", seat: "v3#7", former: "v3", refused: problem.IDInUse},
		"a third disk":                              {conf: "v1 v2 v3#6", disk: 6, hears: "v2", seat: "v3#7", former: "v3#6"},
		"the first disk is back":                    {conf: "v1 v2 v3#6", as: "v3", disk: 6, hears: "v2", former: "v3#6"},
		"it formed a rival with a second disk":      {conf: "v1 v2 v3", as: "v3", disk: 6, hears: "v2", refused: problem.IDInUse},
		"nobody else answers":                       {conf: "v1 v2 v3", disk: 6, seat: "v3#7", former: "v3", removal: problem.NotReady},
		"two of three that stay answer":             {conf: "v1 v2 v3 v4", disk: 6, hears: "v2", seat: "v3#7", former: "v3"},
		"two of four that stay are no majority":     {conf: "v1 v2 v3 v4 v5", disk: 6, hears: "v2", seat: "v3#7", former: "v3", removal: problem.NotReady},
		"servers without a vote are no voters":      {conf: "v1 v2 v3 s1- s2-", disk: 6, hears: "s1 s2", seat: "v3#7", former: "v3", removal: problem.NotReady},
		"one without a vote goes at any time":       {conf: "v1 v2 v3-", disk: 6, seat: "v3#7", former: "v3"},
		"no floor keeps a lost voter":               {conf: "v1 v3", disk: 6, seat: "v3#7", former: "v3"},
	} {
		t.Run(name, func(t *testing.T) {
			req := &metaapi.JoinRequest{NodeID: "v3", DiskID: 7, Role: topic.RoleVoter, RaftAddr: "new:1", NewestEntryType: 9, RaftID: tc.as}
			a := &applicant{conf: confOf(tc.conf), self: "v1", newest: 9}
			if tc.leader != "" {
				a.self = tc.leader
			}
			for _, s := range a.conf.Servers {
				heard := strings.Contains(" "+tc.hears+" ", " "+s.RaftID+" ")
				a.stats = append(a.stats, raftnode.ServerStats{Server: s, Known: true, Failing: !heard, Age: time.Second})
			}
			if tc.disk != 0 {
				a.record = &topic.Member{ID: "v3", Role: topic.RoleVoter, DiskID: tc.disk, Status: topic.StatusDead}
				if tc.alive {
					a.record.Status = topic.StatusAlive
				}
			}
			a.seat = seatOf(a.conf, req)
			if tc.seat == "" {
				tc.seat = "v3"
			}
			want := confOf(tc.seat).Servers[0].RaftID
			former := ""
			if tc.former != "" {
				former = confOf(tc.former).Servers[0].RaftID
			}
			got := ""
			if a.seat.former != nil {
				got = a.seat.former.RaftID
			}
			if a.seat.raftID != want || got != former {
				t.Fatalf("seat %q, former %q; want %q, %q", a.seat.raftID, got, want, former)
			}
			expect(t, "admission", a.check(req), tc.refused)
			if former != "" && tc.refused == "" {
				expect(t, "removal", a.checkRemoval(), tc.removal)
			}
		})
	}
}

func expect(t *testing.T, what string, err error, code problem.Code) {
	t.Helper()
	if code == "" && err != nil || code != "" && !problem.HasCode(err, code) {
		t.Errorf("%s: %v, want %q", what, err, code)
	}
}

// TestRefusedApplicants: what keeps a node out whatever its seat.
func TestRefusedApplicants(t *testing.T) {
	good := metaapi.JoinRequest{NodeID: "s1", DiskID: 7, Role: topic.RoleStorage, RaftAddr: "s1:1", NewestEntryType: 9}
	for name, tc := range map[string]struct {
		change func(*metaapi.JoinRequest, *applicant)
		code   problem.Code
	}{
		"sound": {func(*metaapi.JoinRequest, *applicant) {}, ""},
		"another role": {func(_ *metaapi.JoinRequest, a *applicant) {
			a.record = &topic.Member{Role: topic.RoleGateway, DiskID: 7}
		}, problem.IDInUse},
		"an older release":         {func(q *metaapi.JoinRequest, _ *applicant) { q.NewestEntryType = 8 }, problem.OlderRelease},
		"older, but in it already": {func(q *metaapi.JoinRequest, a *applicant) { q.NewestEntryType = 8; a.conf = confOf("v1 s1#7-") }, ""},
		"older, with a new disk":   {func(q *metaapi.JoinRequest, a *applicant) { q.NewestEntryType = 8; a.conf = confOf("v1 s1#6-") }, problem.OlderRelease},
		"another's address":        {func(q *metaapi.JoinRequest, _ *applicant) { q.RaftAddr = "v1:1" }, problem.IDInUse},
		"its own former address":   {func(q *metaapi.JoinRequest, a *applicant) { a.conf = confOf("v1 s1-") }, ""},
		"buried": {func(q *metaapi.JoinRequest, a *applicant) {
			q.Empty, a.grave = true, &metastate.Tombstone{DiskIDs: []topic.ID64{7}}
		}, problem.Decommissioned},
		"buried with another disk": {func(q *metaapi.JoinRequest, a *applicant) {
			q.Empty, a.grave = true, &metastate.Tombstone{DiskIDs: []topic.ID64{6}}
		}, ""},
		"admitted under a buried name, before it registered": {func(_ *metaapi.JoinRequest, a *applicant) {
			a.grave, a.conf = &metastate.Tombstone{DiskIDs: []topic.ID64{6}}, confOf("v1 s1#7-")
		}, ""},
		"a member under a buried name, restarted": {func(_ *metaapi.JoinRequest, a *applicant) {
			a.grave, a.record = &metastate.Tombstone{DiskIDs: []topic.ID64{6}}, &topic.Member{Role: topic.RoleStorage, DiskID: 7}
		}, ""},
		"draining": {func(_ *metaapi.JoinRequest, a *applicant) {
			a.record, a.conf = &topic.Member{Role: topic.RoleStorage, DiskID: 7, Draining: true}, confOf("v1 s1#7-")
		}, ""},
		"draining, and out of the configuration": {func(_ *metaapi.JoinRequest, a *applicant) {
			a.record = &topic.Member{Role: topic.RoleStorage, DiskID: 7, Draining: true}
		}, problem.Decommissioned},
		"draining and dead, and it comes with another disk": {func(_ *metaapi.JoinRequest, a *applicant) {
			a.record = &topic.Member{Role: topic.RoleStorage, DiskID: 6, Draining: true, Status: topic.StatusDead}
		}, ""},
		"it does not say empty": {func(_ *metaapi.JoinRequest, a *applicant) { a.grave = &metastate.Tombstone{DiskIDs: []topic.ID64{6}} }, problem.Decommissioned},
	} {
		q := good
		a := &applicant{conf: confOf("v1"), self: "v1", newest: 9}
		tc.change(&q, a)
		a.seat = seatOf(a.conf, &q)
		expect(t, name, a.check(&q), tc.code)
	}
}
