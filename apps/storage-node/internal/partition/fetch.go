package partition

import (
	"errors"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/partlog"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// Fetching is one follower's fetch of this partition.
type Fetching struct {
	From quorum.Replica
	*nodeapi.FetchPartition
	// ArrivedMS is when the fetch arrived, in monotonic ms: what it says of its
	// copy's loyalty was true then, however long it waited.
	ArrivedMS int64
	// Final asks for an answer also when the only news is a higher high watermark.
	Final bool
	// Room is how many bytes of batches the whole answer may still have.
	Room int
	// Full: others have filled the answer. Positions and a log start wait for the next
	// one: those of hundreds of partitions together are more than a reply may have, and
	// one that is refused would be asked for again, for ever.
	Full bool
	// Buf is for the batches of the answer, and afterwards where they are: it, or a
	// larger one in its place.
	Buf []byte
}

// Fetch judges a follower's fetch, counts it, and answers it. news is false when
// there is nothing to tell: then Watch tells when there is.
func (p *Partition) Fetch(f *Fetching) (a nodeapi.FetchAnswer, news bool) {
	p.mu.Lock()
	if p.leader == nil || p.closed {
		p.mu.Unlock()
		return nodeapi.FetchAnswer{Status: nodeapi.FetchNotLeader}, true
	}
	before := p.leader.CanServe()
	ans, moved, err := p.leader.Fetch(
		quorum.Fetch{From: f.From, Epoch: f.Epoch, Offset: f.Offset, LastEpoch: f.LastEpoch, Round: f.Round, More: f.HWM > f.Offset},
		quorum.LogView{Start: p.log.LogStart(), Written: p.log.WrittenEnd(), History: p.historyLocked()}, f.ArrivedMS)
	if moved {
		p.advancedLocked()
	}
	if err == nil {
		p.leaseLocked()
		if f.Offset >= p.log.WrittenEnd() {
			p.level[f.From.Node] = p.s.Mono()
		}
		if p.s.Mono() < p.heldUntil || p.confirming > 0 {
			p.tellLocked() // the wanted replica may have everything now, or a majority be heard
		}
	}
	epoch := p.leader.Epoch()
	settled := p.leader.CanServe() && (!before || p.queue.Load() == nil)
	p.mu.Unlock()
	if err != nil {
		return p.refuseFetch(f, err, epoch), true
	}
	if settled {
		if err := p.serveIfSettled(); err != nil {
			p.s.Log.Error("a partition cannot be served", "partition", p.ref.String(), "error", err)
		}
	}
	if q := p.queue.Load(); moved && q != nil {
		q.Committed(true)
	}
	return p.answer(f, &ans)
}

// refuseFetch turns what the rule says of a fetch into a status.
func (p *Partition) refuseFetch(f *Fetching, err error, epoch topic.Epoch) nodeapi.FetchAnswer {
	a := nodeapi.FetchAnswer{Epoch: epoch}
	switch {
	case errors.Is(err, quorum.ErrStaleEpoch):
		a.Status = nodeapi.FetchStaleEpoch
	case errors.Is(err, quorum.ErrNewerEpoch):
		p.stepDown()
		a.Status = nodeapi.FetchNewerEpoch
	case errors.Is(err, quorum.ErrNotReplica):
		a.Status = nodeapi.FetchNotReplica
	case errors.Is(err, quorum.ErrEnded):
		a.Status = nodeapi.FetchNotLeader
	default:
		a.Status = nodeapi.FetchUnavailable
	}
	switch {
	case errors.Is(err, quorum.ErrNotReplica):
		p.s.Metrics.BadFetches.Inc()
		p.s.Complain("refused a fetch of a copy that is no replica, as the last one of a copy that was moved away is; wrong when it repeats", "partition", p.ref.String(), "from", f.From.Node, "error", err)
	case errors.Is(err, quorum.ErrInvalidFetch), errors.Is(err, quorum.ErrBeyondEnd):
		p.s.Metrics.BadFetches.Inc()
		p.s.Complain("refused a fetch that no honest replica sends", "partition", p.ref.String(), "from", f.From.Node, "error", err)
	}
	return a
}

// stepDown ends a leadership of which somebody knows a newer one.
func (p *Partition) stepDown() {
	p.mu.Lock()
	q := p.resignLocked()
	err := p.followLocked()
	p.mu.Unlock()
	if err := errors.Join(err, p.endQueue(q)); err != nil {
		p.s.Log.Warn("the end of a leadership was not clean", "partition", p.ref.String(), "error", err)
	}
}

// answer adds the bytes to what the rule answers.
func (p *Partition) answer(f *Fetching, ans *quorum.Answer) (nodeapi.FetchAnswer, bool) {
	a := nodeapi.FetchAnswer{
		Epoch: ans.Epoch, HWM: ans.HWM, LogStart: ans.LogStart, Round: ans.Round, Diverge: ans.ToEpoch, DivergeEnd: ans.ToEnd,
	}
	switch ans.Kind {
	case quorum.Diverged:
		a.Status = nodeapi.FetchDiverging
		return a, true
	case quorum.Snapshot:
		if f.Full {
			return a, false
		}
		return p.answerStart(a), true
	case quorum.Records:
	}
	news := f.Final && a.HWM > f.HWM || a.Round > f.Round
	p.posMu.Lock()
	if p.posVersion > f.PositionSeen && !f.Full {
		a.PositionVersion, a.PositionGeneration, a.Position = p.posVersion, p.state.PositionGeneration, p.state.Position
		if a.Position == nil {
			a.Position = []byte{}
		}
		news = true
	}
	p.posMu.Unlock()
	end := p.log.WrittenEnd()
	if f.Offset >= end || f.Room <= 0 {
		return a, news
	}
	chunk, err := p.log.Read(f.Offset, end, min(f.MaxBytes, f.Room), f.Buf)
	switch {
	case errors.Is(err, partlog.ErrGone): // retention went on meanwhile; there is room, so it is not full
		return p.answerStart(a), true
	case err != nil:
		p.s.Log.Warn("a fetch cannot be read", "partition", p.ref.String(), "offset", f.Offset, "error", err)
		a.Status = nodeapi.FetchUnavailable
		return a, true
	}
	if from, to, whole := contiguous(f.Offset, chunk); !whole && p.damagedAt(from, to) {
		a.Status = nodeapi.FetchUnavailable // it may not be passed on as a gap on purpose
		return a, true
	}
	if a.Batches = chunk.Batches; chunk.Buf != nil {
		f.Buf = chunk.Buf
	}
	return a, news || len(a.Batches) > 0
}

// answerStart answers a fetch from below the log start.
func (p *Partition) answerStart(a nodeapi.FetchAnswer) nodeapi.FetchAnswer {
	start, exported, err := p.log.ExportStart()
	if err != nil {
		p.s.Log.Warn("the log start cannot be exported", "partition", p.ref.String(), "error", err)
		a.Status = nodeapi.FetchUnavailable
		return a
	}
	a.Status, a.LogStart, a.Snapshot = nodeapi.FetchBelowStart, start, exported
	return a
}
