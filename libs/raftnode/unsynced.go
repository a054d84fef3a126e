package raftnode

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"github.com/narad-mq/narad/libs/metastate"
)

// The state file of a node that never votes (see behind.go) is not synced with
// each transaction. After a crash of the machine it may be torn in ways that bbolt
// does not notice, so its name tells whether it may be read:
//
//	state.db        whole and synced: every start reads it, of any release
//	state.unsynced  of a node that runs, or that ended in no order: nobody reads it
//
// A start renames the first to the second, durably, when it has done everything
// else and before the first change. An ordered end syncs the file and gives it its
// name back. There is one of the two, so nothing can say of a file what holds of
// another. Without state.db the state comes from the newest snapshot and the log.
//
// What must be known before that has been replayed stands elsewhere, synced: the
// cluster id, which keeps two clusters apart, in the stable store. The gate and the
// Raft server id always stood there. The rest of the View may be an older one: such
// a node is not ready before it has caught up, as after any time that it was away.

// syncEvery is how long a change of the state may stay unsynced: an error of the
// disk is noticed then, and an ordered end has little left to sync.
const syncEvery = time.Second

// keyCluster in the stable store: the cluster id, once a node that never votes has it.
var keyCluster = []byte("narad_cluster")

// unsynced is what a state file that is not synced each time has beside it. changed
// may be called on nil.
type unsynced struct {
	soon  later
	name  string                     // of the file when it is whole
	keep  func(cluster string) error // makes the cluster id durable
	fault func() error               // tests let syncs fail with it; nil otherwise

	mu sync.Mutex // held while the file is synced or replaced: a closed one cannot be synced
}

func (u *unsynced) changed() {
	if u != nil {
		u.soon.in(syncEvery)
	}
}

// dropUnsynced removes what a crash left behind. Nothing ever reads it, so a
// removal that is lost does no harm.
func dropUnsynced(dir string) error {
	if err := os.Remove(filepath.Join(dir, unsyncedFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove an unsynced state: %w", err)
	}
	return nil
}

// relax makes the stores of a node that never votes: from here on they do not wait
// for the disk. It is the last thing before Raft is started.
func (s *stores) relax(self string, fail func(error)) error {
	if err := s.keepCluster(s.cluster); err != nil {
		return err
	}
	u := &unsynced{name: s.state.path, keep: s.keepCluster}
	u.soon.do = func() {
		if err := s.state.sync(); err != nil {
			fail(err)
		}
	}
	s.state.path = filepath.Join(filepath.Dir(u.name), unsyncedFile)
	if err := os.Rename(u.name, s.state.path); err != nil {
		return fmt.Errorf("begin an unsynced state: %w", err)
	}
	s.state.unsynced = u
	if err := syncDirOf(s.state.path); err != nil {
		return err
	}
	s.state.db.Load().NoSync = true
	s.logs.writeBehind(self)
	return nil
}

// clusterID is the id that the state has, or else the one that was kept.
func (s *stores) clusterID() (id string, err error) {
	err = s.state.read(func(tx stateTx) error {
		id, err = metastate.ReadClusterID(tx)
		return err
	})
	if err != nil || id != "" {
		return id, err
	}
	kept, err := s.logs.Get(keyCluster)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("read the cluster id: %w", err)
	}
	return string(kept), err
}

func (s *stores) keepCluster(id string) error {
	kept, err := s.logs.Get(keyCluster)
	if err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return fmt.Errorf("read the cluster id: %w", err)
	}
	if id == "" || bytes.Equal(kept, []byte(id)) {
		return nil
	}
	if err := s.logs.Set(keyCluster, []byte(id)); err != nil {
		return fmt.Errorf("keep the cluster id: %w", err)
	}
	return nil
}

// catchUpDisk writes what waits for the disk, at an ordered end. The state is not
// whole when it stands above the log, nor when any write of the node has failed:
// the next one may succeed and prove nothing.
func (s *stores) catchUpDisk() (whole bool, err error) {
	if s.logs == nil || s.logs.behind == nil {
		return true, nil
	}
	s.logs.behind.flush.end()
	s.state.unsynced.soon.end()
	if s.failed != nil && s.failed() {
		return false, nil
	}
	if err = s.logs.flush(); noRoom(err) {
		return false, nil // no failure: the leader has what was not written
	}
	if err == nil {
		err = s.state.sync()
	}
	return err == nil, err
}

// keepCluster makes the cluster id durable before the entry that sets it takes effect.
func (s *state) keepCluster(tx stateTx, effects *metastate.Effects) error {
	if s.unsynced == nil || !effects.ClusterID {
		return nil
	}
	id, err := metastate.ReadClusterID(tx)
	if err != nil {
		return err
	}
	return s.unsynced.keep(id)
}

// swap makes another file the state and returns the one before.
func (s *state) swap(db *bbolt.DB) *bbolt.DB {
	if s.unsynced == nil {
		return s.db.Swap(db)
	}
	db.NoSync = true
	s.unsynced.mu.Lock()
	defer s.unsynced.mu.Unlock()
	return s.db.Swap(db)
}

// sync makes durable what was applied.
func (s *state) sync() error {
	u := s.unsynced
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.fault != nil {
		if err := u.fault(); err != nil {
			return err
		}
	}
	if err := s.db.Load().Sync(); err != nil {
		return fmt.Errorf("sync metastore state %s: %w", s.path, err)
	}
	return nil
}

// regainName tells the next start that the closed file is whole and synced.
func (s *state) regainName() error {
	if s.unsynced == nil {
		return nil
	}
	if err := os.Rename(s.path, s.unsynced.name); err != nil {
		return fmt.Errorf("end an unsynced state: %w", err)
	}
	return syncDirOf(s.path)
}
