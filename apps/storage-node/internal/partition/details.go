package partition

import (
	"github.com/narad-mq/narad/apps/storage-node/internal/queue"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// Details reports the partition as its leader sees it, but for the replicas of
// others.
func (p *Partition) Details(a *topic.Assignment) nodeapi.PartitionDetails {
	var st queue.Stats
	if q := p.queue.Load(); q != nil {
		st = q.Stats()
	}
	leo, hwm := p.log.LEO(), p.hwm.Load()
	d := nodeapi.PartitionDetails{
		Partition: p.ref.Partition, Epoch: a.LeaderEpoch, ConfigVersion: a.ConfigVersion,
		LogStart: p.LogStart(), HighWatermark: hwm, LogEnd: max(leo, hwm),
		Frontier: st.Frontier, SettledAhead: st.SettledAhead, InFlight: st.InFlight,
		DroppedUnsettled: st.Dropped, Bytes: p.log.Bytes(),
		Replicas: p.replicas(),
	}
	if st.Unsettled {
		d.OldestUnsettledMS = p.age(st.Frontier)
	}
	return d
}

// replicas is what the leader knows of each replica of the set.
func (p *Partition) replicas() []nodeapi.ReplicaDetails {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leader == nil {
		return []nodeapi.ReplicaDetails{}
	}
	end, now := max(p.leader.LEO(), p.leader.HWM()), p.s.Mono()
	out := make([]nodeapi.ReplicaDetails, 0, p.setSize)
	for i, m := range p.leader.Progress() {
		if i >= p.setSize { // observers and copies that wait to be re-admitted
			break
		}
		r := nodeapi.ReplicaDetails{ID: m.Replica.Node, LogEnd: m.End}
		if m.Replica.Node == p.s.Node {
			r.LogEnd, r.InSync = end, true
		} else {
			r.InSync = m.Counts && m.Heard && now-m.HeardMS < quorum.LeaseMS && m.End >= p.leader.HWM()
		}
		r.Lag = max(end-r.LogEnd, 0)
		out = append(out, r)
	}
	return out
}

// Lag is how far the slowest replica is behind what this leader has written: in
// offsets, and in ms since it had everything. Zero for a lone copy and a follower.
func (p *Partition) Lag() (records, ms int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leader == nil || p.setSize < 2 {
		return 0, 0
	}
	end, now := p.log.WrittenEnd(), p.s.Mono()
	for i, m := range p.leader.Progress() {
		if i >= p.setSize || m.Replica.Node == p.s.Node || m.End >= end {
			continue
		}
		records = max(records, end-m.End)
		ms = max(ms, now-max(p.level[m.Replica.Node], p.ledSince))
	}
	return records, ms
}

// age is how long ago the record at off was committed, in milliseconds; 0 when
// it cannot be read.
func (p *Partition) age(off int64) int64 {
	b, err := p.Batch(off)
	if err != nil {
		return 0
	}
	return max(p.clock()-b.CommitMS, 0)
}

// clock is the partition clock now.
func (p *Partition) clock() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leader == nil {
		return p.s.Now().UnixMilli()
	}
	return p.clockLocked()
}

// Retain removes what the topic's settings no longer keep. What was not settled
// of it is counted.
func (p *Partition) Retain(c *topic.Config) error {
	done, err := p.log.Retain(p.clock(), c.RetentionMS, c.RetentionBytes, p.hwm.Load())
	if done.Segments > 0 {
		lost := int64(0)
		if q := p.queue.Load(); q != nil {
			lost = q.Advance()
		}
		p.s.Metrics.DroppedUnsettled.Add(float64(lost))
		p.s.Log.Info("retention removed segments", "partition", p.ref.String(), "segments", done.Segments,
			"bytes", done.Bytes, "log_start", done.LogStart, "dropped_unsettled", lost)
	}
	return err
}
