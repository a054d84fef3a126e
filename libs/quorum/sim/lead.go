package sim

import (
	"slices"

	"github.com/narad-mq/narad/libs/quorum"
)

// waiter is a client that waits for the HWM.
type waiter struct {
	client int8
	seq    int32
	need   int64
}

// read is a confirmed read under way.
type read struct {
	round     uint64
	hwm       int64
	committed int64 // by anybody, when it began
}

// tryLead begins the leadership that the metastore gave to this node.
func (n *node) tryLead() {
	s := n.shown()
	if n.lead != nil && n.lead.Epoch() == s.lead.Epoch || !n.registered() {
		return
	}
	if n.disk.damaged {
		if len(s.set.Replicas) > 1 {
			return
		}
		n.disk.damaged = false // nobody else has it: it goes on without
	}
	config, fence := s.config(), n.fence
	switch n.w.bug {
	case RestartRaisesEpoch:
		if fence.Promise(s.lead.Epoch, quorum.Leadership{Epoch: s.lead.Epoch}) == nil {
			fence.Stored(s.lead.Epoch)
		}
	case WipedLeads:
		config, fence = n.asRecorded(config)
	}
	hwm := n.hwm()
	n.disk.synced = n.disk.log.end() // synced before it leads
	l, err := quorum.Lead(fence, config, s.lead.Epoch, quorum.Log{
		LEO: n.disk.synced, HWM: hwm, LastEpoch: n.disk.log.lastEpoch(),
	})
	if n.follower != nil {
		n.follower.Synced(n.disk.synced)
	}
	if err != nil {
		if n.w.tracing {
			n.note("does not lead: %v", err)
		}
		return
	}
	n.lead, n.follower, n.waiting, n.reads, n.paused = l, nil, nil, nil, false
	n.ends, n.highest = map[quorum.Replica]int64{}, 0
	n.note("leads epoch %d from %d on, high watermark %d", l.Epoch(), l.Start(), l.HWM())
	n.w.check.leads(n)
	n.w.stats.Elections++
	n.needed()
}

// asRecorded is the mistake of a wiped copy that leads because its node is named.
func (n *node) asRecorded(c quorum.Config) (quorum.Config, *quorum.Fence) {
	i := slices.IndexFunc(c.Replicas, func(r quorum.Replica) bool { return r.Node == n.name })
	if i < 0 || c.Replicas[i] == n.self() {
		return c, n.fence
	}
	c.Replicas = slices.Clone(c.Replicas)
	c.Replicas[i] = n.self()
	return c, quorum.NewFence(n.self(), n.shown().lead.Epoch)
}

// needed appends a leader-change record when one is due.
func (n *node) needed() {
	if n.lead != nil && !n.paused && n.lead.NeedsBatch() {
		n.appendOwn(control, 0)
	}
}

func (n *node) appendOwn(client int8, seq int32) {
	n.disk.log.append(rec{epoch: n.lead.Epoch(), client: client, seq: seq})
	n.w.check.record(n, n.disk.log.end()-1)
	n.lead.Appended(n.disk.log.end())
}

// applySet takes over the set that the metastore shows.
func (n *node) applySet() {
	if _, err := n.lead.Apply(n.shown().config(), n.disk.log.end()); err == nil {
		n.needed()
		n.progressed()
	}
}

// onFetch answers a fetch.
func (n *node) onFetch(m *message) {
	if n.lead == nil {
		return
	}
	log := &n.disk.log
	view := quorum.LogView{Start: log.base.start, Written: log.end(), History: log.history}
	a, _, err := n.lead.Fetch(m.fetch, view, n.w.now)
	if n.w.tracing {
		n.note("is asked by %s from %d (epoch %d): %d, %v", m.from, m.fetch.Offset, m.fetch.LastEpoch, a.Kind, err)
	}
	if err != nil {
		n.demote()
		return
	}
	n.w.check.heard(n, n.w.now-m.sentMS)
	n.misjudge(m.fetch, a.Kind)
	n.progressed()
	a.HWM = n.hwm()
	out := message{kind: fetchAnswered, from: n.name, to: m.from, answer: a}
	switch a.Kind {
	case quorum.Records:
		if from := a.Offset - log.base.start; from < int64(len(log.recs)) {
			n := 1 + int64(n.w.draw.n(batchMax))
			out.recs = slices.Clone(log.recs[from:min(from+n, int64(len(log.recs)))])
		}
	case quorum.Snapshot:
		out.base = log.base
	}
	n.w.send(out)
}

// progressed answers who waited, when the HWM has moved, and ends reads.
func (n *node) progressed() {
	if n.lead == nil || n.lead.Ended() != nil {
		return
	}
	hwm := n.hwm()
	n.w.check.commit(n, hwm)
	n.waiting = slices.DeleteFunc(n.waiting, func(v waiter) bool {
		if v.need <= hwm {
			n.acknowledge(v.client, v.seq)
		}
		return v.need <= hwm
	})
	n.reads = slices.DeleteFunc(n.reads, func(r read) bool {
		ok := n.lead.Confirmed(r.round)
		if ok && r.hwm < r.committed {
			fail("%s confirms a read up to %d under epoch %d, and %d were committed when it began",
				n.name, r.hwm, n.lead.Epoch(), r.committed)
		}
		return ok
	})
}

func (n *node) acknowledge(client int8, seq int32) {
	n.w.check.acknowledged(n, client, seq)
	n.w.send(message{kind: acknowledged, from: n.name, client: client, seq: seq})
}

// onProduce appends a record, or knows it; either way it is answered when the HWM
// has passed what the log held then.
func (n *node) onProduce(m *message) {
	if n.lead == nil || n.paused || n.lead.Ended() != nil {
		return
	}
	known := m.seq <= n.disk.log.numbers[m.client]
	if known && n.w.bug == DuplicateAnsweredEarly {
		n.acknowledge(m.client, m.seq)
		return
	}
	if !known {
		n.appendOwn(m.client, m.seq)
		if n.w.tracing {
			n.note("appends %d of client %d at %d", m.seq, m.client, n.disk.log.end()-1)
		}
	}
	n.waiting = append(n.waiting, waiter{m.client, m.seq, n.disk.log.end()})
	n.progressed()
}

// read begins a confirmed read, and looks whether a plain one would be answered.
func (n *node) read() bool {
	if n.lead == nil {
		return false
	}
	if n.lead.MayServe(n.w.now) {
		n.w.check.served(n)
	}
	if round, hwm, ok := n.lead.Confirm(); ok {
		n.reads = append(n.reads, read{round, max(hwm, n.highest), int64(len(n.w.check.ledger))})
		n.progressed()
	}
	return true
}

// vouch is what this leader says about changes.
func (n *node) vouch() (quorum.Vouch, bool) {
	if n.lead == nil || n.lead.Ended() != nil {
		return quorum.Vouch{}, false
	}
	near := func(end int64) bool { return n.disk.log.end()-end <= 2*batchMax }
	v := n.lead.Vouch(near)
	switch n.w.bug {
	case ChangeJudgedByOldHWM:
		v.Settled = n.lead.CanServe()
	case ReadmitBelowInheritedHWM:
		v.Settled, v.Readmissible = true, nil
		for _, p := range n.lead.Progress() {
			if r, ok := n.shown().recorded(p.Replica.Node); ok && r != p.Replica && p.End >= n.lead.HWM() {
				v.Readmissible = append(v.Readmissible, p.Replica)
			}
		}
	}
	return v, true
}

// misjudge keeps the HWM that a planted bug would have.
func (n *node) misjudge(f quorum.Fetch, kind quorum.Reply) {
	rule := n.w.bug
	if rule != NoEpochRule && rule != CountObservers && rule != OldDiskCounts || kind != quorum.Records {
		return
	}
	if rule == OldDiskCounts {
		f.From = quorum.Replica{Node: f.From.Node}
		f.Offset = max(f.Offset, n.ends[f.From])
	}
	n.ends[f.From] = f.Offset
	set := n.shown().set.Replicas
	ends := []int64{n.disk.synced}
	for r, end := range n.ends {
		named, ok := n.shown().recorded(r.Node)
		if rule == CountObservers || (ok && (rule == OldDiskCounts || r == named)) {
			ends = append(ends, end)
		}
	}
	for len(ends) < len(set) {
		ends = append(ends, 0)
	}
	slices.Sort(ends)
	end := min(ends[len(ends)-quorum.Majority(len(set))], n.disk.synced)
	if rule == NoEpochRule || end > n.lead.Start() {
		n.highest = max(n.highest, end)
	}
}
