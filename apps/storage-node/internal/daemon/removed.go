package daemon

import (
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// unlessRemoved is a replica that decides nothing any more once the node was
// decommissioned: it follows no longer, and what it shows may be anybody's by now. So
// nothing is served, as before the latch.
type unlessRemoved struct {
	metastate.View
	removed func() bool
}

// Assignments implements metastate.View.
func (v unlessRemoved) Assignments(name string) (*metastate.Partitions, error) {
	if v.removed() {
		return nil, metastate.ErrUnavailable
	}
	return v.View.Assignments(name)
}

// AssignmentsOf implements metastate.View.
func (v unlessRemoved) AssignmentsOf(node string) ([]topic.Assignment, error) {
	if v.removed() {
		return nil, metastate.ErrUnavailable
	}
	return v.View.AssignmentsOf(node)
}

// Latched implements metastate.View.
func (v unlessRemoved) Latched() bool { return !v.removed() && v.View.Latched() }
