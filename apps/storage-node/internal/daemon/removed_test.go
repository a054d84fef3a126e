package daemon

import (
	"errors"
	"testing"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// latched is a replica that has caught up.
type latched struct{ metastate.View }

func (latched) Assignments(string) (*metastate.Partitions, error) {
	return &metastate.Partitions{}, nil
}
func (latched) AssignmentsOf(string) ([]topic.Assignment, error) { return nil, nil }
func (latched) Latched() bool                                    { return true }

func TestARemovedNodeKnowsNoPartition(t *testing.T) {
	removed := false
	v := unlessRemoved{latched{}, func() bool { return removed }}
	look := func() (latched bool, errs [2]error) {
		_, errs[0] = v.Assignments("orders")
		_, errs[1] = v.AssignmentsOf("s1")
		return v.Latched(), errs
	}
	if ok, errs := look(); !ok || errs != [2]error{} {
		t.Errorf("a member: %v, %v", ok, errs)
	}
	removed = true
	ok, errs := look()
	for _, err := range errs {
		if !errors.Is(err, metastate.ErrUnavailable) {
			t.Errorf("removed: %v", err)
		}
	}
	if ok {
		t.Error("removed, and it decides")
	}
}
