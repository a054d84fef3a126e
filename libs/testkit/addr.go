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

// blockPorts is how many ports are claimed at once. `go test` runs packages as
// processes beside each other, and a server that is down for a moment must find its
// port free when it comes back: free at the moment of the choice is not enough. The
// claim is a listener on the first port of a block, which the kernel gives to one
// process only and takes back when that has ended, however it ended.
const blockPorts = 64

// tries bounds the search for a block: of 343 most are free whatever else runs.
const tries = 500

// owner gives out the ports of the blocks that it has claimed, each once.
type owner struct {
	mu        sync.Mutex
	claims    []net.Listener
	next, end int // ports of the newest block that nobody was given
}

// process is the owner for this process; it never releases.
var process owner

// FreeAddr returns a loopback address whose port is free for TCP and UDP. No other
// test of this machine is given it, here or in FreePorts, while this process runs.
// It is for servers that must know each other's address before they listen or that
// come back to their own; others listen on port 0.
func FreeAddr(t testing.TB) string {
	t.Helper()
	return process.freeAddr(t)
}

func (o *owner) freeAddr(t testing.TB) string {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		if o.next == o.end {
			l, first := claim(t, blockPorts)
			o.claims = append(o.claims, l)
			o.next, o.end = first, first+blockPorts-1
		}
		addr := loopback(o.next)
		o.next++
		if isFree(addr) {
			return addr
		}
	}
}

// FreePorts returns the first of n ports in a row, at most 63, that are free for TCP
// and UDP on 127.0.0.1. No other test of this machine is given one of them, here or in
// FreeAddr, until t has ended and run the cleanups that it adds after this call.
func FreePorts(t testing.TB, n int) int {
	t.Helper()
	l, first := claim(t, n+1)
	t.Cleanup(func() { _ = l.Close() })
	return first
}

// claim takes a block of which the first n ports are free, and returns the claim
// and the first port after it.
func claim(t testing.TB, n int) (net.Listener, int) {
	t.Helper()
	if n > blockPorts {
		t.Fatalf("%d ports in a row are more than a block has", n)
	}
	for range tries {
		first := firstPort + blockPorts*rand.IntN((lastPort-firstPort)/blockPorts)
		l, err := net.Listen("tcp", loopback(first))
		if err != nil {
			continue
		}
		free := true
		for port := first + 1; port < first+n && free; port++ {
			free = isFree(loopback(port))
		}
		if free {
			return l, first + 1
		}
		_ = l.Close() // nothing was sent over it
	}
	t.Fatal("found no free block of ports")
	return nil, 0
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// isFree tells whether nobody listens at addr.
func isFree(addr string) bool {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	u, err := net.ListenPacket("udp", addr)
	if err == nil {
		err = u.Close()
	}
	return l.Close() == nil && err == nil
}
