package sim

// client produces the numbers of one stream, one at a time, and repeats each
// until it is answered.
type client struct {
	index    int8
	seq      int32 // under way
	answered int32
	last     *node // that answered
	goal     int32 // to be answered once all faults have ended
}

func (c *client) produce(w *world, to *node) {
	if to == nil {
		return
	}
	if c.seq == c.answered {
		c.seq++
	}
	w.send(message{kind: produced, to: to.name, client: c.index, seq: c.seq})
}

func (c *client) onAck(from *node, seq int32) {
	if seq > c.answered {
		c.answered, c.last = seq, from
	}
}

// produceAny has a client send its record, mostly to the leader.
func (w *world) produceAny() bool {
	c := &w.clients[w.draw.n(clients)]
	if c.seq > c.answered && !w.draw.one(6) {
		return false // it waits for the answer
	}
	to := w.node(w.meta.now().lead.Leader)
	switch { // it may not have heard of a newer leader
	case c.last != nil && w.draw.one(2):
		to = c.last
	case to == nil && !w.draw.one(8):
		return false
	case to == nil, w.draw.one(5):
		to = w.nodes[w.draw.n(len(w.nodes))]
	}
	c.produce(w, to)
	return true
}
