package harness

import (
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/client"
)

// Ledger records what was sent, accepted and delivered, and judges at the end.
// Every message has its own text, so that a delivery can be told from all others.
// Safe for concurrent use.
type Ledger struct {
	mu         sync.Mutex // guards all below
	sent       map[string]bool
	accepted   map[string]time.Time
	deliveries map[string][]delivery
	unknown    int
}

type delivery struct {
	at        time.Time
	committed time.Time
	id        string
}

// NewLedger returns an empty one.
func NewLedger() *Ledger {
	return &Ledger{sent: map[string]bool{}, accepted: map[string]time.Time{}, deliveries: map[string][]delivery{}}
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
	l.deliveries[text] = append(l.deliveries[text], delivery{time.Now(), d.CommittedAt, d.ID})
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

// Judge checks the promise: nothing lost, nothing invented, no duplicate but
// for a listed reason: explained tells whether one between two moments has one.
func (l *Ledger) Judge(t testing.TB, explained func(from, to time.Time) bool) {
	t.Helper()
	if n, example := l.Missing(); n > 0 {
		t.Errorf("LOST: %d of %d accepted messages were never delivered, e.g. %q", n, l.Accepted(), example)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	duplicates := 0
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
		from := ds[0].at
		if at, ok := l.accepted[text]; ok && at.Before(from) {
			from = at
		}
		if !explained(from, ds[len(ds)-1].at) {
			t.Errorf("DUPLICATE: %q (%s) was delivered %d times without a listed reason", text, ds[0].id, len(ds))
		}
	}
	t.Logf("ledger: %d sent, %d accepted, %d refused or unknown, %d delivered, %d duplicates",
		len(l.sent), len(l.accepted), l.unknown, len(l.deliveries), duplicates)
}
