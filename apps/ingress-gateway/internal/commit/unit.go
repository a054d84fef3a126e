package commit

import (
	"time"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// unit is a group on its way: encoded, and stored as a whole or not at all.
type unit struct {
	group
	topic    *topic.Topic
	bodies   [][]byte
	deadline time.Time
	numbered bool // by a client: under stream and seq
	stream   record.Stream
	seq      uint64
	hops     int // partitions looked at since the last pause

	// done is closed when the call that carried the unit has written how it ended.
	done    chan struct{}
	verdict verdict
}

// verdict is how one attempt ended.
type verdict struct {
	outcome outcome
	first   record.Number // of the first record, when it was committed
	stream  record.Stream
	base    int64 // offset of the first record
	refusal *problem.Problem
}

// outcome is what is known after an attempt.
type outcome uint8

const (
	refused   outcome = iota // surely nothing was stored, and another try may fare better
	committed                // stored
	unknown                  // it may have been stored
	final                    // surely nothing was stored, and no other try will do better
)

// newUnit encodes the messages of a group: the request's memory is not used any more.
func newUnit(t *topic.Topic, g group, msgs []api.Produced, deadline time.Time) *unit {
	u := &unit{group: g, topic: t, deadline: deadline, bodies: make([][]byte, 0, len(g.messages))}
	buf := make([]byte, 0, g.size)
	for _, i := range g.messages {
		at := len(buf)
		buf = record.AppendBody(buf, &msgs[i].Message)
		u.bodies = append(u.bodies, buf[at:len(buf):len(buf)])
	}
	return u
}

func (u *unit) ref() topic.Ref {
	return topic.Ref{Topic: u.topic.Name, Incarnation: u.topic.Incarnation, Partition: u.partition}
}
