package partlog

import (
	"slices"

	"github.com/narad-mq/narad/libs/record"
)

const (
	// MaxClients bounds the Narad-Producers that a partition remembers, as the API
	// promises: above it the one that was idle longest is forgotten.
	MaxClients = 10_000
	// ForgetClientMS is after how long without a batch one is forgotten, on the
	// partition clock.
	ForgetClientMS = 24 * 3_600_000
	// fewUses: so many outdated uses cost less than looking for them.
	fewUses = 64
)

// clients orders the streams that clients number by their last batch. What is
// remembered is exactly the MaxClients streams used last, but for those idle too
// long: a function of the end of the log, so that a copy that has only the end of
// it agrees (forgetting a tenth at once, as evict does, would depend on the whole).
type clients struct {
	n    int   // streams
	uses []use // by offset; one that a later one of its stream replaced counts no more
}

type use struct {
	stream record.Stream
	base   int64
}

// raiseClient takes over a batch of a client. Its number counts whatever was known
// before: the leader has judged it, and one that it had forgotten began again at 0.
func (p *producers) raiseClient(e *entry) {
	if _, known := p.streams[e.stream]; !known {
		if p.clients.n >= MaxClients {
			p.forgetClient(p.idlest())
		}
		p.clients.n++
	}
	p.streams[e.stream] = producer{highest: e.last, base: e.base, lastMS: e.commitMS}
	c := &p.clients
	c.uses = append(c.uses, use{e.stream, e.base})
	if len(c.uses) > 2*c.n+fewUses {
		c.uses = slices.DeleteFunc(c.uses, func(u use) bool { return p.streams[u.stream].base != u.base })
	}
}

// idlest is the stream whose last batch is the oldest; there is one.
func (p *producers) idlest() record.Stream {
	c := &p.clients
	for {
		u := c.uses[0]
		if s, known := p.streams[u.stream]; known && s.base == u.base {
			return u.stream
		}
		c.uses = c.uses[1:]
	}
}

func (p *producers) forgetClient(id record.Stream) {
	delete(p.streams, id)
	p.clients.n--
}

// forgetClients forgets those that were idle for too long.
func (p *producers) forgetClients() {
	for p.clients.n > 0 {
		id := p.idlest()
		if p.lastMS-p.streams[id].lastMS < ForgetClientMS {
			return
		}
		p.forgetClient(id)
	}
	p.clients.uses = nil
}

// orderClients makes the order from the streams.
func (p *producers) orderClients() {
	p.clients = clients{}
	for id := range p.streams {
		if id.Kind == record.StreamClient {
			p.clients.n++
		}
	}
	if p.clients.n == 0 {
		return
	}
	for _, id := range p.order() {
		if id.Kind == record.StreamClient {
			p.clients.uses = append(p.clients.uses, use{id, p.streams[id].base})
		}
	}
}

// Client is the last batch of a stream that a client numbers, written or synced, as
// seen at a time of the partition clock: its highest number and the offset of its
// first record. ok is false for a stream that is not known or has been forgotten;
// its next number is 0.
func (l *Log) Client(s record.Stream, nowMS int64) (highest uint64, base int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.track.now.streams[s]
	if !ok || nowMS-p.lastMS >= ForgetClientMS {
		return 0, 0, false
	}
	return p.highest.Seq, p.base, true
}
