package edge

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/tlsconf"
	"github.com/narad-mq/narad/libs/tlsconf/certs"
)

// TestOverTLS: what the edge promises does not depend on the transport.
func TestOverTLS(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	ca, err := certs.Init(dir, "test", 2*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	at, err := ca.Node(dir, "gateway-1", []string{"127.0.0.1"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	source, err := tlsconf.Load(tlsconf.Config{Files: tlsconf.Files{Cert: at.Cert, Key: at.Key}})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca.Cert) {
		t.Fatal("no authority")
	}
	r := newRigOn(t, Config{}, source.Listen(listen(t)))
	hasty := newRigOn(t, Config{BodyTimeout: short}, source.Listen(listen(t)))
	dialTo := func(r *rig) *peer {
		p := r.dial()
		c := tls.Client(p.Conn, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"})
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		return &peer{TB: t, Conn: c, r: bufio.NewReader(c)}
	}
	dial := func() *peer { return dialTo(r) }
	megabyte := strings.Repeat("x", 1<<20)

	p := dial()
	p.send("%sContent-Length: 1048576\r\n\r\n%s", head, megabyte).want(202, "")
	p.send(consume, "0s").want(200, "") // the same connection, and a large answer

	p = dial()
	p.send("%sContent-Length: %d\r\n\r\n%s%s", head, 2<<20, megabyte, megabyte).want(413, "message_too_large")
	p.ended()
	p = dialTo(hasty)
	p.send("%sContent-Length: 10\r\n\r\nabc", head).want(408, "request_timeout")
	p.ended()

	for name, leave := range map[string]func(*tls.Conn) error{
		"goodbye": (*tls.Conn).Close,
		"gone":    func(c *tls.Conn) error { return c.NetConn().Close() },
	} {
		p = dial()
		p.send(consume, "30s")
		<-r.broker.Parked
		if err := leave(p.Conn.(*tls.Conn)); err != nil {
			t.Fatal(err)
		}
		r.left()
		dial().send("%sContent-Length: 1\r\n\r\nx", head).want(202, "")
		select {
		case <-r.broker.Released:
		case <-time.After(patience):
			t.Fatalf("%s: the lease of a client that left was kept", name)
		}
		dial().send(consume, "0s").want(200, "")
	}

	plain := r.dial()
	plain.send("%sContent-Length: 1\r\n\r\nx", head)
	if b, err := io.ReadAll(plain); err == nil && strings.Contains(string(b), "202") {
		t.Errorf("plain text was served: %q", b)
	}
}
