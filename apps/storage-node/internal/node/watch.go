package node

import (
	"context"
	"errors"
	"time"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/partlog"
	"github.com/narad-mq/narad/libs/topic"
)

// settleTime lets a burst of changes (a thousand topics made at once) cost one
// look over the open partitions.
const settleTime = 20 * time.Millisecond

// lookAgain is between looks while a lone partition has not the role that it should
// have: work for the assignment before was in flight, or it failed. Nothing else would
// ever give it that role, if nothing else changes.
const lookAgain = 200 * time.Millisecond

// watch follows the replica until ctx ends.
func (n *Node) watch(ctx context.Context) {
	timer, pending := time.NewTimer(0), time.NewTimer(time.Hour)
	defer timer.Stop()
	defer pending.Stop()
	<-timer.C
	for {
		changed := n.view.Changed() // before the look, so that no change falls between
		pending.Stop()
		if n.reconcile(ctx) {
			pending.Reset(lookAgain)
		}
		n.applied()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-pending.C:
		}
		timer.Reset(settleTime)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
	}
}

// reconcile compares every open partition with the replica: ended ones are
// dropped, lone ones under another epoch are led anew, and one that was left over of a
// pair counts by itself from now on: package replication looks after pairs only. again:
// it has to be looked whether that has happened.
func (n *Node) reconcile(ctx context.Context) (again bool) {
	n.slots.Range(func(k, v any) bool {
		ref, _ := k.(topic.Ref)
		s := asSlot(v)
		switch j := judge(n.view, n.self, n.disk, ref); j.standing {
		case notLeader, lost:
			if !j.holds(n.self) {
				n.drop(ref, s)
			} // else package replication gives it its role
		case gone, replaced, unknown:
			n.drop(ref, s)
		case leads:
			if p := s.open.Load(); p != nil && !j.a.Replicated() && !p.Holds(j.a) {
				_, _ = n.begin(s, ref, j.a) // an error is remembered there, and told to who asks
				again = true
			}
		case notReady: // before the latch nothing is decided
		}
		return ctx.Err() == nil
	})
	return again
}

const (
	// diskEvery: free space is looked at this often; a disk does not fill faster
	// than minFree in that time.
	diskEvery = time.Second
	// minFree is what commits leave free, so that positions can still be saved
	// and a full disk is a refusal, not a failed write: two segments. On a small
	// disk it is a twentieth.
	minFree = 128 << 20
)

// watchDisk looks again. It has a goroutine of its own: a pass over all partitions may
// take minutes, and in that time the disk may fill up.
func (n *Node) watchDisk() {
	if err := n.lookAtDisk(); err != nil {
		n.log.Warn("free space of the data disk is unknown", "error", err)
	}
}

func (n *Node) lookAtDisk() error {
	total, free, err := n.cfg.FS.Usage(n.cfg.DataDir)
	if err != nil {
		return err
	}
	n.free.Store(free)
	full := free < min(minFree, total/20)
	if n.full.Swap(full) != full {
		n.log.Warn("free space of the data disk", "free_bytes", free, "commits_refused", full)
	}
	return nil
}

// retain goes over every partition that this node has, opens those that were
// not used since the start (so that old data ages there too, and a tail of the
// epoch before is committed), and lets go of files that nobody uses.
func (n *Node) retain(ctx context.Context) {
	led, err := n.view.AssignmentsOf(n.self)
	if err != nil {
		return // before the latch
	}
	for i := range led {
		a := &led[i]
		if ctx.Err() != nil {
			return
		}
		if j := judge(n.view, n.self, n.disk, a.Ref); j.standing != leads && !j.holds(n.self) {
			continue
		}
		t, err := n.view.Topic(a.Topic)
		if err != nil || t.Incarnation != a.Incarnation {
			continue
		}
		p := n.peek(a.Ref)
		if p == nil && !a.Replicated() {
			if p, err = n.partition(ctx, a.Ref, a); err != nil {
				continue // logged where it was opened
			}
		}
		if p == nil {
			continue // package replication opens it
		}
		if err := p.Retain(&t.Config); err != nil && !errors.Is(err, metastate.ErrUnavailable) {
			n.log.Warn("retention failed and is tried again", "partition", a.String(), "error", err)
		}
		if _, err := p.Idle(); err != nil {
			n.log.Warn("closing idle files", "partition", a.String(), "error", err)
		}
	}
}

// every calls do again and again until ctx ends.
func every(ctx context.Context, pause time.Duration, do func()) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// stallEvery is between looks for an fsync that does not return.
const stallEvery = time.Second

// giveUpStalled ends leaderships over a disk that does not answer. It must not wait
// for anything that touches the disk.
func (n *Node) giveUpStalled() {
	n.slots.Range(func(_, v any) bool {
		if p := asSlot(v).open.Load(); p != nil {
			p.GiveUp()
		}
		return true
	})
}

// scrubEvery is between two segments that are read to find damage before a consumer
// does: 64 MiB in 10 s are a terabyte in two days.
const scrubEvery = 10 * time.Second

// scrubber goes over the sealed and active segments of all open partitions, one after
// the other.
type scrubber struct {
	refs   []topic.Ref // that are still to be read in this round
	offset int64       // in the first of them
}

// next reads one segment.
func (s *scrubber) next(n *Node) {
	if len(s.refs) == 0 {
		n.slots.Range(func(k, _ any) bool {
			if ref, ok := k.(topic.Ref); ok {
				s.refs = append(s.refs, ref)
			}
			return true
		})
	}
	for len(s.refs) > 0 {
		p := n.peek(s.refs[0])
		if p != nil {
			next, err := p.Scrub(s.offset)
			if err != nil && !errors.Is(err, partlog.ErrClosed) {
				n.log.Warn("a segment cannot be read", "partition", s.refs[0].String(), "offset", s.offset, "error", err)
			}
			if err == nil && next > 0 {
				s.offset = next
				return
			}
		}
		s.refs, s.offset = s.refs[1:], 0
		if p != nil {
			return
		}
	}
}

// DiskFull tells whether commits are refused because the data disk is full.
func (n *Node) DiskFull() bool { return n.full.Load() }
