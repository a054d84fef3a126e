package partlog

import (
	"cmp"
	"maps"
	"slices"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// maxStreams bounds what a partition remembers: some hundred bytes each.
	// Above it the streams that were silent longest are forgotten, which may
	// cost a duplicate and never a loss.
	maxStreams = 8192
	// sweepEveryMS: how often, on the partition clock, forgetting is looked at.
	sweepEveryMS = 60_000
	// forgetPassedMS: a batch that was in flight when its WAL forgot it may
	// still arrive; no budget of a call is this long.
	forgetPassedMS = 10 * 60_000
	// forgetIdleMS: a gateway that was away for longer sends duplicates.
	forgetIdleMS = 7 * 24 * 3_600_000
)

// entry is what producer numbers need of one batch.
type entry struct {
	stream   record.Stream
	last     record.Number
	oldest   record.Oldest
	base     int64
	end      int64
	commitMS int64
	raise    bool // false: a control batch, behind damage, or of a stream without order
}

type producer struct {
	highest  record.Number
	base     int64 // of its last batch
	lastMS   int64 // commit time of it
	oldestID topic.ID64
	passedMS int64 // commit time at which it was found passed; 0: not
}

// told is how far a WAL has moved past an identity.
type told struct {
	seq  uint64 // no record below it is left
	gone bool   // no record of the identity is left
}

// producers are the highest numbers per stream, as a function of the batches
// below an offset. Everything in it, forgetting too, goes by commit time, so
// that a rebuild gives the same.
type producers struct {
	at      int64 // end of the last batch applied
	lastMS  int64 // latest commit time below at
	sweptMS int64
	streams map[record.Stream]producer
	told    map[topic.ID64]told
	clients clients // those of streams that clients number
}

func newProducers() *producers {
	return &producers{streams: map[record.Stream]producer{}, told: map[topic.ID64]told{}}
}

func (p *producers) clone() *producers {
	c := *p
	c.streams, c.told = maps.Clone(p.streams), maps.Clone(p.told)
	c.clients.uses = slices.Clone(p.clients.uses)
	return &c
}

func (p *producers) apply(e *entry) {
	p.at = e.end
	p.lastMS = max(p.lastMS, e.commitMS)
	p.forgetClients()
	switch {
	case !e.raise:
	case e.stream.Kind == record.StreamClient:
		p.raiseClient(e)
	default:
		p.raise(e)
	}
	if p.sweptMS == 0 {
		p.sweptMS = p.lastMS
	}
	if p.lastMS-p.sweptMS >= sweepEveryMS {
		p.sweptMS = p.lastMS
		p.sweep()
	}
}

func (p *producers) raise(e *entry) {
	s, known := p.streams[e.stream]
	if known && !s.highest.Less(e.last) {
		return
	}
	if !known && len(p.streams)-p.clients.n >= maxStreams {
		p.evict()
	}
	wal := e.stream.Kind == record.StreamWAL || e.stream.Kind == record.StreamWALPinned
	if wal && e.oldest.ID != 0 {
		if known && s.oldestID != 0 && s.oldestID != e.oldest.ID {
			// One WAL's oldest record only moves forward: it has left that identity.
			p.told[s.oldestID] = told{p.told[s.oldestID].seq, true}
		}
		t := p.told[e.oldest.ID]
		p.told[e.oldest.ID] = told{max(t.seq, e.oldest.Seq), false}
		s.oldestID = e.oldest.ID
	}
	s.highest, s.base, s.lastMS, s.passedMS = e.last, e.base, e.commitMS, 0
	p.streams[e.stream] = s
}

// sweep forgets streams whose records are all gone from their WAL for long
// enough, or that were idle for very long.
func (p *producers) sweep() {
	live := make(map[topic.ID64]bool, len(p.told))
	for id, s := range p.streams {
		wal := id.Kind == record.StreamWAL || id.Kind == record.StreamWALPinned
		t, ok := p.told[id.ID]
		passed := wal && ok && (t.gone || s.highest.Seq < t.seq)
		switch {
		case p.lastMS-s.lastMS >= forgetIdleMS, passed && s.passedMS != 0 && p.lastMS-s.passedMS >= forgetPassedMS:
			delete(p.streams, id)
			continue
		case passed && s.passedMS == 0:
			s.passedMS = p.lastMS
			p.streams[id] = s
		}
		live[id.ID] = true
		live[s.oldestID] = true
	}
	maps.DeleteFunc(p.told, func(id topic.ID64, _ told) bool { return !live[id] })
}

// evict forgets the tenth of the streams whose last batch is the oldest; those of
// clients have a bound of their own.
func (p *producers) evict() {
	order := slices.DeleteFunc(p.order(), func(id record.Stream) bool { return id.Kind == record.StreamClient })
	for _, id := range order[:len(order)/10+1] {
		delete(p.streams, id)
	}
}

// order lists the streams by the offset of their last batch.
func (p *producers) order() []record.Stream {
	return slices.SortedFunc(maps.Keys(p.streams), func(a, b record.Stream) int {
		return cmp.Compare(p.streams[a].base, p.streams[b].base)
	})
}

// tracked keeps producer numbers at two places: at the written end, for
// questions, and at or below the HWM, for snapshots and for taking a truncated
// tail back. It is not safe for concurrent use.
type tracked struct {
	now  *producers
	base *producers // at or below the HWM
	tail []entry    // batches between base.at and now.at, in order
	hwm  int64
}

const (
	// foldAt bounds how many committed batches wait to be folded into base.
	foldAt = 256
	// maxTail bounds the uncommitted ones, some MiB of memory. It is reached only
	// by a log whose state file is lost, so that no HWM is known; what is folded
	// then cannot be truncated any more.
	maxTail = 1 << 16
)

func newTracked(snapshot *producers) *tracked {
	return &tracked{now: snapshot.clone(), base: snapshot, hwm: snapshot.at}
}

func (t *tracked) apply(e *entry) {
	t.now.apply(e)
	t.tail = append(t.tail, *e)
	if len(t.tail) >= foldAt && t.tail[0].end <= t.hwm {
		t.fold()
	}
	if len(t.tail) > maxTail {
		for i := range maxTail / 2 {
			t.base.apply(&t.tail[i])
		}
		t.tail = slices.Delete(t.tail, 0, maxTail/2)
	}
}

func (t *tracked) committed(hwm int64) { t.hwm = max(t.hwm, hwm) }

// fold moves base up to the last batch at or below the HWM.
func (t *tracked) fold() {
	n := 0
	for n < len(t.tail) && t.tail[n].end <= t.hwm {
		t.base.apply(&t.tail[n])
		n++
	}
	t.tail = slices.Delete(t.tail, 0, n)
}

// truncate takes back every batch that ends above to. The caller keeps to at or
// above the HWM.
func (t *tracked) truncate(to int64) {
	n := len(t.tail)
	for n > 0 && t.tail[n-1].end > to {
		n--
	}
	t.tail = t.tail[:n]
	t.now = t.base.clone()
	for i := range t.tail {
		t.now.apply(&t.tail[i])
	}
}
