package testkit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// Ports that tests choose lie below the range from which the kernel gives ports to
// outgoing connections: one that is free now is not taken by a client meanwhile.
const (
	firstPort = 10_000
	lastPort  = 32_000
)

// given holds the ports that this process handed out: two servers of one test
// that are not listening yet must not get the same.
var given sync.Map

// FreeAddr returns a loopback address whose port is free for TCP and UDP now. It
// is for servers that must know each other's address before they listen;
// others listen on port 0.
func FreeAddr(t testing.TB) string {
	t.Helper()
	for range 200 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if _, taken := given.LoadOrStore(port, true); taken {
			continue
		}
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		u, err := net.ListenPacket("udp", addr)
		if err == nil {
			err = u.Close()
		}
		if closed := l.Close(); err == nil && closed == nil {
			return addr
		}
	}
	t.Fatal("found no free port")
	return ""
}
