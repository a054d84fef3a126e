package raftnode

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// A full disk is no broken disk: there will be room again, and a node that ended
// at each entry that finds none would be started again and again, as every start
// makes an entry. So what finds no room waits or is refused:
//
//   - entries of a leader: refused, the leader sends them again with a back-off;
//   - entries of its own: Raft answers them with the error and stops leading;
//   - applying: waits and tries again, as it may neither skip nor halve an entry;
//   - the term, whose write Raft takes for granted: waits and tries again.
//
// That needs a failed write to have left nothing behind. bbolt writes pages that
// nothing refers to, syncs, and writes the meta page that refers to them: until
// then the file is what it was. A sync that fails is another matter, whatever its
// error, and ends the node. Whether the old state is still there is looked at.

// roomPause is between two tries of a write that found no room. bbolt reads the
// whole file after each.
const roomPause = time.Second

// room is what a node's writers know of a full disk.
type room struct {
	closing <-chan struct{} // ends every wait
	pause   time.Duration
	waiting atomic.Int32 // writers that wait and try again
	refused atomic.Bool  // the last entries of the log found no room
}

// retry tries until it does not find no room, and answers that; ErrClosed when
// the node is closed before.
func (r *room) retry(try func() (again bool, err error)) error {
	again, err := try()
	if !again {
		return err
	}
	r.waiting.Add(1)
	defer r.waiting.Add(-1)
	tick := time.NewTicker(r.pause)
	defer tick.Stop()
	for again {
		select {
		case <-tick.C:
			again, err = try()
		case <-r.closing:
			return ErrClosed
		}
	}
	return err
}

// noRoom tells a write that found no room from every other error. What a sync
// answers is not meant: after it nobody knows what the disk has.
func noRoom(err error) bool {
	var at *fs.PathError
	return errors.As(err, &at) && at.Op == "write" &&
		(errors.Is(at.Err, syscall.ENOSPC) || errors.Is(at.Err, syscall.EDQUOT))
}

// DiskFull tells whether the node's replica stands still because its disk is
// full. It goes on by itself when there is room.
func (n *Node) DiskFull() bool { return n.room.refused.Load() || n.room.waiting.Load() > 0 }

// watchRoom gives leadership away while this leader cannot apply: whoever waits
// for a change would wait for room. A sole voter has nobody to give it to.
func (n *Node) watchRoom(ctx context.Context) {
	tick := time.NewTicker(n.room.pause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if n.room.waiting.Load() > 0 && n.IsLeader() {
			_ = n.TransferLeadership(ctx) // nobody to take it: the next look tries again
		}
	}
}

// harmless tells whether a failed StoreLogs may be answered with its error: it
// found no room, nothing of it is in the log, and Raft's memory fits the log. Two
// times it would not: when Raft cut the log before, it still believes in what was
// cut; and a leader takes on a configuration even if it could not be stored.
func (s *logStore) harmless(err error, logs []*raft.Log) bool {
	if !noRoom(err) || s.cut.Load() {
		return false
	}
	if last, err := s.BoltStore.LastIndex(); err != nil || last >= logs[0].Index {
		return false
	}
	for _, l := range logs {
		if l.Type == raft.LogConfiguration && s.leading() {
			return false
		}
	}
	return true
}

// DeleteRange implements raft.LogStore.
func (s *logStore) DeleteRange(low, high uint64) error {
	if err := s.checkCut(low, high); err != nil {
		s.fail(err)
		return err
	}
	if err := s.flush(); err != nil {
		return err
	}
	if err := s.BoltStore.DeleteRange(low, high); err != nil {
		return err
	}
	if last, err := s.LastIndex(); err != nil || last <= high {
		s.cut.Store(true) // its end is gone, and not only what a snapshot has
	}
	return nil
}

// SetUint64 implements raft.StableStore. Raft panics when the term cannot be
// stored, so that waits for room; when the node is closed meanwhile, its goroutine
// ends here, because no answer would be true.
func (s *logStore) SetUint64(key []byte, v uint64) error {
	err := s.room.retry(func() (bool, error) {
		err := s.faulty()
		if err == nil {
			err = s.BoltStore.SetUint64(key, v)
		}
		return noRoom(err) && bytes.Equal(key, keyCurrentTerm), err
	})
	if errors.Is(err, ErrClosed) {
		runtime.Goexit()
	}
	return err
}

// update applies in one transaction, as soon as there is room for it.
func (f *fsm) update(fn func(stateTx) error) error {
	return f.room.retry(func() (bool, error) {
		var had uint64
		err := f.state.update(func(tx stateTx) error {
			had = tx.applied()
			return fn(tx)
		})
		if !noRoom(err) {
			return false, err
		}
		if has, broken := f.state.applied(); broken != nil || has != had {
			return false, errors.Join(err, broken)
		}
		return true, err
	})
}
