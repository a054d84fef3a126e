package raftnode

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// A node that never votes (Config.NeverVotes) counts towards no commit: what it
// loses, the leader sends again. So it does not wait for its disk, of which a
// cluster has one per storage node and gateway: for a create they all sync twice
// else, before they tell anybody.
//
//   - Its log is written behind: entries stand in memory and go to the file
//     together. The term and the vote are synced as ever.
//   - Its state is not synced with each transaction (see unsynced.go).
//
// The log is flushed before a snapshot becomes visible and before the state file
// gets its own name again. So neither ever stands above what the log reaches: the
// rules of openStores are the same for every node. Should a leader give such a node
// a vote, the node ends before it has confirmed anything.

const (
	// flushEvery is how long an entry may stand in memory only: what a power cut
	// costs, and what is missing if the cluster must be founded anew from this copy.
	// 50 such nodes on one disk that flushed every 100 ms made a create take 46 ms at the
	// median where it takes 25 ms now.
	flushEvery = 500 * time.Millisecond
	// Above either bound StoreLogs writes first. They hold several of Raft's messages
	// (Timing.MaxAppendEntries), so that no disk is in the way of a node that catches up.
	maxTailEntries = 4096
	maxTailBytes   = 4 << 20
)

// errVoteless ends a node that was given a vote.
var errVoteless = errors.New("this node was given a vote, and its log does not wait for the disk")

// tail is the end of a log that the file does not have yet. Methods that read
// may be called on nil, which is empty.
type tail struct {
	flushing sync.Mutex // one flush at a time; taken before mu
	flush    later

	mu      sync.Mutex // guards the fields below
	entries []*raft.Log
	bytes   int
}

// get finds an entry.
func (t *tail) get(index uint64, out *raft.Log) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	i := sort.Search(len(t.entries), func(i int) bool { return t.entries[i].Index >= index })
	if i == len(t.entries) || t.entries[i].Index != index {
		return false
	}
	*out = *t.entries[i]
	out.Extensions = nil
	return true
}

// ends returns the first and the last index; zeros when it is empty.
func (t *tail) ends() (first, last uint64) {
	if t == nil {
		return 0, 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.entries); n > 0 {
		return t.entries[0].Index, t.entries[n-1].Index
	}
	return 0, 0
}

// fits tells whether entries may be added: in order, and within the bounds. An
// empty tail takes any message of Raft's.
func (t *tail) fits(logs []*raft.Log) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.entries)
	if n == 0 {
		return true
	}
	return t.entries[n-1].Index < logs[0].Index && n+len(logs) <= maxTailEntries && t.bytes+sizeOf(logs) <= maxTailBytes
}

func (t *tail) add(logs []*raft.Log) {
	t.mu.Lock()
	t.entries = append(t.entries, logs...)
	t.bytes += sizeOf(logs)
	t.mu.Unlock()
	t.flush.in(flushEvery)
}

// all returns what is there now.
func (t *tail) all() []*raft.Log {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clip(t.entries)
}

// written drops what the file has now.
func (t *tail) written(logs []*raft.Log) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entries = append([]*raft.Log(nil), t.entries[len(logs):]...)
	t.bytes -= sizeOf(logs)
}

func sizeOf(logs []*raft.Log) (n int) {
	for _, l := range logs {
		n += len(l.Data)
	}
	return n
}

// writeBehind lets StoreLogs return before the file has the entries; self is the
// node that never votes. It is called before the log is used.
func (s *logStore) writeBehind(self string) {
	s.self = self
	s.behind = &tail{}
	s.behind.flush.do = func() {
		if err := s.flush(); noRoom(err) {
			s.behind.flush.in(s.room.pause)
		}
	}
}

// storeBehind adds to the tail. On a full disk it takes nothing more than it has,
// so that memory stays bounded and the node says that it stands still.
func (s *logStore) storeBehind(logs []*raft.Log) error {
	for _, l := range logs {
		if l.Type != raft.LogConfiguration {
			continue
		}
		if err := s.voteless(l.Index, raft.DecodeConfiguration(l.Data)); err != nil {
			return err
		}
	}
	if s.room.refused.Load() || !s.behind.fits(logs) {
		if err := s.flush(); err != nil {
			return err
		}
	}
	s.behind.add(logs)
	return nil
}

// voteless ends a node that never votes at a configuration in which it does.
func (s *logStore) voteless(index uint64, c raft.Configuration) error {
	if s.behind == nil {
		return nil
	}
	for _, server := range c.Servers {
		if NodeOf(string(server.ID)) == s.self && server.Suffrage == raft.Voter {
			err := fmt.Errorf("raft configuration at %d: %w", index, errVoteless)
			s.fail(err)
			return err
		}
	}
	return nil
}

// flush writes the tail. After an error all of it is still there.
func (s *logStore) flush() error {
	if s.behind == nil {
		return nil
	}
	s.behind.flushing.Lock()
	defer s.behind.flushing.Unlock()
	logs := s.behind.all()
	if len(logs) == 0 {
		return nil
	}
	if err := s.write(logs); err != nil {
		return s.refuse(err, logs)
	}
	s.behind.written(logs)
	s.room.refused.Store(false)
	return nil
}

// FirstIndex implements raft.LogStore. The tail is asked first: what leaves it is
// in the file already.
func (s *logStore) FirstIndex() (uint64, error) {
	waits, _ := s.behind.ends()
	first, err := s.BoltStore.FirstIndex()
	if first == 0 {
		first = waits
	}
	return first, err
}

// LastIndex implements raft.LogStore.
func (s *logStore) LastIndex() (uint64, error) {
	_, waits := s.behind.ends()
	last, err := s.BoltStore.LastIndex()
	return max(last, waits), err
}
