package sim

import (
	"time"

	"github.com/narad-mq/narad/libs/dispatchq"
	"github.com/narad-mq/narad/libs/topic"
)

// stream is what producer numbers are kept for.
type stream struct {
	wal       topic.ID64
	partition int32
	pinned    bool
}

// entry is one record in a partition log.
type entry struct {
	stream stream
	seq    uint64
	rec    int // ledger number
}

// partition is one single-copy partition: a log, and what of it is committed.
type partition struct {
	log   []entry
	high  int // high watermark: synced and committed below
	known map[stream]uint64
	waits []wait
	sync  bool // a sync is under way
}

// wait is a commit that is answered when the high watermark reached end.
type wait struct {
	end    int
	answer func(dispatchq.Outcome)
}

// node is one storage node, which leads the partitions of its number modulo nodes.
type node struct {
	s       *Sim
	id      string
	up      bool
	hanging bool // takes requests and neither does nor answers anything
	refuses bool // answers every commit with a definite no
	epoch   topic.Epoch
	parts   map[int32]*partition
}

// commit is a request that arrived.
func (n *node) commit(b dispatchq.Batch, key dispatchq.Key, recs []int, answer func(dispatchq.Outcome)) {
	if !n.up || n.hanging {
		return // the sender's timer ends it
	}
	if n.refuses || b.Target.Epoch != n.epoch {
		answer(dispatchq.Refused)
		return
	}
	p := n.parts[b.Target.Partition]
	fresh := false
	for i, it := range b.Items {
		st := stream{it.WAL, key.Partition, key.Pinned}
		if it.Seq <= p.known[st] {
			continue
		}
		fresh = true
		p.known[st] = it.Seq
		p.log = append(p.log, entry{st, it.Seq, recs[i]})
	}
	if !fresh && n.s.cfg.Bug == EarlyDuplicateAnswer {
		answer(dispatchq.Committed)
		return
	}
	p.waits = append(p.waits, wait{len(p.log), answer})
	n.startSync(p)
}

func (n *node) startSync(p *partition) {
	if p.sync {
		return
	}
	p.sync = true
	d := n.s.clock.between(time.Millisecond, 20*time.Millisecond)
	if n.s.faulty() && n.s.clock.chance(20) {
		d = n.s.clock.between(time.Second, 8*time.Second)
	}
	epoch, end := n.epoch, len(p.log)
	n.s.clock.after(d, func() {
		if n.epoch != epoch || !n.up {
			return
		}
		p.sync = false
		n.s.committed(n, p, end)
		p.high = max(p.high, end)
		var left []wait
		for _, w := range p.waits {
			if w.end <= p.high {
				w.answer(dispatchq.Committed)
			} else {
				left = append(left, w)
			}
		}
		p.waits = left
		if len(p.waits) > 0 {
			n.startSync(p)
		}
	})
}

// crash cuts what was not synced at a random place and forgets who waits.
func (n *node) crash() {
	n.up = false
	n.epoch++
	for i := int32(0); i < n.s.cfg.Partitions; i++ {
		p := n.parts[i]
		if p == nil {
			continue
		}
		p.log = p.log[:p.high+n.s.clock.rng.IntN(len(p.log)-p.high+1)]
		p.waits, p.sync = nil, false
		p.known = map[stream]uint64{}
		for _, e := range p.log {
			p.known[e.stream] = max(p.known[e.stream], e.seq)
		}
	}
}

// start commits the tail that survived, under the new epoch.
func (n *node) start() {
	n.up, n.hanging, n.refuses = true, false, false
	for i := int32(0); i < n.s.cfg.Partitions; i++ {
		if p := n.parts[i]; p != nil {
			n.s.committed(n, p, len(p.log))
			p.high = len(p.log)
		}
	}
}
