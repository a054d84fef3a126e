package bus

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/topic"
)

const (
	// outQueue is how many messages wait for a server; what comes then is dropped.
	// The metastore tells it all anyway: this is for a server that restarts.
	outQueue = 1024
	// inQueue is how many messages wait to be handed on; the oldest is dropped then,
	// which a flood reaches and a cluster does not.
	inQueue = 256
)

// Replica is the part of a metastore replica that the bus follows.
type Replica interface {
	// ClusterID is "" as long as it is not known.
	ClusterID() string
	// Changed is closed at the next change. Taken before reading.
	Changed() <-chan struct{}
}

// Config of a Bus.
type Config struct {
	Settings
	NodeID   string
	Replica  Replica
	Log      *slog.Logger          // nil discards
	Registry prometheus.Registerer // nil: no metrics

	// TopicPurged and MemberDraining hear what others say, one call at a time; nil:
	// nobody listens. What they hear is a claim that anybody may have made: it may be
	// false, late and repeated. While one works, what comes waits and is dropped.
	TopicPurged    func(name string, id topic.Incarnation)
	MemberDraining func(member string, draining bool)
}

// Bus is one node's part in the broadcasts of its cluster. A nil Bus is off: it
// publishes nothing and Run waits. Safe for concurrent use.
type Bus struct {
	cfg     Config
	metrics *metrics
	out     chan outgoing
	in      chan event
}

// outgoing is a message that waits to be published.
type outgoing struct {
	kind    kind
	payload []byte
}

// New makes a bus of settings that Check found good, nil where they say that there
// is none. It dials nobody before Run. Its errors are those of the registry.
func New(cfg Config) (*Bus, error) {
	if cfg.Off() {
		return nil, nil
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	m, err := newMetrics(cfg.Registry)
	if err != nil {
		return nil, err
	}
	return &Bus{cfg: cfg, metrics: m, out: make(chan outgoing, outQueue), in: make(chan event, inQueue)}, nil
}

// TopicPurged tells that a life of a topic has ended, after the metastore committed
// it. It never waits.
func (b *Bus) TopicPurged(name string, id topic.Incarnation) {
	if b != nil {
		b.publish(topicPurged, purged{envelope: b.seal(), Topic: name, Incarnation: id})
	}
}

// MemberDraining tells that a member is being drained, or no more, after the
// metastore committed it. It never waits.
func (b *Bus) MemberDraining(member string, drain bool) {
	if b != nil {
		b.publish(memberDraining, draining{envelope: b.seal(), Member: member, Draining: &drain})
	}
}

func (b *Bus) seal() envelope {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	return seal(topic.ID64(binary.BigEndian.Uint64(id[:])), b.cfg.NodeID, time.Now())
}

func (b *Bus) publish(k kind, payload any) {
	raw, err := encode(payload)
	if err != nil {
		b.metrics.count(k, outcomeFailed, 1)
		return
	}
	select {
	case b.out <- outgoing{k, raw}:
	default:
		b.metrics.count(k, outcomeFailed, 1)
	}
}

// Run keeps a connection, publishes and hands on until ctx ends; then it sends what
// is queued, if a server is there, and returns nil. It is called once. What goes
// wrong is logged, counted and tried again.
func (b *Bus) Run(ctx context.Context) error {
	if b == nil {
		<-ctx.Done()
		return nil
	}
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { b.handOn(ctx) })
	if cluster, ok := b.awaitCluster(ctx); ok {
		b.keepConnected(ctx, cluster)
	}
	return nil
}

func (b *Bus) awaitCluster(ctx context.Context) (id string, ok bool) {
	for {
		changed := b.cfg.Replica.Changed()
		if id := b.cfg.Replica.ClusterID(); id != "" {
			return id, true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", false
		}
	}
}

// listens tells whether anybody is there to hand messages of a kind to.
func (b *Bus) listens(k kind) bool {
	if k == topicPurged {
		return b.cfg.TopicPurged != nil
	}
	return b.cfg.MemberDraining != nil
}

// take puts a message where handOn finds it. One goroutine per kind calls it.
func (b *Bus) take(k kind, payload []byte) {
	e, ok := judge(k, payload)
	if !ok {
		b.metrics.count(k, outcomeIgnored, 1)
		return
	}
	for {
		select {
		case b.in <- e:
			return
		default:
		}
		select {
		case old := <-b.in:
			b.metrics.count(old.kind, outcomeIgnored, 1)
		default:
		}
	}
}

// handOn tells the listeners, apart from the connection, so that a slow one costs
// messages and never the connection.
func (b *Bus) handOn(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-b.in:
			b.metrics.count(e.kind, outcomeReceived, 1)
			switch e.kind {
			case topicPurged:
				b.cfg.TopicPurged(e.topic, e.incarnation)
			case memberDraining:
				b.cfg.MemberDraining(e.member, e.draining)
			}
		}
	}
}
