package broadcast

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/narad-mq/narad/libs/bus"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/testkit/leak"
	"github.com/narad-mq/narad/libs/tlsconf/certs"
	"github.com/narad-mq/narad/libs/topic"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestNodesHearEachOther: the bytes that are on the wire, who hears them, who does
// not, and how they are counted.
func TestNodesHearEachOther(t *testing.T) {
	addr := testkit.FreeAddr(t)
	serve(t, addr, nil)
	set := bus.Settings{URL: "nats://" + addr}
	drains := make(chan string, 10)
	storage := start(t, set, func(c *bus.Config) {
		c.MemberDraining = func(member string, draining bool) { drains <- fmt.Sprint(member, draining) }
	})
	gateway := start(t, set, func(c *bus.Config) { c.NodeID = "gateway-1" }) // hears purges too, but not its own
	storage.await(1)
	gateway.await(1)
	wire := make(chan *nats.Msg, 10)
	other := stranger(t, set.URL)
	if _, err := other.ChanSubscribe("narad.>", wire); err != nil {
		t.Fatal(err)
	}
	if err := other.Flush(); err != nil {
		t.Fatal(err)
	}
	gateway.TopicPurged("orders", 0x3f9a17c4e2b08d51)
	storage.hear(0x3f9a17c4e2b08d51)
	got := <-wire
	if want := regexp.MustCompile(`^\{"v":1,"id":"[0-9a-f]{16}","from":"gateway-1","sent_at":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z","topic":"orders","incarnation":"3f9a17c4e2b08d51"\}$`); got.Subject != subject || !want.Match(got.Data) {
		t.Errorf("on the wire: %s %s", got.Subject, got.Data)
	}
	gateway.MemberDraining("storage-3", true)
	if got := <-drains; got != "storage-3true" {
		t.Error(got)
	}
	// Another cluster's, another release's, and the same once more.
	for _, m := range []*nats.Msg{
		{Subject: strings.Replace(subject, "1.v1", "2.v1", 1), Data: got.Data},
		{Subject: strings.Replace(subject, ".v1.", ".v2.", 1), Data: got.Data},
		{Subject: subject, Data: []byte(strings.Replace(string(got.Data), `"v":1`, `"v":2`, 1))},
		{Subject: subject, Data: got.Data},
	} {
		if err := other.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	storage.hear(0x3f9a17c4e2b08d51)
	testkit.Poll(t, patience, "everything is counted", func() bool {
		return gateway.purges("published") == 1 && storage.purges("received") == 2 && storage.purges("ignored") == 1
	})
	// It was told of the repeated one by a stranger, and not of its own.
	testkit.Poll(t, patience, "the gateway has counted", func() bool { return gateway.purges("received") == 1 })
	if gateway.purges("failed") != 0 || len(storage.purged) != 0 {
		t.Errorf("%d failed, %d too many heard", gateway.purges("failed"), len(storage.purged))
	}
}

// TestServerAbsentAndRestarted: nobody waits and nobody ends; what was said meanwhile
// is heard late, and what is said last is not lost.
func TestServerAbsentAndRestarted(t *testing.T) {
	addr := testkit.FreeAddr(t)
	set := bus.Settings{URL: "nats://127.0.0.1:1,nats://" + addr} // the first is never there
	storage, gateway := start(t, set, nil), start(t, set, nil)
	gateway.TopicPurged("orders", 1)
	for id := topic.Incarnation(1); id < 4; id++ {
		stop := serve(t, addr, nil)
		storage.await(1)
		gateway.await(1)
		gateway.TopicPurged("orders", id*10)
		storage.hearUntil(id * 10)
		stop()
		storage.await(0)
		gateway.await(0)
		gateway.TopicPurged("orders", id*10+1) // late
	}
	serve(t, addr, nil)
	storage.await(1)
	gateway.await(1)
	gateway.TopicPurged("orders", 99)
	gateway.stop() // at once
	storage.hearUntil(99)
	// 1, three in time, three late, and the last; one may be confirmed too late on a machine
	// that stands still for a second.
	if got, failed := gateway.purges("published"), gateway.purges("failed"); got+failed != 8 || failed > 1 {
		t.Errorf("%d published, %d failed", got, failed)
	}
}

// TestNothingIsLeftAtTheStop: what was said before the end is sent, while a server is
// there.
func TestNothingIsLeftAtTheStop(t *testing.T) {
	addr := testkit.FreeAddr(t)
	serve(t, addr, nil)
	const rounds = 12 // which of two things that are ready comes first is chance
	late := 0
	for range rounds {
		gateway := start(t, bus.Settings{URL: "nats://" + addr}, nil)
		gateway.await(1)
		begin := time.Now()
		for range 100 {
			gateway.TopicPurged("orders", 1)
		}
		gateway.stop()
		switch got := gateway.purges("published"); {
		case got == 100:
		case time.Since(begin) >= time.Second: // what the server has is not waited for longer at the stop
			late++
		default:
			t.Fatalf("%d of 100 were published, %d failed", got, gateway.purges("failed"))
		}
	}
	if late > rounds/2 {
		t.Errorf("%d of %d stops were too late", late, rounds)
	}
}

// TestFlood: garbage, large, forged and too many at once, at a listener that is slow:
// each is counted, memory stays, the connection too, and who publishes never waits.
func TestFlood(t *testing.T) {
	addr := testkit.FreeAddr(t)
	serve(t, addr, nil)
	set := bus.Settings{URL: "nats://" + addr}
	release := make(chan struct{})
	heard := make(chan topic.Incarnation, 100_000)
	storage := start(t, set, func(c *bus.Config) {
		c.TopicPurged = func(_ string, id topic.Incarnation) { <-release; heard <- id }
	})
	gateway := start(t, set, func(c *bus.Config) { c.TopicPurged = nil })
	storage.await(1)
	gateway.await(1)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	flooder := stranger(t, set.URL)
	large := []byte(`{"v":1,"topic":"orders","incarnation":"3f9a17c4e2b08d51","pad":"` + strings.Repeat("x", 100<<10) + `"}`)
	sent, slow, slowest := 0, 0, time.Duration(0)
	for i := range 20_000 {
		payload := fmt.Appendf(nil, `{"v":1,"topic":"orders","incarnation":"%016x"}`, i+1)
		switch {
		case i%200 == 0:
			payload = large
		case i%3 == 0:
			payload = []byte("\xff garbage")
		}
		if err := flooder.Publish(subject, payload); err != nil {
			t.Fatal(err)
		}
		sent++
		if i%100 == 0 {
			begin := time.Now()
			gateway.TopicPurged("orders", 1<<40)
			took := time.Since(begin)
			if slowest = max(slowest, took); took > time.Second { // a wait for anything would be longer
				slow++
			}
			sent++
		}
	}
	if err := flooder.Flush(); err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "what the gateway said is out", func() bool { return gateway.purges("published")+gateway.purges("failed") == 200 })
	sent -= gateway.purges("failed")
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 32<<20 {
		t.Errorf("the flood costs %d MiB", grown>>20)
	}
	if slow > 2 { // of 200: a machine may stand still
		t.Errorf("publishing took longer than a second %d times, up to %s", slow, slowest)
	}
	close(release)
	// What the library dropped is counted with the next message.
	last := topic.Incarnation(1 << 41)
	seen := map[topic.Incarnation]bool{}
	testkit.Poll(t, patience, "a good message is heard after the flood, and all is counted", func() bool {
		gateway.TopicPurged("orders", last)
		sent++
		for len(heard) > 0 {
			seen[<-heard] = true
		}
		return seen[last] && storage.purges("received")+storage.purges("ignored") >= sent-2
	})
	if storage.metric("narad_bus_connected") != 1 || storage.purges("ignored") < 100 {
		t.Errorf("connected %v, %d ignored", storage.metric("narad_bus_connected"), storage.purges("ignored"))
	}
	t.Logf("%d sent, %d received, %d ignored; publishing took at most %s", sent, storage.purges("received"), storage.purges("ignored"), slowest)
}

// TestSilentServer: one that accepts and never speaks holds nobody up, at the stop
// neither.
func TestSilentServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const tries = 3 // a machine that stands still makes one slow
	for try := 1; ; try++ {
		gateway := start(t, bus.Settings{URL: "nats://" + l.Addr().String()}, nil)
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		begin := time.Now()
		for range 2000 {
			gateway.TopicPurged("orders", 1)
		}
		publishing := time.Since(begin)
		begin = time.Now()
		gateway.stop()
		stopping := time.Since(begin)
		if publishing <= time.Second && stopping <= 4*time.Second {
			return
		}
		if try == tries {
			t.Fatalf("publishing took %s, and stopping %s", publishing, stopping)
		}
	}
}

// TestTLS: --nats-tls-ca makes it TLS, and another authority is refused for ever.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	ca, err := certs.Init(dir, "test", certs.AuthorityValidity)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Node(dir, "nats", []string{"127.0.0.1"}, certs.NodeValidity); err != nil {
		t.Fatal(err)
	}
	foreign := t.TempDir()
	if _, err := certs.Init(foreign, "other", certs.AuthorityValidity); err != nil {
		t.Fatal(err)
	}
	addr, at := testkit.FreeAddr(t), certs.NodePaths(dir, "nats")
	config, err := server.GenTLSConfig(&server.TLSConfigOpts{CertFile: at.Cert, KeyFile: at.Key})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, addr, func(o *server.Options) { o.TLS, o.TLSConfig, o.TLSTimeout = true, config, 5 })
	authority := func(dir string) bus.Settings {
		return bus.Settings{URL: "nats://" + addr, CAFile: certs.AuthorityPaths(dir).Cert}
	}
	refused := start(t, authority(foreign), nil)
	storage, gateway := start(t, authority(dir), nil), start(t, authority(dir), nil)
	storage.await(1)
	gateway.await(1)
	gateway.TopicPurged("orders", 7)
	storage.hear(7)
	if refused.metric("narad_bus_connected") != 0 {
		t.Error("a certificate of another authority is good enough")
	}
}

// TestUsers: with --nats-creds-file where the server asks for a user; without it the
// bus tries for ever, and a permission that is missing ends nothing.
func TestUsers(t *testing.T) {
	key := func(create func() (nkeys.KeyPair, error)) (pair nkeys.KeyPair, public string) {
		t.Helper()
		pair, err := create()
		if err == nil {
			public, err = pair.PublicKey()
		}
		if err != nil {
			t.Fatal(err)
		}
		return pair, public
	}
	operatorKey, operatorID := key(nkeys.CreateOperator)
	accountKey, accountID := key(nkeys.CreateAccount)
	operator := jwt.NewOperatorClaims(operatorID)
	text, err := jwt.NewAccountClaims(accountID).Encode(operatorKey)
	if err != nil {
		t.Fatal(err)
	}
	resolver := &server.MemAccResolver{}
	if err := resolver.Store(accountID, text); err != nil {
		t.Fatal(err)
	}
	creds := func(change func(*jwt.UserClaims)) string {
		t.Helper()
		userKey, userID := key(nkeys.CreateUser)
		claims := jwt.NewUserClaims(userID)
		change(claims)
		token, err := claims.Encode(accountKey)
		if err != nil {
			t.Fatal(err)
		}
		seed, err := userKey.Seed()
		if err != nil {
			t.Fatal(err)
		}
		text, err := jwt.FormatUserConfig(token, seed)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "user.creds")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	addr := testkit.FreeAddr(t)
	serve(t, addr, func(o *server.Options) {
		o.TrustedOperators, o.AccountResolver = []*jwt.OperatorClaims{operator}, resolver
	})
	at := func(creds string) bus.Settings { return bus.Settings{URL: "nats://" + addr, CredsFile: creds} }
	all := creds(func(*jwt.UserClaims) {})
	nobody := start(t, at(""), nil)
	silenced := start(t, at(creds(func(c *jwt.UserClaims) { c.Sub.Deny.Add(">") })), nil)
	storage, gateway := start(t, at(all), nil), start(t, at(all), nil)
	silenced.await(1)
	storage.await(1)
	gateway.await(1)
	gateway.TopicPurged("orders", 7)
	storage.hear(7)
	silenced.TopicPurged("orders", 8)
	storage.hear(8)
	if nobody.metric("narad_bus_connected") != 0 || silenced.metric("narad_bus_connected") != 1 || silenced.purges("received") != 0 {
		t.Error("a node without a user is connected, or one that may only publish is not, or hears")
	}
}

// TestClusterIDComesLater: a node that does not know its cluster yet says nothing.
func TestClusterIDComesLater(t *testing.T) {
	addr := testkit.FreeAddr(t)
	serve(t, addr, nil)
	late := &replica{changed: make(chan struct{}), known: make(chan struct{})}
	set := bus.Settings{URL: "nats://" + addr}
	storage := start(t, set, nil)
	storage.await(1)
	gateway := start(t, set, func(c *bus.Config) { c.Replica = late })
	gateway.TopicPurged("orders", 5)
	if gateway.metric("narad_bus_connected") != 0 {
		t.Error("it is connected to nobody's subjects")
	}
	close(late.known)
	close(late.changed)
	storage.hear(5)
}

// replica knows its cluster once known is closed.
type replica struct{ changed, known chan struct{} }

func (r *replica) Changed() <-chan struct{} { return r.changed }

func (r *replica) ClusterID() string {
	select {
	case <-r.known:
		return testkit.NewMeta().ClusterID()
	default:
		return ""
	}
}

var _ bus.Replica = (*replica)(nil)
