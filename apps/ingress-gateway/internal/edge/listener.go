package edge

import (
	"errors"
	"net"
	"sync"
	"time"
)

// acceptBackoff is the pause after an error of accept that passes by itself,
// like too many open files.
const acceptBackoff = 50 * time.Millisecond

// listener hands out at most limit connections at a time; further ones wait in
// the kernel's listen queue. It outlives errors of accept that pass: fasthttp
// alone would stop serving at the first EMFILE.
type listener struct {
	net.Listener
	places   chan struct{}
	done     chan struct{}
	once     sync.Once
	closeErr error // of the first Close

	mu    sync.Mutex // guards conns
	conns map[*conn]struct{}
}

func newListener(ln net.Listener, limit int) *listener {
	return &listener{
		Listener: ln, places: make(chan struct{}, limit), done: make(chan struct{}),
		conns: make(map[*conn]struct{}),
	}
}

// Accept waits for a place and a connection.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	for {
		c, err := l.Listener.Accept()
		if err == nil {
			return l.add(c), nil
		}
		if errors.Is(err, net.ErrClosed) || !l.pause() {
			<-l.places
			return nil, net.ErrClosed
		}
	}
}

// pause waits a little; false when the listener was closed.
func (l *listener) pause() bool {
	timer := time.NewTimer(acceptBackoff)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.done:
		return false
	}
}

func (l *listener) add(c net.Conn) *conn {
	out := newConn(c, l.remove)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[out] = struct{}{}
	return out
}

func (l *listener) remove(c *conn) {
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
	<-l.places
}

// Close stops accepting; it may be called again. Connections stay.
func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.closeErr = l.Listener.Close()
	})
	return l.closeErr
}

// closeConns ends every connection that is still open.
func (l *listener) closeConns() {
	l.mu.Lock()
	all := make([]*conn, 0, len(l.conns))
	for c := range l.conns {
		all = append(all, c)
	}
	l.mu.Unlock()
	for _, c := range all {
		_ = c.kill() // the peer sees the end; there is nobody to report an error to
	}
}

// open is the number of connections.
func (l *listener) open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}
