package raftnode

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"github.com/narad-mq/narad/libs/backup"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// Founding a cluster anew, after a majority of its voters was lost (Recover) or
// all of them (Restore). Both make a Raft directory of one voter whose only
// snapshot is a state refounded by package metastate. What makes it safe for the
// members that still have the lost cluster's log:
//
//   - Its index and term are far ahead of everything that the lost cluster can
//     have given, and its log is empty. So no entry of an old log is ever taken for
//     one of the new cluster: whoever attaches, however far it had come, gets the
//     snapshot in place of its own state, and no half of two histories.
//   - The source is only read.
//
// What was committed and is in no copy is forgotten; what it had named is neither
// live nor ended, and kept by everybody.

// ErrNotEmpty: the directory to found a cluster in has something in it.
var ErrNotEmpty = errors.New("the raft directory is not empty")

// ErrNotAVoter: the id is a storage node's or gateway's in the state.
var ErrNotAVoter = errors.New("the id belongs to a member that is no voter")

// ErrNothingToRecover: the directory never belonged to a cluster that had a leader.
var ErrNothingToRecover = errors.New("there is no cluster in this raft directory")

// Found says who the only voter of a cluster founded anew is.
type Found struct {
	ServerID string // Raft server id (see serverid.go)
	Addr     string // host:port at which others will reach its Raft
	Dir      string // made; must be missing or empty
	NowMS    int64  // Unix milliseconds
	Logger   *slog.Logger
}

// Standing is what a Raft directory has. Of several members' copies the one with
// the highest (LastTerm, LastIndex), the term first, has everything that was
// committed and is in any of them.
type Standing struct {
	ClusterID string
	LastTerm  uint64 // of the last entry
	LastIndex uint64
	Applied   uint64   // effects in the state, before the rest of the log is applied
	Servers   []Server // of the newest configuration
	Counts    metastate.Counts
}

// Founded is what was written.
type Founded struct {
	ClusterID   string
	Index, Term uint64
	State       metastate.Refounded
}

// indexPerSecond is how many entries per second a lost cluster may have written,
// since 1970, for a new index to be above its own: more than any disk syncs.
const indexPerSecond = 1 << 20

// aheadIndex is the index at which a refounded cluster begins: metastate.Ahead,
// for what grows faster than once per second. It stays below 2^53, which is exact
// in any JSON, until the year 2242.
func aheadIndex(last uint64, nowMS int64) uint64 {
	return max(last+indexStep, uint64(max(nowMS, 0)/1000)*indexPerSecond)
}

// indexStep is for a clock that stands in the past: years of heartbeats.
const indexStep = 1 << 32

// Inspect tells what a Raft directory has. It works on a copy in scratch, which
// must be missing or empty and is left for the caller to remove.
func Inspect(from, scratch string) (*Standing, error) {
	s, err := openCopy(from, scratch, nil)
	if err != nil {
		return nil, err
	}
	st, err := s.standing()
	return st, errors.Join(err, s.close())
}

// Recover founds the cluster anew from a copy of the Raft directory of any of its
// members, which nobody may be using: everything in its log takes effect, also
// what is not known to have been committed.
func Recover(from string, f Found) (_ *Founded, err error) {
	s, err := openCopy(from, f.Dir, f.Logger)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	st, err := s.standing()
	if err != nil {
		return nil, err
	}
	out := &Founded{ClusterID: st.ClusterID, Index: aheadIndex(st.LastIndex, f.NowMS), Term: metastate.Ahead(st.LastTerm, f.NowMS)}
	machine := &recoverFSM{state: s.state, found: out, server: f.ServerID, nowMS: f.NowMS}
	defer machine.release()
	conf := raft.DefaultConfig()
	conf.LocalID, conf.Logger = raft.ServerID(f.ServerID), newHCLog(orDiscard(f.Logger))
	_, trans := raft.NewInmemTransport(raft.ServerAddress(f.Addr))
	err = raft.RecoverCluster(conf, machine, s.logs, s.logs, &aheadSnapshots{s.snaps, out}, trans, f.configuration())
	if err = errors.Join(err, machine.err); err != nil {
		return nil, fmt.Errorf("recover the cluster: %w", err)
	}
	return out, s.settle(&f, out)
}

// Restore founds the cluster of a backup anew. The backup is read to its end and
// checked before the directory has anything that a node could start from.
func Restore(b *backup.Reader, f Found) (_ *Founded, err error) {
	head := b.Header()
	if err := makeEmpty(f.Dir); err != nil {
		return nil, err
	}
	path := filepath.Join(f.Dir, stateFile)
	tmp := path + restoreSuffix
	out := &Founded{ClusterID: head.ClusterID, Index: aheadIndex(head.AppliedIndex, f.NowMS), Term: metastate.Ahead(head.Term, f.NowMS)}
	if err := writeFile(b, tmp); err != nil {
		return nil, fmt.Errorf("restore backup: %w", errors.Join(err, os.Remove(tmp)))
	}
	if out.State, err = refoundFile(tmp, &head, &f, out.Index); err != nil {
		return nil, fmt.Errorf("restore backup: %w", errors.Join(err, os.Remove(tmp)))
	}
	if err := os.Rename(tmp, path); err != nil {
		return nil, fmt.Errorf("restore backup: %w", err)
	}
	return out, plant(&f, out)
}

func (f *Found) configuration() raft.Configuration {
	return raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(f.ServerID), Address: raft.ServerAddress(f.Addr)}}}
}

func orDiscard(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}

// refoundFile checks the state file of a backup and makes it the new first state.
func refoundFile(path string, head *backup.Header, f *Found, index uint64) (done metastate.Refounded, err error) {
	db, err := openStateFile(path)
	if err != nil {
		return done, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		st := stateTx{tx}
		if err := errors.Join(checkBackup(st, head), checkVoter(st, f.ServerID)); err != nil {
			return err
		}
		if done, err = metastate.Refound(st, f.NowMS); err != nil {
			return err
		}
		return st.setApplied(index)
	})
	return done, errors.Join(err, db.Close())
}

// checkVoter refuses an id under which the founder could never register.
func checkVoter(tx stateTx, serverID string) error {
	m, err := metastate.MemberByID(tx, NodeOf(serverID))
	if err == nil && m != nil && m.Role != topic.RoleVoter {
		err = fmt.Errorf("%w: %q is a %s", ErrNotAVoter, m.ID, m.Role)
	}
	return err
}

// checkBackup holds a state against the header that stood before it.
func checkBackup(tx stateTx, head *backup.Header) error {
	if err := checkSnapshot(tx, head.AppliedIndex); err != nil {
		return err
	}
	id, err := metastate.ReadClusterID(tx)
	if err != nil {
		return err
	}
	if counts := metastate.Count(tx); id != head.ClusterID || counts != head.Counts {
		return fmt.Errorf("%w: the state is of cluster %q with %+v, the header says %q with %+v", ErrDamagedState, id, counts, head.ClusterID, head.Counts)
	}
	return nil
}

// standing reads what the opened stores have.
func (s *stores) standing() (*Standing, error) {
	st := &Standing{Applied: s.applied}
	list, err := s.snaps.List()
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	if len(list) > 0 {
		st.LastIndex, st.LastTerm = list[0].Index, list[0].Term
		st.Servers = servers(list[0].Configuration)
	}
	last, err := s.logs.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("read raft log: %w", err)
	}
	for i := st.LastIndex + 1; i <= last; i++ {
		var l raft.Log
		if err := s.logs.GetLog(i, &l); err != nil {
			return nil, fmt.Errorf("read raft log: %w", err)
		}
		st.LastIndex, st.LastTerm = l.Index, l.Term
		if l.Type == raft.LogConfiguration {
			st.Servers = servers(raft.DecodeConfiguration(l.Data))
		}
	}
	st.ClusterID = s.cluster
	err = s.state.read(func(tx stateTx) error { st.Counts = metastate.Count(tx); return nil })
	if err == nil && st.ClusterID == "" {
		err = ErrNothingToRecover
	}
	return st, err
}

func servers(c raft.Configuration) (out []Server) {
	for _, s := range c.Servers {
		out = append(out, Server{ID: NodeOf(string(s.ID)), Addr: string(s.Address), Voter: s.Suffrage == raft.Voter, RaftID: string(s.ID)})
	}
	return out
}

// openCopy copies a Raft directory and opens the copy.
func openCopy(from, to string, log *slog.Logger) (*stores, error) {
	if err := makeEmpty(to); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(from, logFile)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNothingToRecover, err)
	}
	if err := copyRaft(from, to); err != nil {
		return nil, fmt.Errorf("copy raft directory: %w", err)
	}
	return openStores(&Config{Dir: to, Logger: orDiscard(log)}, &room{}, func(error) {})
}

// makeEmpty makes a directory, which must not be there or have nothing in it.
func makeEmpty(dir string) error {
	list, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = os.MkdirAll(dir, vfs.DirMode)
	case err == nil && len(list) > 0:
		err = ErrNotEmpty
	}
	if err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	return nil
}

// copyRaft copies the log, the state and the snapshots; whatever else is there is
// left behind.
func copyRaft(from, to string) error {
	files := []string{logFile, stateFile}
	snapshots, err := filepath.Glob(filepath.Join(from, "snapshots", "*", "*"))
	if err != nil {
		return err
	}
	for _, path := range snapshots {
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		files = append(files, name)
	}
	for _, name := range files {
		if err := copyFile(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	src, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) && filepath.Base(from) == stateFile {
		return nil // a snapshot or the log has it all; openStores judges
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), vfs.DirMode); err != nil {
		return errors.Join(err, src.Close())
	}
	return errors.Join(writeFile(io.Reader(src), to), src.Close())
}
