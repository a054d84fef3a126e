package tlsconf

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/tlsconf/certs"
)

const patience = testkit.Patience

// node is a directory with the files of one node.
type node struct {
	testing.TB
	Files
}

func newNode(t testing.TB, ca *certs.Authority, hosts ...string) node {
	t.Helper()
	dir := t.TempDir()
	n := node{t, Files{filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "ca")}}
	n.put(n.CA, ca.Cert)
	n.replace(ca, hosts...)
	return n
}

func authority(t testing.TB) *certs.Authority {
	t.Helper()
	ca, err := certs.NewAuthority("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// put replaces a file at once, as every tool that hands out certificates does.
func (n node) put(path string, content []byte) {
	n.Helper()
	next := path + ".next"
	if err := os.WriteFile(next, content, 0o600); err != nil {
		n.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		n.Fatal(err)
	}
}

func (n node) replace(ca *certs.Authority, hosts ...string) {
	n.Helper()
	p, err := ca.Issue("n1", hosts, 20*time.Minute)
	if err != nil {
		n.Fatal(err)
	}
	n.put(n.Key, p.Key)
	n.put(n.Cert, p.Cert)
}

func (n node) load(cfg Config) *Source {
	n.Helper()
	cfg.Files, cfg.lookEvery = n.Files, 5*time.Millisecond
	s, err := Load(cfg)
	if err != nil {
		n.Fatal(err)
	}
	return s
}

func (n node) refused(host, want string) {
	n.Helper()
	_, err := Load(Config{Files: n.Files, Host: host})
	if err == nil || !strings.Contains(err.Error(), want) {
		n.Errorf("Load = %v, want an error with %q", err, want)
	}
}

// echo serves a listener behind s and gives back what it reads.
func echo(t *testing.T, s *Source) (addr string) {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := s.Listen(raw)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); wg.Wait() })
	return raw.Addr().String()
}

// exchange sends a byte and wants it back.
func exchange(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

func (n node) dial(s *Source, addr string) (net.Conn, error) {
	c, err := s.Dial((&net.Dialer{}).DialContext)(context.Background(), "tcp", addr)
	if err == nil {
		n.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// mustDial opens a connection that works and returns the serial that the server showed.
func (n node) mustDial(s *Source, addr string) (net.Conn, string) {
	n.Helper()
	c, err := n.dial(s, addr)
	if err == nil {
		err = exchange(c)
	}
	if err != nil {
		n.Fatal(err)
	}
	return c, c.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
}

func run(t *testing.T, s *Source) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func serial(s *Source) string { return s.current.Load().leaf.SerialNumber.String() }

// scrape is what /metrics shows.
func scrape(t *testing.T, r *prometheus.Registry) string {
	t.Helper()
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return answer.Body.String()
}
