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
// commit. A node with nothing on its disk therefore answers no Raft call, and
// runs no Raft, until somebody who knows says as which server it begins (Admit),
// or until it forms the cluster itself (Bootstrap). The mark is durable, so that a
// restart in between opens nothing.

// keyGate in the stable store: 1 while the node must not answer.
var keyGate = []byte("narad_gate")

// keyServer in the stable store: the Raft server id, valid once the gate is open.
// A node without it is named for the node alone.
var keyServer = []byte("narad_server")

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

// fresh tells whether the disk holds nothing of Raft, and was not let take part.
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

// serverID is as which Raft server this disk takes part.
func (s *stores) serverID(nodeID string) (string, error) {
	raw, err := s.logs.Get(keyServer)
	switch {
	case errors.Is(err, raftboltdb.ErrKeyNotFound):
		return nodeID, nil
	case err != nil:
		return "", fmt.Errorf("read the raft server id: %w", err)
	case NodeOf(string(raw)) != nodeID:
		return "", fmt.Errorf("%w: it took part as raft server %q, this node is %q", ErrDamagedLog, raw, nodeID)
	}
	return string(raw), nil
}

// Gated tells whether the node answers no Raft call yet.
func (n *Node) Gated() bool { return n.trans.gated.Load() }

// ServerID is as which Raft server this node takes part; "" while it is gated.
func (n *Node) ServerID() string {
	if n.Gated() {
		return ""
	}
	n.startMu.Lock()
	defer n.startMu.Unlock()
	return n.serverID
}

// Admit opens the gate of a node with a new disk and starts its Raft: whoever
// leads has said as which server the cluster knows this disk, or no cluster existed before
// (then it is the node's own id). It may be called again; only the first call
// counts. An id of another node is an error.
func (n *Node) Admit(serverID string) error {
	if NodeOf(serverID) != n.cfg.NodeID {
		return fmt.Errorf("admit %s: %q is the raft server of another node", n.cfg.NodeID, serverID)
	}
	n.startMu.Lock()
	defer n.startMu.Unlock()
	if !n.Gated() {
		return nil
	}
	if n.closing {
		return ErrClosed
	}
	if err := n.stores.logs.Set(keyServer, []byte(serverID)); err != nil {
		return fmt.Errorf("admit %s: keep the raft server id: %w", n.cfg.NodeID, err)
	}
	if err := n.stores.setGate(0); err != nil {
		return fmt.Errorf("admit %s: %w", n.cfg.NodeID, err)
	}
	if err := n.startRaftLocked(serverID); err != nil {
		n.fail(err) // the gate is open on disk: only a new start can go on
		return err
	}
	return nil
}

// raft is the running Raft; nil while the node is gated.
func (n *Node) raft() *raft.Raft { return n.trans.running.Load() }
