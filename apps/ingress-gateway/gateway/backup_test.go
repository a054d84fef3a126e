package gateway

import (
	"errors"
	"fmt"
	"testing"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/raftnode"
)

// TestRefusedBackups: what a client can act on, and everything else as it is.
func TestRefusedBackups(t *testing.T) {
	for want, err := range map[problem.Code]error{
		problem.NotReady:   fmt.Errorf("x: %w: no_leader", raftnode.ErrNotCaughtUp),
		problem.Overloaded: fmt.Errorf("x: %w", raftnode.ErrBusy),
	} {
		if got := refusedBackup(err); !problem.HasCode(got, want) {
			t.Errorf("%v became %v, want %s", err, got, want)
		}
	}
	if other := errors.New("disk"); !errors.Is(refusedBackup(other), other) {
		t.Error("another error was hidden")
	}
}
