package metaapi

import (
	"context"

	"github.com/narad-mq/narad/libs/rpc"
)

// methodRaftStatus is an operation of every daemon, not of voters only: each has
// a Raft server.
var methodRaftStatus = control("raft_status", smallBody, smallBody)

// ServeRaftStatus lets others ask a daemon for its own view of the metastore's
// Raft: a document with one server, itself. Call it before the server serves.
func ServeRaftStatus(s *rpc.Server, own func() *QuorumResult) {
	rpc.HandleJSON(s, methodRaftStatus, func(context.Context, *empty) (*QuorumResult, error) { return own(), nil })
}

// RaftStatus asks the daemon that a peer reaches for its own view. Besides
// refusals it returns *rpc.TransportError; a release before this operation
// refuses with route_not_found.
func RaftStatus(ctx context.Context, peer *rpc.Peer) (*QuorumResult, error) {
	return rpc.CallJSON[QuorumResult](ctx, peer, methodRaftStatus, empty{})
}
