package tlsconf

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/testkit/leak"
	"github.com/narad-mq/narad/libs/tlsconf/certs"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestReload: new files serve new connections, both ways, and old connections go on.
func TestReload(t *testing.T) {
	ca := authority(t)
	server, client := newNode(t, ca, "127.0.0.1"), newNode(t, ca)
	s, c := server.load(Config{}), client.load(Config{})
	run(t, s)
	addr := echo(t, s)
	old, before := client.mustDial(c, addr)
	server.replace(ca, "127.0.0.1")
	testkit.Poll(t, patience, "the new certificate is in use", func() bool { return serial(s) != before })
	if _, after := client.mustDial(c, addr); after != serial(s) {
		t.Errorf("a new connection shows %s, want %s", after, serial(s))
	}
	if err := exchange(old); err != nil {
		t.Errorf("an old connection broke: %v", err)
	}
}

// TestAuthorityRotation: both authorities, then new certificates, then the new one alone.
func TestAuthorityRotation(t *testing.T) {
	before, after := authority(t), authority(t)
	server, client := newNode(t, before, "127.0.0.1"), newNode(t, before)
	s, c := server.load(Config{}), client.load(Config{})
	run(t, s)
	run(t, c)
	addr := echo(t, s)
	step := func(what string, change func(node)) {
		t.Helper()
		for n, src := range map[node]*Source{server: s, client: c} {
			was := src.current.Load()
			change(n)
			testkit.Poll(t, patience, what, func() bool { return src.current.Load() != was })
			client.mustDial(c, addr)
		}
	}
	both := append(bytes.Clone(before.Cert), after.Cert...)
	step("both are trusted", func(n node) { n.put(n.CA, both) })
	step("the new one has signed", func(n node) {
		n.replace(after, "127.0.0.1")
	})
	step("only the new one is trusted", func(n node) { n.put(n.CA, after.Cert) })
	late := newNode(t, before)
	if conn, err := late.dial(late.load(Config{}), addr); err == nil && exchange(conn) == nil {
		t.Error("a node of the old authority was let in")
	}
}

// TestBadFilesKeepThePair: each is refused, said once, shown in a metric, and
// forgotten when good ones come.
func TestBadFilesKeepThePair(t *testing.T) {
	ca := authority(t)
	n := newNode(t, ca, "127.0.0.1")
	var log testkit.Journal
	registry := prometheus.NewRegistry()
	var asked atomic.Int64 // for the time, once or more in each look
	s := n.load(Config{Host: "127.0.0.1", Log: log.Logger(), Registry: registry, Now: func() time.Time { asked.Add(1); return time.Now() }})
	run(t, s)
	looks := func(n int64) {
		t.Helper()
		enough := asked.Load() + 4*n
		testkit.Poll(t, patience, "looks pass by", func() bool { return asked.Load() >= enough })
	}
	before := serial(s)
	other, err := authority(t).Issue("n1", []string{"127.0.0.1"}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	nameless, err := ca.Issue("n1", nil, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	short, err := ca.Issue("n1", []string{"127.0.0.1"}, time.Nanosecond)
	if err != nil {
		t.Fatal(err)
	}
	for want, p := range map[string]certs.Pair{
		"does not stand up": other, "does not name": nameless, "has expired": short, "certificate and key": {Cert: nameless.Cert, Key: other.Key},
		"no certificate": {Cert: []byte("rubbish"), Key: other.Key},
	} {
		if want == "no certificate" {
			want = "failed to find any PEM data"
		}
		n.put(n.Key, p.Key)
		n.put(n.Cert, p.Cert)
		testkit.Poll(t, patience, want+" is said", func() bool { return strings.Contains(log.String(), want) })
		if serial(s) != before {
			t.Fatalf("files were taken although one %s", want)
		}
	}
	if shown := scrape(t, registry); !strings.Contains(shown, `narad_tls_files_unusable{plane=""} 1`) {
		t.Errorf("metrics %s", shown)
	}
	looks(5) // one between the last two files may have said the same of one of them
	lines := strings.Count(log.String(), "cannot be used")
	looks(20)
	if again := strings.Count(log.String(), "cannot be used"); again != lines {
		t.Errorf("the same failure was said %d times more", again-lines)
	}
	n.replace(ca, "127.0.0.1")
	testkit.Poll(t, patience, "good files are in use", func() bool { return serial(s) != before && !s.unused.Load() })
	if strings.Contains(log.String(), "PRIVATE") {
		t.Error("a key is in the log")
	}
}

func TestRefusedAtTheStart(t *testing.T) {
	ca := authority(t)
	n := newNode(t, ca, "127.0.0.1", "voter.example")
	n.load(Config{Host: "voter.example"})
	n.refused("other.example", "does not name the host")
	n.refused("127.0.0.2", "does not name the host")
	if err := os.Chmod(n.Key, 0o644); err != nil {
		t.Fatal(err)
	}
	n.refused("", "chmod 600")
	if err := os.Chmod(n.Key, 0o640); err != nil {
		t.Fatal(err)
	}
	var log testkit.Journal
	n.load(Config{Log: log.Logger()})
	if !strings.Contains(log.String(), "level=WARN") {
		t.Errorf("no warning of a key that its group may read: %s", log.String())
	}
	if _, err := Load(Config{Files: n.Files, Now: func() time.Time { return time.Now().Add(30 * time.Minute) }}); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("an expired certificate: %v", err)
	}
	n.put(n.CA, authority(t).Cert)
	n.refused("", "does not stand up")
	n.put(n.CA, append(bytes.Clone(ca.Cert), ca.Key...))
	n.refused("", "beside certificates")
	n.Cert += "missing"
	n.refused("", "missing")
	if s, err := Load(Config{}); s != nil || err != nil {
		t.Errorf("no files: %v, %v", s, err)
	}
}

// TestWrongPeersAreRefused: both ways, by authority, by name and by date.
func TestWrongPeersAreRefused(t *testing.T) {
	ca := authority(t)
	server := newNode(t, ca, "127.0.0.1")
	s := server.load(Config{})
	addr := echo(t, s)
	fails := func(what string, c *Source, n node) {
		t.Helper()
		conn, err := n.dial(c, addr)
		if err == nil {
			err = exchange(conn)
		}
		if err == nil {
			t.Errorf("%s was let in", what)
		}
	}
	stranger := newNode(t, authority(t))
	fails("a node of another authority", stranger.load(Config{}), stranger)
	stranger.put(stranger.CA, ca.Cert) // it trusts us, which is no reason to trust it
	loose := &Source{cfg: Config{}, log: slog.New(slog.DiscardHandler)}
	if err := loose.register(nil); err != nil {
		t.Fatal(err)
	}
	cert, err := tls.LoadX509KeyPair(stranger.Cert, stranger.Key)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := parseCA(ca.Cert)
	if err != nil {
		t.Fatal(err)
	}
	for what, cfg := range map[string]*tls.Config{
		"a certificate of another authority": {RootCAs: pool, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }},
		"no certificate":                     {RootCAs: pool},
		"TLS 1.2":                            {RootCAs: pool, MaxVersion: tls.VersionTLS12},
	} {
		loose.current.Store(&pair{client: cfg})
		fails(what, loose, stranger)
	}
	member := newNode(t, ca)
	late := member.load(Config{})
	expired := *late.current.Load()
	expired.client = expired.client.Clone()
	expired.client.Time = func() time.Time { return time.Now().Add(30 * time.Minute) }
	late.current.Store(&expired)
	fails("an expired server", late, member)

	elsewhere := newNode(t, ca, "127.0.0.2")
	addr = echo(t, elsewhere.load(Config{}))
	fails("a server of another name", member.load(Config{}), member)
}

// TestHandshakeFailuresAreQuiet: strangers, plain text, silence and probes cost
// one line a minute, and end.
func TestHandshakeFailuresAreQuiet(t *testing.T) {
	ca := authority(t)
	server := newNode(t, ca, "127.0.0.1")
	var log testkit.Journal
	registry := prometheus.NewRegistry()
	s := server.load(Config{Log: log.Logger(), Registry: registry})
	addr := echo(t, s)
	for range 20 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\n\r\n")
		_, _ = io.ReadAll(c) // until the server ends it
		_ = c.Close()
		probe, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = probe.Close()
	}
	testkit.Poll(t, patience, "all are counted", func() bool {
		return strings.Contains(scrape(t, registry), `narad_tls_handshake_failures_total{plane="",side="accepted"} 20`)
	})
	if n := strings.Count(log.String(), "handshake failed"); n != 1 {
		t.Errorf("%d lines for 20 failures: %s", n, log.String())
	}
	member := newNode(t, ca)
	member.mustDial(member.load(Config{}), addr)
}

// TestExpiryIsSaidOnce: late in the life of a certificate, and not before.
func TestExpiryIsSaidOnce(t *testing.T) {
	ca := authority(t)
	n := newNode(t, ca)
	p, err := ca.Issue("n1", nil, 30*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	n.put(n.Cert, p.Cert)
	n.put(n.Key, p.Key)
	var log testkit.Journal
	now := time.Now()
	s := n.load(Config{Log: log.Logger(), Now: func() time.Time { return now }})
	said := func() int { s.warnExpiry(); return strings.Count(log.String(), "ends soon") }
	if said() != 0 {
		t.Error("a fresh certificate is warned of")
	}
	now = now.Add(time.Hour)
	s.warnExpiry()
	if said() != 1 {
		t.Errorf("an expired one: %s", log.String())
	}
}

// TestSilenceEnds: who says nothing holds a connection for a bounded time; its
// reader sees the end of the stream, which servers do not log.
func TestSilenceEnds(t *testing.T) {
	n := newNode(t, authority(t), "127.0.0.1")
	registry := prometheus.NewRegistry()
	s := n.load(Config{Registry: registry})
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		began := time.Now()
		c := &conn{Conn: tls.Server(near, s.current.Load().server), source: s}
		if _, err := c.Read(make([]byte, 1)); err != io.EOF || time.Since(began) != handshakeTimeout {
			t.Errorf("Read = %v after %s", err, time.Since(began))
		}
		if _, err := c.Write([]byte("x")); err != io.EOF {
			t.Errorf("Write = %v", err)
		}
		if _, err := far.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the connection is open: %v", err)
		}
	})
	if !strings.Contains(scrape(t, registry), `side="accepted"} 1`) {
		t.Error("it was not counted")
	}
}

// TestClientPort: only the server shows a certificate there.
func TestClientPort(t *testing.T) {
	ca := authority(t)
	n := newNode(t, ca, "127.0.0.1")
	n.CA = ""
	s := n.load(Config{})
	pool, err := parseCA(ca.Cert)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.Dial("tcp", echo(t, s), &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := exchange(c); err != nil {
		t.Error(err)
	}
}

func TestNilIsPlain(t *testing.T) {
	var s *Source
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if s.Listen(ln) != ln {
		t.Error("a listener was wrapped")
	}
	c, err := s.Dial((&net.Dialer{}).DialContext)(context.Background(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, plain := c.(*net.TCPConn); !plain {
		t.Errorf("a plain plane dials %T", c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
}
