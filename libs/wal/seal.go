package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/narad-mq/narad/libs/vfs"
)

// ErrSealed: the WAL was sealed and takes nothing until Unseal; nothing was written.
var ErrSealed = fmt.Errorf("%w: sealed", ErrRefused)

// sealName is the file whose presence seals a WAL, also over restarts. It is empty.
const sealName = "sealed"

// Seal makes the WAL refuse for good: when it returns nil, every Append that was or
// will be answered with success is readable already, and a mark on disk keeps the
// next Open from accepting. It is idempotent. After an error the WAL refuses, but
// whether a restart would is not known: call it again.
func (w *WAL) Seal() error {
	w.sealMu.Lock()
	defer w.sealMu.Unlock()
	w.mu.Lock()
	w.sealed = true
	w.room.Broadcast()
	last := w.cur // nothing more is staged into it
	waits := len(last.buf) > 0
	done := w.sealSaved || w.closed
	closed := w.closed
	w.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if done {
		return nil
	}
	if waits {
		<-last.done
	}
	w.commitMu.Lock() // the group before it ends
	defer w.commitMu.Unlock()
	if err := mark(w.fs, w.dir); err != nil {
		return fmt.Errorf("seal wal %s: %w", w.dir, err)
	}
	w.mu.Lock()
	w.sealSaved = true
	w.mu.Unlock()
	return nil
}

func mark(fsys vfs.FS, dir string) error {
	f, err := fsys.Create(path.Join(dir, sealName))
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if errors.Is(err, fs.ErrExist) {
		err = nil // of an attempt whose directory was not synced
	}
	if err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// Unseal makes the WAL accept again. It is idempotent; after an error it refuses still.
func (w *WAL) Unseal() error {
	w.sealMu.Lock()
	defer w.sealMu.Unlock()
	w.mu.Lock()
	open := !w.sealed
	w.mu.Unlock()
	if open {
		return nil
	}
	err := w.fs.Remove(path.Join(w.dir, sealName))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = w.fs.SyncDir(w.dir)
	}
	if err != nil {
		return fmt.Errorf("unseal wal %s: %w", w.dir, err)
	}
	w.mu.Lock()
	w.sealed, w.sealSaved = false, false
	w.mu.Unlock()
	return nil
}

// Sealed tells whether the WAL refuses because it was sealed, and whether that is on
// disk.
func (w *WAL) Sealed() (refuses, saved bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sealed, w.sealSaved
}

// loadSeal finds the mark of an earlier process, and makes sure that it stays.
func (w *WAL) loadSeal() error {
	if _, err := w.fs.Stat(path.Join(w.dir, sealName)); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	w.sealed = true
	if err := w.fs.SyncDir(w.dir); err != nil {
		return err
	}
	w.sealSaved = true
	return nil
}
