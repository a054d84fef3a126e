package sweeper

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

func ended(id topic.Incarnation, name string, ago time.Duration) metaapi.Ending {
	return metaapi.Ending{Incarnation: id, Topic: name, EndedMS: time.Now().Add(-ago).UnixMilli()}
}

// TestForgetting: an end is forgotten only when everybody of record has answered
// wholly, is the same at the end, and has nothing of it; not when it is young.
func TestForgetting(t *testing.T) {
	const old = 2 * forgetAfter
	unmarked := serving("d", 0)
	unreadable := serving("d", liveID)
	unreadable.Unreadable = true
	foreign := nodeapi.InventoryEntry{Kind: nodeapi.InventoryForeign, Name: "lost+found", Unreadable: true, Bytes: -1}
	dead := topic.Member{ID: "storage-9", Role: topic.RoleStorage, Status: topic.StatusDead, RPCAddr: closedAddr(t)}
	voterDown := topic.Member{ID: "voter-9", Role: topic.RoleVoter, Status: topic.StatusDead, RPCAddr: closedAddr(t)}
	for name, c := range map[string]struct {
		entries []nodeapi.InventoryEntry
		gateway gateway
		members []topic.Member
		tune    func(*voter)
		want    []topic.Incarnation
		why     string
	}{
		"nothing is left":                 {want: []topic.Incarnation{goneID, 5}},
		"a voter that is down has none":   {members: []topic.Member{voterDown}, want: []topic.Incarnation{goneID, 5}},
		"a directory is left":             {entries: []nodeapi.InventoryEntry{stale("d", 5)}, want: []topic.Incarnation{goneID}},
		"it was reclaimed just now":       {entries: []nodeapi.InventoryEntry{stale("d", goneID)}, want: []topic.Incarnation{5}},
		"records are left":                {gateway: gateway{lives: []gatewayapi.UndispatchedLife{{Topic: "d", Incarnation: 5}}}, want: []topic.Incarnation{goneID}},
		"an unmarked one of its topic":    {entries: []nodeapi.InventoryEntry{unmarked}, want: []topic.Incarnation{5}},
		"an unreadable one of its topic":  {entries: []nodeapi.InventoryEntry{unreadable}, want: []topic.Incarnation{5}},
		"one of nobody's":                 {entries: []nodeapi.InventoryEntry{foreign}, want: []topic.Incarnation{goneID, 5}},
		"a kind that is new":              {entries: []nodeapi.InventoryEntry{{Kind: "new", Name: "x"}}},
		"a dead storage node of record":   {members: []topic.Member{dead}, why: notAllSeen},
		"a gateway that still reads":      {gateway: gateway{partial: true}, why: notAllSeen},
		"a gateway that does not end":     {gateway: gateway{loops: true}, why: notAllSeen},
		"a member came":                   {tune: func(v *voter) { v.after = append(slices.Clone(v.members), dead) }, why: membersChanged},
		"a member went":                   {tune: func(v *voter) { v.after = v.members[1:] }, why: membersChanged},
		"a member restarted":              {tune: func(v *voter) { v.after = slices.Clone(v.members); v.after[0].BootNonce++ }, why: membersChanged},
		"it ended just now":               {tune: func(v *voter) { v.ends[1].EndedMS = time.Now().UnixMilli() }, want: []topic.Incarnation{5}},
		"the list of ends does not end":   {tune: func(v *voter) { v.endless = true }, why: "does not end"},
		"the leader does not forget":      {tune: func(v *voter) { v.forget = problem.New(problem.NotReady, "no") }, why: "no_metastore_leader"},
		"the leader is of an old release": {tune: func(v *voter) { v.forget = problem.New(problem.RouteNotFound, "no") }, why: "cannot be told"},
	} {
		t.Run(name, func(t *testing.T) {
			members := append([]topic.Member{
				serveStore(t, "storage-1", &store{entries: c.entries}), serveGateway(t, "gateway-1", &c.gateway),
			}, c.members...)
			v := &voter{members: members, ends: []metaapi.Ending{ended(5, "e", old), ended(goneID, "d", old)}}
			if c.tune != nil {
				c.tune(v)
			}
			report, _ := clean(t, v, nil)
			slices.Sort(v.forgot)
			slices.Sort(c.want)
			if !slices.Equal(v.forgot, c.want) || report.Summary.Forgotten != len(c.want) || !strings.Contains(report.Forgetting, c.why) || (c.why == "") != (report.Forgetting == "") {
				t.Errorf("forgot %v, want %v; %+v %q", v.forgot, c.want, report.Summary, report.Forgetting)
			}
		})
	}
}

// TestADryRunForgetsNothing, and tells nobody.
func TestADryRunForgetsNothing(t *testing.T) {
	v := &voter{members: []topic.Member{serveStore(t, "storage-1", &store{})}, ends: []metaapi.Ending{ended(5, "e", 2*forgetAfter)}}
	if _, err := pass(t, v, nil); err != nil || len(v.forgot) != 0 {
		t.Errorf("forgot %v, %v", v.forgot, err)
	}
}

// TestGateways: records of a topic that lives are on their way; of one that ended,
// the gateway's own business; of one that nobody knows, an operator's.
func TestGateways(t *testing.T) {
	g := &gateway{lives: []gatewayapi.UndispatchedLife{
		{Topic: "a", Incarnation: liveID, Bytes: 1}, {Topic: "b", Incarnation: goneID, Bytes: 2}, {Topic: "c", Incarnation: lostID, Bytes: 3},
	}}
	old := topic.Member{ID: "gateway-2", Role: topic.RoleGateway, RPCAddr: serveStore(t, "gateway-2", &store{}).RPCAddr}
	for page := 1; page <= 4; page++ {
		report, err := clean(t, &voter{members: []topic.Member{serveGateway(t, "gateway-1", g), old}}, func(r *Role) { r.page = page })
		got := []string{}
		for _, e := range report.Entries {
			got = append(got, fmt.Sprintf("%s %s %s %v %d", e.Topic, e.Kind, e.Verdict, e.Decided, *e.Bytes))
		}
		if !errors.Is(err, ErrUndecided) || fmt.Sprint(got) != "[b accepted gone true 2 c accepted unknown false 3]" {
			t.Errorf("pages of %d: %v, %v", page, got, err)
		}
		if n := report.Nodes; !n[0].Complete || n[0].Entries != 3 || n[1].Complete || !strings.Contains(n[1].Error, "cannot be told") {
			t.Errorf("nodes %+v", n)
		}
	}
}

// TestBroadcast: every end that was found is told once, and who is being drained; a
// bus that is not there holds nobody up.
func TestBroadcast(t *testing.T) {
	s := &store{entries: []nodeapi.InventoryEntry{serving("a", liveID), serving("b", goneID), stale("b", goneID)}}
	member := serveStore(t, "storage-1", s)
	member.Draining = true
	v := &voter{members: []topic.Member{member}}
	begin := time.Now()
	report, err := clean(t, v, func(r *Role) { r.cfg.Bus.URL = "nats://" + closedAddr(t) })
	if err != nil || report.Summary.Broadcast != 2 || time.Since(begin) > 10*time.Second {
		t.Errorf("%v, %+v after %s", err, report.Summary, time.Since(begin))
	}
}
