package partition

import (
	"maps"
	"sync/atomic"

	"github.com/narad-mq/narad/libs/fanout"
	"github.com/narad-mq/narad/libs/topic"
)

// cursors is what a partition keeps for the children of its topic: how far each of
// them was served, beside the consumer's positions in the same state.
type cursors struct {
	// tap is told that the high watermark moved; it must not wait. nil: nobody listens.
	tap atomic.Pointer[func()]

	// posMu of the partition guards what follows.
	epoch topic.Epoch // of the leadership whose cursors these are; 0: none
	at    map[topic.ID64]fanout.Position
}

// openCursors takes the positions of cursors out of those that were stored and
// those that other copies had, and returns what is left of both, the consumer's.
func (p *Partition) openCursors(epoch topic.Epoch, others [][]byte) (consumer []byte, rest [][]byte) {
	p.posMu.Lock()
	defer p.posMu.Unlock()
	consumer, at, err := fanout.ParsePositions(p.state.Position)
	if at == nil {
		at = map[topic.ID64]fanout.Position{}
	}
	for _, o := range others {
		c, more, bad := fanout.ParsePositions(o)
		if bad != nil {
			err = bad
			continue
		}
		fanout.MergePositions(at, more)
		if len(c) > 0 {
			rest = append(rest, c)
		}
	}
	if err != nil {
		p.s.Log.Error("stored positions are damaged; what was settled is delivered again, and children drop what comes twice",
			"partition", p.ref.String(), "error", err)
	}
	p.cursors.epoch, p.cursors.at = epoch, at
	return consumer, rest
}

// renewCursors goes on with the same positions under another epoch.
func (p *Partition) renewCursors(epoch topic.Epoch) {
	p.posMu.Lock()
	defer p.posMu.Unlock()
	p.cursors.epoch = epoch
}

// Serving tells whether the partition is led here under that epoch and may serve.
func (p *Partition) Serving(epoch topic.Epoch) bool {
	return p.Epoch() == epoch && p.Queue() != nil
}

// Clock is the partition clock, which stamps commits, in Unix ms.
func (p *Partition) Clock() int64 { return p.clock() }

// Tap makes f run whenever the high watermark moves under a leadership here; f must
// not wait, and must not call back. nil ends it.
func (p *Partition) Tap(f func()) {
	if f == nil {
		p.cursors.tap.Store(nil)
		return
	}
	p.cursors.tap.Store(&f)
}

func (p *Partition) tapped() {
	if f := p.cursors.tap.Load(); f != nil {
		(*f)()
	}
}

// Cursors is how far the cursors of a leadership are, by attach epoch; nil when it
// is not this one.
func (p *Partition) Cursors(epoch topic.Epoch) map[topic.ID64]fanout.Position {
	p.posMu.Lock()
	defer p.posMu.Unlock()
	if epoch == 0 || p.cursors.epoch != epoch {
		return nil
	}
	return maps.Clone(p.cursors.at)
}

// SetCursor moves a cursor on, never back, to be stored soon. false: the leadership
// is over, and nothing was changed.
func (p *Partition) SetCursor(epoch topic.Epoch, attach topic.ID64, to fanout.Position) bool {
	p.posMu.Lock()
	if epoch == 0 || p.cursors.epoch != epoch {
		p.posMu.Unlock()
		return false
	}
	was, known := p.cursors.at[attach]
	fanout.MergePositions(p.cursors.at, map[topic.ID64]fanout.Position{attach: to})
	changed := !known || p.cursors.at[attach] != was
	p.posMu.Unlock()
	if q := p.queue.Load(); changed && q != nil {
		q.Touch()
	}
	return true
}

// DropCursor forgets a cursor whose attachment has ended, if the leadership lasts.
func (p *Partition) DropCursor(epoch topic.Epoch, attach topic.ID64) {
	p.posMu.Lock()
	current := epoch != 0 && p.cursors.epoch == epoch
	if current {
		delete(p.cursors.at, attach)
	}
	p.posMu.Unlock()
	if q := p.queue.Load(); current && q != nil {
		q.Touch()
	}
}
