package raftnode

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/vfs"
)

// The state file is a bbolt database: one bucket per metastate.Bucket, and the
// bucket "node" with
//
//	"format"   1 byte: stateFormat
//	"applied"  8 bytes big-endian: Raft index of the last entry whose effects are here
const stateFormat = 1

const (
	bucketNode = "node"
	keyFormat  = "format"
	keyApplied = "applied"

	// stateMmap is reserved address space: below it the file grows without
	// remapping, which would wait for a snapshot's read transaction.
	stateMmap   = 1 << 30
	lockTimeout = 2 * time.Second
)

// state is the database under the state machine. Reads may run at any time; one
// goroutine at a time writes and restores.
type state struct {
	path    string
	db      atomic.Pointer[bbolt.DB]
	fault   func() error   // tests let updates fail with it; nil otherwise
	leaving sync.WaitGroup // of files that a restore replaced and readers still hold

	unsynced *unsynced // nil: each transaction is synced
}

func boltOptions(mmap int) *bbolt.Options {
	return &bbolt.Options{
		Timeout: lockTimeout, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, InitialMmapSize: mmap,
	}
}

func openState(path string) (*state, error) {
	db, err := openStateFile(path)
	if err != nil {
		return nil, err
	}
	s := &state{path: path}
	s.db.Store(db)
	return s, nil
}

// openStateFile opens or makes a state file and checks that this release can read it.
func openStateFile(path string) (*bbolt.DB, error) {
	db, err := bbolt.Open(path, vfs.FileMode, boltOptions(stateMmap))
	if err != nil {
		return nil, fmt.Errorf("open metastore state %s: %w", path, err)
	}
	// What is prepared needs no write, and so no room on a full disk.
	if db.View(checkState) == nil {
		return db, nil
	}
	if err := db.Update(prepareState); err != nil {
		return nil, errors.Join(fmt.Errorf("open metastore state %s: %w", path, err), db.Close())
	}
	return db, nil
}

func prepareState(tx *bbolt.Tx) error {
	node, err := tx.CreateBucketIfNotExists([]byte(bucketNode))
	if err != nil {
		return err
	}
	if f := node.Get([]byte(keyFormat)); f == nil {
		if err := node.Put([]byte(keyFormat), []byte{stateFormat}); err != nil {
			return err
		}
	} else if len(f) != 1 || f[0] != stateFormat {
		return fmt.Errorf("%w: format %x, this release reads %d", ErrDamagedState, f, stateFormat)
	}
	for _, b := range metastate.Buckets() {
		if _, err := tx.CreateBucketIfNotExists([]byte(b)); err != nil {
			return err
		}
	}
	return checkRelease(tx)
}

// checkState tells whether a file has everything that prepareState makes.
func checkState(tx *bbolt.Tx) error {
	node := tx.Bucket([]byte(bucketNode))
	if node == nil || !bytes.Equal(node.Get([]byte(keyFormat)), []byte{stateFormat}) {
		return errUnprepared
	}
	for _, b := range metastate.Buckets() {
		if tx.Bucket([]byte(b)) == nil {
			return errUnprepared
		}
	}
	return checkRelease(tx)
}

// errUnprepared: the file lacks something, or has what prepareState has to judge.
var errUnprepared = errors.New("the state file is not prepared")

// checkRelease refuses what a newer release wrote.
func checkRelease(tx *bbolt.Tx) error {
	newest, err := metastate.NewestApplied(stateTx{tx})
	if err == nil && newest > metastate.NewestType() {
		err = fmt.Errorf("%w: it has entries of type %d, this release applies up to %d", ErrDamagedState, newest, metastate.NewestType())
	}
	return err
}

// read runs fn over the state at one moment. A restore may replace the file at
// any time: then the read starts over on the new one.
func (s *state) read(fn func(stateTx) error) error {
	for {
		db := s.db.Load()
		err := db.View(func(tx *bbolt.Tx) error { return fn(stateTx{tx}) })
		if errors.Is(err, berrors.ErrDatabaseNotOpen) && s.db.Load() != db {
			continue
		}
		return err
	}
}

// update runs fn in one transaction, which is durable unless the file is unsynced.
func (s *state) update(fn func(stateTx) error) error {
	err := s.db.Load().Update(func(tx *bbolt.Tx) error {
		if err := fn(stateTx{tx}); err != nil || s.fault == nil {
			return err
		}
		return s.fault()
	})
	if err == nil {
		s.unsynced.changed()
	}
	return err
}

func (s *state) applied() (index uint64, err error) {
	err = s.read(func(tx stateTx) error { index = tx.applied(); return nil })
	return index, err
}

// replace puts a checked file in the place of the current one.
func (s *state) replace(tmp string) error {
	if err := os.Rename(tmp, s.path); err != nil {
		return fmt.Errorf("replace metastore state: %w", err)
	}
	if err := syncDirOf(s.path); err != nil {
		return err
	}
	db, err := openStateFile(s.path)
	if err != nil {
		return err
	}
	// Closing the old file, which has no name any more, waits for its readers. One
	// of them may be a snapshot that Raft releases only after this restore.
	old := s.swap(db)
	s.leaving.Go(func() { _ = old.Close() }) // nothing was written that could be lost
	return nil
}

func (s *state) close() error {
	s.leaving.Wait()
	return s.db.Load().Close()
}

// stateTx is a bbolt transaction as package metastate sees it.
type stateTx struct{ tx *bbolt.Tx }

var _ metastate.Tx = stateTx{}

// Get implements metastate.Reader.
func (t stateTx) Get(b metastate.Bucket, key []byte) []byte { return t.tx.Bucket([]byte(b)).Get(key) }

// Scan implements metastate.Reader.
func (t stateTx) Scan(b metastate.Bucket, prefix []byte, fn func(key, value []byte) bool) {
	c := t.tx.Bucket([]byte(b)).Cursor()
	for k, v := c.Seek(prefix); k != nil && hasPrefix(k, prefix); k, v = c.Next() {
		if !fn(k, v) {
			return
		}
	}
}

// Put implements metastate.Tx.
func (t stateTx) Put(b metastate.Bucket, key, value []byte) error {
	return t.tx.Bucket([]byte(b)).Put(append([]byte(nil), key...), append([]byte{}, value...))
}

// Delete implements metastate.Tx.
func (t stateTx) Delete(b metastate.Bucket, key []byte) error {
	return t.tx.Bucket([]byte(b)).Delete(key)
}

func (t stateTx) applied() uint64 {
	v := t.tx.Bucket([]byte(bucketNode)).Get([]byte(keyApplied))
	if len(v) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(v)
}

func (t stateTx) setApplied(index uint64) error {
	return t.tx.Bucket([]byte(bucketNode)).Put([]byte(keyApplied), binary.BigEndian.AppendUint64(nil, index))
}

func hasPrefix(b, prefix []byte) bool {
	return len(b) >= len(prefix) && string(b[:len(prefix)]) == string(prefix)
}
