package member

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"github.com/go-json-experiment/json"

	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// Names in a data directory.
const (
	identityFile = "identity.json"
	lockFile     = "lock"
	raftDir      = "raft"
)

const (
	identityFormat = 1
	// maxIdentityBytes is far above what the file holds (under 300 bytes).
	maxIdentityBytes = 4 << 10
)

// Why a data directory is refused.
var (
	// ErrWrongIdentity: the directory belongs to another node, role or cluster.
	ErrWrongIdentity = errors.New("the data directory belongs to another node")
	// ErrDamagedIdentity: the identity file cannot be read, or is missing where it must be.
	ErrDamagedIdentity = errors.New("the data directory has lost its identity")
)

// identity is what a data directory remembers of itself: a JSON object in
// identity.json, replaced by rename.
type identity struct {
	Format    int              `json:"format"`
	NodeID    string           `json:"node_id"`
	Role      topic.MemberRole `json:"role"`
	DiskID    topic.ID64       `json:"disk_id"`    // random, made with the directory
	ClusterID string           `json:"cluster_id"` // "" until it was applied here
}

// directory is a data directory that this process holds.
type directory struct {
	fs    vfs.FS
	path  string
	id    identity
	empty bool // this process made the identity
	lock  io.Closer
}

// openDirectory takes the lock and reads or makes the identity.
func openDirectory(f vfs.FS, dir, nodeID string, role topic.MemberRole) (_ *directory, err error) {
	if err := f.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("open data directory: %w", err)
	}
	d := &directory{fs: f, path: dir}
	if d.lock, err = f.Lock(path.Join(dir, lockFile)); err != nil {
		return nil, fmt.Errorf("open data directory %s: another process uses it: %w", dir, err)
	}
	if err := d.load(nodeID, role); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *directory) load(nodeID string, role topic.MemberRole) error {
	raw, err := d.read()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return d.create(nodeID, role)
	case err != nil:
		return fmt.Errorf("read identity of %s: %w", d.path, err)
	}
	if err := json.Unmarshal(raw, &d.id, json.RejectUnknownMembers(true)); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrDamagedIdentity, path.Join(d.path, identityFile), err)
	}
	switch {
	case d.id.Format != identityFormat:
		return fmt.Errorf("%w: format %d, this release reads %d", ErrDamagedIdentity, d.id.Format, identityFormat)
	case d.id.NodeID != nodeID || d.id.Role != role:
		return fmt.Errorf("%w: %s belongs to %s %q, this is %s %q", ErrWrongIdentity, d.path, d.id.Role, d.id.NodeID, role, nodeID)
	case d.id.DiskID == 0:
		return fmt.Errorf("%w: it has no disk id", ErrDamagedIdentity)
	case d.id.ClusterID != "" && !d.hasRaft():
		return fmt.Errorf("%w: %s was in cluster %s, but its raft directory is gone; give the node an empty data directory to join as a new disk",
			ErrDamagedIdentity, d.path, d.id.ClusterID)
	}
	return nil
}

// create makes the identity of a new directory. One with Raft state but without
// an identity is not new.
func (d *directory) create(nodeID string, role topic.MemberRole) error {
	if d.hasRaft() {
		return fmt.Errorf("%w: %s has raft state but no %s", ErrDamagedIdentity, d.path, identityFile)
	}
	disk, err := newID()
	if err != nil {
		return err
	}
	d.id = identity{Format: identityFormat, NodeID: nodeID, Role: role, DiskID: disk}
	d.empty = true
	if err := d.save(); err != nil {
		return err
	}
	// The directory's own name must outlive a power cut as well. Whoever made
	// its ancestors is answerable for theirs.
	if err := d.fs.SyncDir(path.Dir(path.Clean(d.path))); err != nil {
		return fmt.Errorf("open data directory %s: %w", d.path, err)
	}
	return nil
}

// setCluster stores the cluster's id, once.
func (d *directory) setCluster(id string) error {
	switch d.id.ClusterID {
	case id:
		return nil
	case "":
		d.id.ClusterID = id
		return d.save()
	}
	return fmt.Errorf("%w: it was in cluster %s, and the replica says %s", ErrWrongIdentity, d.id.ClusterID, id)
}

func (d *directory) hasRaft() bool {
	list, err := d.fs.ReadDir(path.Join(d.path, raftDir))
	return err == nil && len(list) > 0
}

func (d *directory) read() (_ []byte, err error) {
	f, err := d.fs.OpenRead(path.Join(d.path, identityFile))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > maxIdentityBytes {
		return nil, fmt.Errorf("it has %d bytes", size)
	}
	raw := make([]byte, size)
	if _, err := f.ReadAt(raw, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return raw, nil
}

// save replaces the file in one step: a crash leaves the old or the new one.
func (d *directory) save() error {
	raw, err := json.Marshal(&d.id)
	if err == nil {
		err = d.replace(raw)
	}
	if err != nil {
		return fmt.Errorf("write identity of %s: %w", d.path, err)
	}
	return nil
}

func (d *directory) replace(raw []byte) error {
	tmp := path.Join(d.path, identityFile+".new")
	if err := d.fs.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := d.fs.Create(tmp)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(raw, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := d.fs.Rename(tmp, path.Join(d.path, identityFile)); err != nil {
		return err
	}
	return d.fs.SyncDir(d.path)
}

func (d *directory) close() error { return d.lock.Close() }

// newID draws a random id that is not zero.
func newID() (topic.ID64, error) {
	var b [8]byte
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, fmt.Errorf("draw a random id: %w", err)
		}
		if id := topic.ID64(binary.BigEndian.Uint64(b[:])); id != 0 {
			return id, nil
		}
	}
}
