package raftnode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/narad-mq/narad/libs/vfs"
)

const (
	logFile       = "raft.db"
	stateFile     = "state.db"
	unsyncedFile  = "state.unsynced" // instead, while a node runs that never votes
	restoreSuffix = ".restore"
)

// stores are a node's files, brought to where Raft may start from them.
type stores struct {
	logs          *logStore
	state         *state
	snaps         *snapshotStore
	applied       uint64
	configuration uint64
	gated         bool        // see gate.go
	cluster       string      // id of the cluster, "" while it is not known
	failed        func() bool // whether the node has; nil: none runs on these
}

// openStores opens the files and brings the state up to the newest snapshot
// before anything reads it:
//
//   - the newest snapshot is above the state's applied index: it is restored; when
//     it cannot be read, the next older one, and Raft never hears of it;
//   - else the state stands, and entries at or below its index are skipped;
//   - the log must go on where Raft will start, entry by entry, each with its
//     checksum, and reach what the state has applied. Else the node does not start.
//
// It is the same for a node that never votes, until all of it is done; see unsynced.go.
func openStores(cfg *Config, r *room, fail func(error)) (_ *stores, err error) {
	if err := os.MkdirAll(cfg.Dir, vfs.DirMode); err != nil {
		return nil, fmt.Errorf("open raft directory: %w", err)
	}
	s := &stores{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.logs, err = openLogStore(filepath.Join(cfg.Dir, logFile), r, fail); err != nil {
		return nil, err
	}
	if err := dropUnsynced(cfg.Dir); err != nil {
		return nil, err
	}
	if s.state, err = openState(filepath.Join(cfg.Dir, stateFile)); err != nil {
		return nil, err
	}
	if s.snaps, err = openSnapshots(cfg.Dir, s.logs, newHCLog(cfg.Logger)); err != nil {
		return nil, err
	}
	// A vote that is synced is worth nothing in a file whose name goes with a power cut:
	// bbolt syncs no directory.
	if err := errors.Join(syncDirOf(filepath.Join(cfg.Dir, logFile)), syncDirOf(filepath.Clean(cfg.Dir))); err != nil {
		return nil, fmt.Errorf("open raft directory: %w", err)
	}
	if s.applied, err = s.state.applied(); err != nil {
		return nil, err
	}
	start, err := s.chooseSnapshot()
	if err != nil {
		return nil, err
	}
	if err := s.checkLog(start); err != nil {
		return nil, err
	}
	if s.gated, err = s.readGate(cfg.Gated); err != nil {
		return nil, err
	}
	if s.cluster, err = s.clusterID(); err != nil {
		return nil, err
	}
	if cfg.NeverVotes {
		err = s.relax(cfg.NodeID, fail)
	}
	return s, err
}

// chooseSnapshot returns the snapshot that Raft will start from, or nil.
func (s *stores) chooseSnapshot() (*raft.SnapshotMeta, error) {
	list, err := s.snaps.List()
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	var damaged error
	for _, m := range list {
		if m.Index <= s.applied {
			return m, nil
		}
		err := s.restore(m)
		if err == nil {
			s.applied = m.Index
			return m, nil
		}
		damaged = errors.Join(damaged, err)
		s.snaps.hidden[m.ID] = true
	}
	first, err := s.logs.FirstIndex()
	if err != nil {
		return nil, fmt.Errorf("read raft log: %w", err)
	}
	if damaged != nil && first != 1 {
		return nil, fmt.Errorf("%w: no snapshot can be read: %w", ErrLogGap, damaged)
	}
	return nil, nil
}

func (s *stores) restore(m *raft.SnapshotMeta) error {
	_, r, err := s.snaps.Open(m.ID)
	if err != nil {
		return fmt.Errorf("open snapshot %s: %w", m.ID, err)
	}
	tmp := s.state.path + restoreSuffix
	err = unpackSnapshot(r, m.Index, tmp)
	if closed := r.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = s.state.replace(tmp)
	}
	if err != nil {
		return fmt.Errorf("restore snapshot %s: %w", m.ID, err)
	}
	return nil
}

func (s *stores) checkLog(start *raft.SnapshotMeta) error {
	first, err := s.logs.FirstIndex()
	if err != nil {
		return fmt.Errorf("read raft log: %w", err)
	}
	last, err := s.logs.LastIndex()
	if err != nil {
		return fmt.Errorf("read raft log: %w", err)
	}
	var from uint64
	if start != nil {
		from, s.configuration = start.Index, start.ConfigurationIndex
	}
	if first > from+1 {
		return fmt.Errorf("%w: it begins at %d, the newest usable snapshot ends at %d (applied %d)", ErrLogGap, first, from, s.applied)
	}
	if s.applied > max(last, from) {
		return fmt.Errorf("%w: it ends at %d, the state has applied %d", ErrLogGap, max(last, from), s.applied)
	}
	found, err := s.logs.check(from+1, last)
	s.configuration = max(s.configuration, found)
	return err
}

func (s *stores) close() error {
	var errs []error
	whole, err := s.catchUpDisk()
	errs = append(errs, err)
	if s.logs != nil {
		errs = append(errs, s.logs.Close())
	}
	if s.state != nil {
		err := s.state.close()
		if err == nil && whole {
			err = s.state.regainName()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
