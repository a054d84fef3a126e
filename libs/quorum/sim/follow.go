package sim

import (
	"slices"

	"github.com/narad-mq/narad/libs/quorum"
)

// batchMax bounds the records of one fetch answer, so that catching up takes a
// while.
const batchMax = 3

// fetch sends the next fetch to the leader that the metastore shows.
func (n *node) fetch() bool {
	if !n.up || n.w.stats.Steps < n.idleUntil {
		return false
	}
	n.demote()
	if n.lead != nil || (n.asked && !n.w.draw.one(8)) {
		return false
	}
	req, ok := n.follower.Request()
	leader := n.shown().lead
	if _, member := n.shown().recorded(n.name); !member && !slices.Contains(n.shown().observers, n.name) {
		return false
	}
	if !ok || leader.Leader == "" || leader.Leader == n.name || leader.Epoch != req.Epoch {
		return false
	}
	n.asked = true
	if n.disk.damaged { // it counts for no more than what lies below
		req.Offset, req.LastEpoch = n.disk.bad, quorum.EpochAt(n.disk.log.history, n.disk.bad)
	}
	n.w.send(message{kind: fetchAsked, from: n.name, to: leader.Leader, fetch: req, sentMS: n.w.now})
	return true
}

// onAnswer takes what a leader answered.
func (n *node) onAnswer(m *message) {
	n.asked = false
	if n.lead != nil {
		return
	}
	if n.disk.damaged {
		n.repair(m)
		return
	}
	step, err := n.follower.Take(m.answer, n.disk.log.history)
	if err != nil {
		if n.w.tracing {
			n.note("refuses an answer: %v", err)
		}
		return
	}
	switch d := &n.disk; step.Do {
	case quorum.Append:
		n.appendAll(m.recs)
	case quorum.Truncate:
		to := step.To
		if n.w.bug == TruncateBelowHWM {
			to = d.log.base.start
		}
		n.truncate(to)
	case quorum.Install:
		d.log = logFrom(m.base)
		d.synced = d.log.end()
		n.follower.Installed(d.log.end(), d.log.lastEpoch())
		d.hwm = max(d.hwm, d.synced)
		n.note("takes the snapshot at %d", d.synced)
	}
}

func (n *node) appendAll(recs []rec) {
	for _, r := range recs {
		if err := n.follower.MayAppend(n.disk.log.end(), r.epoch); err != nil {
			fail("%s: %v", n.name, err)
		}
		n.disk.log.append(r)
		n.w.check.record(n, n.disk.log.end()-1)
		n.follower.Appended(n.disk.log.end(), r.epoch)
	}
	if n.w.tracing && len(recs) > 0 {
		n.note("appends up to %d", n.disk.log.end())
	}
}

// truncate cuts the log durably.
func (n *node) truncate(to int64) {
	kept := n.disk.log.numbers
	n.disk.log.cut(to)
	if n.w.bug == NumbersKept {
		n.disk.log.numbers = kept
	}
	n.disk.synced = to
	n.follower.Truncated(to, n.disk.log.lastEpoch())
	n.w.stats.Truncated++
	n.note("cuts its log at %d", to)
}

// sync finishes a sync of everything written.
func (n *node) sync() bool {
	d := &n.disk
	if !n.up || d.synced == d.log.end() {
		return false
	}
	n.demote()
	d.synced = d.log.end()
	if n.w.tracing {
		n.note("synced up to %d", d.synced)
	}
	if n.lead == nil {
		n.follower.Synced(d.synced)
		return true
	}
	n.lead.Synced(d.synced)
	n.progressed()
	return true
}

// failSync fails a sync: the log is cut at its synced end, and a leader leads no
// more.
func (n *node) failSync() bool {
	d := &n.disk
	if !n.up || d.synced == d.log.end() {
		return false
	}
	n.note("fails to sync %d to %d", d.synced, d.log.end())
	d.log.cut(d.synced)
	switch {
	case n.lead == nil:
		n.follower.Truncated(d.synced, d.log.lastEpoch())
	case n.w.bug == ReopenSameEpoch:
		n.waiting = nil
	default:
		n.lead.Failed()
		n.demote()
	}
	return true
}

// onFence takes a fence call; the promise counts in memory at once.
func (n *node) onFence(m *message) {
	if err := n.fence.Promise(m.epoch, n.shown().lead); err != nil {
		if n.w.tracing {
			n.note("refuses: %v", err)
		}
		return
	}
	n.promise = m.epoch
	n.note("promises %d", m.epoch)
}

// storeFence finishes the write of a promise and answers.
func (n *node) storeFence() bool {
	if !n.up || n.promise == 0 {
		return false
	}
	epoch := n.promise
	n.promise = 0
	if n.w.bug != FenceLost {
		n.disk.fence = epoch
	}
	n.fence.Stored(epoch)
	a, err := n.fence.Answer(epoch, slices.Clone(n.disk.log.history), n.disk.synced, n.hwm(), 0)
	if err != nil {
		return true
	}
	a.Damaged = n.disk.damaged
	n.w.send(message{kind: fenceAnswered, from: n.name, fenced: a})
	if n.w.tracing {
		n.note("answers the fence %d: epoch %d, end %d", epoch, a.LastEpoch, a.LEO)
	}
	return true
}
