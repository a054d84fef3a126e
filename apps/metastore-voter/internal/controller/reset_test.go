package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// Two of three nodes are given up, the leader last, so that nobody can be elected: the
// copy that is left goes on when an operator says so.
func TestResetGoesOnWithTheCopyThatIsLeft(t *testing.T) {
	r := movers(t, 1, "s1", "s2", "s3", "s4", "s5")
	cfg := topic.DefaultConfig()
	cfg.Partitions, cfg.ReplicationFactor = 1, 3
	if _, err := r.CreateTopic(t.Context(), &metaapi.CreateTopicRequest{Name: "trio", Config: cfg}); err != nil {
		t.Fatal(err)
	}
	trio := func() topic.Assignment {
		p, err := r.node.View().Assignments("trio")
		if err != nil {
			t.Fatal(err)
		}
		return p.List[0]
	}
	req := &metaapi.RecordCopiesRequest{}
	for _, rep := range trio().Replicas {
		req.Copies = append(req.Copies, metaapi.CopyReport{Ref: trio().Ref, Node: rep.Node, WasDisk: 7, DiskID: 7, CopyID: 9})
	}
	if _, err := r.RecordCopies(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "a leader is elected", func() bool { return trio().Leader != "" })
	led, left := trio(), ""
	var lost []string
	for _, rep := range led.Replicas {
		switch {
		case rep.Node == led.Leader:
		case left == "":
			left = rep.Node
		default:
			lost = append(lost, rep.Node)
		}
	}
	for _, id := range append(lost, led.Leader) {
		for _, e := range []metastate.Entry{
			&metastate.MarkDead{Items: []metastate.DeadMark{{ID: id, HeartbeatMS: r.node.View().Members().ByID[id].HeartbeatMS}}},
			&metastate.SetDraining{ID: id, On: true, NowMS: 1, LossAcceptedBy: "op"}, &metastate.RemoveMember{ID: id, DiskID: 7, AcceptLoss: true, NowMS: 1},
		} {
			if _, _, err := r.propose(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := r.ResetPartition(t.Context(), &metaapi.ResetPartitionRequest{Ref: led.Ref, Operator: "op"}); err != nil {
		t.Fatal(err)
	}
	a := trio()
	if a.Leader != left || len(a.Replicas) != 1 || a.Replicas[0] != copyOn(left) || a.LeaderEpoch <= led.LeaderEpoch {
		t.Errorf("it goes on with %+v, not with the copy on %s", a, left)
	}
	// It gets back to its factor by itself, on the nodes that are left.
	for n := 2; n <= 3; n++ {
		r.mono.Add(int64(11 * time.Second))
		testkit.Poll(t, patience, fmt.Sprint(n, " replicas, and it moves no more"), func() bool {
			res, err := r.ListMoves(t.Context())
			moves := err != nil || slices.ContainsFunc(res.Moves, func(m metaapi.MoveRow) bool { return m.Topic == "trio" })
			return !moves && len(trio().Replicas) == n
		})
	}
	if a := trio(); a.Leader == "" || len(a.Observers) > 0 {
		t.Errorf("in the end: %+v", a)
	}
}

// A lone copy that its node, asked now, does not find on the disk of record is lost, and
// is begun anew there; one of which the node says nothing is not.
func TestResetOfAVanishedLoneCopy(t *testing.T) {
	r := movers(t, 2, "s1", "s2")
	a := r.parts(t)[0]
	reset := func() error {
		_, err := r.ResetPartition(t.Context(), &metaapi.ResetPartitionRequest{Ref: a.Ref, Operator: "op"})
		return err
	}
	if err := reset(); !problem.HasCode(err, problem.PreconditionFailed) {
		t.Fatalf("a partition that is well: %v", err)
	}
	r.nodes.mu.Lock()
	r.nodes.vanished[a.Ref] = true
	r.nodes.mu.Unlock()
	r.nodes.hush(a.Leader, true)
	if err := reset(); !problem.HasCode(err, problem.PreconditionFailed) {
		t.Fatalf("its node does not answer: %v", err)
	}
	r.nodes.hush(a.Leader, false)
	if err := reset(); err != nil {
		t.Fatal(err)
	}
	now := r.parts(t)[0]
	if now.Leader != a.Leader || len(now.Replicas) != 1 || now.Replicas[0].CopyID != 0 || now.Reset != now.LeaderEpoch || now.LeaderEpoch <= a.LeaderEpoch {
		t.Errorf("after the reset: %+v", now)
	}
	a = r.parts(t)[1]
	r.nodes.mu.Lock()
	r.nodes.vanished[a.Ref] = true
	r.nodes.mu.Unlock()
	r.uses(t, a.Leader, placement.FullPercent)
	if err := reset(); err != nil {
		t.Fatal(err)
	}
	if now := r.parts(t)[1]; now.Leader == a.Leader || now.Leader == "" {
		t.Errorf("begun anew on a full disk: %+v", now)
	}
}
