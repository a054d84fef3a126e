package metastate

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// drawLink attaches, detaches or creates a child of names that mostly are there.
func drawLink(t *rapid.T, m *memTx, name string, inc topic.Incarnation, next *topic.Incarnation) Entry {
	at := topic.Attachment{Parent: name, ParentIncarnation: inc, Child: topic.Child{AttachEpoch: topic.ID64(1000 + rapid.IntRange(0, 30).Draw(t, "attach epoch"))}}
	at.Name = rapid.SampledFrom([]string{"a", "b", "c-1"}).Draw(t, "child")
	at.Incarnation = 1
	if have, err := TopicByName(m, at.Name); err == nil && have != nil {
		at.Incarnation = have.Incarnation
	}
	at.DelayMS = rapid.SampledFrom([]int64{0, 5000, topic.MaxDelayMS}).Draw(t, "delay")
	switch rapid.IntRange(0, 2).Draw(t, "link") {
	case 0:
		return &AttachChild{at}
	case 1:
		d := &DetachChild{Parent: name, ParentIncarnation: inc, Child: at.Name, AttachEpoch: at.AttachEpoch}
		if p, err := TopicByName(m, name); err == nil && p != nil && len(p.Children) > 0 {
			d.Child, d.AttachEpoch = p.Children[0].Name, p.Children[0].AttachEpoch
		}
		return d
	}
	at.Incarnation = *next
	*next++
	return &CreateChild{Create: *createMany(at.Name, at.Incarnation, 1, 1), Attach: AttachChild{at}}
}

// family has a parent "p" (1) and topics "c" (2) and "d" (3).
func family(t *testing.T) *memTx {
	t.Helper()
	m := newMemTx()
	for i, name := range []string{"p", "c", "d"} {
		wantOK(t, m.do(t, createOne(name, topic.Incarnation(i+1), "s1")))
	}
	return m
}

func link(parent, child string, childInc topic.Incarnation, epoch topic.ID64, delay int64) *AttachChild {
	return &AttachChild{topic.Attachment{
		Parent: parent, ParentIncarnation: map[string]topic.Incarnation{"p": 1, "c": 2, "d": 3}[parent],
		Child: topic.Child{Name: child, Incarnation: childInc, DelayMS: delay, AttachEpoch: epoch, AttachedMS: 9}, Points: []int64{4},
	}}
}

func mustTopic(t *testing.T, m *memTx, name string) *topic.Topic {
	t.Helper()
	got, err := TopicByName(m, name)
	if err != nil || got == nil {
		t.Fatalf("topic %s: %v", name, err)
	}
	return got
}

func TestAttachAndDetach(t *testing.T) {
	m := family(t)
	res := m.do(t, link("p", "c", 2, 100, 5000))
	if wantOK(t, res); res.Topic.Role() != topic.RoleDelayChild || mustTopic(t, m, "p").Role() != topic.RoleParent || len(res.Effects.Topics) != 2 {
		t.Fatalf("attached as %+v", res)
	}
	if mustTopic(t, m, "p").Version != 2 || mustTopic(t, m, "c").Version != 2 {
		t.Fatal("a change of a topic without a new version")
	}
	at, err := AttachmentByEpoch(m, 100)
	if err != nil || at == nil || at.Points[0] != 4 {
		t.Fatalf("attachment %+v, %v", at, err)
	}
	wantCode(t, m.do(t, link("d", "c", 2, 101, 0)), problem.AlreadyAttached)
	wantCode(t, m.do(t, link("c", "d", 3, 101, 0)), problem.RoleConflict) // a child has no children
	wantCode(t, m.do(t, link("d", "p", 1, 101, 0)), problem.RoleConflict) // a parent is no child
	wantCode(t, m.do(t, link("d", "d", 3, 101, 0)), problem.RoleConflict)
	wantCode(t, m.do(t, link("p", "d", 3, 100, 0)), problem.TopicChanged) // the epoch is taken
	wantCode(t, m.do(t, link("p", "d", 9, 101, 0)), problem.TopicChanged)
	wantCode(t, m.do(t, link("p", "x", 9, 101, 0)), problem.TopicNotFound)
	wantCode(t, m.do(t, link("p", "d", 3, 101, -1)), problem.InvalidRequest)
	wantCode(t, m.do(t, link("p", "d", 3, 101, topic.MaxDelayMS+1)), problem.InvalidRequest)
	res = m.do(t, link("p", "d", 3, 101, 8*24*3600*1000))
	wantCode(t, res, problem.RetentionTooShort)
	if res.Refusal.Members["minimum_ms"] != int64(8*24*3600*1000+topic.DelayMarginMS) {
		t.Fatalf("members %v", res.Refusal.Members)
	}
	many := link("p", "d", 3, 101, 0)
	many.Points = []int64{1, 2}
	wantCode(t, m.do(t, many), problem.InvalidRequest)

	// The parent may not forget messages before the child is due them.
	cfg := mustTopic(t, m, "p").Config
	cfg.RetentionMS = topic.MinRetentionMS
	wantCode(t, m.do(t, &UpdateTopic{Name: "p", Incarnation: 1, Version: 2, Config: cfg}), problem.RetentionTooShort)
	cfg.RetentionMS = topic.DelayMarginMS + 5000
	wantOK(t, m.do(t, &UpdateTopic{Name: "p", Incarnation: 1, Version: 2, Config: cfg}))

	wantCode(t, m.do(t, &DetachChild{Parent: "p", ParentIncarnation: 1, Child: "c", AttachEpoch: 101}), problem.ChildNotFound)
	wantCode(t, m.do(t, &DetachChild{Parent: "p", ParentIncarnation: 9, Child: "c", AttachEpoch: 100}), problem.TopicChanged)
	wantOK(t, m.do(t, &DetachChild{Parent: "p", ParentIncarnation: 1, Child: "c", AttachEpoch: 100}))
	if !IsEnded(m, 100) || mustTopic(t, m, "c").Parent != nil || len(mustTopic(t, m, "p").Children) != 0 {
		t.Fatal("not detached")
	}
	wantCode(t, m.do(t, link("p", "c", 2, 100, 0)), problem.TopicChanged) // an ended epoch never comes again
	wantOK(t, m.do(t, link("p", "c", 2, 102, 0)))
	checkInvariants(t, m)
}

func TestDeletingEitherDetaches(t *testing.T) {
	m := family(t)
	wantOK(t, m.do(t, link("p", "c", 2, 100, 0)))
	wantOK(t, m.do(t, link("p", "d", 3, 101, 0)))
	res := m.do(t, &DeleteTopic{Name: "c", Incarnation: 2})
	if wantOK(t, res); len(res.Effects.Topics) != 2 || len(mustTopic(t, m, "p").Children) != 1 || !IsEnded(m, 100) {
		t.Fatalf("the child is gone and the parent has %+v", mustTopic(t, m, "p").Children)
	}
	checkInvariants(t, m)
	wantOK(t, m.do(t, &DeleteTopic{Name: "p", Incarnation: 1}))
	if mustTopic(t, m, "d").Parent != nil || !IsEnded(m, 101) {
		t.Fatal("the child of a deleted parent is not alone")
	}
	checkInvariants(t, m)
}

func TestCreateChildIsBothOrNeither(t *testing.T) {
	m := family(t)
	create := func(name string, inc topic.Incarnation, epoch topic.ID64, delay int64) Result {
		return m.do(t, &CreateChild{Create: *createOne(name, inc, "s1"), Attach: *link("p", name, inc, epoch, delay)})
	}
	wantCode(t, create("e", 7, 100, topic.MaxDelayMS), problem.RetentionTooShort)
	if got, _ := TopicByName(m, "e"); got != nil {
		t.Fatal("created although it could not be linked")
	}
	wantCode(t, create("c", 7, 100, 0), problem.TopicExists)
	if len(mustTopic(t, m, "p").Children) != 0 {
		t.Fatal("linked although it could not be created")
	}
	wantOK(t, create("e", 7, 100, 0))
	if mustTopic(t, m, "e").Role() != topic.RoleChild {
		t.Fatal("created without its parent")
	}
	other := &CreateChild{Create: *createOne("f", 8, "s1"), Attach: *link("p", "g", 8, 101, 0)}
	wantCode(t, m.do(t, other), problem.InvalidRequest)
	checkInvariants(t, m)
}

func TestChildrenAreBounded(t *testing.T) {
	m := family(t)
	for i := range topic.MaxChildren {
		name, inc := fmt.Sprintf("n%d", i), topic.Incarnation(100+i)
		wantOK(t, m.do(t, &CreateChild{Create: *createOne(name, inc, "s1"), Attach: *link("p", name, inc, topic.ID64(1000+i), 0)}))
	}
	wantCode(t, m.do(t, link("p", "c", 2, 100, 0)), problem.TooManyChildren)
	checkInvariants(t, m)
}
