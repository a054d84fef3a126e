package sim

import (
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// maxInFlight bounds the messages under way; the oldest are lost beyond it.
const maxInFlight = 48

type kind uint8

const (
	fetchAsked kind = iota
	fetchAnswered
	fenceAsked
	fenceAnswered
	vouchAsked
	vouchAnswered
	produced
	acknowledged
)

// message is one on the way. An empty to is the controller, or a client.
type message struct {
	kind     kind
	from, to string
	sentMS   int64
	fetch    quorum.Fetch
	answer   quorum.Answer
	recs     []rec
	base     base
	epoch    topic.Epoch
	fenced   quorum.FenceAnswer
	vouch    quorum.Vouch
	client   int8
	seq      int32
}

func (w *world) send(m message) {
	if len(w.net) == maxInFlight {
		w.net = append(w.net[:0], w.net[1:]...)
	}
	w.net = append(w.net, m)
}

// deliverAny delivers any message, so that they arrive in any order.
func (w *world) deliverAny() bool {
	if len(w.net) == 0 {
		return false
	}
	w.deliver(w.draw.n(len(w.net)))
	return true
}

func (w *world) take(i int) message {
	m := w.net[i]
	w.net = append(w.net[:i], w.net[i+1:]...)
	return m
}

func (w *world) deliver(i int) {
	m := w.take(i)
	if m.to == "" {
		w.deliverElsewhere(&m)
		return
	}
	n := w.node(m.to)
	if !n.up || (n.deaf() && (m.kind == fenceAsked || m.kind == vouchAsked)) {
		return
	}
	switch m.kind {
	case fetchAsked:
		n.onFetch(&m)
	case fetchAnswered:
		n.onAnswer(&m)
	case fenceAsked:
		n.onFence(&m)
	case produced:
		n.onProduce(&m)
	case vouchAsked:
		if v, ok := n.vouch(); ok {
			w.send(message{kind: vouchAnswered, from: n.name, vouch: v})
		}
	}
}

func (w *world) deliverElsewhere(m *message) {
	switch m.kind {
	case fenceAnswered:
		w.control.answers = append(w.control.answers, m.fenced)
	case vouchAnswered:
		w.control.vouch = m.vouch
	case acknowledged:
		w.clients[m.client].onAck(w.node(m.from), m.seq)
	}
}

// drop loses a message.
func (w *world) drop() bool {
	if len(w.net) == 0 {
		return false
	}
	w.take(w.draw.n(len(w.net)))
	return true
}

// repeat has a message arrive twice.
func (w *world) repeat() bool {
	if len(w.net) == 0 {
		return false
	}
	w.send(w.net[w.draw.n(len(w.net))])
	return true
}
