package decommission

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/topic"
)

// sound is a cluster of five voters, four storage nodes and two gateways in which
// nothing is wrong; the member that drains is id, and v1 leads.
func sound(id string) *State {
	s := &State{Self: "v1", Members: map[string]*topic.Member{}, Moving: map[topic.Ref]bool{}, Factors: map[string]int{}}
	for i, m := range strings.Fields("v1 v2 v3 v4 v5 s1 s2 s3 s4 g1 g2") {
		role := map[byte]topic.MemberRole{'v': topic.RoleVoter, 's': topic.RoleStorage, 'g': topic.RoleGateway}[m[0]]
		s.Members[m] = &topic.Member{ID: m, Role: role, Status: topic.StatusAlive, DiskID: topic.ID64(i + 1)}
		s.Servers = append(s.Servers, Server{Node: m, RaftID: m, Voter: role == topic.RoleVoter, Reachable: true})
	}
	m := s.Members[id]
	m.Draining, m.DrainingMS = true, 100
	s.Member = *m
	if i := slices.IndexFunc(s.Servers, func(srv Server) bool { return srv.Node == id }); i >= 0 {
		own := s.Servers[i]
		s.Server = &own
	}
	s.Gateway = &gatewayapi.DrainedResult{Marked: true, Sealed: true, Drained: true}
	return s
}

// copies puts a partition of a topic on nodes; the topic is to have as many replicas.
func (s *State) copies(name string, nodes ...string) {
	a := topic.Assignment{Ref: topic.Ref{Topic: name, Incarnation: 9, Partition: int32(len(s.Copies))}, Leader: nodes[0]}
	for _, n := range nodes {
		a.Replicas = append(a.Replicas, topic.Replica{Node: n, DiskID: s.Members[n].DiskID, CopyID: 5})
	}
	s.Copies = append(s.Copies, a)
	s.Factors[name] = len(nodes)
}

// change changes a member in both places where it stands.
func (s *State) change(id string, f func(*topic.Member)) {
	f(s.Members[id])
	if s.Member.ID == id {
		f(&s.Member)
	}
}

func dead(m *topic.Member)     { m.Status = topic.StatusDead }
func drains(m *topic.Member)   { m.Draining, m.DrainingMS = true, 50 }
func accepted(m *topic.Member) { m.LossAcceptedBy = "ann" }
func full(m *topic.Member)     { m.DiskUsedPercent = placement.FullPercent }
func stays(m *topic.Member)    { m.Draining, m.DrainingMS = false, 0 }

// TestJudge has a row per reason and per step.
func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		id    string
		spoil func(*State)
		step  Step
		codes string // in order
		lost  int
	}{
		"a storage node without copies":          {"s1", nil, Remove, "", 0},
		"its server is gone":                     {"s1", func(s *State) { s.Server = nil }, Bury, "", 0},
		"its copies are to move":                 {"s1", func(s *State) { s.copies("a", "s1") }, Wait, "", 0},
		"its server is gone and copies are left": {"s1", func(s *State) { s.copies("a", "s1"); s.Server = nil }, Wait, "", 0},
		"only an observer is left": {"s1", func(s *State) {
			s.copies("a", "s2")
			s.Copies[0].Observers = []topic.Replica{{Node: "s1", DiskID: 6}}
		}, Wait, "", 0},
		"an observer on a dead node": {"s1", func(s *State) {
			s.copies("a", "s2")
			s.Copies[0].Observers = []topic.Replica{{Node: "s1", DiskID: 6}}
			s.change("s1", dead)
		}, Wait, "", 0},
		"nobody takes them": {"s1", func(s *State) {
			s.copies("a", "s1")
			s.change("s2", dead)
			s.change("s3", drains)
			s.Members["s4"].Role = topic.RoleVoter
		}, Wait, metaapi.NoReceivers, 0},
		"whoever could take them is full": {"s1", func(s *State) {
			s.copies("a", "s1", "s2", "s3")
			s.copies("b", "s2", "s3", "s1")
			s.change("s4", full)
		}, Wait, metaapi.NoReceivers, 0},
		"one that could take them is full": {"s1", func(s *State) { s.copies("a", "s1"); s.change("s2", full); s.change("s4", full) }, Wait, "", 0},
		"all are full, and it moves": {"s1", func(s *State) {
			s.copies("a", "s1")
			s.Moving[s.Copies[0].Ref] = true
			for _, id := range []string{"s2", "s3", "s4"} {
				s.change(id, full)
			}
		}, Wait, "", 0},
		"the last one, with nothing on it": {"s1", func(s *State) {
			for _, id := range []string{"s2", "s3", "s4"} {
				s.change(id, dead)
			}
		}, Remove, "", 0},
		"three nodes for three replicas": {"s1", func(s *State) { s.copies("a", "s1", "s2", "s3") }, Wait, "", 0},
		"two nodes for three replicas": {"s1", func(s *State) {
			s.copies("a", "s1", "s2", "s3")
			s.copies("a", "s2", "s1", "s3")
			s.copies("b", "s1")
			s.change("s4", drains)
		}, Wait, metaapi.BelowReplicationFactor, 0},
		"a pair in the middle of its move": {"s1", func(s *State) {
			s.copies("a", "s1", "s2")
			s.Factors["a"] = 1
			s.Moving[s.Copies[0].Ref] = true
			s.change("s3", dead)
			s.change("s4", dead)
		}, Wait, "", 0},
		"two nodes for one that was reset, of three": {"s1", func(s *State) {
			s.copies("a", "s1")
			s.Factors["a"] = 3
			s.change("s4", dead)
		}, Wait, metaapi.BelowReplicationFactor, 0},
		"three nodes for one that was reset": {"s1", func(s *State) {
			s.copies("a", "s1")
			s.Factors["a"] = 3
		}, Wait, "", 0},
		"a dead node with a lone copy": {"s1", func(s *State) { s.copies("a", "s1"); s.change("s1", dead) }, Wait, metaapi.OwnerDead, 0},
		"its loss is accepted":         {"s1", func(s *State) { s.copies("a", "s1"); s.change("s1", dead); s.change("s1", accepted) }, Remove, "", 1},
		"accepted, and it lives":       {"s1", func(s *State) { s.copies("a", "s1"); s.change("s1", accepted) }, Wait, "", 0},
		"accepted, and others have copies": {"s1", func(s *State) {
			s.copies("a", "s1", "s2", "s3")
			s.change("s1", dead)
			s.change("s1", accepted)
		}, Wait, "", 0},
		"accepted, and the others are dead too": {"s1", func(s *State) {
			s.copies("a", "s1", "s2", "s3")
			for _, id := range []string{"s1", "s2"} {
				s.change(id, dead)
			}
			s.change("s1", accepted)
		}, Remove, "", 1},
		"accepted, it lives and the others are dead": {"s1", func(s *State) {
			s.copies("a", "s1", "s2", "s3")
			s.change("s2", dead)
			s.change("s3", dead)
			s.change("s1", accepted)
		}, Wait, metaapi.BelowReplicationFactor, 0},
		"accepted, buried with it": {"s1", func(s *State) {
			s.copies("a", "s1")
			s.change("s1", dead)
			s.change("s1", accepted)
			s.Server = nil
		}, Bury, "", 1},
		"its disk was changed": {"s1", func(s *State) { s.copies("a", "s1"); s.change("s1", func(m *topic.Member) { m.DiskID = 77 }) }, Wait, metaapi.OwnerDead, 0},
		"others move first": {"s1", func(s *State) {
			s.copies("a", "s1")
			s.Running = metaapi.MaxRunningMoves
		}, Wait, metaapi.MoveBudgetFull, 0},
		"it moves itself": {"s1", func(s *State) {
			s.copies("a", "s1")
			s.Running, s.Moving[s.Copies[0].Ref] = metaapi.MaxRunningMoves, true
		}, Wait, "", 0},

		"a drained gateway":              {"g1", nil, Remove, "", 0},
		"its last word was given before": {"g1", func(s *State) { s.Server, s.Gateway = nil, nil }, Bury, "", 0},
		"a gateway with a backlog":       {"g1", func(s *State) { s.Gateway = &gatewayapi.DrainedResult{Marked: true, Sealed: true, Backlog: 3} }, Wait, metaapi.DispatchBacklog, 0},
		"empty and not sealed":           {"g1", func(s *State) { s.Gateway = &gatewayapi.DrainedResult{Marked: true} }, Wait, metaapi.DispatchBacklog, 0},
		"it does not answer":             {"g1", func(s *State) { s.Gateway = nil }, Wait, metaapi.NodeStatusUnavailable, 0},
		"dead":                           {"g1", func(s *State) { s.Gateway = nil; s.change("g1", dead) }, Wait, metaapi.NodeStatusUnavailable, 0},
		"accepted, and silent":           {"g1", func(s *State) { s.Gateway = nil; s.change("g1", accepted) }, Wait, metaapi.NodeStatusUnavailable, 0},
		"accepted, and dead":             {"g1", func(s *State) { s.Gateway = nil; s.change("g1", accepted); s.change("g1", dead) }, Remove, "", 0},
		"accepted, and it answers": {"g1", func(s *State) {
			s.Gateway = &gatewayapi.DrainedResult{Marked: true, Sealed: true, Backlog: 1}
			s.change("g1", accepted)
		}, Wait, metaapi.DispatchBacklog, 0},
		"an older release":    {"g1", func(s *State) { s.Gateway, s.OldGateway = nil, true }, Remove, "", 0},
		"the last gateway":    {"g1", func(s *State) { s.change("g2", dead) }, Wait, metaapi.NoReceivers, 0},
		"the others drain":    {"g1", func(s *State) { s.change("g2", drains) }, Wait, metaapi.NoReceivers, 0},
		"would it, idle":      {"g1", func(s *State) { s.Gateway = &gatewayapi.DrainedResult{}; s.change("g1", stays) }, Remove, "", 0},
		"would it, with some": {"g1", func(s *State) { s.Gateway = &gatewayapi.DrainedResult{Backlog: 2}; s.change("g1", stays) }, Wait, metaapi.DispatchBacklog, 0},

		"a voter":                        {"v2", nil, Remove, "", 0},
		"the leader":                     {"v1", nil, Transfer, metaapi.LeaderTransfer, 0},
		"the leader of three":            {"v1", func(s *State) { s.only("v1 v2 v3") }, Wait, metaapi.BelowMinVoters, 0},
		"one of four":                    {"v2", func(s *State) { s.only("v1 v2 v3 v4") }, Remove, "", 0},
		"one of three":                   {"v2", func(s *State) { s.only("v1 v2 v3") }, Wait, metaapi.BelowMinVoters, 0},
		"of four, another one was first": {"v2", func(s *State) { s.only("v1 v2 v3 v4"); s.change("v3", drains) }, Wait, metaapi.BelowMinVoters, 0},
		"of four, it was first": {"v2", func(s *State) {
			s.only("v1 v2 v3 v4")
			s.change("v3", func(m *topic.Member) { m.Draining, m.DrainingMS = true, 200 })
		}, Remove, "", 0},
		"would a second one of four": {"v2", func(s *State) {
			s.only("v1 v2 v3 v4")
			s.change("v3", func(m *topic.Member) { m.Draining, m.DrainingMS = true, 200 })
			s.change("v2", stays)
		}, Wait, metaapi.BelowMinVoters, 0},
		"two of those that stay are silent":      {"v2", func(s *State) { s.silent("v3", "v4") }, Wait, metaapi.NoHealthyMajority, 0},
		"one of those that stay is silent":       {"v2", func(s *State) { s.silent("v3") }, Remove, "", 0},
		"a server without a vote, of three":      {"v2", func(s *State) { s.only("v1 v3 v4"); s.Server.Voter = false }, Remove, "", 0},
		"without a vote, the majority is silent": {"v2", func(s *State) { s.Server.Voter = false; s.silent("v3", "v4", "v5") }, Remove, "", 0},
		"a voter whose server is gone":           {"v2", func(s *State) { s.Server = nil; s.only("v1 v3") }, Bury, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := sound(c.id)
			if c.spoil != nil {
				c.spoil(s)
			}
			v := Judge(s)
			var codes []string
			for _, r := range v.Reasons {
				codes = append(codes, r.Code)
				if r.Message == "" || !strings.Contains(r.Message, " ") {
					t.Errorf("%s says %q", r.Code, r.Message)
				}
			}
			if got := strings.Join(codes, " "); v.Step != c.step || got != c.codes || len(v.Lost) != c.lost {
				t.Errorf("step %d, reasons %q, %d lost; want %d, %q, %d", v.Step, got, len(v.Lost), c.step, c.codes, c.lost)
			}
		})
	}
}

// only leaves these voters in the configuration.
func (s *State) only(voters string) {
	s.Servers = slices.DeleteFunc(s.Servers, func(srv Server) bool {
		return srv.Voter && !slices.Contains(strings.Fields(voters), srv.Node)
	})
}

func (s *State) silent(ids ...string) {
	for i := range s.Servers {
		if slices.Contains(ids, s.Servers[i].Node) {
			s.Servers[i].Reachable = false
		}
	}
}

func TestReasonsNameTopicsOnceAndNotAll(t *testing.T) {
	s := sound("s1")
	for i := range 2 * maxTopicsNamed {
		s.copies(fmt.Sprintf("t%03d", 2*maxTopicsNamed-1-i/2*2), "s1")
	}
	s.change("s1", dead)
	v := Judge(s)
	if len(v.Reasons) != 1 || v.Reasons[0].TopicCount != maxTopicsNamed || len(v.Reasons[0].Topics) != maxTopicsNamed || v.Reasons[0].Topics[0] != "t001" {
		t.Errorf("%+v", v.Reasons)
	}
}

// What passes by itself is no reason not to begin.
func TestUnsafe(t *testing.T) {
	var all []metaapi.Reason
	for _, code := range []string{
		metaapi.BelowMinVoters, metaapi.NoHealthyMajority, metaapi.NoReceivers, metaapi.BelowReplicationFactor, metaapi.OwnerDead,
		metaapi.DispatchBacklog, metaapi.MoveBudgetFull, metaapi.LeaderTransfer, metaapi.NodeStatusUnavailable, metaapi.MemberAlive,
	} {
		all = append(all, metaapi.Reason{Code: code})
	}
	if got := Unsafe(all); len(got) != 6 || got[4].Code != metaapi.OwnerDead || got[5].Code != metaapi.MemberAlive {
		t.Errorf("%+v", got)
	}
}

// Only what a dead member has can be given up, or what a living one had on another disk.
func TestLiving(t *testing.T) {
	for name, c := range map[string]struct {
		id    string
		spoil func(*State)
		code  string
	}{
		"it lives":                 {"s1", func(s *State) { s.copies("a", "s1") }, metaapi.MemberAlive},
		"it lives without a copy":  {"s1", nil, metaapi.MemberAlive},
		"it is dead":               {"s1", func(s *State) { s.copies("a", "s1"); s.change("s1", dead) }, ""},
		"its disk was changed":     {"s1", func(s *State) { s.copies("a", "s1"); s.change("s1", func(m *topic.Member) { m.DiskID = 77 }) }, ""},
		"another one's was":        {"s1", func(s *State) { s.copies("a", "s1", "s2"); s.change("s2", func(m *topic.Member) { m.DiskID = 77 }) }, metaapi.MemberAlive},
		"a gateway that is silent": {"g1", func(s *State) { s.Gateway = nil }, metaapi.MemberAlive},
		"a gateway that is dead":   {"g1", func(s *State) { s.change("g1", dead) }, ""},
		"an observer on a disk that it has not": {"s1", func(s *State) {
			s.copies("a", "s2")
			s.Copies[0].Observers = []topic.Replica{{Node: "s1", DiskID: 77}}
		}, metaapi.MemberAlive},
	} {
		s := sound(c.id)
		if c.spoil != nil {
			c.spoil(s)
		}
		code := ""
		if r := s.Living(); r != nil {
			code = r.Code
		}
		if code != c.code {
			t.Errorf("%s: %q, want %q", name, code, c.code)
		}
	}
}

func TestLossOf(t *testing.T) {
	for name, c := range map[string]struct {
		nodes        string
		spoil        func(*State)
		lost         bool
		left, silent int
	}{
		"a lone copy":             {"s1", nil, false, 1, 0},
		"its node is dead":        {"s1", func(s *State) { s.change("s1", dead) }, false, 0, 1},
		"its node has a new disk": {"s1", func(s *State) { s.Members["s1"].DiskID = 77 }, true, 0, 0},
		"its node is no member":   {"s1", func(s *State) { delete(s.Members, "s1") }, true, 0, 0},
		"one of three is lost":    {"s1 s2 s3", func(s *State) { s.Members["s1"].DiskID = 77 }, false, 2, 0},
		"two of three are lost": {"s1 s2 s3", func(s *State) {
			s.Members["s1"].DiskID = 77
			delete(s.Members, "s2")
		}, true, 1, 0},
		"two are lost, the third is dead": {"s1 s2 s3", func(s *State) {
			s.Members["s1"].DiskID = 77
			delete(s.Members, "s2")
			s.change("s3", dead)
		}, true, 0, 1},
	} {
		s := sound("g1")
		s.copies("a", strings.Fields(c.nodes)...)
		if c.spoil != nil {
			c.spoil(s)
		}
		a := &s.Copies[0]
		l := LossOf(a, s.Members)
		if l.Lost != c.lost || len(l.Left) != c.left || len(l.Silent) != c.silent || len(l.Gone(a)) != len(a.Replicas)-c.left {
			t.Errorf("%s: %+v", name, l)
		}
	}
}
