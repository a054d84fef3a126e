package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/narad-mq/narad/apps/metastore-voter/internal/election"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// storageNodes are storage nodes in memory: every copy has everything at once and
// says so, unless its node is silent.
type storageNodes struct {
	view func() metastate.View

	mu       sync.Mutex // guards what follows
	silent   map[string]bool
	vanished map[topic.Ref]bool // lone copies that are not where they are recorded to be
}

func (s *storageNodes) reach(node string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.silent[node] {
		return fmt.Errorf("%s does not answer", node)
	}
	return nil
}

func (s *storageNodes) hush(node string, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent[node] = on
}

func (s *storageNodes) misses(ref topic.Ref) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.vanished[ref]
}

func copyOn(node string) topic.Replica { return topic.Replica{Node: node, DiskID: 7, CopyID: 9} }

// Vouch implements moves.Nodes.
func (s *storageNodes) Vouch(_ context.Context, node string, refs []topic.Ref) ([]nodeapi.Vouch, error) {
	if err := s.reach(node); err != nil {
		return nil, err
	}
	out := make([]nodeapi.Vouch, len(refs))
	for i, ref := range refs {
		p, err := s.view().Assignments(ref.Topic)
		if err != nil || p.Incarnation != ref.Incarnation || p.List[ref.Partition].Leader != node {
			continue
		}
		if s.misses(ref) {
			continue // who misses its copy leads by the record alone
		}
		a := &p.List[ref.Partition]
		out[i] = nodeapi.Vouch{Epoch: a.LeaderEpoch, ConfigVersion: a.ConfigVersion, Settled: true, Proven: true, Bytes: 100}
		for _, r := range slices.Concat(a.Replicas, a.Observers) {
			if s.reach(r.Node) == nil {
				out[i].Copies = append(out[i].Copies, nodeapi.VouchedCopy{Replica: copyOn(r.Node), Near: true})
			}
		}
	}
	return out, nil
}

// Fence implements election.Nodes.
func (s *storageNodes) Fence(_ context.Context, node string, items []election.Fence) ([]election.Promise, error) {
	out := make([]election.Promise, len(items))
	for i := range out {
		p, err := s.view().Assignments(items[i].Topic)
		led := err == nil && p.List[items[i].Partition].Leader != "" && p.List[items[i].Partition].LeaderEpoch == items[i].Epoch
		out[i] = election.Promise{OK: !led, LastEpoch: 1} // as no copy promises an epoch that is led
	}
	return out, s.reach(node)
}

// Prime implements election.Nodes.
func (s *storageNodes) Prime(_ context.Context, node string, _ []election.Prime) error {
	return s.reach(node)
}

// HandOver implements election.Nodes.
func (s *storageNodes) HandOver(_ context.Context, node string, items []election.HandOver) ([]bool, error) {
	out := make([]bool, len(items))
	for i, it := range items {
		out[i] = s.reach(it.To.Node) == nil
	}
	return out, s.reach(node)
}

// Standing implements election.Nodes.
func (s *storageNodes) Standing(_ context.Context, node string, refs []topic.Ref) ([]election.Standing, error) {
	out := make([]election.Standing, len(refs))
	s.mu.Lock()
	for i, ref := range refs {
		out[i].Lost = s.vanished[ref]
	}
	s.mu.Unlock()
	return out, s.reach(node)
}

// movers is a rig with storage nodes and a topic of lone copies, all of which are
// recorded.
func movers(t *testing.T, partitions int, nodes ...string) *rig {
	t.Helper()
	r := newRig(t)
	for _, id := range nodes {
		r.register(t, id, topic.RoleStorage)
	}
	if _, err := r.Register(t.Context(), &metaapi.RegisterRequest{
		NodeID: "v1", DiskID: 7, BootNonce: 1, Role: topic.RoleVoter, RaftAddr: "a:1", RPCAddr: "a:2", NewestEntryType: uint8(metastate.NewestType()),
	}); err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "the leader is latched", func() bool { return r.node.View().Latched() })
	cfg := topic.DefaultConfig()
	cfg.Partitions, cfg.ReplicationFactor = partitions, 1
	if _, err := r.CreateTopic(t.Context(), &metaapi.CreateTopicRequest{Name: "orders", Config: cfg}); err != nil {
		t.Fatal(err)
	}
	r.record(t)
	return r
}

// record reports every copy of the topic that is not recorded yet.
func (r *rig) record(t *testing.T) {
	t.Helper()
	req := &metaapi.RecordCopiesRequest{}
	for _, a := range r.parts(t) {
		if rep := a.Replicas[0]; rep.CopyID == 0 {
			req.Copies = append(req.Copies, metaapi.CopyReport{Ref: a.Ref, Node: rep.Node, WasDisk: 7, DiskID: 7, CopyID: 9})
		}
	}
	if _, err := r.RecordCopies(t.Context(), req); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) parts(t *testing.T) []topic.Assignment {
	t.Helper()
	p, err := r.node.View().Assignments("orders")
	if err != nil {
		t.Fatal(err)
	}
	return p.List
}

// counts is how many replicas each node has.
func (r *rig) counts(t *testing.T) map[string]int {
	out := map[string]int{}
	for _, a := range r.parts(t) {
		for _, rep := range a.Replicas {
			out[rep.Node]++
		}
	}
	return out
}

func (r *rig) moving(t *testing.T) *metaapi.MovesResult {
	t.Helper()
	res, err := r.ListMoves(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// shows compares the metrics of moves: how many run, and how many are blocked by what.
func (r *rig) shows(t *testing.T, running int, blocked map[metaapi.MoveBlocked]int) {
	t.Helper()
	want := "# HELP narad_moves_blocked Moves of partitions that wait for what does not come by itself, by what; shown by the leading voter.\n# TYPE narad_moves_blocked gauge\n"
	for _, why := range []metaapi.MoveBlocked{"copy_unverifiable", "leader_unavailable", "source_dead", "target_dead", "target_disk_full"} {
		want += fmt.Sprintf("narad_moves_blocked{reason=%q} %d\n", why, blocked[why])
	}
	want += "# HELP narad_moves_running Moves of partitions that are not blocked; shown by the leading voter.\n# TYPE narad_moves_running gauge\n"
	want += fmt.Sprintf("narad_moves_running %d\n", running)
	if err := testutil.GatherAndCompare(r.registry, strings.NewReader(want), "narad_moves_running", "narad_moves_blocked"); err != nil {
		t.Error(err)
	}
}

// A move that is asked for goes through all its steps by itself, and another one
// of that partition is refused meanwhile.
func TestMoveByName(t *testing.T) {
	r := movers(t, 2, "s1", "s2", "s3")
	a := r.parts(t)[0]
	from, to := a.Leader, "s3"
	r.nodes.hush(to, true)
	ask := &metaapi.StartMoveRequest{Topic: "orders", Partition: 0, From: from, To: to}
	row, err := r.StartMove(t.Context(), ask)
	if err != nil || row.Phase != metaapi.MovePending || row.From != from {
		t.Fatalf("%+v, %v", row, err)
	}
	if _, err := r.StartMove(t.Context(), ask); !problem.HasCode(err, problem.MoveInProgress) {
		t.Fatalf("a second time: %v", err)
	}
	r.shows(t, 1, nil)
	r.nodes.hush(to, false)
	testkit.Poll(t, patience, "it is there", func() bool {
		b := r.parts(t)[0]
		return len(b.Replicas) == 1 && b.Replicas[0].Node == to && b.Leader == to && len(r.moving(t).Moves) == 0
	})
	if b := r.parts(t)[0]; b.LeaderEpoch != a.LeaderEpoch+1 {
		t.Fatalf("led under %d, before under %d", b.LeaderEpoch, a.LeaderEpoch)
	}
}

// What makes no sense is refused, each by its code, and changes nothing.
func TestMovesThatAreRefused(t *testing.T) {
	r := movers(t, 1, "s1", "s2")
	r.register(t, "g1", topic.RoleGateway)
	from := r.parts(t)[0].Leader
	other := map[string]string{"s1": "s2", "s2": "s1"}[from]
	for name, c := range map[string]struct {
		req  metaapi.StartMoveRequest
		code problem.Code
	}{
		"no topic":       {metaapi.StartMoveRequest{Topic: "none", From: from, To: other}, problem.TopicNotFound},
		"another life":   {metaapi.StartMoveRequest{Topic: "orders", Incarnation: 1, From: from, To: other}, problem.TopicChanged},
		"no partition":   {metaapi.StartMoveRequest{Topic: "orders", Partition: 1, From: from, To: other}, problem.PartitionOutOfRange},
		"nobody":         {metaapi.StartMoveRequest{Topic: "orders", From: from, To: "s9"}, problem.MemberNotFound},
		"a gateway":      {metaapi.StartMoveRequest{Topic: "orders", From: from, To: "g1"}, problem.InvalidRequest},
		"itself":         {metaapi.StartMoveRequest{Topic: "orders", From: from, To: from}, problem.InvalidRequest},
		"from elsewhere": {metaapi.StartMoveRequest{Topic: "orders", From: other, To: from}, problem.InvalidRequest},
	} {
		if _, err := r.StartMove(t.Context(), &c.req); !problem.HasCode(err, c.code) {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
	}
	if _, err := r.AbortMove(t.Context(), &metaapi.AbortMoveRequest{Topic: "orders"}); !problem.HasCode(err, problem.MoveNotInFlight) {
		t.Errorf("abort of nothing: %v", err)
	}
	if len(r.moving(t).Moves) != 0 {
		t.Error("something moves")
	}
}

// An abort leaves the source where it was, whatever the phase.
func TestAbortTakesTheMoveBack(t *testing.T) {
	r := movers(t, 1, "s1", "s2", "s3")
	from := r.parts(t)[0].Leader
	to := "s3"
	if from == to {
		to = "s2"
	}
	r.nodes.hush(to, true)
	if _, err := r.StartMove(t.Context(), &metaapi.StartMoveRequest{Topic: "orders", From: from, To: to}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.AbortMove(t.Context(), &metaapi.AbortMoveRequest{Topic: "orders"}); err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "it is taken back", func() bool {
		b := r.parts(t)[0]
		return len(r.moving(t).Moves) == 0 && len(b.Observers) == 0 && len(b.Replicas) == 1 && b.Leader == from
	})
}

// A node that comes gets its share, with no more than 8 moves at once, and then
// nothing moves any more.
func TestANodeThatComesGetsItsShare(t *testing.T) {
	r := movers(t, 30, "s1", "s2")
	r.register(t, "s3", topic.RoleStorage)
	most := 0
	testkit.Poll(t, patience, "it has a third", func() bool {
		r.mono.Add(int64(100 * time.Millisecond))
		res := r.moving(t)
		most = max(most, res.Running)
		return r.counts(t)["s3"] == 10 && len(res.Moves) == 0
	})
	if most > metaapi.MaxRunningMoves || most == 0 {
		t.Fatalf("%d moves at once", most)
	}
	version := r.node.Applied()
	for range 100 {
		r.mono.Add(int64(time.Second))
		if len(r.moving(t).Moves) != 0 {
			t.Fatal("it moves on")
		}
	}
	if r.counts(t)["s1"] != 10 || r.counts(t)["s2"] != 10 {
		t.Fatalf("%v (at %d)", r.counts(t), version)
	}
}

// What is on its way to a node counts as there for what is moved away next: else all of
// a decommission goes to the node that had least when it began, and stays there.
func TestEvacuationCountsWhatIsOnItsWay(t *testing.T) {
	r := movers(t, 20, "s1")
	for _, id := range []string{"s2", "s3"} {
		r.register(t, id, topic.RoleStorage)
		r.nodes.hush(id, true) // what goes there does not arrive
	}
	for p := range int32(4) {
		if _, err := r.StartMove(t.Context(), &metaapi.StartMoveRequest{Topic: "orders", Partition: p, From: "s1", To: "s2"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := (removals{r.Controller}).Evacuate(t.Context(), "s1", r.parts(t)[4:]); err != nil {
		t.Fatal(err)
	}
	to := map[string]int{}
	for _, row := range r.moving(t).Moves {
		to[row.To]++
	}
	if to["s2"] != 4 || to["s3"] != 4 {
		t.Fatalf("on their way to %v", to)
	}
}

// What a decommission has not begun yet waits for a slot, as what a rebalance has.
func TestWhatADecommissionHasNotBegunWaits(t *testing.T) {
	const waiting = 2 // few: each move is several entries on the disk
	r := movers(t, metaapi.MaxRunningMoves+waiting, "s1")
	for _, id := range []string{"s2", "s3"} {
		r.register(t, id, topic.RoleStorage)
		r.nodes.hush(id, true) // what goes there does not arrive
	}
	r.joins(t, "s1", topic.RoleStorage)
	if _, err := r.Decommission(t.Context(), &metaapi.DecommissionRequest{NodeID: "s1"}); err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "8 move and 2 wait", func() bool {
		res := r.moving(t)
		return res.Running == metaapi.MaxRunningMoves && res.Waiting == waiting
	})
	for _, id := range []string{"s2", "s3"} {
		r.nodes.hush(id, false)
	}
	testkit.Poll(t, patience, "nothing waits", func() bool {
		res := r.moving(t)
		return len(res.Moves) == 0 && res.Waiting == 0
	})
}

// A rebalance that an administrator ends leaves nothing that waits for its turn.
func TestAbortEndsWhatWaits(t *testing.T) {
	r := movers(t, 40, "s1")
	r.register(t, "s2", topic.RoleStorage)
	r.nodes.hush("s2", true)
	var res *metaapi.MovesResult
	testkit.Poll(t, patience, "more is planned than there is room for", func() bool {
		r.mono.Add(int64(time.Second))
		res = r.moving(t)
		return res.Waiting > 0
	})
	if _, err := r.AbortMove(t.Context(), &metaapi.AbortMoveRequest{Topic: "orders", Partition: res.Moves[0].Partition}); err != nil {
		t.Fatal(err)
	}
	if res = r.moving(t); res.Waiting != 0 {
		t.Fatalf("%d moves wait that nobody begins", res.Waiting)
	}
}

// Growth places the new partitions and leaves the old ones alone.
func TestGrowth(t *testing.T) {
	r := movers(t, 2, "s1", "s2")
	before := slices.Clone(r.parts(t))
	have, err := r.node.View().Topic("orders")
	if err != nil {
		t.Fatal(err)
	}
	req := &metaapi.UpdateTopicRequest{Name: "orders", Incarnation: have.Incarnation, Version: have.Version, Config: have.Config}
	req.Config.Partitions, req.Config.RetentionMS = 5, 7_200_000
	res, err := r.UpdateTopic(t.Context(), req)
	if err != nil || res.Topic.Partitions != 5 || res.Topic.RetentionMS != 7_200_000 || res.Topic.Version != have.Version+1 {
		t.Fatalf("%+v, %v", res, err)
	}
	after := r.parts(t)
	if len(after) != 5 {
		t.Fatalf("%d partitions", len(after))
	}
	for i := range before {
		if fmt.Sprint(before[i]) != fmt.Sprint(after[i]) {
			t.Errorf("partition %d changed from %+v to %+v", i, before[i], after[i])
		}
	}
	for i, a := range after[2:] {
		if a.Partition != int32(2+i) || a.Leader == "" || a.Incarnation != have.Incarnation {
			t.Errorf("new partition %d is %+v", 2+i, a)
		}
	}
	if _, err := r.UpdateTopic(t.Context(), req); !problem.HasCode(err, problem.PreconditionFailed) {
		t.Errorf("of an older version: %v", err)
	}
}

// Growths under way count for what is placed next, each partition once, and a plan sees
// them: two at one moment do not choose the same nodes.
func TestGrowthUnderWayCounts(t *testing.T) {
	r := movers(t, 3, "s1", "s2", "s3")
	have, err := r.node.View().Topic("orders")
	if err != nil {
		t.Fatal(err)
	}
	term := r.term.Load()
	var list []topic.Assignment
	for attempt := range topic.Incarnation(2) { // of which one will be refused
		if list, err = r.placeMore(term, 1+attempt, have, 4); err != nil {
			t.Fatal(err)
		}
	}
	if on := r.creates(t, r, "others", 1); on["s3"] != 1 {
		t.Errorf("the third one at that moment is on %v", on)
	}
	all, err := r.allAssigned()
	if err != nil || len(all) != 5 {
		t.Errorf("%d partitions are planned with, %v", len(all), err)
	}
	grown := have.Config
	grown.Partitions = 4
	if _, _, err := r.propose(t.Context(), &metastate.GrowTopic{Name: have.Name, Incarnation: have.Incarnation, Version: have.Version, Config: grown, Added: list}); err != nil {
		t.Fatal(err)
	}
	if all, err = r.allAssigned(); err != nil || len(all) != 5 {
		t.Errorf("%d partitions are planned with once they are there, %v", len(all), err)
	}
	for attempt := range topic.Incarnation(2) {
		r.placed(term, 1+attempt)
	}
	have, err = r.node.View().Topic("orders")
	if err != nil {
		t.Fatal(err)
	}
	req := &metaapi.UpdateTopicRequest{Name: "orders", Incarnation: have.Incarnation, Version: have.Version, Config: have.Config}
	req.Config.Partitions = 6
	if _, err := r.UpdateTopic(t.Context(), req); err != nil || len(term.placing) != 0 {
		t.Errorf("%v; %v stays in the books", err, term.placing)
	}
}
