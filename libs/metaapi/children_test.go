package metaapi

import (
	"context"
	"log/slog"
	"reflect"
	"testing"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// children remembers what it was asked.
type children struct {
	fake
	topic TopicResult
}

func (c *children) AttachChild(_ context.Context, r *AttachChildRequest) (*TopicResult, error) {
	return answer(&c.fake, *r, c.topic)
}

func (c *children) DetachChild(_ context.Context, r *DetachChildRequest) (*ChangeResult, error) {
	return answer(&c.fake, *r, results.change)
}

func (c *children) CreateChild(_ context.Context, r *CreateChildRequest) (*TopicResult, error) {
	return answer(&c.fake, *r, c.topic)
}

// What is asked and answered is the same over memory, wire and leader.
func TestChildrenContract(t *testing.T) {
	c := &children{topic: TopicResult{Index: 7, Topic: topic.Topic{
		Name: "c", Incarnation: 5, Config: topic.DefaultConfig(), Parent: &topic.Parent{Name: "p", Incarnation: 4, DelayMS: 9, AttachEpoch: 1 << 63},
	}}}
	s := rpc.NewServer(rpc.ServerConfig{NodeID: "v1", ClusterID: func() string { return "" }, Log: slog.New(slog.DiscardHandler)})
	ServeChildren(s, c)
	addr := testkit.Serve(t, s)
	attach := AttachChildRequest{Parent: "p", ParentIncarnation: 4, Child: "c", ChildIncarnation: 5, DelayMS: 9}
	detach := DetachChildRequest{Parent: "p", ParentIncarnation: 4, Child: "c", AttachEpoch: 1 << 63}
	create := CreateChildRequest{Name: "c", Config: topic.DefaultConfig(), Parent: "p", ParentIncarnation: 4, DelayMS: 1}
	for name, v := range map[string]Children{
		"memory": c, "wire": NewClient(client(t).Peer("v1", addr)),
		"leader": NewLeader(LeaderConfig{RPC: client(t), Hint: func() string { return addr }, Voters: func() []string { return nil }}),
	} {
		c.err = nil
		got, err := v.AttachChild(t.Context(), &attach)
		if err != nil || !reflect.DeepEqual(*got, c.topic) || c.got != attach {
			t.Errorf("%s: attach %+v, %v, asked %+v", name, got, err, c.got)
		}
		got, err = v.CreateChild(t.Context(), &create)
		if err != nil || !reflect.DeepEqual(*got, c.topic) || c.got != create {
			t.Errorf("%s: create %+v, %v, asked %+v", name, got, err, c.got)
		}
		gone, err := v.DetachChild(t.Context(), &detach)
		if err != nil || *gone != results.change || c.got != detach {
			t.Errorf("%s: detach %+v, %v, asked %+v", name, gone, err, c.got)
		}
		c.err = problem.New(problem.RetentionTooShort, "too short").With("minimum_ms", 5)
		if _, err := v.AttachChild(t.Context(), &attach); !problem.HasCode(err, problem.RetentionTooShort) {
			t.Errorf("%s: refusal: %v", name, err)
		}
	}
}
