package partition

import (
	"errors"

	"github.com/narad-mq/narad/libs/topic"
)

// errNotPrimed: this process was not told what others know of positions. It was
// started after the one that was told, and would deliver again what was settled: it
// does not lead, and another election follows.
var errNotPrimed = errors.New("elected, but not primed with what other replicas know of positions")

// primed is what the controller collected for a leadership to come, in memory: with
// the process goes the right to lead that epoch.
type primed struct {
	epoch     topic.Epoch
	positions [][]byte
}

// Prime keeps positions for the leadership of an epoch. false: that is not the epoch
// that is promised here, or another one leads it, so no leadership of it will begin.
func (p *Partition) Prime(epoch topic.Epoch, positions [][]byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed || epoch != p.fence.Promised(), p.follower != nil && p.follower.Epoch() >= epoch:
		return false
	case p.leader == nil: // else it has begun, with what was told before
		p.primed = primed{epoch, positions}
	}
	return true
}
