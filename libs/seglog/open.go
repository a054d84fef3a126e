package seglog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/narad-mq/narad/libs/vfs"
)

const (
	logSuffix   = ".log"
	tmpSuffix   = ".tmp"
	spareSuffix = ".spare"
	nameDigits  = 20
	asideDir    = "damaged"
)

// Open lists the segments of dir (made when missing), syncs and scans the last
// one, and cuts what follows its last frame. Earlier ones are not read. A log
// without segments, or whose last header is broken, is usable: see Appendable.
func Open(fsys vfs.FS, dir string, opt Options) (*Log, error) {
	if opt.Nonce == nil {
		opt.Nonce = randomNonce
	}
	l := &Log{fs: fsys, dir: dir, opt: opt, seen: map[Pos]bool{}}
	if err := l.list(); err != nil {
		return nil, fmt.Errorf("open log %s: %w", dir, err)
	}
	if err := l.recover(); err != nil {
		return nil, errors.Join(fmt.Errorf("open log %s: %w", dir, err), l.ReleaseFiles())
	}
	return l, nil
}

func (l *Log) list() error {
	if _, err := l.fs.Stat(l.dir); errors.Is(err, fs.ErrNotExist) {
		if err := l.fs.MkdirAll(l.dir); err != nil {
			return err
		}
		if err := l.fs.SyncDir(path.Dir(l.dir)); err != nil {
			return err
		}
	}
	entries, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		switch base, ok := parseName(name); {
		case ok:
			info, err := e.Info()
			if err != nil {
				return err
			}
			l.segs = append(l.segs, &segment{base: base, size: info.Size()})
		case strings.HasSuffix(name, tmpSuffix) && len(name) == nameDigits+len(tmpSuffix),
			strings.HasSuffix(name, spareSuffix) && len(l.spares) >= l.opt.Recycle:
			if err := l.fs.Remove(l.path(name)); err != nil {
				return err
			}
		case strings.HasSuffix(name, spareSuffix):
			l.spares = append(l.spares, name)
		case name == asideDir:
			if err := l.loadAside(); err != nil {
				return err
			}
		}
	}
	return nil // ReadDir sorts, and the digits sort as numbers
}

// recover finds the end of the last segment.
func (l *Log) recover() error {
	seg := l.activeLocked()
	if seg == nil {
		return nil
	}
	f, err := l.acquire(seg)
	if err != nil {
		return err
	}
	defer l.release(seg)
	size, err := f.Size()
	if err != nil {
		return err
	}
	// What a killed process wrote may be in the page cache only; it must not
	// be shown, and then lost by a power cut.
	if err := f.Sync(); err != nil {
		return err
	}
	h, err := l.header(seg)
	if err != nil {
		return err
	}
	l.end, l.synced, l.filled = size, size, size
	if size <= HeaderSize {
		l.appendable = !h.Damaged
		return nil
	}
	end, zeros, err := l.scan(seg, size, true, l.opt.Visit)
	if err != nil {
		return err
	}
	if !zeros && end < size {
		l.recovery = Recovery{Pos{seg.base, end}, size - end}
		if err := l.suspect(seg, h, end, size); err != nil {
			return err
		}
		if err := f.Truncate(end); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		l.filled = end
	}
	l.end, l.synced, l.appendable = end, end, !h.Damaged
	return nil
}

// suspect reports what is about to be cut when it looks like a rotten frame.
func (l *Log) suspect(seg *segment, h *Header, end, size int64) error {
	if l.opt.Suspect == nil {
		return nil
	}
	b := make([]byte, min(size-end, int64(l.opt.MaxFrame)))
	if _, err := l.readSeg(seg, size, b, end); err != nil {
		return err
	}
	if n := l.opt.Suspect(h, b); n > 0 {
		l.report(seg, end, end+int64(n))
	}
	return nil
}

// parseName reads `<20 digits>.log`.
func parseName(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, logSuffix)
	if !ok || len(digits) != nameDigits {
		return 0, false
	}
	for i := range len(digits) {
		if digits[i] < '0' || digits[i] > '9' {
			return 0, false
		}
	}
	base, err := strconv.ParseUint(digits, 10, 64)
	return base, err == nil
}

func fileName(base uint64, suffix string) string {
	return fmt.Sprintf("%0*d%s", nameDigits, base, suffix)
}

// Header reads the header of a segment; a broken one is no error but Damaged.
func (l *Log) Header(base uint64) (*Header, error) {
	l.mu.Lock()
	i, ok := l.findLocked(base)
	if !ok {
		l.mu.Unlock()
		return nil, fmt.Errorf("segment %d: %w", base, ErrRemoved)
	}
	seg := l.segs[i]
	l.mu.Unlock()
	return l.header(seg)
}

func (l *Log) header(seg *segment) (*Header, error) {
	l.mu.Lock()
	h := seg.hdr
	l.mu.Unlock()
	if h != nil {
		return h, nil
	}
	f, err := l.acquire(seg)
	if err != nil {
		return nil, err
	}
	defer l.release(seg)
	var b [HeaderSize]byte
	n, err := f.ReadAt(b[:], 0)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("read header of segment %d: %w", seg.base, err)
	}
	h, err = parseHeader(b[:n])
	if err != nil || h.Base != seg.base {
		h = &Header{Base: seg.base, Damaged: true}
	}
	l.mu.Lock()
	seg.hdr = h
	l.mu.Unlock()
	if h.Damaged && l.opt.Headers && l.headerRotten(seg) {
		l.report(seg, 0, HeaderSize)
	}
	return h, nil
}

// acquire opens the file of a segment if it is not, and holds it open.
func (l *Log) acquire(seg *segment) (vfs.File, error) {
	l.mu.Lock()
	if seg.doomed || l.closed {
		err := ErrRemoved
		if l.closed {
			err = ErrClosed
		}
		l.mu.Unlock()
		return nil, fmt.Errorf("segment %d: %w", seg.base, err)
	}
	if f := seg.file; f != nil {
		seg.refs++
		l.mu.Unlock()
		return f, nil
	}
	l.mu.Unlock()
	f, err := l.fs.Open(l.path(fileName(seg.base, logSuffix)))
	if err != nil {
		return nil, fmt.Errorf("open segment %d: %w", seg.base, err)
	}
	l.mu.Lock()
	if seg.doomed || l.closed {
		gone := ErrRemoved
		if l.closed {
			gone = ErrClosed
		}
		l.mu.Unlock()
		return nil, errors.Join(fmt.Errorf("segment %d: %w", seg.base, gone), f.Close())
	}
	extra := seg.file // another goroutine was faster
	if extra == nil {
		seg.file = f
	}
	seg.refs++
	use, shed := seg.file, l.shedLocked()
	l.mu.Unlock()
	if extra != nil {
		_ = f.Close() // nothing was written through it
	}
	if shed != nil {
		_ = shed.Close() // sealed: nothing was written through it since its sync
	}
	return use, nil
}

// maxOpenSealed bounds the open files of segments that take no more frames: a
// backlog of a thousand segments must not need a thousand descriptors, and readers
// are at few places at a time.
const maxOpenSealed = 16

// shedLocked takes the file from the oldest sealed segment that nobody uses, when
// too many are open.
func (l *Log) shedLocked() vfs.File {
	open, active := 0, l.activeLocked()
	var oldest *segment
	for _, s := range l.segs {
		if s == active || s.file == nil {
			continue
		}
		open++
		if oldest == nil && s.refs == 0 {
			oldest = s
		}
	}
	if open <= maxOpenSealed || oldest == nil {
		return nil
	}
	f := oldest.file
	oldest.file = nil
	return f
}

func (l *Log) release(seg *segment) {
	l.mu.Lock()
	seg.refs--
	var f vfs.File
	if seg.refs == 0 && (seg.doomed || l.closed) {
		f, seg.file = seg.file, nil
	}
	l.mu.Unlock()
	if f != nil {
		_ = f.Close() // a removed segment, or one that Close has synced
	}
}

// ReleaseFiles closes every file that is not in use and has nothing to sync.
// They are opened again on use.
func (l *Log) ReleaseFiles() error {
	l.mu.Lock()
	var files []vfs.File
	for _, s := range l.segs {
		dirty := s == l.activeLocked() && l.end != l.synced
		if s.file != nil && s.refs == 0 && !dirty {
			files = append(files, s.file)
			s.file = nil
		}
	}
	l.mu.Unlock()
	var err error
	for _, f := range files {
		err = errors.Join(err, f.Close())
	}
	return err
}
