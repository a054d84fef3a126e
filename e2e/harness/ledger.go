package harness

import (
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/client"
)

// Ledger records what was sent, accepted and delivered, and judges at the end.
// It is of one topic in one life. Every message has its own text, so that a delivery can
// be told from all others.
// Safe for concurrent use.
type Ledger struct {
	mu         sync.Mutex // guards all below
	sent       map[string]bool
	accepted   map[string]time.Time
	deliveries map[string][]delivery
	acked      map[string]time.Time
	places     map[place]placed  // what was delivered or committed
	names      map[string]string // the texts of ids
	conflicts  []string          // places and ids with two contents
	unknown    int
}

type delivery struct {
	at        time.Time
	committed time.Time
	id        string
	partition uint32
}

// Repeat is a delivery of a message that had been delivered before.
type Repeat struct {
	Before, At time.Time // when it came the time before, and now
	From, In   uint32    // the partitions that it came from
	Acked      time.Time // when its ack was answered, before or since; zero: it never was
	Since      time.Time // when it was accepted, or came first if the answer came later
}

// NewLedger returns an empty one.
func NewLedger() *Ledger {
	return &Ledger{
		sent: map[string]bool{}, accepted: map[string]time.Time{}, deliveries: map[string][]delivery{}, acked: map[string]time.Time{},
		places: map[place]placed{}, names: map[string]string{},
	}
}

// Sending records what is about to be sent.
func (l *Ledger) Sending(texts ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range texts {
		l.sent[s] = true
	}
}

// Produced records how a produce ended: accepted, or refused or unknown.
func (l *Ledger) Produced(err error, texts ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.unknown += len(texts)
		return
	}
	for _, s := range texts {
		l.accepted[s] = time.Now()
	}
}

// Delivered records a delivery.
func (l *Ledger) Delivered(d client.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := string(d.Payload)
	l.deliveries[text] = append(l.deliveries[text], delivery{time.Now(), d.CommittedAt, d.ID, d.Partition})
	l.noteLocked(place{d.Partition, d.Offset}, placed{d.ID, text, "delivery"})
}

// Acked records that an ack was answered: from now on the message is settled.
func (l *Ledger) Acked(texts ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range texts {
		if _, ok := l.acked[s]; !ok {
			l.acked[s] = time.Now()
		}
	}
}

// Owe takes over what another ledger says was sent and accepted: a child owes what
// its parent accepted.
func (l *Ledger) Owe(parent *Ledger) {
	sent, accepted := parent.produced()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent, l.accepted = sent, accepted
}

func (l *Ledger) produced() (sent map[string]bool, accepted map[string]time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sent, accepted = make(map[string]bool, len(l.sent)), make(map[string]time.Time, len(l.accepted))
	for s := range l.sent {
		sent[s] = true
	}
	for s, at := range l.accepted {
		accepted[s] = at
	}
	return sent, accepted
}

// Accepted is how many messages were accepted so far.
func (l *Ledger) Accepted() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.accepted)
}

// Unknown is how many messages were refused, or have an unknown outcome.
func (l *Ledger) Unknown() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unknown
}

// Missing counts accepted messages that were not delivered yet.
func (l *Ledger) Missing() (n int, example string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.accepted {
		if len(l.deliveries[s]) == 0 {
			n++
			example = s
		}
	}
	return n, example
}

// Early counts messages that were delivered sooner than delay after the parent, whose
// ledger is given, had stamped them; what the parent has not delivered is not judged.
func (l *Ledger) Early(parent *Ledger, delay time.Duration) (n int, example string) {
	parent.mu.Lock()
	stamps := make(map[string]time.Time, len(parent.deliveries))
	for s, ds := range parent.deliveries {
		stamps[s] = ds[0].committed
	}
	parent.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for s, ds := range l.deliveries {
		if at, ok := stamps[s]; ok && ds[0].at.Before(at.Add(delay)) {
			n++
			example = s
		}
	}
	return n, example
}

// Judge checks the promise: nothing lost, nothing invented, no place and no id with two
// contents, no duplicate but for a listed reason: explained tells whether one between
// two moments has one.
func (l *Ledger) Judge(t testing.TB, explained func(from, to time.Time) bool) {
	t.Helper()
	l.judge(t, func(text string, ds []delivery) (reasons []string) {
		if explained(l.since(text, ds), ds[len(ds)-1].at) {
			return []string{"explained"}
		}
		return []string{""}
	})
}

// JudgeRepeats checks the promise, and has every repeat explained by one of the listed
// reasons, by name; empty: there is none. It logs how many each reason explains.
func (l *Ledger) JudgeRepeats(t testing.TB, reason func(Repeat) string) {
	t.Helper()
	l.judge(t, func(text string, ds []delivery) (reasons []string) {
		for i := range ds[1:] {
			was, is := ds[i], ds[i+1]
			reasons = append(reasons, reason(Repeat{Before: was.at, At: is.at, From: was.partition, In: is.partition, Acked: l.acked[text], Since: l.since(text, ds)}))
		}
		return reasons
	})
}

// since is when a message was accepted, or came first if the answer came later.
func (l *Ledger) since(text string, ds []delivery) time.Time {
	if at, ok := l.accepted[text]; ok && at.Before(ds[0].at) {
		return at
	}
	return ds[0].at
}

func (l *Ledger) judge(t testing.TB, explain func(text string, ds []delivery) (reasons []string)) {
	t.Helper()
	if n, example := l.Missing(); n > 0 {
		t.Errorf("LOST: %d of %d accepted messages were never delivered, e.g. %q", n, l.Accepted(), example)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tellConflicts(t, l.conflicts)
	duplicates, counts := 0, map[string]int{}
	for text, ds := range l.deliveries {
		if !l.sent[text] {
			t.Errorf("INVENTED: %q was delivered and never sent", text)
		}
		if len(ds) == 1 {
			continue
		}
		duplicates++
		for _, d := range ds[1:] {
			if d.id != ds[0].id {
				t.Errorf("%q came under two ids: %s and %s", text, ds[0].id, d.id)
			}
		}
		for i, why := range explain(text, ds) {
			counts[why]++
			if why == "" && counts[why] <= mostNamed {
				t.Errorf("DUPLICATE: %q (%s) was delivered %d times without a listed reason: delivery %d came at %s, the one before at %s, acked at %s",
					text, ds[0].id, len(ds), i+2, ds[i+1].at.Format(clock), ds[i].at.Format(clock), l.acked[text].Format(clock))
			}
		}
	}
	if counts[""] > mostNamed {
		t.Errorf("DUPLICATE: %d in all without a listed reason", counts[""])
	}
	t.Logf("ledger: %d sent, %d accepted, %d refused or unknown, %d delivered, %d duplicates, by reason %v",
		len(l.sent), len(l.accepted), l.unknown, len(l.deliveries), duplicates, counts)
}

const (
	clock     = "15:04:05.000"
	mostNamed = 5 // of the faults of a kind
)
