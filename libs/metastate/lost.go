package metastate

import "github.com/narad-mq/narad/libs/topic"

// Lost tells that waiting does not bring a partition back: no majority of its replicas is
// on a disk that a member has. Somebody has to accept what is lost then; a node that
// is only down has its disk still.
func Lost(a *topic.Assignment, members map[string]*topic.Member) bool {
	known := 0
	for _, r := range a.Replicas {
		if m := members[r.Node]; m != nil && m.DiskID == r.DiskID {
			known++
		}
	}
	return len(a.Replicas) > 0 && known < len(a.Replicas)/2+1
}
