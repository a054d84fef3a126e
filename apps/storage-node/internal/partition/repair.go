package partition

import (
	"errors"
	"fmt"
	"slices"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/partlog"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/record"
)

const (
	// repairBytes is what one fetch for a repair asks for: each writes a segment anew.
	repairBytes = 8 << 20
	// maxIntended bounds the gaps that are remembered as intended; one that is
	// forgotten costs the reading of a segment when it is met again.
	maxIntended = 64
)

// errDamaged: bytes that other replicas have are damaged here. They are fetched
// again; until then this copy does not lead, and counts as far as it is whole below.
var errDamaged = errors.New("this copy is damaged and is being repaired")

// lookForDamage looks for what recovery found missing. The only copy lacks it from now
// on. In one that has others, damage below the high watermark is repaired; what lies above
// it, from whole on, has to be cut: the copy said that it had everything up to vouched, and
// must not be counted with that.
func (p *Partition) lookForDamage(set *Set) (whole, vouched int64, err error) {
	end := p.log.WrittenEnd()
	if p.log.Recovery().GapOffsets == 0 {
		return end, 0, nil
	}
	only := set.only(p.s.Node)
	st, _ := p.log.State()
	for at := p.log.LogStart(); at < end; {
		gaps, next, err := p.log.Gaps(at, end)
		if err != nil {
			return 0, 0, err
		}
		for _, g := range gaps {
			switch {
			case g.Intended: // what this copy lost by itself is noted besides, see beginLocked
			case only:
				p.lacks = true
			case g.From < st.HWM:
				p.damage = append(p.damage, partlog.Gap{From: g.From, To: min(g.To, st.HWM)})
			default:
				return g.From, end, nil
			}
		}
		at = next
	}
	return end, 0, nil
}

// contiguous tells whether the batches of a chunk follow offset and each other, and
// if not, where the first gap is.
func contiguous(offset int64, chunk partlog.Chunk) (from, to int64, whole bool) {
	for rest := chunk.Batches; len(rest) > 0; {
		h, err := record.ParseHeader(rest)
		switch {
		case err != nil:
			return offset, chunk.Next, false
		case h.BaseOffset > offset:
			return offset, h.BaseOffset, false
		}
		offset = h.EndOffset()
		rest = rest[min(h.Size(), len(rest)):]
	}
	return offset, chunk.Next, offset >= chunk.Next
}

// damagedAt tells whether a gap that was met is damage which another replica may
// repair. If so this copy gives its leadership up.
func (p *Partition) damagedAt(from, to int64) bool {
	p.mu.Lock()
	known, alone := p.rememberedLocked(from, to), p.setSize < 2
	p.mu.Unlock()
	if known {
		return false
	}
	damage := false
	for at := from; at < to; {
		gaps, next, err := p.log.Gaps(at, to)
		if err != nil {
			p.s.Log.Warn("a gap cannot be looked at", "partition", p.ref.String(), "from", at, "to", to, "error", err)
			return !alone
		}
		for _, g := range gaps {
			damage = p.note(g) || damage
		}
		at = next
	}
	return damage
}

// note takes note of a gap, and tells whether it is damage that another replica may
// repair.
func (p *Partition) note(g partlog.Gap) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	hwm := p.hwm.Load()
	switch {
	case g.Intended:
		p.rememberLocked(g)
		return false
	case g.From >= hwm:
		return false
	case p.leader != nil && !p.elsewhereLocked(g.From):
		p.lacks = true
		p.rememberLocked(g)
		return false
	case p.leader == nil && p.follower == nil: // alone, and between two epochs
		return false
	}
	g.To = min(g.To, hwm)
	if p.rememberedLocked(g.From, g.To) {
		return false
	}
	if !slices.ContainsFunc(p.damage, func(d partlog.Gap) bool { return d.From <= g.From && g.To <= d.To }) {
		p.damage = append(p.damage, g)
		slices.SortFunc(p.damage, func(a, b partlog.Gap) int { return int(a.From - b.From) })
		p.s.Metrics.DamagedOffsets.Add(float64(g.To - g.From))
		p.s.Log.Error("a copy is damaged and is repaired from another one; it does not lead meanwhile",
			"partition", p.ref.String(), "from", g.From, "to", g.To)
	}
	if p.leader != nil {
		go p.stepDown() // whoever met it may hold what that waits for
	}
	return true
}

// elsewhereLocked tells whether another replica may have what is missing here, from an
// offset on. One that was made from this copy, and is not there yet, has not: to give
// the leadership up for it would be for nothing, and nobody else has everything else.
func (p *Partition) elsewhereLocked(from int64) bool {
	for i, m := range p.leader.Progress() {
		if i < p.setSize && m.Replica.Node != p.s.Node && m.Counts && (!m.Placed || m.End > from) {
			return true
		}
	}
	return false
}

// forgoLocked is for the only replica: nobody else is known to have what is damaged
// here. It serves the rest, as one does that is opened alone, and an operator has to
// look: it vouches for no copy that others have left (Vouch).
func (p *Partition) forgoLocked() {
	for _, g := range p.damage {
		p.s.Log.Error("a damaged copy is the only one by now; it goes on without what it cannot read",
			"partition", p.ref.String(), "from", g.From, "to", g.To)
	}
	p.damage, p.lacks = nil, true
}

// rememberedLocked tells whether nobody has what lies from one offset to another.
func (p *Partition) rememberedLocked(from, to int64) bool {
	return slices.ContainsFunc(p.intended, func(g partlog.Gap) bool { return g.From <= from && to <= g.To })
}

// rememberLocked keeps that nobody has what lies in a gap.
func (p *Partition) rememberLocked(g partlog.Gap) {
	if len(p.intended) >= maxIntended {
		p.intended = nil
	}
	p.intended = append(p.intended, g)
}

// repairLocked puts what the leader has into the first gap. Below the high
// watermark all replicas have the same bytes, whoever leads.
func (p *Partition) repairLocked(asked quorum.Fetch, a *nodeapi.FetchAnswer) error {
	gap := p.damage[0]
	if asked.Offset != gap.From || a.Epoch != asked.Epoch || a.Epoch < p.fence.Promised() {
		return nil // it was asked before, or is of a leadership that is over
	}
	if a.Status == nodeapi.FetchBelowStart {
		if a.LogStart > gap.From {
			p.closedLocked(a.LogStart, "no replica keeps it any more")
		}
		return nil
	}
	fits, next := within(a.Batches, gap.To)
	if a.Status != nodeapi.FetchOK || next <= gap.From {
		return nil // not now
	}
	if len(fits) > 0 {
		if _, err := p.log.Repair(fits); err != nil {
			if errors.Is(err, partlog.ErrBadCopy) {
				p.s.Metrics.BadFetches.Inc()
			}
			return fmt.Errorf("repair %s from %d to %d: %w", p.ref, gap.From, gap.To, err)
		}
		p.s.Metrics.RepairedOffsets.Add(float64(next - gap.From))
	}
	p.closedLocked(next, "repaired")
	return nil
}

// within cuts batches at an offset, and returns where they end: the offset itself
// when there are others behind it.
func within(b []byte, to int64) (fits []byte, end int64) {
	n := 0
	for n < len(b) {
		h, err := record.ParseHeader(b[n:])
		if err != nil || n+h.Size() > len(b) {
			break
		}
		if h.BaseOffset >= to {
			return b[:n], to
		}
		end = h.EndOffset()
		n += h.Size()
	}
	return b[:n], end
}

// closedLocked ends the first gap below an offset.
func (p *Partition) closedLocked(at int64, how string) {
	gap := &p.damage[0]
	at = min(at, gap.To)
	p.s.Log.Info("damage of a copy was closed", "partition", p.ref.String(), "from", gap.From, "to", at, "how", how)
	p.rememberLocked(partlog.Gap{From: gap.From, To: at}) // what is still missing there no replica has
	if gap.From = at; gap.From >= gap.To {
		p.damage = p.damage[1:]
	}
}

// Scrub reads the segment that holds offset from, and returns where the next one
// begins; 0 behind the last. What it finds damaged is reported, and repaired if there
// is another replica.
func (p *Partition) Scrub(from int64) (next int64, err error) {
	hwm := p.hwm.Load()
	from = max(from, p.log.LogStart())
	if from >= hwm {
		return 0, nil
	}
	gaps, next, err := p.log.Gaps(from, hwm)
	if err != nil {
		return 0, fmt.Errorf("scrub %s: %w", p.ref, err)
	}
	for _, g := range gaps {
		p.note(g)
	}
	if next >= hwm {
		return 0, nil
	}
	return next, nil
}
