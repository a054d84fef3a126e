package sim

import (
	"slices"

	"github.com/narad-mq/narad/libs/quorum"
)

// rot damages something that a copy has committed and knows to be: it leads no more,
// and counts for what lies below until it is repaired. As with losses, a majority
// stays sound, but of a pair one is enough to go on.
func (n *node) rot() bool {
	d := &n.disk
	room := int(min(d.hwm, d.synced) - d.log.base.start)
	if !n.up || d.damaged || room < 1 || !n.w.bears(n) {
		return false
	}
	d.damaged, d.bad = true, d.log.base.start+int64(n.w.draw.n(room))
	n.note("is damaged at %d", d.bad)
	n.w.stats.Damaged++
	if n.lead != nil {
		n.follow()
	}
	return true
}

// bears tells whether one more damaged copy can be borne.
func (w *world) bears(n *node) bool {
	set := w.meta.now().set.Replicas
	if !slices.ContainsFunc(set, func(r quorum.Replica) bool { return r.Node == n.name }) || w.survives(set, n) {
		return true
	}
	return len(set) == 2 && w.survives(set, nil)
}

// gone: the log begins at start by now.
func (n *node) gone(start int64) {
	if n.disk.damaged && n.disk.bad < start {
		n.disk.damaged = false
		n.note("has lost its damage to retention")
	}
}

// repair puts what the leader has in place of what is damaged.
func (n *node) repair(m *message) {
	d, a := &n.disk, &m.answer
	if a.Offset != d.bad || a.Epoch != n.follower.Epoch() || a.Epoch < n.fence.Promised() {
		return
	}
	switch {
	case a.Kind == quorum.Snapshot && a.LogStart > d.bad:
	case a.Kind == quorum.Records && len(m.recs) > 0:
		if m.recs[0].hash != d.log.at(d.bad).hash {
			fail("%s is repaired at %d with other records than it had committed", n.name, d.bad)
		}
	default:
		return
	}
	d.damaged = false
	n.note("is repaired at %d", d.bad)
}

// alive tells whether a majority of a set is there, damaged or not.
func (w *world) alive(set []quorum.Replica) bool {
	n := 0
	for _, r := range set {
		if w.node(r.Node).whole(r) {
			n++
		}
	}
	return n >= quorum.Majority(len(set))
}

// earlier is the set to which the last change can be taken back without a word: the one
// without the replica that it added; nil: it added none.
func earlier(set *quorum.Set) []quorum.Replica {
	if len(set.Before) < len(set.Replicas) {
		return set.Before
	}
	return nil
}

// outlives tells whether a set could go on once its last change is taken back.
func (w *world) outlives(set *quorum.Set, without *node) bool {
	before := earlier(set)
	return before != nil && w.survives(before, without)
}

// endsIgnored is the mistake of taking a damaged copy's promise without its log.
func endsIgnored(answers []quorum.FenceAnswer) []quorum.FenceAnswer {
	out := slices.Clone(answers)
	for i := range out {
		if out[i].Damaged {
			out[i].LastEpoch, out[i].LEO, out[i].Settled = 0, 0, 0
		}
	}
	return out
}
