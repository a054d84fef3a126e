package sim

import (
	"fmt"

	"github.com/narad-mq/narad/libs/dispatchq"
)

// attempt is one partition that a record was sent to by one life of the gateway.
type attempt struct {
	partition int32
	life      int // of the gateway
	pending   int // sends whose outcome is not known to be "nothing done"
	committed bool
	batch     *batchFate // of the first send that may be pending
}

// batchFate is shared by the records of one batch.
type batchFate struct {
	released bool // a part of it had to go elsewhere: nobody could answer
}

// row is what the ledger knows of one record.
type row struct {
	acknowledged bool
	excusedLoss  bool // accepted after the copy that the volume was restored from
	excusedTwice bool // a listed reason for copies in two partitions
	attempts     []attempt
	copies       map[int32]int
}

// ledger sees everything and judges it.
type ledger struct {
	s          *Sim
	rows       []row
	violations []string
}

func (l *ledger) violate(format string, args ...any) {
	l.violations = append(l.violations, fmt.Sprintf(format, args...))
}

func (l *ledger) accepted(acknowledged bool) int {
	l.rows = append(l.rows, row{acknowledged: acknowledged, copies: map[int32]int{}})
	return len(l.rows) - 1
}

// sent checks that a record goes to a second partition only when nobody can
// answer any more for the first, or when the gateway forgot that it had sent it.
func (l *ledger) sent(g *gateway, b dispatchq.Batch, recs []int) {
	to := b.Target.Partition
	if b.Key.Pinned && to != b.Key.Partition {
		l.violate("pinned record sent to partition %d", to)
	}
	fate := &batchFate{}
	for _, rec := range recs {
		r := &l.rows[rec]
		var at *attempt
		for i := range r.attempts {
			a := &r.attempts[i]
			if a.partition == to {
				if a.life == g.life {
					at = a
				}
				continue
			}
			if a.pending == 0 && !a.committed {
				continue
			}
			if a.life == g.life && !a.batch.released && l.s.view.lives(a.partition) {
				l.violate("record %d sent to partition %d while partition %d may have it", rec, to, a.partition)
			}
			a.batch.released, r.excusedTwice = true, true
		}
		if at == nil {
			r.attempts = append(r.attempts, attempt{partition: to, life: g.life})
			at = &r.attempts[len(r.attempts)-1]
		}
		if at.pending == 0 {
			at.batch = fate
		}
		at.pending++
	}
}

func (l *ledger) answered(g *gateway, b dispatchq.Batch, recs []int, out dispatchq.Outcome) {
	for _, rec := range recs {
		r := &l.rows[rec]
		for i := range r.attempts {
			a := &r.attempts[i]
			if a.partition != b.Target.Partition || a.life != g.life {
				continue
			}
			switch out {
			case dispatchq.Refused, dispatchq.Mismatch:
				a.pending--
			case dispatchq.Committed:
				a.committed = true
			case dispatchq.Unknown:
			}
		}
	}
}

// committed is called before a partition's high watermark passes end.
func (s *Sim) committed(n *node, p *partition, end int) {
	_ = n
	for i := p.high; i < end; i++ {
		for id, q := range n.parts {
			if q == p {
				s.ledger.rows[p.log[i].rec].copies[id]++
			}
		}
	}
}

// verdict judges the end of a run.
func (l *ledger) verdict() []string {
	for rec := range l.rows {
		r := &l.rows[rec]
		if len(r.copies) == 0 && r.acknowledged && !r.excusedLoss {
			l.violate("record %d was acknowledged and is lost", rec)
		}
		for p, n := range r.copies {
			if n > 1 {
				l.violate("record %d is in partition %d %d times", rec, p, n)
			}
		}
		if len(r.copies) > 1 && !r.excusedTwice {
			l.violate("record %d is in %d partitions without a reason", rec, len(r.copies))
		}
	}
	return l.violations
}
