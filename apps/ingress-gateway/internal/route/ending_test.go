package route

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// recreate gives the name another life, with the same leaders.
func (f *fixture) recreate() *topic.Topic {
	f.meta.DeleteTopic(f.t.Name)
	next := *f.t
	next.Incarnation++
	var list []topic.Assignment
	for i, n := range f.nodes {
		list = append(list, topic.Assignment{Ref: topic.Ref{Topic: next.Name, Incarnation: next.Incarnation, Partition: int32(i)}, Leader: n.id, LeaderEpoch: 1})
	}
	f.meta.PutTopic(next, list)
	return &next
}

// TestEverythingUnderWayEndsWithItsTopic: its nodes hang, and consumes, acks of one
// and of several, and replays end within a second all the same; also when the name
// has another life at once. A change of something else ends nothing.
func TestEverythingUnderWayEndsWithItsTopic(t *testing.T) {
	for name, end := range map[string]func(*fixture){
		"deleted":   func(f *fixture) { f.meta.DeleteTopic("a") },
		"recreated": func(f *fixture) { f.recreate() },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 2, func(f *fixture) {
				for _, n := range f.nodes {
					n.hang = make(chan struct{})
					defer close(n.hang)
				}
				op := func(p int32) nodeapi.SettleOp {
					return nodeapi.SettleOp{Ref: topic.Ref{Topic: "a", Incarnation: 7, Partition: p}, Kind: nodeapi.SettleAck}
				}
				calls := map[string]func() error{
					"consume": func() error { _, err := f.r.Consume(context.Background(), f.request(30*time.Second)); return err },
					"ack":     func() error { _, err := f.r.Settle(context.Background(), f.t, []nodeapi.SettleOp{op(0)}); return err },
					"acks": func() error {
						_, err := f.r.Settle(context.Background(), f.t, []nodeapi.SettleOp{op(0), op(1)})
						return err
					},
					"replay": func() error { _, err := f.r.Read(context.Background(), f.t, 0, nodeapi.ReadRequest{}); return err },
				}
				type ended struct {
					name string
					err  error
				}
				done := make(chan ended, len(calls))
				for name, call := range calls {
					go func() { done <- ended{name, call()} }()
				}
				synctest.Wait()
				f.meta.PutMember(topic.Member{ID: "new", Role: topic.RoleStorage})
				synctest.Wait()
				select {
				case e := <-done:
					t.Fatalf("%s ended by a change of something else: %v", e.name, e.err)
				default:
				}
				begin := time.Now()
				end(f)
				for range calls {
					if e := <-done; !problem.HasCode(e.err, problem.TopicNotFound) || time.Since(begin) > time.Second {
						t.Errorf("%s: %v after %s", e.name, e.err, time.Since(begin))
					}
				}
			})
		})
	}
}

// TestAReplicaThatLagsEndsNothing: the topic is newer than what this replica shows.
func TestAReplicaThatLagsEndsNothing(t *testing.T) {
	run(t, 1, func(f *fixture) {
		newer := *f.t
		newer.Incarnation = 99
		req := f.request(time.Second)
		req.Topic = &newer
		w := f.start(req)
		synctest.Wait()
		f.meta.PutMember(topic.Member{ID: "new", Role: topic.RoleStorage})
		f.expectDown(<-w, 2*time.Second)
		if _, err := f.r.Read(context.Background(), &newer, 0, nodeapi.ReadRequest{}); !problem.HasCode(err, problem.PartitionUnavailable) {
			t.Errorf("replay: %v", err)
		}
	})
}

// TestAnEndedLifeIsForgotten: its waiters, cursors over partitions and wake-ups; the
// next life of the name starts with none of them.
func TestAnEndedLifeIsForgotten(t *testing.T) {
	run(t, 2, func(f *fixture) {
		w := f.start(f.request(30 * time.Second))
		synctest.Wait()
		next := f.recreate()
		if a := <-w; !problem.HasCode(a.err, problem.TopicNotFound) {
			t.Fatalf("a waiter of the old life: %+v, %v", a.res, a.err)
		}
		f.nodes[0].put(0, 1) // wakes the old life; nobody is there
		synctest.Wait()
		if _, left := f.r.lives.Load(f.t.Incarnation); left {
			t.Error("the old life is remembered")
		}
		req := f.request(time.Second)
		req.Topic = next
		f.expect(<-f.start(req), 1)
		lives := 0
		f.r.eachLife(func(*life) { lives++ })
		if lives != 1 {
			t.Errorf("%d lives", lives)
		}
	})
}
