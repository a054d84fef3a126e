package raftnode

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/narad-mq/narad/libs/metastate"
)

// recoverFSM is the state machine of a recovery: Raft's replay, and then the
// refounded state as the snapshot.
type recoverFSM struct {
	state   *state
	found   *Founded
	server  string // Raft server id of the founder
	nowMS   int64
	pending []*raft.Log
	taken   *stateSnapshot
	err     error // the first one: Raft's replay does not look at answers
}

var _ raft.FSM = (*recoverFSM)(nil)

// replayBatch entries are applied in one transaction.
const replayBatch = 1024

// Apply implements raft.FSM.
func (m *recoverFSM) Apply(l *raft.Log) any {
	own := *l
	own.Data = append([]byte(nil), l.Data...)
	if m.pending = append(m.pending, &own); len(m.pending) == replayBatch {
		m.flush()
	}
	return nil
}

func (m *recoverFSM) flush() {
	if m.err == nil && len(m.pending) > 0 {
		var none metastate.Effects
		m.err = m.state.update(func(tx stateTx) error {
			return applyLogs(tx, m.pending, make([]any, len(m.pending)), &none)
		})
	}
	m.pending = nil
}

// Restore implements raft.FSM. openStores has brought the state to the newest
// snapshot, by its own rules.
func (m *recoverFSM) Restore(r io.ReadCloser) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

// Snapshot implements raft.FSM.
func (m *recoverFSM) Snapshot() (raft.FSMSnapshot, error) {
	m.flush()
	if m.err == nil {
		m.err = m.state.update(func(tx stateTx) (err error) {
			if err := checkVoter(tx, m.server); err != nil {
				return err
			}
			if m.found.State, err = metastate.Refound(tx, m.nowMS); err != nil {
				return err
			}
			return tx.setApplied(m.found.Index)
		})
	}
	if m.err != nil {
		return nil, m.err
	}
	tx, err := m.state.db.Load().Begin(false)
	if err != nil {
		return nil, fmt.Errorf("snapshot the metastore: %w", err)
	}
	m.taken = &stateSnapshot{tx: stateTx{tx}}
	return m.taken, nil
}

// release ends the read transaction, which Raft's recovery leaves open.
func (m *recoverFSM) release() {
	if m.taken != nil {
		m.taken.Release()
	}
}

// aheadSnapshots makes the snapshot of a founded cluster, whatever index Raft
// would give it.
type aheadSnapshots struct {
	*snapshotStore
	found *Founded
}

// Create implements raft.SnapshotStore.
func (a *aheadSnapshots) Create(v raft.SnapshotVersion, _, _ uint64, c raft.Configuration, _ uint64, t raft.Transport) (raft.SnapshotSink, error) {
	return a.FileSnapshotStore.Create(v, a.found.Index, a.found.Term, c, a.found.Index, t)
}

// plant gives a directory that has nothing but a refounded state its snapshot,
// and a log with nothing but the term.
func plant(f *Found, out *Founded) (err error) {
	s := &stores{}
	defer func() { err = errors.Join(err, s.close()) }()
	if s.logs, err = openLogStore(filepath.Join(f.Dir, logFile), &room{}, func(error) {}); err != nil {
		return err
	}
	if s.state, err = openState(filepath.Join(f.Dir, stateFile)); err != nil {
		return err
	}
	if s.snaps, err = openSnapshots(f.Dir, s.logs, newHCLog(orDiscard(f.Logger))); err != nil {
		return err
	}
	_, trans := raft.NewInmemTransport(raft.ServerAddress(f.Addr))
	sink, err := (&aheadSnapshots{s.snaps, out}).Create(raft.SnapshotVersionMax, 0, 0, f.configuration(), 0, trans)
	if err != nil {
		return fmt.Errorf("create snapshot: %w", err)
	}
	tx, err := s.state.db.Load().Begin(false)
	if err != nil {
		return errors.Join(fmt.Errorf("snapshot the metastore: %w", err), sink.Cancel())
	}
	snapshot := &stateSnapshot{tx: stateTx{tx}}
	defer snapshot.Release()
	if err := snapshot.Persist(sink); err != nil {
		return err
	}
	return s.settle(f, out)
}

// settle leaves nothing in the directory that a node could fall back to, and gives
// it the term and the server id. The gate is open: this node is the cluster.
func (s *stores) settle(f *Found, out *Founded) error {
	list, err := s.snaps.FileSnapshotStore.List()
	if err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}
	for _, m := range list {
		if m.Index != out.Index {
			if err := os.RemoveAll(filepath.Join(f.Dir, "snapshots", m.ID)); err != nil {
				return fmt.Errorf("remove an older snapshot: %w", err)
			}
		}
	}
	if err := s.logs.SetUint64(keyCurrentTerm, out.Term); err != nil {
		return fmt.Errorf("set the term: %w", err)
	}
	if err := s.logs.Set(keyServer, []byte(f.ServerID)); err != nil {
		return fmt.Errorf("set the raft server id: %w", err)
	}
	if err := s.setGate(0); err != nil {
		return err
	}
	return syncDirOf(filepath.Join(f.Dir, stateFile))
}
