package commit

import (
	"time"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/route"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
)

// carry brings one unit to its end and writes the outcomes of its messages.
func (c *Committer) carry(u *unit, out []api.Committed) {
	v := c.pursue(u)
	for n, i := range u.messages {
		if v.outcome != committed {
			out[i].Refusal = v.refusal
			continue
		}
		number := v.first
		number.Seq += uint64(n)
		out[i] = api.Committed{ID: record.MessageID(v.stream, number), Partition: u.partition, Offset: v.base + int64(n)}
	}
}

// pursue tries until the unit is committed, refused for good, or its time is over.
// It is the one place that decides whether a unit is sent again.
func (c *Committer) pursue(u *unit) verdict {
	deadline := time.NewTimer(time.Until(u.deadline))
	defer deadline.Stop()
	doubtful := false // an earlier attempt may have stored it
	pause := retryFirst
	for {
		changed := c.deps.View.Changed()
		v := c.attempt(u, deadline.C)
		switch {
		case v.outcome == committed:
			return v
		case v.outcome == unknown && u.numbered:
			doubtful = true // the partition judges it by its number
		case v.outcome == unknown:
			return v
		case doubtful && v.outcome == final:
			return verdict{outcome: unknown, refusal: outcomeUnknown(u)}
		case v.outcome == final:
			return v
		}
		if v.outcome == refused && u.free && c.elsewhere(u) {
			continue
		}
		again := time.NewTimer(pause)
		pause = min(2*pause, retryMost)
		select {
		case <-changed:
			pause = retryFirst
		case <-again.C:
		case <-c.draining:
			v.refusal = drained()
		case <-deadline.C:
		}
		again.Stop()
		if !time.Now().Before(u.deadline) || c.stopping() {
			if doubtful {
				return verdict{outcome: unknown, refusal: outcomeUnknown(u)}
			}
			return v
		}
	}
}

func (c *Committer) stopping() bool {
	select {
	case <-c.draining:
		return true
	default:
		return false
	}
}

// attempt sends the unit once, if there is somebody to send it to.
func (c *Committer) attempt(u *unit, deadline <-chan time.Time) verdict {
	if _, _, err := c.leader(u.ref()); err != nil {
		if err := route.Ended(c.deps.View, u.topic); err != nil {
			return verdict{outcome: final, refusal: asProblem(err)}
		}
		return verdict{refusal: unavailable(u.ref())}
	}
	l := c.lane(u)
	l.submit(u)
	select {
	case <-u.done:
		return u.verdict
	case <-c.draining:
		if l.withdraw(u) {
			return verdict{outcome: final, refusal: drained()}
		}
	case <-deadline:
		if l.withdraw(u) {
			return verdict{outcome: final, refusal: unavailable(u.ref())}
		}
		return verdict{outcome: unknown, refusal: outcomeUnknown(u)}
	}
	select { // it is under way: its outcome is worth waiting for
	case <-u.done:
		return u.verdict
	case <-deadline:
		return verdict{outcome: unknown, refusal: outcomeUnknown(u)}
	}
}

// elsewhere gives a unit that may go anywhere another partition that is led, if there
// is one that it may have.
func (c *Committer) elsewhere(u *unit) bool {
	if u.hops >= u.topic.Partitions { // all have had their turn: wait
		u.hops = 0
		return false
	}
	for range u.topic.Partitions {
		u.hops++
		p := c.place(u.topic)
		ref := u.ref()
		ref.Partition = p
		if p == u.partition {
			continue
		}
		if _, _, err := c.leader(ref); err == nil {
			u.partition = p
			return true
		}
	}
	return false
}

func outcomeUnknown(u *unit) *problem.Problem {
	return problem.New(problem.OutcomeUnknown, "partition %d of %q did not tell in time whether it has committed this", u.partition, u.topic.Name).
		With("partition", u.partition)
}
