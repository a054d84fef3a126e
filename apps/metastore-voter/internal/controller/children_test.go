package controller

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// ends answers attach points: 100 plus the index, or an error.
type ends struct {
	err   error
	mu    sync.Mutex // guards asked: several nodes are asked at once
	asked []nodeapi.Target
}

func (e *ends) marks(_ context.Context, _ string, req *nodeapi.MarksRequest) (*nodeapi.MarksResult, error) {
	e.mu.Lock()
	e.asked = append(e.asked, req.Partitions...)
	e.mu.Unlock()
	if e.err != nil {
		return nil, e.err
	}
	res := &nodeapi.MarksResult{}
	for _, t := range req.Partitions {
		res.Marks = append(res.Marks, 100+int64(t.Partition))
	}
	return res, nil
}

// family is a rig with a parent of three partitions and topics to attach.
func family(t *testing.T) (*rig, *ends, map[string]topic.Topic) {
	r, e, out := newRig(t), &ends{}, map[string]topic.Topic{}
	r.cfg.Marks = e.marks
	r.latch(t)
	r.register(t, "s1", topic.RoleStorage)
	for _, name := range []string{"parent", "child", "other"} {
		cfg := topic.DefaultConfig()
		cfg.Partitions, cfg.RetentionMS = 3, 2*topic.DelayMarginMS
		res, err := r.CreateTopic(t.Context(), &metaapi.CreateTopicRequest{Name: name, Config: cfg})
		if err != nil {
			t.Fatal(err)
		}
		out[name] = res.Topic
	}
	return r, e, out
}

func attachment(topics map[string]topic.Topic, parent, child string, delay int64) *metaapi.AttachChildRequest {
	return &metaapi.AttachChildRequest{
		Parent: parent, ParentIncarnation: topics[parent].Incarnation, Child: child, ChildIncarnation: topics[child].Incarnation, DelayMS: delay,
	}
}

func TestAttachAndDetach(t *testing.T) {
	r, e, topics := family(t)
	ctx := t.Context()
	res, err := r.AttachChild(ctx, attachment(topics, "parent", "child", 5000))
	if err != nil {
		t.Fatal(err)
	}
	p := res.Topic.Parent
	if p == nil || p.Name != "parent" || p.DelayMS != 5000 || res.Topic.Role() != topic.RoleDelayChild {
		t.Fatalf("%+v", res.Topic)
	}
	at, err := r.node.View().Attachment(p.AttachEpoch)
	if err != nil || at == nil || !slices.Equal(at.Points, []int64{100, 101, 102}) {
		t.Fatalf("%+v, %v", at, err)
	}
	if len(e.asked) != 3 || e.asked[0].DiskID != 7 || e.asked[0].Epoch == 0 {
		t.Fatalf("asked %+v", e.asked)
	}
	ask := func(kind string) metaapi.Verdict {
		t.Helper()
		res, err := r.Confirm(ctx, &metaapi.ConfirmRequest{Questions: []metaapi.Question{{Kind: kind, ID: p.AttachEpoch}}})
		if err != nil {
			t.Fatal(err)
		}
		return res.Verdicts[0]
	}
	if v, other := ask(metaapi.KindAttachEpoch), ask(metaapi.KindIncarnation); v != metaapi.VerdictLive || other != metaapi.VerdictUnknown {
		t.Errorf("attached: %s, as a life of a topic %s", v, other)
	}
	detach := &metaapi.DetachChildRequest{Parent: "parent", ParentIncarnation: topics["parent"].Incarnation, Child: "child", AttachEpoch: p.AttachEpoch}
	wrong := *detach
	wrong.AttachEpoch++
	if _, err := r.DetachChild(ctx, &wrong); !problem.HasCode(err, problem.ChildNotFound) {
		t.Errorf("another attachment: %v", err)
	}
	if _, err := r.DetachChild(ctx, detach); err != nil {
		t.Fatal(err)
	}
	if v := ask(metaapi.KindAttachEpoch); v != metaapi.VerdictGone {
		t.Errorf("detached: %s", v)
	}
	if _, err := r.DetachChild(ctx, detach); !problem.HasCode(err, problem.ChildNotFound) {
		t.Errorf("detached twice: %v", err)
	}
}

// What cannot be is refused, names its reason, asks nobody for points, and links
// nothing.
func TestAttachmentsThatCannotBe(t *testing.T) {
	r, e, topics := family(t)
	ctx := t.Context()
	if _, err := r.AttachChild(ctx, attachment(topics, "parent", "child", 0)); err != nil {
		t.Fatal(err)
	}
	e.asked = nil
	for name, c := range map[string]struct {
		code   problem.Code
		change func(*metaapi.AttachChildRequest)
	}{
		"to itself":      {problem.RoleConflict, func(q *metaapi.AttachChildRequest) { *q = *attachment(topics, "other", "other", 0) }},
		"to a child":     {problem.RoleConflict, func(q *metaapi.AttachChildRequest) { *q = *attachment(topics, "child", "other", 0) }},
		"of a parent":    {problem.RoleConflict, func(q *metaapi.AttachChildRequest) { *q = *attachment(topics, "other", "parent", 0) }},
		"twice":          {problem.AlreadyAttached, func(q *metaapi.AttachChildRequest) { *q = *attachment(topics, "parent", "child", 0) }},
		"to nobody":      {problem.TopicNotFound, func(q *metaapi.AttachChildRequest) { q.Parent = "nobody" }},
		"of nobody":      {problem.TopicNotFound, func(q *metaapi.AttachChildRequest) { q.Child = "nobody" }},
		"another parent": {problem.TopicChanged, func(q *metaapi.AttachChildRequest) { q.ParentIncarnation++ }},
		"another child":  {problem.TopicChanged, func(q *metaapi.AttachChildRequest) { q.ChildIncarnation++ }},
		"negative":       {problem.InvalidRequest, func(q *metaapi.AttachChildRequest) { q.DelayMS = -1 }},
		"huge":           {problem.InvalidRequest, func(q *metaapi.AttachChildRequest) { q.DelayMS = topic.MaxDelayMS + 1 }},
		"too long":       {problem.RetentionTooShort, func(q *metaapi.AttachChildRequest) { q.DelayMS = topic.DelayMarginMS + 1 }},
	} {
		q := attachment(topics, "parent", "other", 0)
		c.change(q)
		if _, err := r.AttachChild(ctx, q); !problem.HasCode(err, c.code) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(e.asked) != 0 {
		t.Errorf("asked for points: %+v", e.asked)
	}
	e.err = errors.New("silent")
	if _, err := r.AttachChild(ctx, attachment(topics, "parent", "other", 0)); !problem.HasCode(err, problem.PartitionUnavailable) {
		t.Errorf("a leader that does not answer: %v", err)
	}
	got, err := r.node.View().Topic("parent")
	if err != nil || len(got.Children) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// The partitions that a child gets later keep away from the leaders that they read from,
// as those do that it was created with.
func TestAChildGrowsAwayFromItsParent(t *testing.T) {
	r := newRig(t)
	r.cfg.Marks = (&ends{}).marks
	r.latch(t)
	for _, id := range []string{"s1", "s2", "s3"} {
		r.register(t, id, topic.RoleStorage)
	}
	topics := map[string]topic.Topic{}
	for name, partitions := range map[string]int{"parent": 6, "child": 3} {
		cfg := topic.DefaultConfig()
		cfg.Partitions = partitions
		res, err := r.CreateTopic(t.Context(), &metaapi.CreateTopicRequest{Name: name, Config: cfg})
		if err != nil {
			t.Fatal(err)
		}
		topics[name] = res.Topic
	}
	res, err := r.AttachChild(t.Context(), attachment(topics, "parent", "child", 0))
	if err != nil {
		t.Fatal(err)
	}
	// One more than the parent has: it reads from no leader of that index.
	req := &metaapi.UpdateTopicRequest{Name: "child", Incarnation: res.Topic.Incarnation, Version: res.Topic.Version, Config: res.Topic.Config}
	req.Config.Partitions = 7
	if _, err := r.UpdateTopic(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	leaders, own := r.leadersOf("parent"), r.leadersOf("child")
	for p := 3; p < 6; p++ {
		if leaders[p] == "" || leaders[p] == own[p] {
			t.Errorf("partition %d is led by %q, that of the parent by %q", p, own[p], leaders[p])
		}
	}
}

// A child that is created with its parent is there and linked, or is not there.
func TestCreateChildIsAllOrNothing(t *testing.T) {
	r, e, topics := family(t)
	ctx := t.Context()
	cfg := topic.DefaultConfig()
	cfg.Partitions = 0
	req := metaapi.CreateChildRequest{Name: "fresh", Config: cfg, Parent: "parent", ParentIncarnation: topics["parent"].Incarnation, DelayMS: 1000}
	e.err = errors.New("silent")
	if _, err := r.CreateChild(ctx, &req); !problem.HasCode(err, problem.PartitionUnavailable) {
		t.Fatalf("a leader that does not answer: %v", err)
	}
	e.err = nil
	long := req
	long.DelayMS = 3 * topic.DelayMarginMS
	if _, err := r.CreateChild(ctx, &long); !problem.HasCode(err, problem.RetentionTooShort) {
		t.Fatalf("too long a delay: %v", err)
	}
	if _, err := r.node.View().Topic("fresh"); err == nil {
		t.Fatal("half of it was made")
	}
	res, err := r.CreateChild(ctx, &req)
	if err != nil || res.Topic.Partitions != 3 || res.Topic.Parent == nil || res.Topic.Parent.DelayMS != 1000 {
		t.Fatalf("%+v, %v", res, err)
	}
	if _, err := r.CreateChild(ctx, &req); !problem.HasCode(err, problem.TopicExists) {
		t.Errorf("again: %v", err)
	}
	parent, err := r.node.View().Topic("parent")
	if err != nil || len(parent.Children) != 1 || parent.Children[0].Incarnation != res.Topic.Incarnation {
		t.Errorf("%+v, %v", parent, err)
	}
	// A parent's retention cannot be lowered under a child's delay.
	short := parent.Config
	short.RetentionMS = topic.DelayMarginMS
	_, err = r.UpdateTopic(ctx, &metaapi.UpdateTopicRequest{Name: "parent", Incarnation: parent.Incarnation, Version: parent.Version, Config: short})
	if !problem.HasCode(err, problem.RetentionTooShort) {
		t.Errorf("retention: %v", err)
	}
}
