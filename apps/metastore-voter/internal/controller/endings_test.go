package controller

import (
	"testing"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// The verdict on one id over its whole life: unknown before, live, gone, and unknown
// again only once its end was forgotten on purpose.
func TestVerdictsOverALife(t *testing.T) {
	r := newRig(t)
	r.register(t, "s1", topic.RoleStorage)
	ctx := t.Context()
	verdict := func(q metaapi.Question) metaapi.Verdict {
		t.Helper()
		res, err := r.Confirm(ctx, &metaapi.ConfirmRequest{Questions: []metaapi.Question{q}})
		if err != nil || len(res.Verdicts) != 1 {
			t.Fatalf("%+v, %v", res, err)
		}
		return res.Verdicts[0]
	}
	cfg := topic.DefaultConfig()
	cfg.Partitions = 1
	made, err := r.CreateTopic(ctx, &metaapi.CreateTopicRequest{Name: "orders", Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	id := made.Topic.Incarnation
	ask := metaapi.Question{Kind: "incarnation", ID: id}
	for _, q := range []metaapi.Question{{Kind: "incarnation", ID: id + 1}, {Kind: "incarnation"}, {Kind: "topic", ID: id}, {ID: id}} {
		if v := verdict(q); v != metaapi.VerdictUnknown {
			t.Errorf("%+v: %s", q, v)
		}
	}
	if v := verdict(ask); v != metaapi.VerdictLive {
		t.Errorf("alive: %s", v)
	}
	if _, err := r.ForgetEnded(ctx, &metaapi.ForgetEndedRequest{IDs: []topic.Incarnation{id}}); !problem.HasCode(err, problem.TopicChanged) {
		t.Errorf("a live one was forgotten: %v", err)
	}
	if _, err := r.DeleteTopic(ctx, &metaapi.DeleteTopicRequest{Name: "orders", Incarnation: id}); err != nil {
		t.Fatal(err)
	}
	again, err := r.CreateTopic(ctx, &metaapi.CreateTopicRequest{Name: "orders", Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	if v := verdict(ask); v != metaapi.VerdictGone {
		t.Errorf("deleted, and the name created again: %s", v)
	}
	list, err := r.Endings(ctx, &metaapi.EndingsRequest{})
	if err != nil || list.More || len(list.Endings) != 1 || list.Endings[0].Incarnation != id || list.Endings[0].Topic != "orders" {
		t.Errorf("endings %+v, %v", list, err)
	}
	for _, ids := range [][]topic.Incarnation{nil, {0}, make([]topic.Incarnation, metaapi.MaxEndings+1)} {
		if _, err := r.ForgetEnded(ctx, &metaapi.ForgetEndedRequest{IDs: ids}); !problem.HasCode(err, problem.InvalidRequest) {
			t.Errorf("%d ids: %v", len(ids), err)
		}
	}
	if _, err := r.ForgetEnded(ctx, &metaapi.ForgetEndedRequest{IDs: []topic.Incarnation{id}}); err != nil {
		t.Fatal(err)
	}
	if v := verdict(ask); v != metaapi.VerdictUnknown {
		t.Errorf("forgotten: %s", v)
	}
	if v := verdict(metaapi.Question{Kind: "incarnation", ID: again.Topic.Incarnation}); v != metaapi.VerdictLive {
		t.Errorf("its successor: %s", v)
	}
}

// Bug 4 of the seed's "Crash recovery bugs": a node that was elected and has not passed
// its barrier yet, so may still be replaying, confirms nothing and forgets nothing,
// whatever its state shows.
func TestBug4AFreshLeaderConfirmsNothingBeforeItsBarrier(t *testing.T) {
	r := newRig(t)
	passed := r.term.Swap(nil) // as between the election and the barrier
	defer r.term.Store(passed)
	ask := &metaapi.ConfirmRequest{Questions: []metaapi.Question{{Kind: "incarnation", ID: 5}}}
	if res, err := r.Confirm(t.Context(), ask); !problem.HasCode(err, problem.NotReady) {
		t.Errorf("confirmed %+v, %v", res, err)
	}
	if _, err := r.ForgetEnded(t.Context(), &metaapi.ForgetEndedRequest{IDs: []topic.Incarnation{5}}); !problem.HasCode(err, problem.NotReady) {
		t.Errorf("forgot: %v", err)
	}
	if _, err := r.Endings(t.Context(), &metaapi.EndingsRequest{}); !problem.HasCode(err, problem.NotReady) {
		t.Errorf("listed: %v", err)
	}
}
