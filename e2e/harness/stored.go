package harness

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/client"
)

// readLimit is for reading a whole topic, of which a partition may just be elected.
const readLimit = 60 * time.Second

// place is where a record of the topic lies.
type place struct {
	partition uint32
	offset    uint64
}

func (p place) String() string { return fmt.Sprintf("partition %d, offset %d", p.partition, p.offset) }

// placed is what is known of one place, and who told first.
type placed struct{ id, text, by string }

// noteLocked records that somebody tells what lies at a place. What was delivered or
// acknowledged as committed stays what it is, whatever dies: a place has one content and
// an id names one content, for ever.
func (l *Ledger) noteLocked(at place, is placed) {
	was, known := l.places[at]
	if known && (was.id != is.id || was.text != is.text) {
		l.conflicts = append(l.conflicts, fmt.Sprintf("%s is %q (%s) by a %s and %q (%s) by a %s", at, was.text, was.id, was.by, is.text, is.id, is.by))
	} else if !known {
		l.places[at] = is
	}
	text, known := l.names[is.id]
	if known && text != is.text {
		l.conflicts = append(l.conflicts, fmt.Sprintf("id %s is of %q and, by a %s of %s, of %q", is.id, text, is.by, at, is.text))
	} else if !known {
		l.names[is.id] = is.text
	}
}

// Committed records a produce that was answered with a place.
func (l *Ledger) Committed(r client.Receipt, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Partition == nil || r.Offset == nil {
		l.conflicts = append(l.conflicts, fmt.Sprintf("%q was committed without a place: %+v", text, r))
		return
	}
	l.noteLocked(place{*r.Partition, *r.Offset}, placed{r.ID, text, "receipt"})
}

// Stored reads a topic to its end, confirmed by the leaders, and holds the ledger against
// it: each record that was delivered or committed lies at its place with its id and its
// bytes, everything that was accepted is there, and nothing that was never sent. It is for
// the end, when no produce is under way, and for topics of which nothing is deleted.
func (l *Ledger) Stored(ctx context.Context, t testing.TB, cl *client.Client, topic string) {
	t.Helper()
	var found map[place]placed
	var last error
	began := time.Now()
	if err := Until(ctx, readLimit, func() bool { found, last = readAll(ctx, cl, topic); return last == nil }); err != nil {
		t.Errorf("%s cannot be read: %v", topic, errors.Join(err, last))
		return
	}
	t.Logf("%s: %d records were read in %s", topic, len(found), time.Since(began).Round(time.Millisecond))
	l.holdAgainst(t, topic, found)
}

// readAll reads every partition of a topic.
func readAll(ctx context.Context, cl *client.Client, topic string) (map[place]placed, error) {
	d, err := cl.Topic(ctx, topic)
	if err != nil {
		return nil, err
	}
	found := map[place]placed{}
	for _, p := range d.PartitionDetails {
		for r, err := range cl.Replay(ctx, topic, client.ReplayOptions{Partition: p.Index, Incarnation: d.Incarnation, Confirmed: true}) {
			if err != nil {
				return nil, fmt.Errorf("partition %d: %w", p.Index, err)
			}
			found[place{r.Partition, r.Offset}] = placed{r.ID, string(r.Payload), "replay"}
		}
	}
	return found, nil
}

func (l *Ledger) holdAgainst(t testing.TB, topic string, found map[place]placed) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	before := len(l.conflicts)
	gone := some{t: t, what: topic + ": LOST: "}
	for at, was := range l.places {
		if _, ok := found[at]; !ok {
			gone.errorf("%q (%s), known by a %s, is not at %s", was.text, was.id, was.by, at)
		}
	}
	there := make(map[string]bool, len(found))
	invented := some{t: t, what: topic + ": INVENTED: "}
	for at, is := range found {
		there[is.text] = true
		if !l.sent[is.text] {
			invented.errorf("%q at %s was never sent", is.text, at)
		}
		l.noteLocked(at, is)
	}
	for text := range l.accepted {
		if !there[text] {
			gone.errorf("%q was accepted and is nowhere", text)
		}
	}
	gone.end()
	invented.end()
	l.tellConflicts(t, l.conflicts[before:])
	l.conflicts = l.conflicts[:before] // what the judge has to tell is not told twice
}

// tellConflicts fails for what has two contents.
func (l *Ledger) tellConflicts(t testing.TB, list []string) {
	t.Helper()
	two := some{t: t, what: "TWO CONTENTS: "}
	for _, c := range list {
		two.errorf("%s", c)
	}
	two.end()
}

// some tells a few of many faults of a kind, and then how many there were.
type some struct {
	t    testing.TB
	what string
	n    int
}

func (s *some) errorf(format string, args ...any) {
	s.t.Helper()
	if s.n++; s.n <= mostNamed {
		s.t.Errorf(s.what+format, args...)
	}
}

func (s *some) end() {
	s.t.Helper()
	if s.n > mostNamed {
		s.t.Errorf("%s%d in all", s.what, s.n)
	}
}
