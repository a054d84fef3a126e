package raftnode

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// What Apply and the membership calls may answer. ErrNotLeader, ErrBusy and
// ErrConflict say that nothing was changed; ErrOutcomeUnknown says that it may have been.
var (
	// ErrNotLeader: this node does not lead, or is handing leadership over.
	ErrNotLeader = errors.New("not the raft leader")
	// ErrBusy: too many entries wait already, or none could be queued in time.
	ErrBusy = errors.New("too many entries wait for raft")
	// ErrConflict: the Raft configuration is another than the one that was read.
	ErrConflict = errors.New("raft configuration changed")
	// ErrOutcomeUnknown: leadership, time or the node ended while the entry was under way.
	ErrOutcomeUnknown = errors.New("outcome unknown")
)

// Why a node does not start or does not go on.
var (
	// ErrApplyStopped: an entry could not be applied or a disk write failed; the process must exit.
	ErrApplyStopped = errors.New("apply stopped")
	// ErrClosed: the node was closed.
	ErrClosed = errors.New("raft node is closed")
	// ErrLogGap: neither state nor snapshot reaches the first entry of the log, or the log ends before what was applied.
	ErrLogGap = errors.New("raft log does not connect to the state")
	// ErrDamagedLog: an entry of the log is not what was written.
	ErrDamagedLog = errors.New("damaged raft log")
	// ErrDamagedState: a state file or snapshot is not what was written, or is a newer release's.
	ErrDamagedState = errors.New("damaged metastore state")
	// ErrDiverged: the leader's log lacks what this node has applied. Its cluster was
	// founded without this member's part, or by servers that had lost their disks.
	ErrDiverged = errors.New("this replica has applied what the leader's log does not have")
	// ErrHasState: the node has a Raft configuration and cannot be bootstrapped.
	ErrHasState = errors.New("node has raft state")
)

// classify turns an error of a Raft future into one of ours.
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
}
