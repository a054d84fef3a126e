package gateway

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// strictLeader refuses a change of any version but its own.
type strictLeader struct {
	leaderAPI
	version uint64
}

func (f *strictLeader) UpdateTopic(_ context.Context, req *metaapi.UpdateTopicRequest) (*metaapi.TopicResult, error) {
	if req.Version != f.version {
		return nil, problem.New(problem.PreconditionFailed, "version %d", f.version)
	}
	return &metaapi.TopicResult{Topic: topic.Topic{Name: req.Name, Version: f.version + 1}}, nil
}

// TestARefusedChangeWaitsForTheReplica: two gateways, one client, one change after
// the other: the second gateway's replica does not show the first change yet, and
// reading it again at once would be refused again.
func TestARefusedChangeWaitsForTheReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		meta := testkit.NewMeta()
		old := topic.Topic{Name: "orders", Incarnation: 9, Version: 1}
		meta.PutTopic(old, nil)
		names := newTopics(meta, &strictLeader{version: 2}, func(context.Context, uint64) error { return nil }, nil)
		go func() {
			time.Sleep(300 * time.Millisecond)
			meta.PutTopic(topic.Topic{Name: "other", Incarnation: 3}, nil) // not what is waited for
			time.Sleep(300 * time.Millisecond)
			meta.PutTopic(topic.Topic{Name: "orders", Incarnation: 9, Version: 2}, nil)
		}()
		if _, err := names.Update(t.Context(), &old, topic.Config{}); !problem.HasCode(err, problem.PreconditionFailed) {
			t.Fatal(err)
		}
		now, err := meta.Topic("orders")
		if err != nil || now.Version != 2 {
			t.Fatalf("the refusal came back before the replica showed the newer version: %+v, %v", now, err)
		}
		if _, err := names.Update(t.Context(), now, topic.Config{}); err != nil {
			t.Fatal(err)
		}
		// A replica that never gets there costs its time, not for ever.
		begin := time.Now()
		if _, err := names.Update(t.Context(), &topic.Topic{Name: "orders", Incarnation: 9, Version: 7}, topic.Config{}); !problem.HasCode(err, problem.PreconditionFailed) {
			t.Fatal(err)
		}
		if d := time.Since(begin); d != ownReplica {
			t.Errorf("waited %s, want %s", d, ownReplica)
		}
	})
}

// deletingLeader commits a delete, or fails with err.
type deletingLeader struct {
	leaderAPI
	asked *metaapi.DeleteTopicRequest
	err   error
}

func (f *deletingLeader) DeleteTopic(_ context.Context, req *metaapi.DeleteTopicRequest) (*metaapi.ChangeResult, error) {
	f.asked = req
	return &metaapi.ChangeResult{Index: 42}, f.err
}

// TestADeleteIsToldOnceItIsCommitted: of the life that was deleted, before this
// gateway's own replica is waited for, and never of a delete that was not made.
func TestADeleteIsToldOnceItIsCommitted(t *testing.T) {
	meta, leader := testkit.NewMeta(), &deletingLeader{}
	meta.PutTopic(topic.Topic{Name: "orders", Incarnation: 10}, nil) // a new life has the name already
	var told []topic.Incarnation
	waited := 0
	names := newTopics(meta, leader, func(context.Context, uint64) error { waited++; return nil }, func(name string, id topic.Incarnation) {
		if name != "orders" || leader.asked == nil || waited > 0 {
			t.Errorf("told of %s, asked %v, waited %d", name, leader.asked, waited)
		}
		told = append(told, id)
	})
	old := &topic.Topic{Name: "orders", Incarnation: 9, Version: 1}
	if err := names.Delete(t.Context(), old, 0); err != nil || len(told) != 1 || told[0] != 9 || waited != 1 {
		t.Fatalf("%v, told %v, waited %d", err, told, waited)
	}
	leader.err = problem.New(problem.TopicChanged, "no")
	if err := names.Delete(t.Context(), old, 0); !problem.HasCode(err, problem.TopicChanged) || len(told) != 1 {
		t.Fatalf("%v, told %v", err, told)
	}
}
