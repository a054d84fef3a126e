package metaapi

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"testing"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/testkit/leak"
	"github.com/narad-mq/narad/libs/topic"
)

func TestMain(m *testing.M) { leak.Main(m) }

// fake is a Voter that answers err when that is set, else what it remembers
// being asked, so that the suite sees every field arrive.
type fake struct {
	calls int
	got   any
	err   error
}

func answer[Res any](f *fake, req any, res Res) (*Res, error) {
	f.calls++
	f.got = req
	if f.err != nil {
		return nil, f.err
	}
	return &res, nil
}

func ptr[T any](v T) *T { return &v }

var (
	someTopic = topic.Topic{Name: "orders", Incarnation: 0x3f9a17c4e2b08d51, Version: 3, CreatedAtMS: 17, Config: topic.DefaultConfig()}
	results   = struct {
		join    JoinResult
		change  ChangeResult
		topic   TopicResult
		confirm ConfirmResult
		members MembersResult
		quorum  QuorumResult
	}{
		join: JoinResult{RaftID: "s1#0000000000000007", Status: "deferred", Reason: "leader_too_young"}, change: ChangeResult{Index: 1 << 60},
		topic:   TopicResult{Index: 9, Topic: someTopic},
		confirm: ConfirmResult{Verdicts: []Verdict{VerdictGone, VerdictUnknown}},
		members: MembersResult{LeaderID: "v1", ClusterID: "c", AgesMS: map[string]int64{"s1": 1200}, Members: []topic.Member{{
			ID: "s1", Role: topic.RoleStorage, Status: topic.StatusDead, Draining: true, DiskID: 7, BootNonce: 8, RPCAddr: "a:2", RaftAddr: "a:1",
			Zone: "z", Release: "r", NewestEntryType: 9, HeartbeatMS: 17, WALBacklog: 3, DiskUsedPercent: 41,
		}}},
		quorum: QuorumResult{
			LeaderID: ptr("v1"), LeaderEpoch: 7, HighWatermark: 12, Majority: 2, CommittedBy: []string{"v1", "v2"}, AnsweredBy: "v1",
			Servers: []QuorumServer{{ID: "v1", Suffrage: "voter", Reachable: true, LEO: ptr(uint64(12))}, {ID: "v2"}},
		},
	}
)

func (f *fake) Join(_ context.Context, r *JoinRequest) (*JoinResult, error) {
	return answer(f, *r, results.join)
}

func (f *fake) Register(_ context.Context, r *RegisterRequest) (*ChangeResult, error) {
	return answer(f, *r, results.change)
}

func (f *fake) Heartbeat(_ context.Context, r *HeartbeatRequest) error {
	_, err := answer(f, *r, struct{}{})
	return err
}

func (f *fake) CreateTopic(_ context.Context, r *CreateTopicRequest) (*TopicResult, error) {
	return answer(f, *r, results.topic)
}

func (f *fake) UpdateTopic(_ context.Context, r *UpdateTopicRequest) (*TopicResult, error) {
	return answer(f, *r, results.topic)
}

func (f *fake) DeleteTopic(_ context.Context, r *DeleteTopicRequest) (*ChangeResult, error) {
	return answer(f, *r, results.change)
}

func (f *fake) LookupTopic(_ context.Context, r *LookupTopicRequest) (*TopicResult, error) {
	return answer(f, *r, results.topic)
}

func (f *fake) Confirm(_ context.Context, r *ConfirmRequest) (*ConfirmResult, error) {
	return answer(f, *r, results.confirm)
}

func (f *fake) Members(context.Context) (*MembersResult, error) {
	return answer(f, nil, results.members)
}

func (f *fake) Quorum(context.Context) (*QuorumResult, error) {
	return answer(f, nil, results.quorum)
}

func (f *fake) Forget(_ context.Context, r *ForgetRequest) (*ChangeResult, error) {
	return answer(f, *r, results.change)
}

// serve puts a voter on the wire and returns its address.
func serve(t *testing.T, v Voter) string {
	t.Helper()
	s := rpc.NewServer(rpc.ServerConfig{NodeID: "v1", ClusterID: func() string { return "" }, Log: slog.New(slog.DiscardHandler)})
	Serve(s, v)
	return testkit.Serve(t, s)
}

func client(t *testing.T) *rpc.Client {
	c := rpc.NewClient(rpc.ClientConfig{NodeID: "test", ClusterID: func() string { return "" }})
	t.Cleanup(c.Close)
	return c
}

// TestContract runs one suite over the memory and the wire.
func TestContract(t *testing.T) {
	t.Run("memory", func(t *testing.T) { f := &fake{}; suite(t, f, f) })
	t.Run("wire", func(t *testing.T) {
		f := &fake{}
		suite(t, f, NewClient(client(t).Peer("v1", serve(t, f))))
	})
	t.Run("leader", func(t *testing.T) {
		f := &fake{}
		addr := serve(t, f)
		suite(t, f, NewLeader(LeaderConfig{RPC: client(t), Hint: func() string { return addr }, Voters: func() []string { return nil }}))
	})
}

func suite(t *testing.T, f *fake, v Voter) {
	ctx := t.Context()
	join := JoinRequest{NodeID: "s1", DiskID: 7, Role: topic.RoleStorage, ClusterID: "c", RaftAddr: "a:1", RPCAddr: "a:2", Zone: "z", Release: "0.1.0", NewestEntryType: 9, Empty: true, RaftID: "s1"}
	register := RegisterRequest{NodeID: "s1", DiskID: 7, BootNonce: 8, Role: topic.RoleGateway, RaftAddr: "a:1", RPCAddr: "a:2", Zone: "z", Release: "r", NewestEntryType: 9}
	beat := HeartbeatRequest{NodeID: "s1", DiskID: 7, BootNonce: 8, WALBacklog: -1, DiskUsedPercent: 41}
	create := CreateTopicRequest{Name: "orders", Config: topic.DefaultConfig()}
	update := UpdateTopicRequest{Name: "orders", Incarnation: 5, Version: 6, Config: topic.DefaultConfig()}
	remove := DeleteTopicRequest{Name: "orders", Incarnation: 5, Version: 6}
	lookup := LookupTopicRequest{Name: "orders"}
	confirm := ConfirmRequest{Questions: []Question{{Kind: KindIncarnation, ID: 5}, {Kind: KindIncarnation, ID: 6}}}
	forget := ForgetRequest{NodeID: "v9"}
	for name, c := range map[string]struct {
		call      func() (any, error)
		req, want any
	}{
		"join":      {func() (any, error) { return v.Join(ctx, &join) }, join, &results.join},
		"register":  {func() (any, error) { return v.Register(ctx, &register) }, register, &results.change},
		"heartbeat": {func() (any, error) { return nil, v.Heartbeat(ctx, &beat) }, beat, nil},
		"create":    {func() (any, error) { return v.CreateTopic(ctx, &create) }, create, &results.topic},
		"update":    {func() (any, error) { return v.UpdateTopic(ctx, &update) }, update, &results.topic},
		"delete":    {func() (any, error) { return v.DeleteTopic(ctx, &remove) }, remove, &results.change},
		"lookup":    {func() (any, error) { return v.LookupTopic(ctx, &lookup) }, lookup, &results.topic},
		"confirm":   {func() (any, error) { return v.Confirm(ctx, &confirm) }, confirm, &results.confirm},
		"members":   {func() (any, error) { return v.Members(ctx) }, nil, &results.members},
		"quorum":    {func() (any, error) { return v.Quorum(ctx) }, nil, &results.quorum},
		"forget":    {func() (any, error) { return v.Forget(ctx, &forget) }, forget, &results.change},
	} {
		t.Run(name, func(t *testing.T) {
			f.err = nil
			got, err := c.call()
			if err != nil || !reflect.DeepEqual(got, c.want) || !reflect.DeepEqual(f.got, c.req) {
				t.Errorf("answer %+v, error %v, asked %+v; want %+v for %+v", got, err, f.got, c.want, c.req)
			}
			f.err = problem.New(problem.TopicChanged, "another life").With("incarnation", "3f9a17c4e2b08d51")
			_, err = c.call()
			var p *problem.Problem
			if !errors.As(err, &p) || p.Code != problem.TopicChanged || p.Members["incarnation"] != "3f9a17c4e2b08d51" || p.Applied != problem.AppliedNo {
				t.Errorf("refusal: %v", err)
			}
		})
	}
}
