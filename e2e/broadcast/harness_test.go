package broadcast

import (
	"context"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/bus"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// patience is for what should take milliseconds.
const patience = testkit.Patience

// subject of purges in the cluster of testkit.Meta.
const subject = "narad.00000000000000000000000000000001.v1.topic_purged"

// serve runs a NATS server at addr until the test ends or stop is called.
func serve(t *testing.T, addr string, change func(*server.Options)) (stop func()) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	o := &server.Options{Host: host, Port: number, NoLog: true, NoSigs: true}
	if change != nil {
		change(o)
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(patience) {
		t.Fatal("the NATS server does not start")
	}
	stop = sync.OnceFunc(func() { s.Shutdown(); s.WaitForShutdown() })
	t.Cleanup(stop)
	return stop
}

// node is a bus that runs, and what it hears.
type node struct {
	*bus.Bus
	t        *testing.T
	registry *prometheus.Registry
	purged   chan topic.Incarnation
	stop     func() // ends Run and waits for it
}

// start runs a bus until the test ends or stop is called.
func start(t *testing.T, set bus.Settings, change func(*bus.Config)) *node {
	t.Helper()
	n := &node{t: t, registry: prometheus.NewRegistry(), purged: make(chan topic.Incarnation, 10_000)}
	cfg := bus.Config{
		Settings: set, NodeID: "node", Replica: testkit.NewMeta(), Registry: n.registry,
		TopicPurged: func(_ string, id topic.Incarnation) { n.purged <- id },
	}
	if change != nil {
		change(&cfg)
	}
	err := set.Check()
	if err == nil {
		n.Bus, err = bus.New(cfg)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("the bus does not stop")
		}
	})
	t.Cleanup(n.stop)
	return n
}

// hear waits for one purge.
func (n *node) hear(want topic.Incarnation) {
	n.t.Helper()
	select {
	case got := <-n.purged:
		if got != want {
			n.t.Fatalf("heard %s, want %s", got, want)
		}
	case <-time.After(patience):
		n.t.Fatalf("%s was not heard", want)
	}
}

// hearUntil passes over what was late: whether that is heard depends on who was
// connected first, and a broadcast that nobody hears is lost.
func (n *node) hearUntil(want topic.Incarnation) {
	n.t.Helper()
	for got := topic.Incarnation(0); got != want; {
		select {
		case got = <-n.purged:
		case <-time.After(patience):
			n.t.Fatalf("%d was not heard", want)
		}
	}
}

// metric reads a series; labels are its subject and outcome, where it has them.
func (n *node) metric(name string, labels ...string) float64 {
	n.t.Helper()
	families, err := n.registry.Gather()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			fits := len(m.GetLabel()) == len(labels)
			for _, l := range m.GetLabel() {
				at := map[string]int{"subject": 0, "outcome": 1}[l.GetName()]
				fits = fits && l.GetValue() == labels[at]
			}
			if fits {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	n.t.Fatalf("no %s %v", name, labels)
	return 0
}

func (n *node) purges(outcome string) int {
	n.t.Helper()
	return int(n.metric("narad_bus_messages_total", "topic_purged", outcome))
}

func (n *node) await(connected float64) {
	n.t.Helper()
	testkit.Poll(n.t, patience, "the bus is connected or not", func() bool { return n.metric("narad_bus_connected") == connected })
}

// stranger is a client of the server that is no node.
func stranger(t *testing.T, url string) *nats.Conn {
	t.Helper()
	conn, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}
