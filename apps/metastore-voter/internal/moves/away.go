package moves

import (
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/topic"
)

// Away keeps the partitions of a child from the leaders that they get their messages
// from, as they are shown when it is asked first. What is not known keeps from nobody.
// It is for one plan, and not safe for concurrent use.
func Away(view metastate.View) placement.Away {
	parents := map[string][]topic.Assignment{}
	return func(ref topic.Ref) string {
		t, err := view.Topic(ref.Topic)
		if err != nil || t.Incarnation != ref.Incarnation || t.Parent == nil {
			return ""
		}
		list, seen := parents[t.Parent.Name]
		if !seen {
			if p, err := view.Assignments(t.Parent.Name); err == nil && p.Incarnation == t.Parent.Incarnation {
				list = p.List
			}
			parents[t.Parent.Name] = list
		}
		if int(ref.Partition) >= len(list) {
			return ""
		}
		return list[ref.Partition].Leader
	}
}
