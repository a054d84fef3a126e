package seglog

import (
	"errors"
	"fmt"

	"github.com/narad-mq/narad/libs/vfs"
)

// rewriteBuffer is how much Rewrite writes at once.
const rewriteBuffer = 1 << 20

// Rewrite puts a new file in place of a segment that takes no more frames: the
// same header (one with meta when it is damaged) and the frames that fill gives,
// in order. It is one rename: whatever happens, the segment is the old one or the
// new one. It is durable when it returns nil; after an error it may be repeated.
// Readers of the segment must be told to begin again: positions in it change.
func (l *Log) Rewrite(base uint64, meta []byte, fill func(emit func(frame []byte) error) error) error {
	seg, _, err := l.segmentAt(base)
	if err != nil {
		return err
	}
	l.mu.Lock()
	active := seg == l.activeLocked()
	l.mu.Unlock()
	if active {
		return fmt.Errorf("rewrite segment %d: it still takes frames", base)
	}
	old, err := l.header(seg)
	if err != nil {
		return err
	}
	h := &Header{Base: base, Nonce: old.Nonce, Meta: old.Meta}
	if old.Damaged {
		h.Nonce, h.Meta = l.opt.Nonce(), append([]byte(nil), meta...)
	}
	tmp, name := l.path(fileName(base, tmpSuffix)), l.path(fileName(base, logSuffix))
	_ = l.fs.Remove(tmp) // what an earlier try may have left
	size, err := l.writeAside(tmp, h, fill)
	if err == nil {
		err = l.fs.Rename(tmp, name)
	}
	if err != nil {
		_ = l.fs.Remove(tmp) // Open also removes what stays
		return fmt.Errorf("rewrite segment %d: %w", base, err)
	}
	l.mu.Lock()
	var close vfs.File
	if i, ok := l.findLocked(base); ok {
		l.segs[i] = &segment{base: base, size: size, hdr: h}
		close = l.doomLocked(seg)
	}
	l.mu.Unlock()
	if close != nil {
		_ = close.Close() // it was only read
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		return fmt.Errorf("rewrite segment %d: %w", base, err)
	}
	return nil
}

// writeAside makes the whole file, synced.
func (l *Log) writeAside(name string, h *Header, fill func(emit func([]byte) error) error) (size int64, err error) {
	buf, err := h.encode()
	if err != nil {
		return 0, err
	}
	f, err := l.fs.Create(name)
	if err != nil {
		return 0, err
	}
	flush := func() error {
		_, err := f.WriteAt(buf, size)
		size += int64(len(buf))
		buf = buf[:0]
		return err
	}
	err = fill(func(frame []byte) error {
		buf = append(buf, frame...)
		if len(buf) < rewriteBuffer {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	if err == nil {
		err = f.Sync()
	}
	return size, errors.Join(err, f.Close())
}
