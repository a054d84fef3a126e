package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/topic"
)

var now = time.UnixMilli(1_764_446_645_123)

// heard is the last heartbeat of member number i.
func heard(i int) time.Time { return now.Add(-time.Duration(i+1) * time.Second) }

// sound is a cluster in which nothing is wrong: three voters, two storage nodes
// with two partitions each, one gateway.
func sound() *Scene {
	leader := "v1"
	s := &Scene{Now: now, Own: Own{ID: "g1"}, Known: true, Quorum: &metaapi.QuorumResult{LeaderID: &leader, Majority: 2}}
	for i, id := range []string{"v1", "v2", "v3", "s1", "s2", "g1"} {
		role := map[byte]topic.MemberRole{'v': topic.RoleVoter, 's': topic.RoleStorage, 'g': topic.RoleGateway}[id[0]]
		suffrage := map[bool]string{true: "voter", false: "non_voter"}[role == topic.RoleVoter]
		s.Members = append(s.Members, topic.Member{
			ID: id, Role: role, Status: topic.StatusAlive, DiskID: topic.ID64(i + 1), HeartbeatMS: heard(i).UnixMilli(), DiskUsedPercent: DiskTicket - 1,
		})
		s.Quorum.Servers = append(s.Quorum.Servers, metaapi.QuorumServer{ID: id, Suffrage: suffrage, Reachable: true, Member: true})
	}
	for p := range int32(4) {
		s.Assignments = append(s.Assignments, assigned("orders", p, 3+int(p)%2))
	}
	return s
}

func assigned(name string, p int32, node int) topic.Assignment {
	id := map[int]string{3: "s1", 4: "s2"}[node]
	return topic.Assignment{
		Ref: topic.Ref{Topic: name, Incarnation: 9, Partition: p}, Leader: id,
		Replicas: []topic.Replica{{Node: id, DiskID: topic.ID64(node + 1)}},
	}
}

// copies gives the first partition copies on these nodes, the first of them leading;
// those beyond the sound scene are added as storage nodes.
func (s *Scene) copies(ids ...string) {
	a := &s.Assignments[0]
	a.Leader, a.Replicas = ids[0], nil
	for i, id := range ids {
		k := slices.IndexFunc(s.Members, func(m topic.Member) bool { return m.ID == id })
		if k < 0 {
			k = len(s.Members)
			s.Members = append(s.Members, topic.Member{ID: id, Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: topic.ID64(100 + i), HeartbeatMS: heard(k).UnixMilli()})
		}
		a.Replicas = append(a.Replicas, topic.Replica{Node: id, DiskID: s.Members[k].DiskID, CopyID: 1})
	}
}

// misses has a node say that it misses lone copies, some by name.
func (s *Scene) misses(node string, count int, named ...topic.Ref) {
	said := metaapi.LostOnNode{Node: node, LostCopies: metaapi.LostCopies{Count: count}}
	for _, ref := range named {
		said.Named = append(said.Named, metaapi.LostCopy{Ref: ref, SinceMS: heard(99).UnixMilli()})
	}
	s.Missed = &metaapi.LostCopiesResult{Nodes: []metaapi.LostOnNode{said}}
}

func (s *Scene) dead(i int)   { s.Members[i].Status = topic.StatusDead }
func (s *Scene) silent(i int) { s.Quorum.Servers[i].Reachable = false }

// TestLook has a row per problem; what is not named must not be found.
func TestLook(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(*Scene)
		status string
		want   []string // code severity subject; pages first
		since  time.Time
		says   string // in the first one's detail or advice
	}{
		"sound":                   {func(*Scene) {}, OK, nil, time.Time{}, ""},
		"no topic, no node":       {func(s *Scene) { s.Members, s.Assignments = nil, nil }, OK, nil, time.Time{}, ""},
		"assignments named twice": {func(s *Scene) { s.Assignments = append(s.Assignments, s.Assignments...) }, OK, nil, time.Time{}, ""},
		"a dead storage node": {func(s *Scene) { s.dead(3); s.silent(3) }, Degraded, []string{
			"member_dead page s1", "partition_no_leader page orders/0", "partition_no_leader page orders/2",
		}, heard(3), "it leads 2 partitions"},
		"it holds nothing": {func(s *Scene) { s.dead(3); s.Assignments = s.Assignments[1:2] }, Degraded, []string{"member_dead ticket s1"}, heard(3), "own disk"},
		"all storage nodes are dead": {func(s *Scene) { s.dead(3); s.dead(4) }, Down, []string{
			"member_dead page s1", "member_dead page s2", "partition_no_leader page orders/0", "partition_no_leader page orders/1",
			"partition_no_leader page orders/2", "partition_no_leader page orders/3",
		}, heard(3), ""},
		"silent, not yet dead": {func(s *Scene) { s.silent(4) }, Degraded, []string{"member_unreachable page s2"}, heard(4), "it leads 2 partitions"},
		"a dead gateway":       {func(s *Scene) { s.dead(5) }, Degraded, []string{"member_dead ticket g1"}, heard(5), "may be there only"},
		"a node misses a lone copy": {func(s *Scene) {
			s.misses("s1", 1, s.Assignments[0].Ref)
		}, Degraded, []string{"partition_no_leader page orders/0"}, heard(99), "put the directory p00000 back under topics/orders of s1's data directory"},
		"it misses more than it names": {func(s *Scene) { s.misses("s1", 3) }, Degraded, []string{"partition_no_leader page 3 more on s1"}, time.Time{}, "put their directories back"},
		"a new leader has not heard of lone copies": {func(s *Scene) {
			s.Missed = &metaapi.LostCopiesResult{Unknown: []string{"s1", "s2"}}
		}, Degraded, []string{"lost_copies_unknown ticket metastore"}, time.Time{}, "has not heard yet whether these nodes miss lone copies: s1, s2"},
		"nobody elected": {func(s *Scene) { s.Assignments[0].Leader = "" }, Degraded, []string{
			"partition_no_leader page orders/0",
		}, time.Time{}, "no replica was elected"},
		"one of three copies is dead": {func(s *Scene) {
			s.copies("s1", "s2", "s3")
			s.dead(4)
			s.Assignments[1].Leader, s.Assignments[3].Leader = "s1", "s1"
		}, Degraded, []string{
			"partition_under_replicated page orders/0", "member_dead ticket s2",
		}, heard(4), "its copies on s2 cannot be used now; it is served, and stops when one more"},
		"one of five copies is on another disk": {func(s *Scene) {
			s.copies("s1", "s2", "s3", "s4", "s5")
			s.Members[4].DiskID = 77
			s.Assignments[1], s.Assignments[3] = assigned("orders", 1, 3), assigned("orders", 3, 3) // a lone copy on that disk would be lost
		}, Degraded, []string{"partition_under_replicated ticket orders/0"}, time.Time{}, "by itself"},
		"a majority of three is gone": {func(s *Scene) {
			s.copies("s1", "s2", "s3")
			s.dead(4)
			s.dead(6)
			s.Assignments[0].Leader, s.Assignments[1].Leader, s.Assignments[3].Leader = "", "s1", "s1"
		}, Degraded, []string{"partition_no_leader page orders/0", "member_dead ticket s2", "member_dead ticket s3"}, heard(4), "1 of its 3 copies can be used, an election needs 2; s2, s3 cannot"},
		"an election of three": {func(s *Scene) { s.copies("s1", "s2", "s3"); s.Assignments[0].Leader = "" }, Degraded, []string{
			"partition_no_leader page orders/0",
		}, time.Time{}, "election is under way"},
		"its leader was removed": {func(s *Scene) {
			s.Assignments[0].Leader, s.RemovedMS = "s9", map[string]int64{"s9": heard(50).UnixMilli(), "s1": 1}
		}, Degraded, []string{"partition_no_leader page orders/0"}, heard(50), "no member any more"},
		"a majority of three was removed": {func(s *Scene) {
			s.copies("s1", "s8", "s9")
			s.Members = s.Members[:len(s.Members)-2]
			s.Assignments[0].Leader = "s8"
			s.RemovedMS = map[string]int64{"s8": heard(51).UnixMilli(), "s9": heard(50).UnixMilli()}
		}, Degraded, []string{"partition_no_leader page orders/0"}, heard(50), "lost: no majority"},
		"one of three copies was removed": {func(s *Scene) {
			s.copies("s1", "s2", "s9")
			s.Members = s.Members[:len(s.Members)-1]
			s.RemovedMS = map[string]int64{"s9": heard(50).UnixMilli()}
		}, Degraded, []string{"partition_under_replicated page orders/0"}, heard(50), "s9 cannot be used now"},
		"its leader is no member": {func(s *Scene) { s.Assignments[0].Leader = "s9" }, Degraded, []string{
			"partition_no_leader page orders/0",
		}, time.Time{}, "no member any more"},
		"another disk": {func(s *Scene) { s.Members[3].DiskID = 77 }, Degraded, []string{
			"partition_no_leader page orders/0", "partition_no_leader page orders/2",
		}, heard(3), "narad topic reset orders 0 --accept-data-loss"},
		"not caught up": {func(s *Scene) { s.Known, s.Assignments = false, nil }, Degraded, []string{"partitions_unknown ticket g1"}, time.Time{}, ""},
		"a voter is silent": {func(s *Scene) { s.silent(2) }, Degraded, []string{
			"quorum_at_risk page metastore", "voter_unreachable ticket v3",
		}, heard(2), "2 of 3 voters answer, a majority is 2"},
		"a dead voter is one problem": {func(s *Scene) { s.silent(2); s.dead(2) }, Degraded, []string{
			"quorum_at_risk page metastore", "voter_unreachable ticket v3",
		}, heard(2), "v3"},
		"one of five": {func(s *Scene) {
			for _, id := range []string{"v4", "v5"} {
				s.Quorum.Servers = append(s.Quorum.Servers, metaapi.QuorumServer{ID: id, Suffrage: "voter", Reachable: true})
			}
			s.Quorum.Majority = 3
			s.silent(2)
		}, Degraded, []string{"voter_unreachable ticket v3"}, heard(2), ""},
		"a voter that never came": {func(s *Scene) {
			s.Quorum.Servers = append(s.Quorum.Servers, metaapi.QuorumServer{ID: "v4", Suffrage: "voter"})
			s.Quorum.Majority = 3
		}, Degraded, []string{"quorum_at_risk page metastore", "voter_unreachable ticket v4"}, time.Time{}, "v4"},
		"a voter without heartbeats that answers": {func(s *Scene) { s.dead(1) }, Degraded, []string{"member_dead ticket v2"}, heard(1), ""},
		"one voter of one is no risk": {func(s *Scene) {
			s.Quorum.Servers, s.Quorum.Majority = s.Quorum.Servers[:1], 1
		}, OK, nil, time.Time{}, ""},
		"no leader": {func(s *Scene) {
			s.Quorum.LeaderID, s.Own.LeaderLost = nil, heard(9)
			s.silent(1)
			s.silent(2)
		}, Degraded, []string{"no_metastore_leader page metastore", "voter_unreachable ticket v2", "voter_unreachable ticket v3"}, heard(9), "v2, v3"},
		"an election":      {func(s *Scene) { s.Quorum.LeaderID = nil }, Degraded, []string{"no_metastore_leader page metastore"}, time.Time{}, "election"},
		"nothing is known": {func(s *Scene) { s.Quorum = &metaapi.QuorumResult{Majority: 1} }, Degraded, []string{"no_metastore_leader page metastore"}, time.Time{}, "admitted to no cluster"},
		"the breaker":      {func(s *Scene) { s.Refused = true }, Degraded, []string{"dead_marking_refused page v1"}, time.Time{}, "heartbeats"},
		"refuses":          {func(s *Scene) { s.Own.Refuses = "the disk is full" }, Degraded, []string{"gateway_refuses page g1"}, time.Time{}, "the disk is full"},
		"a young backlog":  {func(s *Scene) { s.Own.OldestAcceptMS = now.Add(-BacklogOld + time.Second).UnixMilli() }, OK, nil, time.Time{}, ""},
		"an old backlog": {func(s *Scene) {
			s.Own.Backlog, s.Own.OldestAcceptMS = 12, now.Add(-BacklogOld).UnixMilli()
		}, Degraded, []string{"wal_backlog_old ticket g1"}, now.Add(-BacklogOld), "12 accepted messages"},
		"disks": {func(s *Scene) { s.Members[3].DiskUsedPercent, s.Members[4].DiskUsedPercent = DiskTicket, DiskPage }, Degraded, []string{
			"disk_nearly_full page s2", "disk_nearly_full ticket s1",
		}, time.Time{}, "90%"},
	} {
		t.Run(name, func(t *testing.T) {
			s := sound()
			c.spoil(s)
			r := Look(s)
			var got []string
			for _, p := range r.Problems {
				got = append(got, p.Code+" "+p.Severity+" "+p.Subject)
				if p.Detail == "" || p.Do == "" {
					t.Errorf("%s says nothing: %+v", p.Code, p)
				}
			}
			if r.Status != c.status || !slices.Equal(got, c.want) || !r.AsOf.Equal(now) {
				t.Fatalf("%s %q, want %s %q", r.Status, got, c.status, c.want)
			}
			if len(got) == 0 {
				return
			}
			if first := r.Problems[0]; !first.Since.Equal(c.since) || !strings.Contains(first.Detail+first.Do, c.says) {
				t.Errorf("since %v, want %v; want %q in %+v", first.Since, c.since, c.says, first)
			}
		})
	}
}

// TestManyPartitionsAreCounted: a dead node with thousands does not bury the rest.
func TestManyPartitionsAreCounted(t *testing.T) {
	s := sound()
	s.dead(3)
	s.Assignments = nil
	for i := range 500 {
		s.Assignments = append(s.Assignments, assigned(fmt.Sprintf("t%03d", i), 0, 3))
	}
	s.Assignments = append(s.Assignments, assigned("u", 0, 4))
	n, more := 0, ""
	for _, p := range Look(s).Problems {
		if p.Code == PartitionNoLeader {
			n++
			if strings.HasSuffix(p.Subject, " more") {
				more = p.Subject
			}
		}
	}
	if n != MaxPartitions+1 || more != "400 more" {
		t.Errorf("%d problems, %q", n, more)
	}
}
