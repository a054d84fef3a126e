package raftnode

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// calm lowers what Raft calls an error and what is none in a healthy cluster, so
// that an operator may take an error for one:
//
//   - debug: this node closed its connections or took its calls back, which it
//     does only when it stops;
//   - info: a peer closed its connection, as each does that stops, and the next
//     try tells whether it is gone (a refused connection stays an error); or it
//     was not admitted yet, which every new disk is for a moment;
//   - warn: somebody spoke something else to the Raft port, such as a port scan or
//     a peer with other TLS settings; the damper keeps it to a line in a while.
func calm(level hclog.Level, msg string, args []any) hclog.Level {
	if level < hclog.Warn {
		return level
	}
	err := errorOf(args)
	switch {
	case err == nil:
		return level
	case errors.Is(err, net.ErrClosed), errors.Is(err, context.Canceled), errors.Is(err, raft.ErrTransportShutdown):
		return hclog.Debug
	case errors.Is(err, raft.ErrPipelineShutdown): // see pipeline: Raft goes on without
		return hclog.Info
	case strings.Contains(err.Error(), errGated.Error()): // it came over the wire as text
		return hclog.Info
	case errors.Is(err, io.EOF) && strings.HasPrefix(msg, "failed to heartbeat"),
		errors.Is(err, io.EOF) && strings.HasPrefix(msg, "failed to appendEntries"):
		return hclog.Info
	case msg == "failed to decode incoming command":
		return hclog.Warn
	}
	return level
}

// errorOf finds the error in the arguments of a message, or nil.
func errorOf(args []any) error {
	for i := 0; i+1 < len(args); i += 2 {
		if args[i] == "error" {
			err, _ := args[i+1].(error)
			return err
		}
	}
	return nil
}
