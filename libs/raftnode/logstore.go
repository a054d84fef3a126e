package raftnode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// logStore is the durable Raft log and stable store. bbolt has no checksums of
// data, so each entry carries one in Extensions, which Raft leaves to us:
//
//	4 bytes little-endian: CRC-32C of index (8, big-endian), term (8, big-endian), type (1), data
//
// It is added when an entry is stored and taken away, checked, when it is read;
// it never travels. A failed write ends the node, unless it only found no room
// (room.go): what a failing disk holds cannot be known, and a leader with one wins
// elections again and again.
type logStore struct {
	*raftboltdb.BoltStore
	room *room
	fail func(error)                   // stops the node; must be safe to call at any time
	noop atomic.Pointer[termBeginning] // the newest no-op of any leader in the log
	busy atomic.Pointer[time.Time]     // when the write that is under way began; nil: none is
	cut  atomic.Bool                   // the newest entries were deleted, and nothing was stored since

	behind *tail  // what is not written yet, of a node that never votes; nil: StoreLogs writes
	self   string // node id; set with behind

	leading func() bool            // whether Raft leads; asked by its own goroutine
	applied func() (uint64, error) // what the state has; nil: no state hangs on this log
	fault   func() error           // tests let writes fail with it; nil otherwise
}

// termBeginning is a leader's first entry.
type termBeginning struct{ index, term uint64 }

func openLogStore(path string, r *room, fail func(error)) (*logStore, error) {
	bolt, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions(0)})
	if err != nil {
		return nil, fmt.Errorf("open raft log %s: %w", path, err)
	}
	return &logStore{BoltStore: bolt, room: r, fail: fail, leading: func() bool { return true }}, nil
}

// GetLog implements raft.LogStore.
func (s *logStore) GetLog(index uint64, out *raft.Log) error {
	if s.behind.get(index, out) {
		return nil
	}
	if err := s.BoltStore.GetLog(index, out); err != nil {
		if errors.Is(err, raft.ErrLogNotFound) {
			return err
		}
		return fmt.Errorf("%w: entry %d: %w", ErrDamagedLog, index, err)
	}
	if out.Index != index || len(out.Extensions) != crc32.Size ||
		binary.LittleEndian.Uint32(out.Extensions) != logChecksum(out) {
		return fmt.Errorf("%w: entry %d has a wrong checksum", ErrDamagedLog, index)
	}
	out.Extensions = nil
	return nil
}

// StoreLog implements raft.LogStore.
func (s *logStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (s *logStore) StoreLogs(logs []*raft.Log) error {
	err := s.store(logs)
	if err != nil {
		return s.refuse(err, logs)
	}
	s.cut.Store(false)
	for _, l := range logs {
		s.noteNoop(l)
	}
	return nil
}

func (s *logStore) store(logs []*raft.Log) error {
	if s.behind != nil {
		return s.storeBehind(logs)
	}
	err := s.write(logs)
	if err == nil {
		s.room.refused.Store(false)
	}
	return err
}

// refuse answers a write that failed; it ends the node unless that did no harm.
func (s *logStore) refuse(err error, logs []*raft.Log) error {
	if s.harmless(err, logs) {
		s.room.refused.Store(true)
	} else {
		s.fail(err)
	}
	return err
}

// write puts entries into the file and syncs it.
func (s *logStore) write(logs []*raft.Log) error {
	sealed := make([]raft.Log, len(logs))
	list := make([]*raft.Log, len(logs))
	for i, l := range logs {
		sealed[i] = *l
		sealed[i].Extensions = binary.LittleEndian.AppendUint32(nil, logChecksum(l))
		list[i] = &sealed[i]
	}
	began := time.Now()
	s.busy.Store(&began)
	defer s.busy.Store(nil)
	err := s.faulty()
	if err == nil {
		err = s.BoltStore.StoreLogs(list)
	}
	if err != nil {
		return fmt.Errorf("store raft log from %d: %w", logs[0].Index, err)
	}
	return nil
}

// checkCut refuses to cut from the log's end what has taken effect. Raft never asks
// for it while a majority's promises hold; when they do not, going on would leave
// a replica that is of neither history, and shows it to nobody.
func (s *logStore) checkCut(low, high uint64) error {
	if s.applied == nil {
		return nil
	}
	last, err := s.LastIndex()
	if err != nil || high < last {
		return err // what a snapshot has leaves at the other end
	}
	applied, err := s.applied()
	if err == nil && low <= applied {
		err = fmt.Errorf("%w: entry %d of it is another, %d are applied here", ErrDiverged, low, applied)
	}
	return err
}

// faulty is the error that a test wants a write to have.
func (s *logStore) faulty() error {
	if s.fault == nil {
		return nil
	}
	return s.fault()
}

func (s *logStore) noteNoop(l *raft.Log) {
	if l.Type == raft.LogNoop {
		s.noop.Store(&termBeginning{l.Index, l.Term})
	}
}

// check reads the entries from..last, which Raft will replay, and returns the
// index of the newest configuration among them (0: none).
func (s *logStore) check(from, last uint64) (configuration uint64, err error) {
	for i := from; i <= last; i++ {
		var l raft.Log
		if err := s.GetLog(i, &l); err != nil {
			if errors.Is(err, raft.ErrLogNotFound) {
				return 0, fmt.Errorf("%w: entry %d of %d is missing", ErrLogGap, i, last)
			}
			return 0, err
		}
		s.noteNoop(&l)
		if l.Type == raft.LogConfiguration {
			configuration = i
		}
	}
	return configuration, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func logChecksum(l *raft.Log) uint32 {
	var head [17]byte
	binary.BigEndian.PutUint64(head[0:], l.Index)
	binary.BigEndian.PutUint64(head[8:], l.Term)
	head[16] = byte(l.Type)
	return crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, l.Data)
}
