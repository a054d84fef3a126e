package harness

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/client"
)

const (
	// callLimit ends a produce or an ack that is under way when the load stops: it is
	// finished, so that its outcome is known.
	callLimit = 20 * time.Second
	// ackPatience is how long an ack is repeated; most leases of tests last a minute.
	ackPatience = 45 * time.Second
	// consumeAtOnce is how many messages a consume asks for unless the load says so.
	consumeAtOnce = 20
)

// Load produces and consumes one topic and writes everything into a ledger.
type Load struct {
	Client *client.Client
	Topic  string
	Ledger *Ledger
	Max    int    // of one consume; 0: 20
	Came   func() // told of each answer with messages; nil: nobody is
}

// Every calls do at each interval, with 0, 1, 2 and so on, until ctx ends; a call that
// takes longer delays the next.
func Every(ctx context.Context, interval time.Duration, do func(n int)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		do(n)
	}
}

// Produce sends single messages and batches of ten, keyed and not, one every
// interval (3.25 messages in the mean), until ctx ends.
func (w Load) Produce(ctx context.Context, name string, interval time.Duration) {
	Every(ctx, interval, func(n int) {
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
		w.Ledger.Sending(texts...)
		one, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
		var err error
		if size == 1 {
			_, err = w.Client.Produce(one, w.Topic, msgs[0], client.ProduceOptions{})
		} else {
			_, err = w.Client.ProduceBatch(one, w.Topic, msgs, client.ProduceOptions{})
		}
		cancel()
		w.Ledger.Produced(err, texts...)
	})
}

// Consume receives and acks until ctx ends.
func (w Load) Consume(ctx context.Context, t testing.TB) {
	most := w.Max
	if most == 0 {
		most = consumeAtOnce
	}
	for ctx.Err() == nil {
		got, err := w.Client.Receive(ctx, w.Topic, client.ReceiveOptions{Max: most, Wait: time.Second})
		if err != nil || len(got.Deliveries) == 0 {
			continue // the client has backed off already
		}
		if w.Came != nil {
			w.Came()
		}
		w.ack(ctx, t, w.note(got.Deliveries))
	}
}

// note records deliveries; it returns what each receipt handle is of.
func (w Load) note(list []client.Delivery) (texts map[string]string) {
	texts = make(map[string]string, len(list))
	for _, d := range list {
		w.Ledger.Delivered(d)
		texts[d.ReceiptHandle] = string(d.Payload)
	}
	return texts
}

// ack is repeated until it is answered: an ack that never arrived would be a
// duplicate of the test's own making.
func (w Load) ack(ctx context.Context, t testing.TB, texts map[string]string) {
	handles := slices.Collect(maps.Keys(texts))
	for begin := time.Now(); len(handles) > 0; {
		one, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
		results, err := w.Client.AckMany(one, w.Topic, handles)
		cancel()
		if err != nil {
			t.Logf("ack: %v", err)
			if client.HasCode(err, client.CodeTopicNotFound) || time.Since(begin) > ackPatience {
				return
			}
			continue // the client has backed off already
		}
		var again []string
		for i, r := range results {
			switch {
			case r.Status == 503:
				again = append(again, handles[i])
			case r.Status < 300:
				w.Ledger.Acked(texts[handles[i]])
			}
		}
		handles = again
	}
}

// Running is a load that runs in the background.
type Running struct {
	load                 Load
	stop, stopConsuming  context.CancelFunc
	producers, consumers sync.WaitGroup
}

// Start runs so many producers, each as Produce says, and consumers. End has to be
// called, also by a test that gives up.
func (w Load) Start(ctx context.Context, t testing.TB, producers int, interval time.Duration, consumers int) *Running {
	r := &Running{load: w}
	producing, stop := context.WithCancel(ctx)
	consuming, stopConsuming := context.WithCancel(ctx)
	r.stop, r.stopConsuming = stop, stopConsuming
	for i := range producers {
		r.producers.Go(func() { w.Produce(producing, fmt.Sprintf("p%d", i), interval) })
	}
	for range consumers {
		r.consumers.Go(func() { w.Consume(consuming, t) })
	}
	return r
}

// StopProducing returns when no produce is under way any more.
func (r *Running) StopProducing() {
	r.stop()
	r.producers.Wait()
}

// Drain stops producing and waits until everything accepted has come.
func (r *Running) Drain(ctx context.Context, t testing.TB, limit time.Duration) {
	t.Helper()
	r.StopProducing()
	if err := Until(ctx, limit, func() bool { n, _ := r.load.Ledger.Missing(); return n == 0 }); err != nil {
		n, example := r.load.Ledger.Missing()
		t.Errorf("%s: %d accepted messages have still not come, e.g. %q", r.load.Topic, n, example)
	}
}

// End stops everything.
func (r *Running) End() {
	r.StopProducing()
	r.stopConsuming()
	r.consumers.Wait()
}
