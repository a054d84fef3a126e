package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/apps/metastore-voter/internal/election"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// resets asks for a reset until it is made: an election that nobody can win may begin at
// the same moment, and who asks is told to ask again.
func (r *rig) resets(t *testing.T, ref topic.Ref) {
	t.Helper()
	testkit.Poll(t, patience, ref.String()+" is reset", func() bool {
		_, err := r.ResetPartition(t.Context(), &metaapi.ResetPartitionRequest{Ref: ref, Operator: "op"})
		if err != nil && !problem.HasCode(err, problem.NotReady) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// Two of three nodes are given up, the leader last, so that nobody can be elected: the
// copy that is left goes on when an operator says so.
func TestResetGoesOnWithTheCopyThatIsLeft(t *testing.T) {
	r := movers(t, 1, "s1", "s2", "s3", "s4", "s5")
	look := r.replicas(t, "trio", 1, 3)
	trio := func() topic.Assignment { return look()[0] }
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
	spare := func(hush bool) { // those without a copy
		for i := range 5 {
			id := fmt.Sprint("s", i+1)
			if _, has := led.ReplicaOn(id); !has {
				r.nodes.hush(id, hush)
			}
		}
	}
	spare(true) // nothing is moved away from who drains before it is removed
	r.buries(t, append(lost, led.Leader)...)
	r.resets(t, led.Ref)
	_, line, _ := strings.Cut(r.errors.String(), "AUDIT data loss accepted: a partition goes on")
	line, _, _ = strings.Cut(line, "\n")
	for _, want := range []string{"partition=" + led.Ref.String(), "by=op", "empty=false", `goes_on_with="` + left + " disk "} {
		if !strings.Contains(line, want) {
			t.Errorf("the log does not say %s: %q", want, line)
		}
	}
	_, gone, _ := strings.Cut(line, `lost_copies="`)
	gone, _, _ = strings.Cut(gone, `"`)
	for _, rep := range led.Replicas {
		if named := strings.Contains(gone, rep.Node+" disk "+rep.DiskID.String()+" copy "+rep.CopyID.String()); named == (rep.Node == left) {
			t.Errorf("named as lost: %s: %t, by %q", rep.Node, named, line)
		}
	}
	a := trio()
	if a.Leader != left || len(a.Replicas) != 1 || a.Replicas[0] != copyOn(left) || a.LeaderEpoch <= led.LeaderEpoch {
		t.Errorf("it goes on with %+v, not with the copy on %s", a, left)
	}
	// It gets back to its factor by itself, on the nodes that are left.
	spare(false)
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

// sayers are storage nodes of which some copies have something of their own to say to a
// fence; the others promise, and have the first epoch.
type sayers struct {
	*storageNodes
	promises map[promiser]election.Promise // guarded by storageNodes.mu
}

// promiser is one copy.
type promiser struct {
	node string
	ref  topic.Ref
}

// Fence implements election.Nodes.
func (s *sayers) Fence(ctx context.Context, node string, items []election.Fence) ([]election.Promise, error) {
	out, err := s.storageNodes.Fence(ctx, node, items)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range out {
		if own, has := s.promises[promiser{node, items[i].Ref}]; has {
			own.OK = own.OK && out[i].OK
			out[i] = own
		}
	}
	return out, err
}

// buries removes nodes with what they have, as somebody said.
func (r *rig) buries(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		for _, e := range []metastate.Entry{
			&metastate.MarkDead{Items: []metastate.DeadMark{{ID: id, HeartbeatMS: r.node.View().Members().ByID[id].HeartbeatMS}}},
			&metastate.SetDraining{ID: id, On: true, NowMS: 1, LossAcceptedBy: "op"}, &metastate.RemoveMember{ID: id, DiskID: 7, AcceptLoss: true, NowMS: 1},
		} {
			// The controller may have removed it already, since its loss is accepted.
			if _, _, err := r.propose(t.Context(), e); err != nil && !problem.HasCode(err, problem.MemberNotFound) {
				t.Fatal(err)
			}
		}
	}
}

// replicas creates a replicated topic whose copies are recorded, and gives a look at it.
func (r *rig) replicas(t *testing.T, name string, partitions, factor int) func() []topic.Assignment {
	t.Helper()
	cfg := topic.DefaultConfig()
	cfg.Partitions, cfg.ReplicationFactor = partitions, factor
	if _, err := r.CreateTopic(t.Context(), &metaapi.CreateTopicRequest{Name: name, Config: cfg}); err != nil {
		t.Fatal(err)
	}
	look := func() []topic.Assignment {
		p, err := r.node.View().Assignments(name)
		if err != nil {
			t.Fatal(err)
		}
		return p.List
	}
	req := &metaapi.RecordCopiesRequest{}
	for _, a := range look() {
		for _, rep := range a.Replicas {
			req.Copies = append(req.Copies, metaapi.CopyReport{Ref: a.Ref, Node: rep.Node, WasDisk: 7, DiskID: 7, CopyID: 9})
		}
	}
	if _, err := r.RecordCopies(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	return look
}

// Of two copies that are left of five the one with the longer history goes on: the newer
// epoch decides, then the end. One that does not promise is not believed, whatever it
// says that it has, and nothing goes on without it.
func TestResetGoesOnWithTheLargestCopy(t *testing.T) {
	r := movers(t, 1, "s1", "s2", "s3", "s4", "s5")
	says := func(epoch topic.Epoch, leo int64) election.Promise {
		return election.Promise{OK: true, LastEpoch: epoch, LEO: leo}
	}
	unsaid := election.Promise{LastEpoch: 9, LEO: 900}
	cases := []struct {
		name   string
		s4, s5 election.Promise
		want   string // "": none
	}{
		{"a newer epoch in the first", says(2, 5), says(1, 90), "s4"},
		{"a newer epoch in the second", says(1, 90), says(2, 5), "s5"},
		{"a later end in the first", says(2, 90), says(2, 5), "s4"},
		{"a later end in the second", says(2, 5), says(2, 90), "s5"},
		{"the first does not promise", unsaid, says(1, 5), ""},
		{"the second does not promise", says(1, 5), unsaid, ""},
	}
	look := r.replicas(t, "quint", len(cases), 5)
	testkit.Poll(t, patience, "all are led", func() bool {
		return !slices.ContainsFunc(look(), func(a topic.Assignment) bool { return a.Leader == "" })
	})
	r.nodes.mu.Lock()
	for i, c := range cases {
		ref := look()[i].Ref
		r.sayers.promises[promiser{"s4", ref}], r.sayers.promises[promiser{"s5", ref}] = c.s4, c.s5
	}
	r.nodes.mu.Unlock()
	r.buries(t, "s1", "s2", "s3")
	var held []metastate.ElectionStart // a copy that leads would go on unasked
	for _, a := range look() {
		if a.Leader == "s4" || a.Leader == "s5" {
			held = append(held, metastate.ElectionStart{Ref: a.Ref, Epoch: a.LeaderEpoch, ConfigVersion: a.ConfigVersion})
		}
	}
	if _, _, err := r.propose(t.Context(), &metastate.BeginElections{Items: held}); err != nil {
		t.Fatal(err)
	}
	for i, c := range cases {
		before := look()[i]
		if c.want != "" {
			r.resets(t, before.Ref)
			testkit.Poll(t, patience, c.name, func() bool { a := look()[i]; return a.Leader == c.want && len(a.Replicas) == 1 })
			continue
		}
		testkit.Poll(t, patience, c.name+", and who asks hears so", func() bool {
			_, err := r.ResetPartition(t.Context(), &metaapi.ResetPartitionRequest{Ref: before.Ref, Operator: "op"})
			if err == nil || !problem.HasCode(err, problem.NotReady) {
				t.Fatalf("%s: %v", c.name, err)
			}
			return strings.Contains(err.Error(), "did not say what it has")
		})
		if a := look()[i]; a.Leader != "" || len(a.Replicas) != 5 {
			t.Errorf("%s: %+v", c.name, a)
		}
	}
}

// What is lost of a partition does not begin anew while a node that is only dead may
// have a copy of it.
func TestNoResetWhileADeadNodeMayHaveACopy(t *testing.T) {
	r := movers(t, 1, "s1", "s2", "s3", "s4", "s5")
	look := r.replicas(t, "trio", 1, 3)
	var ids []string
	for _, rep := range look()[0].Replicas {
		ids = append(ids, rep.Node)
	}
	silent := ids[2]
	if _, _, err := r.propose(t.Context(), &metastate.MarkDead{Items: []metastate.DeadMark{{ID: silent, HeartbeatMS: r.node.View().Members().ByID[silent].HeartbeatMS}}}); err != nil {
		t.Fatal(err)
	}
	r.buries(t, ids[:2]...)
	_, err := r.ResetPartition(t.Context(), &metaapi.ResetPartitionRequest{Ref: look()[0].Ref, Operator: "op"})
	if !problem.HasCode(err, problem.PreconditionFailed) || !strings.Contains(err.Error(), "may be on "+silent) {
		t.Fatalf("while %s is dead: %v", silent, err)
	}
	if got := look()[0].Replicas; len(got) != 3 || strings.Contains(r.errors.String(), "AUDIT data loss accepted: a partition") {
		t.Errorf("after a refusal: %+v, %s", got, r.errors.String())
	}
	r.buries(t, silent)
	r.resets(t, look()[0].Ref)
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
