package member

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/narad-mq/narad/libs/backup"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// Founding a cluster anew makes the data directory of its only voter: see package
// raftnode for what makes it safe. The directory gets its identity last, so that
// one which was left half made is refused by every start.

// ErrNotEmpty: the data directory to found a cluster in has something in it.
var ErrNotEmpty = errors.New("the data directory is not empty")

// Copy is a copy of a member's data directory.
type Copy struct {
	NodeID string
	Role   topic.MemberRole
	raftnode.Standing
}

// InspectCopy tells what a copy of a data directory has. Nothing in it is changed;
// it is refused while a process uses it.
func InspectCopy(from string) (_ *Copy, err error) {
	id, unlock, err := openSource(from)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	scratch, err := os.MkdirTemp("", "narad-recover-")
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", from, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	st, err := raftnode.Inspect(filepath.Join(from, raftDir), scratch)
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", from, err)
	}
	return &Copy{NodeID: id.NodeID, Role: id.Role, Standing: *st}, nil
}

// Recover makes cfg's data directory that of the only voter of a cluster with what
// the copy has.
func Recover(cfg Config, from string) (_ *raftnode.Founded, err error) {
	_, unlock, err := openSource(from)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return found(cfg, func(f raftnode.Found) (*raftnode.Founded, error) {
		return raftnode.Recover(filepath.Join(from, raftDir), f)
	})
}

// Restore makes cfg's data directory that of the only voter of a cluster with what
// the backup has. The file is read twice: it is found whole before anything is made.
func Restore(cfg Config, file string) (_ *raftnode.Founded, head backup.Header, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, head, fmt.Errorf("restore: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if head, err = backup.Verify(f); err != nil {
		return nil, head, fmt.Errorf("restore %s: %w", file, err)
	}
	if _, err := f.Seek(0, 0); err != nil {
		return nil, head, fmt.Errorf("restore: %w", err)
	}
	r, err := backup.NewReader(f)
	if err != nil {
		return nil, head, fmt.Errorf("restore %s: %w", file, err)
	}
	out, err := found(cfg, func(f raftnode.Found) (*raftnode.Founded, error) { return raftnode.Restore(r, f) })
	return out, head, err
}

func found(cfg Config, do func(raftnode.Found) (*raftnode.Founded, error)) (_ *raftnode.Founded, err error) {
	_, port, err := net.SplitHostPort(cfg.RaftBind)
	if err != nil {
		return nil, fmt.Errorf("raft address %q: %w", cfg.RaftBind, err)
	}
	if err := checkEmpty(cfg.DataDir); err != nil {
		return nil, err
	}
	disk, err := newID()
	if err != nil {
		return nil, err
	}
	out, err := do(raftnode.Found{
		ServerID: raftnode.ServerID(cfg.NodeID, disk), Addr: net.JoinHostPort(cfg.Advertise, port),
		Dir: filepath.Join(cfg.DataDir, raftDir), NowMS: time.Now().UnixMilli(),
	})
	if err != nil {
		return nil, err
	}
	d := &directory{fs: vfs.OS(), path: cfg.DataDir, id: identity{Format: identityFormat, NodeID: cfg.NodeID, Role: topic.RoleVoter, DiskID: disk, ClusterID: out.ClusterID}}
	if err := d.save(); err != nil {
		return nil, err
	}
	return out, d.fs.SyncDir(path.Dir(path.Clean(cfg.DataDir)))
}

// checkEmpty lets pass what mkfs makes in an empty volume.
func checkEmpty(dir string) error {
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look into the data directory: %w", err)
	}
	for _, e := range list {
		if e.Name() != "lost+found" {
			return fmt.Errorf("%w: %s has %s", ErrNotEmpty, dir, e.Name())
		}
	}
	return nil
}

// openSource reads the identity of a data directory and keeps processes from it
// while it is read. It makes no file there.
func openSource(dir string) (*identity, func() error, error) {
	d := &directory{fs: vfs.OS(), path: dir}
	raw, err := d.read()
	if err != nil {
		return nil, nil, fmt.Errorf("read the identity of %s: %w", dir, err)
	}
	if err := json.Unmarshal(raw, &d.id, json.RejectUnknownMembers(true)); err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %w", ErrDamagedIdentity, path.Join(dir, identityFile), err)
	}
	lock := path.Join(dir, lockFile)
	if _, err := os.Stat(lock); errors.Is(err, fs.ErrNotExist) {
		return &d.id, func() error { return nil }, nil // a copy without it, which no process uses
	}
	held, err := d.fs.Lock(lock)
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: another process uses it: stop it and copy the directory: %w", dir, err)
	}
	return &d.id, held.Close, nil
}
