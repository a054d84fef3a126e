package gateway

import (
	"context"
	"errors"
	"testing"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/diagnosis"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// fakeClusterLeader answers, or fails with err.
type fakeClusterLeader struct {
	err     error
	refused bool
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
