package api

import (
	"bytes"
	"strconv"
	"time"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// The times that ack=committed may take: an election of the slow kind fits into the
// longest, one that a hint began into the default.
const (
	DefaultCommitTimeout = 5 * time.Second
	MinCommitTimeout     = 100 * time.Millisecond
	MaxCommitTimeout     = 30 * time.Second
)

// maxProducerSeq is the largest number of a Narad-Producer: 18 digits, which no count of
// messages reaches.
const maxProducerSeq = 999_999_999_999_999_999

// maxProducerID bounds the id of a Narad-Producer.
const maxProducerID = 64

// ack is what a produce waits for.
type ack struct {
	committed bool
	timeout   time.Duration
	producer  string // "": the client does not number
	seq       uint64
}

// wantedAck reads ack and timeout.
func (c *call) wantedAck() (a ack, err error) {
	raw, given := c.query.raw("ack")
	a.committed = given && string(raw) == "committed"
	if given && !a.committed && string(raw) != "accepted" {
		return a, badParameter("ack", "ack is accepted or committed")
	}
	if _, ok := c.query.raw("timeout"); ok && !a.committed {
		return a, badParameter("timeout", "timeout goes with ack=committed")
	}
	a.timeout, err = c.query.duration("timeout", DefaultCommitTimeout, MinCommitTimeout, MaxCommitTimeout)
	return a, err
}

// numberOf reads Narad-Producer: <id>:<seq>.
func (c *call) numberOf(a *ack) error {
	v, n := c.req.Headers.Get("Narad-Producer")
	if n == 0 {
		return nil
	}
	if n > 1 {
		return badParameter("Narad-Producer", "Narad-Producer is given twice")
	}
	if _, pinned := c.query.raw("partition"); !pinned || !a.committed {
		return badParameter("Narad-Producer", "Narad-Producer goes with ack=committed and partition")
	}
	id, seq, _ := bytes.Cut(v, []byte{':'})
	number, ok := digits(seq)
	if tooBig(seq, ok) {
		return badParameter("Narad-Producer", "the number of Narad-Producer is at most %d", maxProducerSeq)
	}
	if !ok || len(id) == 0 || len(id) > maxProducerID || bytes.ContainsFunc(id, notOfProducerID) {
		return badParameter("Narad-Producer", "Narad-Producer is <id>:<number>, the id of 1 to %d of A-Z a-z 0-9 . _ -", maxProducerID)
	}
	a.producer, a.seq = string(id), uint64(number)
	return nil
}

// tooBig tells whether a number was refused for its size only.
func tooBig(b []byte, ok bool) bool {
	return !ok && len(b) > 0 && !bytes.ContainsFunc(b, func(r rune) bool { return r < '0' || r > '9' })
}

func notOfProducerID(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
}

func (c *call) commit(t *topic.Topic, a *ack) ([]Committed, error) {
	return c.api.deps.Committer.Commit(&CommitRequest{Topic: t, Messages: c.msgs, Timeout: a.timeout, Producer: a.producer, Seq: a.seq})
}

// commitOne commits the one message of c.msgs and answers.
func (c *call) commitOne(t *topic.Topic, a *ack) error {
	out, err := c.commit(t, a)
	if err != nil {
		return err
	}
	if out[0].Refusal != nil {
		return out[0].Refusal
	}
	c.json(200)
	c.out = append(c.out, `{"id":`...)
	c.out = appendString(c.out, out[0].ID)
	c.out = append(c.out, `,"partition":`...)
	c.out = strconv.AppendInt(c.out, int64(out[0].Partition), 10)
	c.out = append(c.out, `,"offset":`...)
	c.out = strconv.AppendInt(c.out, out[0].Offset, 10)
	c.out = append(c.out, '}')
	return nil
}

// commitAll commits c.msgs and answers with an outcome for each.
func (c *call) commitAll(t *topic.Topic, a *ack) error {
	out, err := c.commit(t, a)
	if err != nil {
		return err
	}
	committed := 0
	for i := range out {
		if out[i].Refusal == nil {
			committed++
		}
	}
	c.json(200)
	c.out = append(c.out, `{"committed":`...)
	c.out = strconv.AppendInt(c.out, int64(committed), 10)
	c.out = append(c.out, `,"results":[`...)
	for i := range out {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = appendCommitted(c.out, &out[i])
	}
	c.out = append(c.out, "]}"...)
	return nil
}

func appendCommitted(dst []byte, r *Committed) []byte {
	if p := r.Refusal; p != nil {
		dst = append(dst, `{"status":`...)
		dst = strconv.AppendInt(dst, int64(p.Status), 10)
		dst = append(dst, `,"code":`...)
		dst = appendString(dst, string(p.Code))
		dst = append(dst, `,"applied":`...)
		dst = appendString(dst, string(applied(p)))
		return append(dst, '}')
	}
	dst = append(dst, `{"status":200,"partition":`...)
	dst = strconv.AppendInt(dst, int64(r.Partition), 10)
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendInt(dst, r.Offset, 10)
	return append(dst, '}')
}

// applied is what a refusal says; what does not say no is unknown.
func applied(p *problem.Problem) problem.Applied {
	if p.Applied == problem.AppliedNo {
		return problem.AppliedNo
	}
	return problem.AppliedUnknown
}
