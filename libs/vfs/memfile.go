package vfs

import (
	"io"
	"io/fs"
	"syscall"
)

// memFile is one open handle of a Mem file. The node outlives its name.
type memFile struct {
	m        *Mem
	n        *memNode
	name     string
	readOnly bool
	closed   bool
}

func (f *memFile) checkLocked(op string, write bool) error {
	switch {
	case f.closed:
		return pathError(op, f.name, fs.ErrClosed)
	case write && f.readOnly:
		return pathError(op, f.name, syscall.EBADF)
	}
	return nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.checkLocked("read", false); err != nil {
		return 0, err
	}
	if off >= int64(len(f.n.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.n.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.checkLocked("write", true); err != nil {
		return 0, err
	}
	var err error
	size := int64(len(f.n.data))
	if grow := off + int64(len(p)) - size; f.m.capacity > 0 && grow > 0 && f.m.used+grow > f.m.capacity {
		room := max(0, f.m.capacity-f.m.used)
		p = p[:max(0, min(int64(len(p)), size+room-off))]
		err = pathError("write", f.name, syscall.ENOSPC)
	}
	if len(p) > 0 {
		f.n.data = writeAt(f.n.data, p, off)
		f.m.used += int64(len(f.n.data)) - size
		f.n.pending = append(f.n.pending, memWrite{off, append([]byte(nil), p...)})
	}
	return len(p), err
}

// writeAt copies p into data at off, growing it with zeros.
func writeAt(data, p []byte, off int64) []byte {
	if end := off + int64(len(p)); end > int64(len(data)) {
		data = resize(data, end)
	}
	copy(data[off:], p)
	return data
}

func resize(data []byte, size int64) []byte {
	if size <= int64(len(data)) {
		return data[:size]
	}
	old := len(data)
	if size <= int64(cap(data)) {
		data = data[:size]
		clear(data[old:])
		return data
	}
	grown := make([]byte, size, max(size, 2*int64(old)))
	copy(grown, data)
	return grown
}

func (f *memFile) Sync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.checkLocked("sync", false); err != nil {
		return err
	}
	for _, w := range f.n.pending {
		f.n.synced = w.apply(f.n.synced)
	}
	f.n.pending = nil
	return nil
}

func (w memWrite) apply(data []byte) []byte {
	if w.data == nil {
		return resize(data, w.off)
	}
	return writeAt(data, w.data, w.off)
}

// loseUnsynced is what a kernel does when a sync fails: the pages stay
// readable, count as clean, and no later sync writes them.
func (f *memFile) loseUnsynced() {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.n.pending = nil
}

func (f *memFile) Truncate(size int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.checkLocked("truncate", true); err != nil {
		return err
	}
	f.m.used += size - int64(len(f.n.data))
	f.n.data = resize(f.n.data, size)
	f.n.pending = append(f.n.pending, memWrite{off: size})
	return nil
}

func (f *memFile) Size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return int64(len(f.n.data)), f.checkLocked("stat", false)
}

func (f *memFile) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed {
		return pathError("close", f.name, fs.ErrClosed)
	}
	f.closed = true
	return nil
}
