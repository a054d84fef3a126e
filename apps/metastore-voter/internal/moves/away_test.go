package moves

import (
	"testing"

	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// TestAway: the leader of the same partition of the parent that the child has, and
// nobody where there is none.
func TestAway(t *testing.T) {
	meta := testkit.NewMeta()
	meta.SetState(true, true)
	meta.PutTopic(topic.Topic{Name: "parent", Incarnation: 1}, []topic.Assignment{{Leader: "s1"}, {Leader: "s2"}})
	meta.PutTopic(topic.Topic{Name: "child", Incarnation: 2, Parent: &topic.Parent{Name: "parent", Incarnation: 1}}, nil)
	meta.PutTopic(topic.Topic{Name: "orphan", Incarnation: 3, Parent: &topic.Parent{Name: "parent", Incarnation: 9}}, nil)
	away := Away(meta)
	for ref, want := range map[topic.Ref]string{
		{Topic: "child", Incarnation: 2, Partition: 1}: "s2",
		{Topic: "child", Incarnation: 2, Partition: 0}: "s1",
		{Topic: "child", Incarnation: 2, Partition: 2}: "",
		{Topic: "child", Incarnation: 8}:               "",
		{Topic: "parent", Incarnation: 1}:              "",
		{Topic: "gone", Incarnation: 1}:                "",
	} {
		if got := away(ref); got != want {
			t.Errorf("%s: %q, want %q", ref, got, want)
		}
	}
	if got := Away(meta)(topic.Ref{Topic: "orphan", Incarnation: 3}); got != "" {
		t.Errorf("of a parent that is another topic: %q", got)
	}
}
