package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/narad-mq/narad/apps/metastore-voter/internal/decommission"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// joins lets a node be in the Raft configuration, as a non-voter that nobody reaches.
func (r *rig) joins(t *testing.T, id string, role topic.MemberRole) {
	t.Helper()
	if _, err := r.Join(t.Context(), &metaapi.JoinRequest{
		NodeID: id, DiskID: 7, Role: role, RaftAddr: "127.0.0.1:1", RPCAddr: "127.0.0.1:2", NewestEntryType: uint8(metastate.NewestType()), Empty: true,
	}); err != nil {
		t.Fatal(err)
	}
}

// A decommission that is cancelled takes back what it has begun and not ended, and
// nothing else.
func TestCancelTakesBackWhatIsUnderWay(t *testing.T) {
	r := movers(t, 8, "s1", "s2", "s3")
	for _, id := range []string{"s2", "s3"} {
		r.nodes.hush(id, true) // what goes there does not arrive
	}
	r.joins(t, "s1", topic.RoleStorage)
	var own []topic.Assignment
	for _, a := range r.parts(t) {
		if a.Leader == "s1" {
			own = append(own, a)
		}
	}
	other := map[string]string{"s2": "s3", "s3": "s2"}
	asked := slices.IndexFunc(r.parts(t), func(a topic.Assignment) bool { return a.Leader != "s1" })
	from := r.parts(t)[asked].Leader
	if _, err := r.StartMove(t.Context(), &metaapi.StartMoveRequest{Topic: "orders", Partition: int32(asked), From: from, To: other[from]}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Decommission(t.Context(), &metaapi.DecommissionRequest{NodeID: "s1"}); err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "its partitions are on their way", func() bool { return len(r.moving(t).Moves) == len(own)+1 })
	for id := range other {
		r.uses(t, id, 97)
	}
	testkit.Poll(t, patience, "who waits is told what for", func() bool {
		d, err := r.MemberDetail(t.Context(), &metaapi.MemberDetailRequest{NodeID: "s1"})
		return err == nil && slices.ContainsFunc(d.Blocked, func(b metaapi.Reason) bool {
			return b.Code == metaapi.NoReceivers && strings.Contains(b.Message, "on their way to a node whose disk is full")
		})
	})
	for _, dry := range []bool{true, false} { // who asks in another way hears the same
		testkit.Poll(t, patience, fmt.Sprintf("dry run %t: the reasons of the detail", dry), func() bool {
			d, err := r.MemberDetail(t.Context(), &metaapi.MemberDetailRequest{NodeID: "s1"})
			if err != nil {
				return false
			}
			res, err := r.Decommission(t.Context(), &metaapi.DecommissionRequest{NodeID: "s1", DryRun: dry})
			return err == nil && res.Would && len(res.Reasons) > 0 && fmt.Sprint(res.Reasons) == fmt.Sprint(d.Blocked)
		})
	}
	if _, err := r.CancelDecommission(t.Context(), &metaapi.CancelDecommissionRequest{NodeID: "s1"}); err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "they are taken back, and what was asked for goes on", func() bool {
		list := r.moving(t).Moves
		return len(list) == 1 && list[0].Partition == int32(asked) && !list[0].Aborted
	})
}

// What leaves a node does not go to the one that it gets its messages from, if another
// does as well.
func TestAnEvacuatedChildKeepsAwayFromItsParent(t *testing.T) {
	r := newRig(t)
	r.cfg.Marks = (&ends{}).marks
	r.latch(t)
	topics := map[string]topic.Topic{}
	for _, c := range []struct{ node, topic string }{{"s2", "parent"}, {"s3", "other"}, {"s1", "child"}} {
		r.register(t, c.node, topic.RoleStorage)
		cfg := topic.DefaultConfig()
		cfg.Partitions = 1
		res, err := r.CreateTopic(t.Context(), &metaapi.CreateTopicRequest{Name: c.topic, Config: cfg})
		if err != nil || r.leadersOf(c.topic)[0] != c.node {
			t.Fatal(r.leadersOf(c.topic), err)
		}
		topics[c.topic] = res.Topic
	}
	if _, err := r.AttachChild(t.Context(), attachment(topics, "parent", "child", 0)); err != nil {
		t.Fatal(err)
	}
	p, err := r.node.View().Assignments("child")
	if err != nil {
		t.Fatal(err)
	}
	if err := (removals{r.Controller}).Evacuate(t.Context(), "s1", p.List); err != nil {
		t.Fatal(err)
	}
	if list := r.moving(t).Moves; len(list) != 1 || list[0].To != "s3" {
		t.Fatalf("%+v", list)
	}
}

// A gateway's word that it is drained holds for the decommission, the start and the disk
// that it was asked about: one that was kept and accepted messages meanwhile stays.
func TestRemovalIsOfWhatWasJudged(t *testing.T) {
	r := movers(t, 1, "s1")
	for _, id := range []string{"g1", "g2"} {
		r.register(t, id, topic.RoleGateway)
	}
	r.joins(t, "g1", topic.RoleGateway)
	if _, err := r.Decommission(t.Context(), &metaapi.DecommissionRequest{NodeID: "g1"}); err != nil {
		t.Fatal(err)
	}
	remove := func(spoil func(*decommission.State)) error {
		t.Helper()
		s, err := removals{r.Controller}.State(t.Context(), "g1")
		if err != nil || s == nil {
			t.Fatal(s, err)
		}
		s.Gateway = &gatewayapi.DrainedResult{Drained: true}
		spoil(s)
		return removals{r.Controller}.RemoveServer(t.Context(), s)
	}
	for what, spoil := range map[string]func(*decommission.State){
		"another decommission": func(s *decommission.State) { s.Member.DrainingMS-- },
		"another start":        func(s *decommission.State) { s.Member.BootNonce++ },
		"another disk":         func(s *decommission.State) { s.Member.DiskID++ },
		"no word":              func(s *decommission.State) { s.Gateway = nil },
		"a backlog":            func(s *decommission.State) { s.Gateway = &gatewayapi.DrainedResult{Backlog: 1} },
	} {
		if err := remove(spoil); !problem.HasCode(err, problem.PreconditionFailed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := remove(func(*decommission.State) {}); err != nil || find(r.raft.Configuration(), "g1") != nil {
		t.Errorf("what was judged is as it was: %v", err)
	}
}

// Others hear of a decommission that begins and of one that ends, once each; what is only
// asked, is refused, or was said before, is not told.
func TestOthersAreToldOfADecommission(t *testing.T) {
	r := movers(t, 1, "s1", "s2")
	id := r.parts(t)[0].Leader
	r.nodes.hush(id, true) // its copy stays, and so does its record
	r.joins(t, id, topic.RoleStorage)
	var told []string
	r.cfg.Told = func(member string, draining bool) { told = append(told, fmt.Sprint(member, " ", draining)) }
	ask := func(req metaapi.DecommissionRequest) {
		t.Helper()
		req.NodeID = id
		if _, err := r.Decommission(t.Context(), &req); (err != nil) != req.AcceptDataLoss {
			t.Fatal(err)
		}
	}
	cancel := func() error {
		_, err := r.CancelDecommission(t.Context(), &metaapi.CancelDecommissionRequest{NodeID: id})
		return err
	}
	ask(metaapi.DecommissionRequest{DryRun: true})
	ask(metaapi.DecommissionRequest{AcceptDataLoss: true}) // it lives
	if len(told) != 0 {
		t.Fatalf("of nothing: %q", told)
	}
	ask(metaapi.DecommissionRequest{})
	ask(metaapi.DecommissionRequest{})
	if err := cancel(); err != nil {
		t.Fatal(err)
	}
	if err := cancel(); !problem.HasCode(err, problem.DecommissionUnsafe) {
		t.Fatalf("a second cancel: %v", err)
	}
	if want := []string{id + " true", id + " false"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

// Who has left the Raft configuration cannot be kept: nothing would tell it what changes.
func TestNoCancelAfterTheServerWasRemoved(t *testing.T) {
	r := movers(t, 1, "s1", "s2")
	id := r.parts(t)[0].Leader
	r.nodes.hush(id, true) // its copy stays, and so does its record
	r.joins(t, id, topic.RoleStorage)
	if _, err := r.Decommission(t.Context(), &metaapi.DecommissionRequest{NodeID: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.raft.RemoveServer(t.Context(), raftnode.ServerID(id, 7), r.raft.Configuration().Index); err != nil {
		t.Fatal(err)
	}
	_, err := r.CancelDecommission(t.Context(), &metaapi.CancelDecommissionRequest{NodeID: id})
	if !problem.HasCode(err, problem.DecommissionUnsafe) || !strings.Contains(err.Error(), "left the Raft configuration") {
		t.Errorf("after its server was removed: %v", err)
	}
	if m := r.node.View().Members().ByID[id]; m == nil || !m.Draining {
		t.Errorf("after the refusal: %+v", m)
	}
}

// A node stays while fewer would be left than a topic is to have replicas, and the answer
// names the topic; also when a reset has left it one copy only.
func TestFewerNodesThanAFactorDoNotStay(t *testing.T) {
	r := movers(t, 1, "s1", "s2", "s3")
	look := r.replicas(t, "trio", 1, 3)
	testkit.Poll(t, patience, "it is led", func() bool { return look()[0].Leader != "" })
	for _, id := range []string{"s1", "s2", "s3"} {
		r.nodes.hush(id, true) // nothing moves
	}
	refused := func(when, id string) {
		t.Helper()
		res, err := r.Decommission(t.Context(), &metaapi.DecommissionRequest{NodeID: id, DryRun: true})
		if err != nil || res.Would || len(res.Reasons) != 1 || res.Reasons[0].Code != metaapi.BelowReplicationFactor ||
			!slices.Equal(res.Reasons[0].Topics, []string{"trio"}) || res.Reasons[0].TopicCount != 1 {
			t.Errorf("%s, a dry run: %+v, %v", when, res, err)
		}
		_, err = r.Decommission(t.Context(), &metaapi.DecommissionRequest{NodeID: id})
		var p *problem.Problem
		if !errors.As(err, &p) || p.Code != problem.DecommissionUnsafe || !strings.Contains(fmt.Sprint(p.Members["reasons"]), "trio") || r.node.View().Members().ByID[id].Draining {
			t.Errorf("%s: %v", when, err)
		}
	}
	refused("three copies on three nodes", "s1")
	a := look()[0]
	if _, _, err := r.propose(t.Context(), &metastate.ResetPartition{Ref: a.Ref, Epoch: a.LeaderEpoch, Replica: copyOn("s2")}); err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "one copy is left", func() bool { return len(look()[0].Replicas) == 1 })
	refused("one copy of three after a reset", "s2")
}
