package vfs

import (
	"io"
	"io/fs"
	"path"
	"slices"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Mem is a file system in memory that knows what a disk would still hold after
// a power cut: see CrashClone. Safe for concurrent use.
type Mem struct {
	mu       sync.Mutex // guards everything below, files included
	root     *memNode
	locks    map[string]bool
	capacity int64 // bytes of file content; 0: no limit
	used     int64
}

// NewMem makes an empty file system without a size limit.
func NewMem() *Mem {
	return &Mem{root: newMemDir(), locks: map[string]bool{}}
}

// SetCapacity bounds the bytes of all files; writes beyond it are short and
// fail with ENOSPC. 0 takes the bound away.
func (m *Mem) SetCapacity(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.capacity = bytes
}

// memNode is a file or a directory (entries is not nil).
type memNode struct {
	data    []byte // file: what reads see
	synced  []byte // file: what the disk holds for sure
	pending []memWrite

	entries map[string]*memNode // directory: what lookups see
	onDisk  map[string]*memNode // directory: what the disk holds for sure
	dirOps  []memDirOp
}

// memWrite is a change of a file since its last sync: bytes, or (nil) a size.
type memWrite struct {
	off  int64
	data []byte
}

// memDirOp is a change of a directory since its last sync: name del goes, name
// add becomes node. A rename is one op with both, so that it stays atomic.
type memDirOp struct {
	add  string
	node *memNode
	del  string
}

func newMemDir() *memNode {
	return &memNode{entries: map[string]*memNode{}, onDisk: map[string]*memNode{}}
}

func (n *memNode) apply(op memDirOp) { applyDirOp(n.entries, op); n.dirOps = append(n.dirOps, op) }

func applyDirOp(entries map[string]*memNode, op memDirOp) {
	if op.del != "" {
		delete(entries, op.del)
	}
	if op.add != "" {
		entries[op.add] = op.node
	}
}

func pathError(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// lookupLocked finds the node of a name and the directory that holds it.
func (m *Mem) lookupLocked(name string) (dir, node *memNode, base string) {
	clean := strings.Trim(path.Clean("/"+name), "/")
	node = m.root
	if clean == "" {
		return nil, node, ""
	}
	for _, part := range strings.Split(clean, "/") {
		if node == nil || node.entries == nil {
			return nil, nil, ""
		}
		dir, base = node, part
		node = node.entries[part]
	}
	return dir, node, base
}

// Create implements FS.
func (m *Mem) Create(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, node, base := m.lookupLocked(name)
	switch {
	case node != nil:
		return nil, pathError("create", name, fs.ErrExist)
	case dir == nil:
		return nil, pathError("create", name, fs.ErrNotExist)
	}
	node = &memNode{}
	dir.apply(memDirOp{add: base, node: node})
	return &memFile{m: m, n: node, name: name}, nil
}

// Open implements FS.
func (m *Mem) Open(name string) (File, error) { return m.open(name, false) }

// OpenRead implements FS.
func (m *Mem) OpenRead(name string) (File, error) { return m.open(name, true) }

func (m *Mem) open(name string, readOnly bool) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, node, _ := m.lookupLocked(name)
	switch {
	case node == nil:
		return nil, pathError("open", name, fs.ErrNotExist)
	case node.entries != nil:
		return nil, pathError("open", name, syscall.EISDIR)
	}
	return &memFile{m: m, n: node, name: name, readOnly: readOnly}, nil
}

// Rename implements FS.
func (m *Mem) Rename(oldname, newname string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	from, node, oldBase := m.lookupLocked(oldname)
	to, target, newBase := m.lookupLocked(newname)
	switch {
	case node == nil || from == nil || to == nil:
		return pathError("rename", oldname, fs.ErrNotExist)
	case target != nil && target.entries != nil && len(target.entries) > 0:
		return pathError("rename", newname, syscall.ENOTEMPTY)
	case target == node:
		return nil
	}
	m.freeLocked(target)
	if from == to {
		from.apply(memDirOp{add: newBase, node: node, del: oldBase})
		return nil
	}
	to.apply(memDirOp{add: newBase, node: node})
	from.apply(memDirOp{del: oldBase})
	return nil
}

func (m *Mem) freeLocked(n *memNode) {
	if n == nil {
		return
	}
	m.used -= int64(len(n.data))
	for _, e := range n.entries {
		m.freeLocked(e)
	}
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, node, base := m.lookupLocked(name)
	switch {
	case node == nil || dir == nil:
		return pathError("remove", name, fs.ErrNotExist)
	case len(node.entries) > 0:
		return pathError("remove", name, syscall.ENOTEMPTY)
	}
	m.freeLocked(node)
	dir.apply(memDirOp{del: base})
	return nil
}

// RemoveAll implements FS.
func (m *Mem) RemoveAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if dir, node, base := m.lookupLocked(name); node != nil && dir != nil {
		m.freeLocked(node)
		dir.apply(memDirOp{del: base})
	}
	return nil
}

// MkdirAll implements FS.
func (m *Mem) MkdirAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	node := m.root
	for _, part := range strings.Split(strings.Trim(path.Clean("/"+name), "/"), "/") {
		if part == "" {
			continue
		}
		next := node.entries[part]
		if next == nil {
			next = newMemDir()
			node.apply(memDirOp{add: part, node: next})
		}
		if next.entries == nil {
			return pathError("mkdir", name, syscall.ENOTDIR)
		}
		node = next
	}
	return nil
}

// ReadDir implements FS.
func (m *Mem) ReadDir(name string) ([]fs.DirEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, node, _ := m.lookupLocked(name)
	if node == nil || node.entries == nil {
		return nil, pathError("readdir", name, fs.ErrNotExist)
	}
	out := make([]fs.DirEntry, 0, len(node.entries))
	for base, n := range node.entries {
		out = append(out, fs.FileInfoToDirEntry(memInfo{base, int64(len(n.data)), n.entries != nil}))
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name() < out[j].Name() })
	return out, nil
}

// Stat implements FS.
func (m *Mem) Stat(name string) (fs.FileInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, node, base := m.lookupLocked(name)
	if node == nil {
		return nil, pathError("stat", name, fs.ErrNotExist)
	}
	return memInfo{base, int64(len(node.data)), node.entries != nil}, nil
}

// Lstat implements FS: it knows no links.
func (m *Mem) Lstat(name string) (fs.FileInfo, error) { return m.Stat(name) }

// SyncDir implements FS.
func (m *Mem) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, node, _ := m.lookupLocked(name)
	if node == nil || node.entries == nil {
		return pathError("syncdir", name, fs.ErrNotExist)
	}
	for _, op := range node.dirOps {
		applyDirOp(node.onDisk, op)
	}
	node.dirOps = nil
	return nil
}

// Lock implements FS.
func (m *Mem) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locks[name] {
		return nil, pathError("lock", name, syscall.EWOULDBLOCK)
	}
	m.locks[name] = true
	return &memLock{m: m, name: name}, nil
}

// Usage implements FS. Without a capacity the size is 1 TiB.
func (m *Mem) Usage(string) (total, free uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	capacity := m.capacity
	if capacity == 0 {
		capacity = 1 << 40
	}
	return uint64(capacity), uint64(max(0, capacity-m.used)), nil
}

type memLock struct {
	m    *Mem
	name string
}

func (l *memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	delete(l.m.locks, l.name)
	return nil
}

type memInfo struct {
	name string
	size int64
	dir  bool
}

func (i memInfo) Name() string       { return i.name }
func (i memInfo) Size() int64        { return i.size }
func (i memInfo) ModTime() time.Time { return time.Time{} }
func (i memInfo) IsDir() bool        { return i.dir }
func (i memInfo) Sys() any           { return nil }
func (i memInfo) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir | DirMode
	}
	return FileMode
}

// names lists entries in order, so that a seeded crash is reproducible.
func names(entries map[string]*memNode) []string {
	out := make([]string, 0, len(entries))
	for n := range entries {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}
