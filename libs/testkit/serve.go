package testkit

import (
	"net"
	"testing"
)

// Server is what Serve needs of a server: Close ends Serve, which then returns nil.
type Server interface {
	Serve(net.Listener) error
	Close() error
}

// Serve puts a server on a free loopback port until the test ends, and returns its
// address.
func Serve(t testing.TB, s Server) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}
