package rpc

import "fmt"

// TransportError is a call that got no answer. Sent tells whether any byte of
// the request may have reached the peer: false means that nothing was done.
type TransportError struct {
	Op, Node string // operation and node id or address; never a secret
	Sent     bool
	Err      error
}

// Error names the operation and the peer.
func (e *TransportError) Error() string {
	return fmt.Sprintf("rpc %s to %s (sent: %t): %v", e.Op, e.Node, e.Sent, e.Err)
}

// Unwrap gives the cause.
func (e *TransportError) Unwrap() error { return e.Err }
