package vfs

import (
	"io"
	"io/fs"
	"sync/atomic"
)

// OpKind names an operation of FS or File.
type OpKind string

// The operations that a rule sees. Reads that cannot be told from one another
// by a caller (Size, Stat, Lstat) count as OpStat.
const (
	OpCreate   OpKind = "create"
	OpOpen     OpKind = "open" // OpenRead too
	OpRename   OpKind = "rename"
	OpRemove   OpKind = "remove" // RemoveAll too
	OpMkdir    OpKind = "mkdir"
	OpReadDir  OpKind = "readdir"
	OpStat     OpKind = "stat"
	OpSyncDir  OpKind = "syncdir"
	OpLock     OpKind = "lock"
	OpRead     OpKind = "read"
	OpWrite    OpKind = "write"
	OpSync     OpKind = "sync"
	OpTruncate OpKind = "truncate"
)

// Op is one operation that is about to happen.
type Op struct {
	Kind OpKind
	Path string // of a rename: the old name
	N    int64  // counts all operations from 1
	Len  int    // bytes of a read or write
}

// Changes tells whether the operation changes what a power cut would leave.
func (o Op) Changes() bool {
	switch o.Kind {
	case OpOpen, OpReadDir, OpStat, OpLock, OpRead:
		return false
	}
	return true
}

// Fault is what happens in place of an operation.
type Fault struct {
	Err   error // nil: the operation happens as usual
	Short int   // a write puts this many bytes before it fails
	Lost  bool  // a failed sync: the bytes stay readable but no later sync writes them (Mem)
}

// Rule decides on each operation. It may be called from several goroutines, and
// may use the wrapped file system.
type Rule func(Op) Fault

// NewFault wraps a file system so that rule sees, and may fail, each operation.
func NewFault(inner FS, rule Rule) FS { return &faultFS{inner: inner, rule: rule} }

type faultFS struct {
	inner FS
	rule  Rule
	n     atomic.Int64
}

func (f *faultFS) ask(kind OpKind, path string, n int) Fault {
	fault := f.rule(Op{Kind: kind, Path: path, N: f.n.Add(1), Len: n})
	if fault.Err != nil {
		fault.Err = pathError(string(kind), path, fault.Err)
	}
	return fault
}

func (f *faultFS) err(kind OpKind, path string) error { return f.ask(kind, path, 0).Err }

func (f *faultFS) file(kind OpKind, name string, open func(string) (File, error)) (File, error) {
	if err := f.err(kind, name); err != nil {
		return nil, err
	}
	inner, err := open(name)
	if err != nil {
		return nil, err
	}
	return &faultFile{inner, f, name}, nil
}

func (f *faultFS) Create(name string) (File, error)   { return f.file(OpCreate, name, f.inner.Create) }
func (f *faultFS) Open(name string) (File, error)     { return f.file(OpOpen, name, f.inner.Open) }
func (f *faultFS) OpenRead(name string) (File, error) { return f.file(OpOpen, name, f.inner.OpenRead) }

func (f *faultFS) Rename(oldname, newname string) error {
	if err := f.err(OpRename, oldname); err != nil {
		return err
	}
	return f.inner.Rename(oldname, newname)
}

func (f *faultFS) simple(kind OpKind, name string, do func(string) error) error {
	if err := f.err(kind, name); err != nil {
		return err
	}
	return do(name)
}

func (f *faultFS) Remove(name string) error    { return f.simple(OpRemove, name, f.inner.Remove) }
func (f *faultFS) RemoveAll(name string) error { return f.simple(OpRemove, name, f.inner.RemoveAll) }
func (f *faultFS) MkdirAll(name string) error  { return f.simple(OpMkdir, name, f.inner.MkdirAll) }
func (f *faultFS) SyncDir(name string) error   { return f.simple(OpSyncDir, name, f.inner.SyncDir) }

func (f *faultFS) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := f.err(OpReadDir, name); err != nil {
		return nil, err
	}
	return f.inner.ReadDir(name)
}

func (f *faultFS) Stat(name string) (fs.FileInfo, error) {
	if err := f.err(OpStat, name); err != nil {
		return nil, err
	}
	return f.inner.Stat(name)
}

func (f *faultFS) Lstat(name string) (fs.FileInfo, error) {
	if err := f.err(OpStat, name); err != nil {
		return nil, err
	}
	return f.inner.Lstat(name)
}

func (f *faultFS) Lock(name string) (io.Closer, error) {
	if err := f.err(OpLock, name); err != nil {
		return nil, err
	}
	return f.inner.Lock(name)
}

func (f *faultFS) Usage(name string) (total, free uint64, err error) { return f.inner.Usage(name) }

type faultFile struct {
	File
	fs   *faultFS
	name string
}

func (f *faultFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.fs.ask(OpRead, f.name, len(p)).Err; err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *faultFile) WriteAt(p []byte, off int64) (int, error) {
	fault := f.fs.ask(OpWrite, f.name, len(p))
	if fault.Err == nil {
		return f.File.WriteAt(p, off)
	}
	n, err := f.File.WriteAt(p[:min(fault.Short, len(p))], off)
	if err != nil {
		return n, err
	}
	return n, fault.Err
}

func (f *faultFile) Sync() error {
	fault := f.fs.ask(OpSync, f.name, 0)
	if fault.Err == nil {
		return f.File.Sync()
	}
	if m, ok := f.File.(*memFile); ok && fault.Lost {
		m.loseUnsynced()
	}
	return fault.Err
}

func (f *faultFile) Truncate(size int64) error {
	if err := f.fs.err(OpTruncate, f.name); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *faultFile) Size() (int64, error) {
	if err := f.fs.err(OpStat, f.name); err != nil {
		return 0, err
	}
	return f.File.Size()
}
