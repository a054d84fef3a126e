package raftnode

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/narad-mq/narad/libs/metastate"
)

// fsm is the shim between Raft's log and package metastate. Raft calls its
// methods on one goroutine, but for Persist and Release of a snapshot.
type fsm struct {
	state   *state
	replica *replica
	room    *room
	fail    func(error) // stops the node; the first error stays
	stopped atomic.Bool // an entry could not be applied: nothing is applied after it

	// covered is the index up to which every entry's effects are in the state: the
	// durable applied index, or above it when what follows is known not to concern
	// the state machine.
	covered       atomic.Uint64
	configuration atomic.Uint64 // index of the newest committed Raft configuration

	mu       sync.Mutex    // guards progress
	progress chan struct{} // closed and replaced when covered grows

	beforeApply func(first uint64) // tests hold a batch back with it; nil otherwise
}

var (
	_ raft.BatchingFSM = (*fsm)(nil)
	_ raft.FSMSnapshot = (*stateSnapshot)(nil)
)

func newFSM(s *state, r *replica, space *room, applied uint64, fail func(error)) *fsm {
	f := &fsm{state: s, replica: r, room: space, fail: fail, progress: make(chan struct{})}
	f.covered.Store(applied)
	return f
}

// Apply implements raft.FSM.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM: one transaction for all of it, which
// waits while the disk is full. An
// answer is a *metastate.Result, or an error when applying has stopped.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	if f.beforeApply != nil {
		f.beforeApply(logs[0].Index)
	}
	out := make([]any, len(logs))
	var staged *changes
	err := error(ErrApplyStopped)
	if !f.stopped.Load() {
		err = f.update(func(tx stateTx) error {
			var effects metastate.Effects
			if err := applyLogs(tx, logs, out, &effects); err != nil {
				return err
			}
			if err := f.state.keepCluster(tx, &effects); err != nil {
				return err
			}
			var err error
			staged, err = f.replica.stage(tx, &effects)
			return err
		})
	}
	if err != nil {
		if !f.stopped.Load() {
			f.stop(err)
		}
		for i := range out {
			out[i] = fmt.Errorf("%w: %w", ErrApplyStopped, err)
		}
		return out
	}
	for _, l := range logs {
		if l.Type == raft.LogConfiguration {
			grow(&f.configuration, l.Index)
		}
	}
	f.replica.publish(staged)
	f.advance(logs[len(logs)-1].Index)
	return out
}

// applyLogs applies what the state does not have yet and fills in the answers.
func applyLogs(tx stateTx, logs []*raft.Log, out []any, effects *metastate.Effects) error {
	have := tx.applied()
	for i, l := range logs {
		if l.Type != raft.LogCommand || l.Index <= have {
			continue
		}
		res, err := metastate.Apply(tx, l.Data)
		if err != nil {
			return fmt.Errorf("apply raft entry %d: %w", l.Index, err)
		}
		out[i] = &res
		effects.Topics = append(effects.Topics, res.Effects.Topics...)
		effects.Members = append(effects.Members, res.Effects.Members...)
		effects.ClusterID = effects.ClusterID || res.Effects.ClusterID
	}
	return tx.setApplied(max(have, logs[len(logs)-1].Index))
}

// stop ends applying for good and reports why, unless it is an ordered stop.
func (f *fsm) stop(err error) {
	f.stopped.Store(true)
	if errors.Is(err, ErrClosed) {
		return
	}
	f.fail(fmt.Errorf("%w: %w", ErrApplyStopped, err))
}

// advance tells waiters that everything up to index has taken effect.
func (f *fsm) advance(index uint64) {
	if !grow(&f.covered, index) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.progress)
	f.progress = make(chan struct{})
}

// waiter returns a channel that is closed when covered grows. Take it before
// reading covered.
func (f *fsm) waiter() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.progress
}

// grow raises v to n and tells whether it was below.
func grow(v *atomic.Uint64, n uint64) bool {
	for {
		old := v.Load()
		if n <= old {
			return false
		}
		if v.CompareAndSwap(old, n) {
			return true
		}
	}
}

// Snapshot implements raft.FSM: it only opens a read transaction, which keeps
// the state of this moment while applying goes on.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if f.stopped.Load() {
		return nil, ErrApplyStopped
	}
	tx, err := f.state.db.Load().Begin(false)
	if err != nil {
		return nil, fmt.Errorf("snapshot the metastore: %w", err)
	}
	return &stateSnapshot{tx: stateTx{tx}, fsm: f}, nil
}

// Restore implements raft.FSM: the snapshot is unpacked and checked beside the
// state and takes its place in one rename.
func (f *fsm) Restore(r io.ReadCloser) error {
	if f.stopped.Load() {
		return ErrApplyStopped
	}
	meta := readerMeta(r)
	if meta == nil {
		return errors.New("BUG: restore of something that the snapshot store did not open")
	}
	tmp := f.state.path + restoreSuffix
	if err := unpackSnapshot(r, meta.Index, tmp); err != nil {
		// The state stands as it was; Raft reports the error and the leader tries again.
		return err
	}
	if err := f.adopt(tmp, meta); err != nil {
		f.stop(err)
		return err
	}
	return nil
}

func (f *fsm) adopt(tmp string, meta *raft.SnapshotMeta) error {
	if err := f.state.replace(tmp); err != nil {
		return err
	}
	if err := f.replica.reload(f.state); err != nil {
		return err
	}
	grow(&f.configuration, meta.ConfigurationIndex)
	f.advance(meta.Index)
	return nil
}

// stateSnapshot is the state of one moment.
type stateSnapshot struct {
	tx  stateTx
	fsm *fsm
}

// Persist implements raft.FSMSnapshot: it streams the file, page by page.
func (s *stateSnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := s.tx.tx.WriteTo(sink); err != nil {
		return errors.Join(fmt.Errorf("write snapshot: %w", err), sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	if ours, ok := sink.(*snapshotSink); ok {
		// Raft takes the snapshot for this index: what lies between it and the
		// applied index does not concern the state, and may leave the log now.
		s.fsm.advance(ours.index)
	}
	return nil
}

// Release implements raft.FSMSnapshot.
func (s *stateSnapshot) Release() { _ = s.tx.tx.Rollback() }
