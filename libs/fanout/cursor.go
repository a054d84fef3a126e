package fanout

import (
	"github.com/narad-mq/narad/libs/topic"
)

// Lane is one of the two ways in which a cursor goes over the parent's records.
type Lane uint8

// The lanes. Every bucket is in one of them.
const (
	// Head goes over new records, for the buckets that have everything before them.
	Head Lane = iota
	// Behind goes again over what the head has passed, for buckets that failed or
	// did not answer in time. What they miss is read again: nothing is kept for them.
	Behind
	// Lanes is how many there are.
	Lanes
)

const (
	// firstRetryMS and maxRetryMS bound the time after which a bucket that failed is
	// tried again: soon after a blip, and after a long absence within two seconds of
	// its end.
	firstRetryMS = int64(50)
	maxRetryMS   = int64(2000)
	maxFails     = 6 // beyond it the time does not grow
)

// Config is what a cursor is of. It never changes; another one is another cursor.
type Config struct {
	Attach    topic.ID64 // epoch of the attachment
	Partition int32      // of the parent
	DelayMS   int64      // 0: a plain child
	Count     int        // partitions of the child
}

// bucket is one child partition.
type bucket struct {
	done    int64 // every record of it below is committed in the child
	until   int64 // what is being sent ends here
	sending bool
	behind  bool // in the lane of that name
	fails   int
	retryAt int64 // monotonic ms; 0: at once
}

// Cursor decides for one parent partition and one child. It reads and sends
// nothing itself. Not safe for concurrent use.
type Cursor struct {
	cfg     Config
	at      int64 // the head has taken everything below
	buckets []bucket
	dropped int64
}

// New returns a cursor that goes on from a position.
func New(cfg Config, from Position) *Cursor {
	c := &Cursor{cfg: cfg, at: from.Next, dropped: from.Dropped, buckets: make([]bucket, cfg.Count)}
	for i := range c.buckets {
		c.buckets[i].done = from.Next
	}
	return c
}

// Wait is how many ms a batch that was committed at commitMS has still to wait, by
// the clock that stamped it; 0: it is due.
func (c *Cursor) Wait(commitMS, clockMS int64) int64 {
	return max(commitMS+c.cfg.DelayMS-clockMS, 0)
}

// Round is one pass of a lane over some records.
type Round struct {
	Lane  Lane
	From  int64 // the first offset to look at
	Limit int64 // and the end of what may be looked at
	nowMS int64
}

// Begin starts a round of a lane, of which no other one may be under way; false
// when it has nothing to do now. hwm is the parent's, now monotonic ms.
func (c *Cursor) Begin(lane Lane, hwm, nowMS int64) (Round, bool) {
	r := Round{Lane: lane, From: c.at, Limit: hwm, nowMS: nowMS}
	if lane == Head {
		members := 0
		for i := range c.buckets {
			b := &c.buckets[i]
			if !b.behind && b.sending {
				return r, false
			}
			if !b.behind {
				members++
			}
		}
		return r, members > 0 && c.at < hwm
	}
	r.Limit = min(c.at, hwm)
	found := false
	for i := range c.buckets {
		if b := &c.buckets[i]; b.ready(nowMS) && (!found || b.done < r.From) {
			r.From, found = b.done, true
		}
	}
	return r, found && r.From < r.Limit
}

// ready tells whether the lane of those behind may send to the bucket.
func (b *bucket) ready(nowMS int64) bool { return b.behind && !b.sending && b.retryAt <= nowMS }

// RetryAt is when a bucket that failed may be tried again, monotonic ms; false: none waits.
func (c *Cursor) RetryAt() (at int64, ok bool) {
	for i := range c.buckets {
		if b := &c.buckets[i]; b.behind && !b.sending && (!ok || b.retryAt < at) {
			at, ok = b.retryAt, true
		}
	}
	return at, ok
}

// Retry lets every bucket that failed be tried at once: the child may have another
// leader now.
func (c *Cursor) Retry() {
	for i := range c.buckets {
		c.buckets[i].retryAt = 0
	}
}

// Work is what one bucket gets of a round, in order.
type Work struct {
	Bucket  int32
	Records []Record
	// Until is the end of what the bucket has when all of it is committed.
	Until int64
}

// Take takes what was read for a round, and says what to send. A bucket without
// records in it has finished them.
func (c *Cursor) Take(r Round, s *Slab) []Work {
	members := make([]bool, len(c.buckets))
	for i := range c.buckets {
		b := &c.buckets[i]
		// One that became ready since the round began may miss records before it.
		members[i] = b.done >= r.From && b.done < s.To &&
			(r.Lane == Head && !b.behind || r.Lane == Behind && b.ready(r.nowMS))
	}
	groups := s.group(c, members)
	var out []Work
	for i := range c.buckets {
		b := &c.buckets[i]
		switch {
		case !members[i]:
		case len(groups[i]) == 0:
			b.finish(s.To, s.To, c.at)
		default:
			b.sending, b.until = true, s.To
			out = append(out, Work{Bucket: int32(i), Records: groups[i], Until: s.To})
		}
	}
	if r.Lane == Head {
		c.at = s.To
	}
	return out
}

// finish takes over that a bucket has everything below to; head is where the head
// stands.
func (b *bucket) finish(to, until, head int64) {
	b.done = to
	if to < until {
		return
	}
	b.sending, b.fails, b.retryAt = false, 0, 0
	if b.behind && b.done == head {
		b.behind = false
	}
}

// Committed takes over that everything of a bucket below to is committed. Below
// Work.Until more of that work is to come; at it the bucket is free.
func (c *Cursor) Committed(bucket int32, to int64) {
	b := &c.buckets[bucket]
	b.finish(to, b.until, c.at)
}

// Failed takes over that a batch was refused, or that its outcome is not known: it
// is sent again later, which changes nothing if it was committed.
func (c *Cursor) Failed(bucket int32, nowMS int64) {
	b := &c.buckets[bucket]
	b.sending, b.behind = false, true
	b.retryAt = nowMS + min(firstRetryMS<<b.fails, maxRetryMS)
	b.fails = min(b.fails+1, maxFails)
}

// Leave puts a bucket whose answer takes long behind, so that the others go on.
func (c *Cursor) Leave(bucket int32) {
	if b := &c.buckets[bucket]; b.sending {
		b.behind = true
	}
}

// Skip passes over [from, to), which cannot be read and never will be, for the
// buckets of a lane that stand in it, and returns how many records they missed.
//
// It counts offsets, the parent's own control records included, and of buckets that are
// behind, whose share of a range that others had nobody can read any more, it takes an
// even share and at least 1 each. So it is never 0 when something was missed, and an
// upper bound as long as no bucket is behind. To know more, counts of every bucket that
// is behind would have to be stored with the position.
func (c *Cursor) Skip(lane Lane, from, to int64) int64 {
	missed := int64(0)
	if lane == Head {
		if c.at < from || c.at >= to {
			return 0
		}
		for i := range c.buckets {
			if b := &c.buckets[i]; !b.behind {
				b.done = to
			}
		}
		missed, c.at = to-c.at, to
		c.dropped += missed
		return missed
	}
	to = min(to, c.at)
	for i := range c.buckets {
		if b := &c.buckets[i]; b.behind && !b.sending && b.done >= from && b.done < to {
			missed += max((to-b.done)/int64(len(c.buckets)), 1)
			b.finish(to, to, c.at)
		}
	}
	c.dropped += missed
	return missed
}

// Position is what may be stored: everything below it is in the child or is gone.
func (c *Cursor) Position() Position {
	p := Position{Next: c.at, Dropped: c.dropped}
	for i := range c.buckets {
		p.Next = min(p.Next, c.buckets[i].done)
	}
	return p
}

// Behind tells whether a bucket is behind.
func (c *Cursor) Behind() bool {
	for i := range c.buckets {
		if c.buckets[i].behind {
			return true
		}
	}
	return false
}
