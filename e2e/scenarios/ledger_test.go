//go:build e2e

package scenarios

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/client"
)

// ledger records what was sent, accepted and delivered, and judges at the end.
// Every message has its own text, so that a delivery can be told from all others.
type ledger struct {
	mu         sync.Mutex // guards all below
	sent       map[string]bool
	accepted   map[string]time.Time
	deliveries map[string][]delivery
	unknown    int
}

type delivery struct {
	at time.Time
	id string
}

func newLedger() *ledger {
	return &ledger{sent: map[string]bool{}, accepted: map[string]time.Time{}, deliveries: map[string][]delivery{}}
}

func (l *ledger) sending(texts ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range texts {
		l.sent[s] = true
	}
}

func (l *ledger) produced(err error, texts ...string) {
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

func (l *ledger) delivered(d client.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := string(d.Payload)
	l.deliveries[text] = append(l.deliveries[text], delivery{time.Now(), d.ID})
}

// missing counts accepted messages that were not delivered yet.
func (l *ledger) missing() (n int, example string) {
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

// judge checks the promise: nothing lost, nothing invented, no duplicate but
// for a listed reason: explained tells whether one between two moments has one.
func (l *ledger) judge(t *testing.T, explained func(from, to time.Time) bool) {
	t.Helper()
	if n, example := l.missing(); n > 0 {
		t.Errorf("LOST: %d of %d accepted messages were never delivered, e.g. %q", n, len(l.accepted), example)
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

// load keeps producing and consuming at a steady rate until it is stopped.
type load struct {
	cl     *client.Client
	topic  string
	ledger *ledger
}

// produce sends single messages and batches, keyed and not, one every interval.
func (w load) produce(ctx context.Context, name string, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		size := 1
		if n%4 == 0 {
			size = 10
		}
		texts := make([]string, size)
		msgs := make([]client.Message, size)
		for i := range texts {
			texts[i] = fmt.Sprintf("%s-%d-%d", name, n, i)
			msgs[i].Payload = []byte(texts[i])
			if n%2 == 0 {
				msgs[i].Key = []byte(fmt.Sprintf("key-%d", rand.IntN(50)))
			}
		}
		w.ledger.sending(texts...)
		// A produce under way is finished, so that its outcome is known.
		one, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		var err error
		if size == 1 {
			_, err = w.cl.Produce(one, w.topic, msgs[0], client.ProduceOptions{})
		} else {
			_, err = w.cl.ProduceBatch(one, w.topic, msgs, client.ProduceOptions{})
		}
		cancel()
		w.ledger.produced(err, texts...)
	}
}

// consume receives and acks until ctx ends. An ack is repeated until it is
// answered: an ack that never arrived would be a duplicate of the test's own making.
func (w load) consume(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		got, err := w.cl.Receive(ctx, w.topic, client.ReceiveOptions{Max: 20, Wait: time.Second})
		if err != nil {
			continue // the client has backed off already
		}
		var handles []string
		for _, d := range got.Deliveries {
			w.ledger.delivered(d)
			handles = append(handles, d.ReceiptHandle)
		}
		for len(handles) > 0 {
			one, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
			results, err := w.cl.AckMany(one, w.topic, handles)
			cancel()
			if err != nil {
				t.Logf("ack: %v", err)
				break
			}
			var again []string
			for i, r := range results {
				if r.Status == 503 {
					again = append(again, handles[i])
				}
			}
			handles = again
		}
	}
}
