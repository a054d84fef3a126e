package dispatch

import (
	"maps"
	"testing"
	"time"
)

type fakeSuspects struct {
	ids     map[string]bool
	changed chan struct{}
}

func (f *fakeSuspects) All() map[string]bool     { return f.ids }
func (f *fakeSuspects) Changed() <-chan struct{} { return f.changed }

// TestMachineHearsOfSuspects: of what changed, once.
func TestMachineHearsOfSuspects(t *testing.T) {
	from := &fakeSuspects{changed: make(chan struct{})}
	s := suspicions{from: from}
	for _, step := range []struct{ now, want map[string]bool }{
		{nil, map[string]bool{}},
		{map[string]bool{"a": true, "b": true}, map[string]bool{"a": true, "b": true}},
		{map[string]bool{"a": true, "b": true}, map[string]bool{}},
		{map[string]bool{"b": true, "c": true}, map[string]bool{"a": false, "c": true}},
		{nil, map[string]bool{"b": false, "c": false}},
	} {
		from.ids = step.now
		told := map[string]bool{}
		s.tell(time.Second, func(_ time.Duration, id string, suspected bool) { told[id] = suspected })
		if !maps.Equal(told, step.want) {
			t.Errorf("suspects %v: told %v, want %v", step.now, told, step.want)
		}
	}
	if s.changed == nil {
		t.Error("it does not wait for the next change")
	}
	(&suspicions{}).tell(time.Second, nil) // nobody to ask
}
