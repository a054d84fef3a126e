package rpc

import (
	"context"
	"net/http/httptrace"
	"sync/atomic"
)

// attempt watches how far net/http came with one request. It counts as sent
// from the moment when a connection was given to it: what the goroutine that
// writes does from then on cannot be known exactly, and before that moment
// nothing can have been written. When net/http turns to another connection,
// which for a POST it does only after the first one failed without a byte
// written, it starts again.
type attempt struct {
	sent  atomic.Bool
	trace httptrace.ClientTrace
}

// watch returns a context for one round trip and its attempt.
func watch(ctx context.Context) (context.Context, *attempt) {
	a := new(attempt)
	a.trace.GetConn = func(string) { a.sent.Store(false) }
	a.trace.GotConn = func(httptrace.GotConnInfo) { a.sent.Store(true) }
	return httptrace.WithClientTrace(ctx, &a.trace), a
}
