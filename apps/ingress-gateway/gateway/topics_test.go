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
		names := newTopics(meta, &strictLeader{version: 2}, func(context.Context, uint64) error { return nil })
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
