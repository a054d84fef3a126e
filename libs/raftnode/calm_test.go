package raftnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// TestErrorsThatAreNone: what a stop, a join and a port scan say is no error, and
// what looks like it stays one.
func TestErrorsThatAreNone(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, dialed := (&net.Dialer{}).DialContext(canceled, "tcp", "127.0.0.1:1")
	for _, c := range []struct {
		msg  string
		err  error
		want hclog.Level
	}{
		{"failed to decode incoming command", &net.OpError{Op: "read", Err: net.ErrClosed}, hclog.Debug},
		{"failed to make requestVote RPC", dialed, hclog.Debug},
		{"failed to heartbeat to", io.EOF, hclog.Info},
		{"failed to appendEntries to", errors.New(errGated.Error()), hclog.Info},
		{"failed to decode incoming command", errors.New("unknown rpc type 71"), hclog.Warn},
		{"failed to heartbeat to", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, hclog.Error},
		{"failed to take snapshot", fmt.Errorf("read: %w", io.EOF), hclog.Error},
		{"failed to append to logs", syscall.ENOSPC, hclog.Error},
	} {
		if got := calm(hclog.Error, c.msg, []any{"peer", "a:1", "error", c.err}); got != c.want {
			t.Errorf("%s: %v is logged at %v, want %v", c.msg, c.err, got, c.want)
		}
	}
	if got := calm(hclog.Error, "no error at all", []any{"peer"}); got != hclog.Error {
		t.Error(got)
	}
	if got := calm(hclog.Debug, "pipeline", []any{"error", io.EOF}); got != hclog.Debug {
		t.Error(got)
	}
}
