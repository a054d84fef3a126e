package raftnode

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// The gate. Raft relies on what a server has promised and stored, and grants any
// vote while it has no configuration. So a voter that lost its disk could, under
// its old id, elect a leader that lacks committed entries, or let a deposed one
// commit. A node with nothing on its disk therefore answers no Raft call until
// somebody who knows says that it never was a server (Admit), or until it forms
// the cluster itself (Bootstrap). The mark is durable, so that a restart in
// between opens nothing.

// keyGate in the stable store: 1 while the node must not answer.
var keyGate = []byte("narad_gate")

// keyCurrentTerm is Raft's own: it is there once the node took part in anything.
var keyCurrentTerm = []byte("CurrentTerm")

// errGated answers Raft calls while the gate is shut.
var errGated = errors.New("this node was not admitted since its disk was made")

// readGate tells whether the gate is shut, and shuts it for a new disk.
func (s *stores) readGate(wanted bool) (bool, error) {
	if !wanted {
		return false, nil
	}
	fresh, err := s.fresh()
	if err != nil {
		return false, err
	}
	if fresh {
		return true, s.setGate(1)
	}
	mark, err := s.logs.GetUint64(keyGate)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the gate: %w", err)
	}
	return mark == 1, nil
}

// fresh tells whether the disk holds nothing of Raft.
func (s *stores) fresh() (bool, error) {
	last, err := s.logs.LastIndex()
	if err != nil {
		return false, fmt.Errorf("read raft log: %w", err)
	}
	snaps, err := s.snaps.FileSnapshotStore.List()
	if err != nil {
		return false, fmt.Errorf("list snapshots: %w", err)
	}
	_, err = s.logs.GetUint64(keyCurrentTerm)
	if err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return false, fmt.Errorf("read raft term: %w", err)
	}
	return last == 0 && s.applied == 0 && len(snaps) == 0 && err != nil, nil
}

func (s *stores) setGate(mark uint64) error {
	if err := s.logs.SetUint64(keyGate, mark); err != nil {
		return fmt.Errorf("set the gate: %w", err)
	}
	return nil
}

// Gated tells whether the node answers no Raft call yet.
func (n *Node) Gated() bool { return n.trans.gated.Load() }

// Admit opens the gate of a node with a new disk: whoever leads has said that no
// server of its id had another disk, or no cluster existed before. It may be
// called again.
func (n *Node) Admit() error {
	if !n.Gated() {
		return nil
	}
	if err := n.stores.setGate(0); err != nil {
		return err
	}
	n.trans.gated.Store(false)
	return nil
}

// SetHeartbeatHandler implements raft.Transport.
func (t *transport) SetHeartbeatHandler(handle func(raft.RPC)) {
	t.NetworkTransport.SetHeartbeatHandler(func(rpc raft.RPC) {
		if t.gated.Load() {
			rpc.Respond(nil, errGated)
			return
		}
		handle(rpc)
	})
}
