package voter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/member"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/ops"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// TestThreeVotersAndTwoNonVoters forms a cluster, changes it through whomever,
// loses its leader, and restarts every node.
func TestThreeVotersAndTwoNonVoters(t *testing.T) {
	c := newVoters(t, 3)
	c.start()
	storage, gateway := c.joiner(t, "s1", topic.RoleStorage), c.joiner(t, "g1", topic.RoleGateway)
	storage.start()
	gateway.start()
	all := append(append(cluster{}, c...), storage, gateway)
	all.waitReady(t)
	for _, m := range all {
		testkit.Poll(t, patience, m.cfg.NodeID+" knows all members", func() bool { return len(m.member.View().Members().ByID) == len(all) })
		if m.member.ClusterID() == "" || m.member.ClusterID() != all[0].member.ClusterID() {
			t.Errorf("%s is in cluster %q", m.cfg.NodeID, m.member.ClusterID())
		}
	}
	testkit.Poll(t, patience, "every voter has told how full its disk is", func() bool {
		res, err := gateway.member.Leader().Members(within(t))
		return err == nil && !slices.ContainsFunc(res.Members, func(m topic.Member) bool {
			return m.Role == topic.RoleVoter && m.DiskUsedPercent == 0
		})
	})
	for _, s := range c.leader(t).member.Raft().Configuration().Servers {
		if s.Voter != (s.ID[0] == 'v') {
			t.Errorf("suffrage of %s: voter %t", s.ID, s.Voter)
		}
	}

	created := create(t, gateway, "orders")
	if created.Topic.Incarnation == 0 || created.Topic.Partitions != 1 {
		t.Errorf("created %+v", created.Topic)
	}
	if err := gateway.member.Raft().WaitApplied(within(t), created.Index); err != nil {
		t.Fatal(err)
	}
	p, err := gateway.member.View().Assignments("orders")
	if err != nil || p.List[0].Leader != "s1" || p.List[0].Replicas[0].DiskID != storage.member.DiskID() {
		t.Errorf("assignments %+v, %v", p, err)
	}
	testkit.Poll(t, patience, "somebody answers", func() bool {
		_, err = storage.member.Leader().CreateTopic(within(t), onePartition("Orders"))
		return !elsewhere(err)
	})
	if !problem.HasCode(err, problem.TopicExists) {
		t.Errorf("the same name folded: %v", err)
	}

	old := c.leader(t)
	old.kill()
	create(t, gateway, "after-kill")
	old.start()
	all.waitReady(t)

	for i, m := range all {
		m.stop()
		m.start()
		all.waitReady(t)
		create(t, gateway, fmt.Sprintf("round-%d", i))
	}
	testkit.Poll(t, patience, "the epoch has grown with the storage node's restart", func() bool {
		p, err = gateway.member.View().Assignments("orders")
		return err == nil && p.List[0].LeaderEpoch >= 2
	})
}

// create asks until somebody leads, and has heard a storage node: on a machine that
// stands still one may be dead for a moment.
func create(t *testing.T, through *machine, name string) *metaapi.TopicResult {
	t.Helper()
	var res *metaapi.TopicResult
	unknown := false
	testkit.Poll(t, patience, "topic "+name+" is created", func() bool {
		var err error
		res, err = through.member.Leader().CreateTopic(within(t), onePartition(name))
		if unknown && problem.HasCode(err, problem.TopicExists) { // it was this test's own
			res, err = through.member.Leader().LookupTopic(within(t), &metaapi.LookupTopicRequest{Name: name})
		}
		unknown = unknown || problem.HasCode(err, problem.OutcomeUnknown)
		if err != nil && !elsewhere(err) && !problem.HasCode(err, problem.NotEnoughStorage) {
			t.Fatalf("create %s: %v", name, err)
		}
		return err == nil
	})
	return res
}

func TestSingle(t *testing.T) {
	m := newMachine(t, "v1", topic.RoleVoter)
	m.cfg.FormAlone = true
	m.start()
	testkit.Poll(t, patience, "it is ready", m.ready)
	id := m.member.ClusterID()
	m.stop()
	m.start()
	testkit.Poll(t, patience, "it is ready again", m.ready)
	if m.member.ClusterID() != id || id == "" {
		t.Errorf("cluster %q became %q", id, m.member.ClusterID())
	}
	if _, err := m.member.Leader().CreateTopic(within(t), onePartition("x")); !problem.HasCode(err, problem.NotEnoughStorage) {
		t.Errorf("without storage nodes: %v", err)
	}
}

func TestStopHandsLeadershipOver(t *testing.T) {
	c := newVoters(t, 3)
	c.start()
	c.waitReady(t)
	for range 3 { // one may be too late on a busy machine: Raft gives it an election's time
		old := c.leader(t)
		old.cancel()
		if err := <-old.done; err != nil {
			t.Fatal(err)
		}
		if r := old.member.Ready(); len(r) == 0 || r[0].Code != ops.ReasonStopping {
			t.Errorf("readiness of a stopping voter: %+v", r)
		}
		handed := !old.member.Raft().IsLeader() // its Raft still runs: only the hand-over can have ended it
		old.close()
		c.leader(t)
		if handed {
			return
		}
		old.start()
		c.waitReady(t)
	}
	t.Error("ordered stops left the leadership where it was")
}

func TestAnotherVoterJoinsAndIsPromoted(t *testing.T) {
	c := newVoters(t, 3)
	c.start()
	fourth := c.joiner(t, "v4", topic.RoleVoter)
	fourth.start()
	testkit.Poll(t, patience, "v4 votes", func() bool {
		for _, s := range fourth.member.Raft().Configuration().Servers {
			if s.ID == "v4" && s.Voter {
				return true
			}
		}
		return false
	})
}

func TestWipedInitialMemberDoesNotFormARival(t *testing.T) {
	c := newVoters(t, 3)
	c.start()
	c.waitReady(t)
	id := c[0].member.ClusterID()
	late := newMachine(t, "v9", topic.RoleVoter) // empty, and its list says that it may form a cluster
	late.cfg.Join = c[0].cfg.Join
	late.cfg.Initial = append(c[0].cfg.Initial[:2:2], c[2].cfg.Initial[2])
	late.cfg.Initial[2].ID, late.cfg.Initial[2].Addr = "v9", late.cfg.RaftBind
	late.start()
	testkit.Poll(t, patience, "it is in the cluster that exists", func() bool { return late.member.ClusterID() == id })
}

func TestTwoClustersNeverMerge(t *testing.T) {
	a, b := newMachine(t, "v1", topic.RoleVoter), newMachine(t, "v2", topic.RoleVoter)
	a.cfg.FormAlone, b.cfg.FormAlone = true, true
	a.start()
	b.start()
	cluster{a}.waitReady(t)
	cluster{b}.waitReady(t)
	_, err := metaapi.NewClient(b.member.Client().Peer("", a.cfg.RPCBind)).Join(within(t), &metaapi.JoinRequest{
		NodeID: "v2", DiskID: 1, Role: topic.RoleVoter, RaftAddr: b.cfg.RaftBind, RPCAddr: b.cfg.RPCBind,
	})
	if !problem.HasCode(err, problem.WrongCluster) {
		t.Errorf("got %v", err)
	}
}

func TestSecondProcessWithAnIdentityEndsTheFirst(t *testing.T) {
	c := newVoters(t, 1)
	c.start()
	first := c.joiner(t, "s1", topic.RoleStorage)
	first.start()
	append(cluster{first}, c...).waitReady(t)
	_, err := c[0].member.Leader().Register(within(t), &metaapi.RegisterRequest{
		NodeID: "s1", DiskID: first.member.DiskID(), BootNonce: 4711, Role: topic.RoleStorage, RaftAddr: "127.0.0.1:1", RPCAddr: "127.0.0.1:2",
	})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-first.done:
		if !errors.Is(err, member.ErrSuperseded) {
			t.Errorf("it ended with %v", err)
		}
		first.done <- err
	case <-time.After(patience):
		t.Fatal("two processes serve one identity")
	}
	if err := first.member.Raft().Err(); err != nil {
		t.Error(err)
	}
	_, err = c[0].member.Leader().Join(within(t), &metaapi.JoinRequest{
		NodeID: "s1", DiskID: 99, Role: topic.RoleStorage, RaftAddr: "127.0.0.1:1", RPCAddr: "127.0.0.1:2", NewestEntryType: 255,
	})
	if !problem.HasCode(err, problem.IDInUse) {
		t.Errorf("a live member's id with another disk: %v", err)
	}
}

func TestConfirmAndTopicChanges(t *testing.T) {
	c := newVoters(t, 1) // which elects nobody else in between
	c.start()
	storage := c.joiner(t, "s1", topic.RoleStorage)
	storage.start()
	append(cluster{storage}, c...).waitReady(t)
	l := storage.member.Leader()
	ctx := within(t)
	live, gone := create(t, storage, "live"), create(t, storage, "gone")
	if _, err := l.DeleteTopic(ctx, &metaapi.DeleteTopicRequest{Name: "gone", Incarnation: gone.Topic.Incarnation}); err != nil {
		t.Fatal(err)
	}
	res, err := l.Confirm(ctx, &metaapi.ConfirmRequest{Questions: []metaapi.Question{
		{Kind: "incarnation", ID: gone.Topic.Incarnation},
		{Kind: "incarnation", ID: live.Topic.Incarnation},
		{Kind: "incarnation", ID: 12345},
		{Kind: "incarnation"},
		{Kind: "colour", ID: gone.Topic.Incarnation},
	}})
	want := fmt.Sprint([]metaapi.Verdict{"gone", "live", "unknown", "unknown", "unknown"})
	if err != nil || fmt.Sprint(res.Verdicts) != want {
		t.Errorf("confirm: %v, %v; want %s", res, err, want)
	}
	if _, err := l.Confirm(ctx, &metaapi.ConfirmRequest{Questions: make([]metaapi.Question, metaapi.MaxQuestions+1)}); !problem.HasCode(err, problem.InvalidRequest) {
		t.Errorf("too many questions: %v", err)
	}

	cfg := live.Topic.Config
	cfg.RetentionMS = 3_600_000
	up := &metaapi.UpdateTopicRequest{Name: "live", Incarnation: live.Topic.Incarnation, Version: live.Topic.Version, Config: cfg}
	got, err := l.UpdateTopic(ctx, up)
	if err != nil || got.Topic.RetentionMS != 3_600_000 || got.Topic.Version != live.Topic.Version+1 {
		t.Errorf("update: %+v, %v", got, err)
	}
	if _, err := l.UpdateTopic(ctx, up); !problem.HasCode(err, problem.PreconditionFailed) {
		t.Errorf("a stale update: %v", err)
	}
	up.Incarnation++
	if _, err := l.UpdateTopic(ctx, up); !problem.HasCode(err, problem.TopicChanged) {
		t.Errorf("another life: %v", err)
	}
	if found, err := l.LookupTopic(ctx, &metaapi.LookupTopicRequest{Name: "live"}); err != nil || found.Topic.RetentionMS != 3_600_000 {
		t.Errorf("lookup: %+v, %v", found, err)
	}
	if _, err := l.LookupTopic(ctx, &metaapi.LookupTopicRequest{Name: "gone"}); !problem.HasCode(err, problem.TopicNotFound) {
		t.Errorf("lookup of what is gone: %v", err)
	}
	bad := onePartition("../x")
	if _, err := l.CreateTopic(ctx, bad); !problem.HasCode(err, problem.InvalidTopicName) {
		t.Errorf("a bad name: %v", err)
	}
	bad = onePartition("x")
	bad.Config.Partitions = 0
	var p *problem.Problem
	if _, err := l.CreateTopic(ctx, bad); !errors.As(err, &p) || p.Members["parameter"] != "partitions" {
		t.Errorf("a bad setting: %v", err)
	}
}

func TestCreatesAtOneMomentSpread(t *testing.T) {
	c := newVoters(t, 1)
	c[0].timing.DeadAfter = time.Hour // none is passed by because it was heard late
	c.start()
	for i := range 3 {
		s := c.joiner(t, fmt.Sprintf("s%d", i), topic.RoleStorage)
		s.start()
		append(cluster{s}, c...).waitReady(t)
	}
	const n = 30
	failed := make(chan error, n)
	for i := range n {
		go func() {
			_, err := c[0].member.Leader().CreateTopic(context.Background(), onePartition(fmt.Sprintf("t%d", i)))
			failed <- err
		}()
	}
	for range n {
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		list, err := c[0].member.View().AssignmentsOf(fmt.Sprintf("s%d", i))
		if err != nil || len(list) != n/3 {
			t.Errorf("s%d has %d partitions, %v", i, len(list), err)
		}
	}
}
