// Package vfs is the seam between Narad and a file system: the operations that
// the logs need, with the durability that each one promises, so that tests can
// put a memory file system with power cuts and faults in place of real files.
//
// What it promises is what POSIX promises and no more: bytes written are
// durable after Sync of that file; a created, renamed or removed name is
// durable after SyncDir of its directory. Nothing else is.
package vfs

import (
	"io"
	"io/fs"
)

// Permissions of everything that Narad makes.
const (
	FileMode fs.FileMode = 0o600
	DirMode  fs.FileMode = 0o700
)

// FS opens and arranges files. Paths are slash-separated and used as given.
// All methods are safe for concurrent use. Errors are *fs.PathError or
// *os.LinkError; errors.Is with fs.ErrNotExist, fs.ErrExist and syscall numbers
// (ENOSPC, EMFILE, EIO) works, and callers must tell damage from shortage by it.
type FS interface {
	// Create makes a new empty file for reading and writing; fs.ErrExist if the name is taken.
	Create(name string) (File, error)
	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)
	// OpenRead opens an existing file for reading only.
	OpenRead(name string) (File, error)
	// Rename replaces newname by oldname in one step.
	Rename(oldname, newname string) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// RemoveAll removes a tree; a missing one is no error.
	RemoveAll(name string) error
	// MkdirAll makes a directory and its parents.
	MkdirAll(name string) error
	// ReadDir lists the names in a directory in order.
	ReadDir(name string) ([]fs.DirEntry, error)
	// Stat describes a name.
	Stat(name string) (fs.FileInfo, error)
	// Lstat is Stat that does not follow a symbolic link: it describes the link.
	Lstat(name string) (fs.FileInfo, error)
	// SyncDir makes the names in a directory durable.
	SyncDir(name string) error
	// Lock takes an exclusive lock that ends with Close of the result or with
	// the process; it fails at once when another holder lives.
	Lock(name string) (io.Closer, error)
	// Usage tells, in bytes, what of the file system that holds name is used or
	// free to a process without privileges, and what of it is free. As df counts:
	// what is reserved for root belongs to neither.
	Usage(name string) (total, free uint64, err error)
}

// File is an open file. ReadAt and WriteAt may run concurrently with each
// other and with Sync; a WriteAt that overlaps a concurrent one is undefined.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Sync makes all completed writes durable (fdatasync: data and size). After
	// it fails, nothing may be believed of what was written since the last
	// success, not even what reads back.
	Sync() error
	// Truncate sets the size; durable after Sync.
	Truncate(size int64) error
	// Size is the current size in bytes.
	Size() (int64, error)
}
