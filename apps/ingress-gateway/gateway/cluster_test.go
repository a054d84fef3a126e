package gateway

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/diagnosis"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// fakeClusterLeader answers, or fails with err.
type fakeClusterLeader struct {
	err     error
	refused bool
	missed  metaapi.LostCopiesResult
	noLost  error // ... of LostCopies alone
}

func (f *fakeClusterLeader) LostCopies(context.Context) (*metaapi.LostCopiesResult, error) {
	if err := cmp.Or(f.err, f.noLost); err != nil {
		return nil, err
	}
	return &f.missed, nil
}

func (f *fakeClusterLeader) Members(context.Context) (*metaapi.MembersResult, error) {
	if f.err != nil {
		return nil, f.err
	}
	return &metaapi.MembersResult{LeaderID: "v1", AgesMS: map[string]int64{"s1": 7}, DeadMarkingRefused: f.refused}, nil
}

func (f *fakeClusterLeader) Quorum(context.Context) (*metaapi.QuorumResult, error) {
	if f.err != nil {
		return nil, f.err
	}
	leader := "v1"
	return &metaapi.QuorumResult{LeaderID: &leader, AnsweredBy: "v1", Majority: 1, Servers: []metaapi.QuorumServer{{ID: "v1", Suffrage: "voter", Reachable: true}}}, nil
}

func (f *fakeClusterLeader) Decommission(context.Context, *metaapi.DecommissionRequest) (*metaapi.DecommissionResult, error) {
	return &metaapi.DecommissionResult{Index: 43, Would: true}, f.err
}

func (f *fakeClusterLeader) CancelDecommission(context.Context, *metaapi.CancelDecommissionRequest) (*metaapi.ChangeResult, error) {
	return &metaapi.ChangeResult{Index: 44}, f.err
}

func (f *fakeClusterLeader) MemberDetail(context.Context, *metaapi.MemberDetailRequest) (*metaapi.MemberDetailResult, error) {
	return &metaapi.MemberDetailResult{Draining: true, StartedMS: 5}, f.err
}

func (f *fakeClusterLeader) ResetPartition(_ context.Context, req *metaapi.ResetPartitionRequest) (*metaapi.ResetPartitionResult, error) {
	return &metaapi.ResetPartitionResult{Index: uint64(req.Partition) + 100}, f.err
}

func (f *fakeClusterLeader) Forget(_ context.Context, req *metaapi.ForgetRequest) (*metaapi.ChangeResult, error) {
	if f.err != nil {
		return nil, f.err
	}
	if req.NodeID != "ghost" {
		return nil, problem.New(problem.MemberNotFound, "no")
	}
	return &metaapi.ChangeResult{Index: 42}, nil
}

// TestClusterWithAndWithoutALeader: every read answers without one, from what
// this gateway finds out itself.
func TestClusterWithAndWithoutALeader(t *testing.T) {
	ctx := t.Context()
	meta, leader := testkit.NewMeta(), &fakeClusterLeader{refused: true}
	meta.PutMember(topic.Member{ID: "s1", Role: topic.RoleStorage, Status: topic.StatusAlive})
	var waited uint64
	fresh := []topic.Member{{ID: "s1", Role: topic.RoleStorage, Status: topic.StatusAlive, DiskUsedPercent: 41}}
	var unread error
	c := &cluster{
		view: meta, leader: leader, records: func() ([]topic.Member, error) { return fresh, unread },
		servers: func(context.Context) *metaapi.QuorumResult {
			return &metaapi.QuorumResult{AnsweredBy: "g1", Majority: 1, Servers: []metaapi.QuorumServer{{ID: "v1", Suffrage: "voter"}}}
		},
		own:     func() diagnosis.Own { return diagnosis.Own{ID: "g1"} },
		applied: func(_ context.Context, index uint64) error { waited = index; return nil },
	}
	codes := func() (out []string) {
		t.Helper()
		r, err := c.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range r.Problems {
			out = append(out, p.Code)
			if p.Since.IsZero() {
				t.Errorf("since when there is %s is not said", p.Code)
			}
		}
		return out
	}
	if q, err := c.Quorum(ctx); err != nil || q.AnsweredBy != "v1" {
		t.Errorf("%+v, %v", q, err)
	}
	if m, err := c.Members(ctx); err != nil || m.Stale || m.Members[0].DiskUsedPercent != 41 {
		t.Errorf("the stamps of heartbeats are not shown: %+v, %v", m, err)
	}
	if got := codes(); len(got) != 1 || got[0] != diagnosis.DeadMarkingRefused {
		t.Errorf("%v", got)
	}
	ref := topic.Ref{Topic: "orders", Incarnation: 9}
	meta.PutTopic(topic.Topic{Name: "orders", Incarnation: 9}, []topic.Assignment{{Ref: ref, Leader: "s1", Replicas: []topic.Replica{{Node: "s1"}}}})
	leader.missed.Nodes = []metaapi.LostOnNode{{Node: "s1", LostCopies: metaapi.LostCopies{Count: 1, Named: []metaapi.LostCopy{{Ref: ref, SinceMS: 5}}}}}
	if got := codes(); !slices.Equal(got, []string{diagnosis.DeadMarkingRefused, diagnosis.PartitionNoLeader}) {
		t.Errorf("a lone copy is missed: %v", got)
	}
	leader.noLost = problem.New(problem.RouteNotFound, "an older leader")
	if got := codes(); !slices.Equal(got, []string{diagnosis.DeadMarkingRefused}) {
		t.Errorf("a leader that cannot tell: %v", got)
	}
	if err := c.Forget(ctx, "ghost"); err != nil || waited != 42 {
		t.Errorf("%v, waited for %d", err, waited)
	}
	if err := c.Forget(ctx, "s1"); !problem.HasCode(err, problem.MemberNotFound) {
		t.Error(err)
	}

	leader.err = problem.New(problem.NoMetastoreLeader, "none")
	unread = errors.New("closed")
	if q, err := c.Quorum(ctx); err != nil || q.AnsweredBy != "g1" {
		t.Errorf("%+v, %v", q, err)
	}
	if m, err := c.Members(ctx); err != nil || !m.Stale || len(m.Members) != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	meta.SetState(false, false)
	if got := codes(); len(got) != 3 || got[0] != diagnosis.NoMetastoreLeader || got[1] != diagnosis.PartitionsUnknown || got[2] != diagnosis.VoterUnreachable {
		t.Errorf("%v", got)
	}
	if err := c.Forget(ctx, "ghost"); !problem.HasCode(err, problem.NoMetastoreLeader) {
		t.Error(err)
	}
}

// TestStatusOfWhatABuriedNodeHad: the copies of a partition that went with their node, by
// somebody's word, are on no member, and that is where it is looked for least.
func TestStatusOfWhatABuriedNodeHad(t *testing.T) {
	meta := testkit.NewMeta()
	meta.SetState(true, true)
	meta.PutMember(topic.Member{ID: "s1", Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 1})
	part := func(p int32, node string) topic.Assignment {
		return topic.Assignment{
			Ref:      topic.Ref{Topic: "orders", Incarnation: 9, Partition: p},
			Replicas: []topic.Replica{{Node: node, DiskID: 1, CopyID: 5}}, Leader: node, LeaderEpoch: 2,
		}
	}
	meta.PutTopic(topic.Topic{Name: "orders", Incarnation: 9}, []topic.Assignment{part(0, "s1"), part(1, "buried")})
	c := &cluster{
		view: meta, leader: &fakeClusterLeader{}, records: func() ([]topic.Member, error) { return nil, errors.New("closed") },
		own: func() diagnosis.Own { return diagnosis.Own{ID: "g1"} },
	}
	r, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Problems) != 1 || r.Problems[0].Code != diagnosis.PartitionNoLeader || r.Problems[0].Subject != "orders/1" {
		t.Errorf("%s, %+v", r.Status, r.Problems)
	}
}

// What was on a node that was removed is gone since then.
func TestStatusKnowsWhenANodeWasRemoved(t *testing.T) {
	meta, leader := testkit.NewMeta(), &fakeClusterLeader{}
	meta.PutTopic(topic.Topic{Name: "orders", Incarnation: 9}, []topic.Assignment{{
		Ref: topic.Ref{Topic: "orders", Incarnation: 9}, Leader: "s9", Replicas: []topic.Replica{{Node: "s9", DiskID: 1, CopyID: 1}},
	}})
	c := &cluster{
		view: meta, leader: leader, records: func() ([]topic.Member, error) { return nil, nil },
		own:    func() diagnosis.Own { return diagnosis.Own{ID: "g1"} },
		graves: func() ([]metastate.Tombstone, error) { return []metastate.Tombstone{{ID: "s9", RemovedMS: 1234}}, nil },
	}
	r, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(r.Problems, func(p diagnosis.Problem) bool { return p.Code == diagnosis.PartitionNoLeader }); i < 0 || r.Problems[i].Since.UnixMilli() != 1234 {
		t.Errorf("%+v", r.Problems)
	}
}
