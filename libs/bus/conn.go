package bus

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// connectTimeout is for one server to accept and greet.
	connectTimeout = 2 * time.Second
	// retryMin and retryMax are the pauses between rounds over all servers; they
	// double, so that a server which restarts is found soon and one that is gone is
	// left in peace.
	retryMin, retryMax = 250 * time.Millisecond, 5 * time.Second
	// pingEvery and pingsOut end a connection whose server fell silent: within 15 s.
	pingEvery, pingsOut = 5 * time.Second, 2
	// writeTimeout is for a server that does not read, and confirmTimeout for its word
	// that it has what was published.
	writeTimeout, confirmTimeout = 5 * time.Second, 2 * time.Second
	// lastWords is confirmTimeout when the process stops.
	lastWords = time.Second
	// pendingMessages and pendingBytes bound what the library keeps for one
	// subscription: a flood of large messages must not cost memory.
	pendingMessages, pendingBytes = 4096, 4 << 20
)

// keepConnected has a connection, or tries to, until ctx ends. There is one
// mechanism: the library's own reconnecting gives up on some errors, so it is off.
func (b *Bus) keepConnected(ctx context.Context, cluster string) {
	told := false // of this outage
	for pause := retryMin; ctx.Err() == nil; {
		s, err := b.connect(ctx, cluster)
		if err == nil {
			b.cfg.Log.Info("bus connected", "server", s.conn.ConnectedUrlRedacted())
			b.metrics.connected.Set(1)
			begin := time.Now()
			err = s.run(ctx)
			b.metrics.connected.Set(0)
			if time.Since(begin) > retryMax { // else it is still the same outage
				told, pause = false, retryMin
			}
		}
		if ctx.Err() != nil {
			return
		}
		if !told {
			told = true
			b.cfg.Log.Warn("the bus is not reached and is tried for ever; purges come by the metastore and the sweep", "error", err)
		}
		select {
		case <-time.After(pause + rand.N(pause/2)): // a whole cluster comes at once otherwise
		case <-ctx.Done():
		}
		pause = min(2*pause, retryMax)
	}
}

// session is one connection with its subscriptions.
type session struct {
	bus      *Bus
	cluster  string
	conn     *nats.Conn
	ended    chan struct{} // closed with the connection
	refusals sync.Once     // one line of log a connection
}

// dialer lets the end of the process end a dial.
type dialer struct{ ctx context.Context }

// Dial implements nats.CustomDialer.
func (d dialer) Dial(network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: connectTimeout}).DialContext(d.ctx, network, address)
}

func (b *Bus) connect(ctx context.Context, cluster string) (*session, error) {
	s := &session{bus: b, cluster: cluster, ended: make(chan struct{})}
	conn, err := nats.Connect(b.cfg.URL, append(b.cfg.options(),
		nats.Name(b.cfg.NodeID), nats.NoReconnect(), nats.NoEcho(), nats.Timeout(connectTimeout), nats.SetCustomDialer(dialer{ctx}),
		nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(pingsOut), nats.FlusherTimeout(writeTimeout),
		nats.ClosedHandler(func(*nats.Conn) { close(s.ended) }), nats.ErrorHandler(s.refused),
	)...)
	if err != nil {
		return nil, fmt.Errorf("connect to a NATS server: %w", err)
	}
	s.conn = conn
	for _, k := range kinds {
		if !b.listens(k) {
			continue
		}
		if err := s.subscribe(k); err != nil {
			conn.Close()
			return nil, fmt.Errorf("subscribe to %s: %w", k, err)
		}
	}
	// Connected means that nothing which is said from now on is missed.
	if err := conn.FlushTimeout(confirmTimeout); err != nil {
		conn.Close()
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	return s, nil
}

// subscribe without a queue group: every listener hears everything.
func (s *session) subscribe(k kind) error {
	dropped := 0 // by the library, as far as it was counted
	sub, err := s.conn.Subscribe(k.subject(s.cluster), func(m *nats.Msg) {
		if n, err := m.Sub.Dropped(); err == nil && n > dropped {
			s.bus.metrics.count(k, outcomeIgnored, n-dropped)
			dropped = n
		}
		s.bus.take(k, m.Data)
	})
	if err != nil {
		return err
	}
	return sub.SetPendingLimits(pendingMessages, pendingBytes)
}

// refused hears what the server or the library refuses while the connection lives.
func (s *session) refused(_ *nats.Conn, _ *nats.Subscription, err error) {
	s.refusals.Do(func() { s.bus.cfg.Log.Warn("bus: something is refused or too fast on this connection", "error", err) })
}

// run publishes what is queued until the connection or ctx ends, and closes it.
func (s *session) run(ctx context.Context) error {
	defer s.conn.Close()
	for {
		select {
		case <-s.ended:
			return orEnded(s.conn.LastError())
		case <-ctx.Done():
			s.send(nil, lastWords)
			return nil
		case m := <-s.bus.out:
			s.send([]outgoing{m}, confirmTimeout)
		}
	}
}

// orEnded stands in for no error: the server hung up in order.
func orEnded(err error) error {
	if err == nil {
		return nats.ErrConnectionClosed
	}
	return err
}

// send publishes the batch and what is queued behind it, and counts it as published
// once the server has answered for all of it.
func (s *session) send(batch []outgoing, confirm time.Duration) {
	for more := true; more && len(batch) < outQueue; {
		select {
		case m := <-s.bus.out:
			batch = append(batch, m)
		default:
			more = false
		}
	}
	if len(batch) == 0 {
		return
	}
	var err error
	for _, m := range batch {
		if err == nil {
			err = s.conn.Publish(m.kind.subject(s.cluster), m.payload)
		}
	}
	if err == nil {
		err = s.conn.FlushTimeout(confirm)
	}
	outcome := outcomePublished
	if err != nil {
		outcome = outcomeFailed
	}
	for _, m := range batch {
		s.bus.metrics.count(m.kind, outcome, 1)
	}
}
