package raftnode

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"github.com/narad-mq/narad/libs/vfs"
)

// snapshotStore is raft's file store that tells the state machine which index a
// snapshot stands for, and hides those that cannot be read. A snapshot's bytes
// are a state file (see state.go).
type snapshotStore struct {
	*raft.FileSnapshotStore
	hidden map[string]bool // ids that did not restore at start; fixed before Raft runs
	logs   *logStore       // which a snapshot stands beside
}

func openSnapshots(dir string, logs *logStore, log hclog.Logger) (*snapshotStore, error) {
	if err := os.MkdirAll(filepath.Join(dir, "snapshots"), vfs.DirMode); err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	store, err := raft.NewFileSnapshotStoreWithLogger(dir, keptSnapshots, log)
	if err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	return &snapshotStore{FileSnapshotStore: store, hidden: map[string]bool{}, logs: logs}, nil
}

// List implements raft.SnapshotStore.
func (s *snapshotStore) List() ([]*raft.SnapshotMeta, error) {
	all, err := s.FileSnapshotStore.List()
	kept := all[:0]
	for _, m := range all {
		if !s.hidden[m.ID] {
			kept = append(kept, m)
		}
	}
	return kept, err
}

// Create implements raft.SnapshotStore.
func (s *snapshotStore) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, ci uint64, t raft.Transport) (raft.SnapshotSink, error) {
	if err := s.logs.voteless(index, c); err != nil {
		return nil, err
	}
	sink, err := s.FileSnapshotStore.Create(v, index, term, c, ci, t)
	if err != nil {
		return nil, err
	}
	return &snapshotSink{sink, index, s.logs}, nil
}

// Open implements raft.SnapshotStore.
func (s *snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, r, err := s.FileSnapshotStore.Open(id)
	if err != nil {
		return nil, nil, err
	}
	return meta, &snapshotReader{r, meta}, nil
}

// snapshotSink knows the index that the snapshot stands for.
type snapshotSink struct {
	raft.SnapshotSink
	index uint64
	logs  *logStore
}

// Close implements raft.SnapshotSink: it makes the snapshot visible. The log must
// reach it then: the next entry would leave a gap in it.
func (s *snapshotSink) Close() error {
	if err := s.logs.flush(); err != nil {
		return errors.Join(err, s.SnapshotSink.Cancel())
	}
	return s.SnapshotSink.Close()
}

// snapshotReader knows what it reads.
type snapshotReader struct {
	io.ReadCloser
	meta *raft.SnapshotMeta
}

// readerMeta finds the meta below the reader that Raft wraps around ours.
func readerMeta(r io.ReadCloser) *raft.SnapshotMeta {
	for {
		switch v := r.(type) {
		case *snapshotReader:
			return v.meta
		case raft.ReadCloserWrapper:
			r = v.WrappedReadCloser()
		default:
			return nil
		}
	}
}

// unpackSnapshot writes a snapshot to tmp, checks it and sets its applied index.
// After a failure there is no tmp: the disk may be full.
func unpackSnapshot(r io.Reader, index uint64, tmp string) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	if err := writeFile(r, tmp); err != nil {
		return err
	}
	db, err := openStateFile(tmp)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error { return checkSnapshot(stateTx{tx}, index) })
	return errors.Join(err, db.Close())
}

// checkSnapshot walks every page, and moves the applied index up to that of the
// snapshot: between the two stand only entries that the state machine never sees.
func checkSnapshot(tx stateTx, index uint64) error {
	var bad error
	for err := range tx.tx.Check() {
		bad = fmt.Errorf("%w: snapshot at %d: %w", ErrDamagedState, index, err)
	}
	if bad != nil {
		return bad
	}
	if at := tx.applied(); at > index {
		return fmt.Errorf("%w: snapshot at %d has applied %d", ErrDamagedState, index, at)
	}
	return tx.setApplied(index)
}

func writeFile(r io.Reader, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, vfs.FileMode)
	if err != nil {
		return fmt.Errorf("unpack snapshot: %w", err)
	}
	_, err = io.Copy(f, r)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("unpack snapshot: %w", err)
	}
	return nil
}

func syncDirOf(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	err = d.Sync()
	if closed := d.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("sync directory of %s: %w", path, err)
	}
	return nil
}
