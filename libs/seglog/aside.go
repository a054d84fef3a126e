package seglog

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/narad-mq/narad/libs/vfs"
)

// What lies in `<dir>/damaged`:
//
//	<20 digits>-<offset>             damaged bytes of this log: base of their segment and
//	                                 where they stood in it
//	<16 hex>-<20 digits>-<offset>    those of a log that this one was made from
//	<either>.tmp                     the bytes are not wholly kept
//	awaited                          more are to be fetched, see Log.AwaitPieces
//	lost                             frames are missing of which no bytes are left, see
//	                                 Log.NoteLoss
//
// An unfinished file is there before anything is written to it, so that whoever judges
// the directory later knows of bytes that stand nowhere but in their segment.
const (
	// MaxAsideBytes bounds what is kept of damaged bytes: enough for one whole segment,
	// never a second log.
	MaxAsideBytes = 64 << 20
	// MaxPieces bounds the files: what makes more of them is a disk that is at its end.
	MaxPieces = maxSeen

	awaited = "awaited"
	lost    = "lost"
	// asideWrite is what is written between two syncs: the sync of another file on that
	// disk, a commit, waits for no more.
	asideWrite = 256 << 10
	asideRead  = 256 << 10
)

var (
	// ErrAsideFull: as many damaged bytes are kept as may be.
	ErrAsideFull = errors.New("no room for more damaged bytes")

	errPieceName = errors.New("no name of damaged bytes")
)

// Piece is what is kept of one range of damaged bytes.
type Piece struct {
	Name string // of its file
	Size int64
	CRC  uint32 // CRC-32C of the bytes
	Own  bool   // they were met in this log, not in one that it was made from
}

// parsePiece reads the name of a piece.
func parsePiece(name string) (own, ok bool) {
	const origin = 16
	if len(name) > origin && name[origin] == '-' {
		for _, c := range []byte(name[:origin]) {
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false, false
			}
		}
		return false, ownPiece(name[origin+1:])
	}
	return true, ownPiece(name)
}

func ownPiece(name string) bool {
	base, offset, _ := strings.Cut(name, "-")
	if _, ok := parseName(base + logSuffix); !ok {
		return false
	}
	n, err := strconv.ParseUint(offset, 10, 63)
	return err == nil && strconv.FormatUint(n, 10) == offset
}

// ValidPiece tells whether a name is one under which the bytes of another log may be
// kept here.
func ValidPiece(name string) bool {
	own, ok := parsePiece(name)
	return ok && !own
}

// aside is what is known of the damaged directory, see Log.mu.
type aside struct {
	there   bool
	awaited bool
	bytes   int64
	files   int
	changes uint64 // pieces written
}

// loadAside looks into the damaged directory, which is there.
func (l *Log) loadAside() error {
	entries, err := l.fs.ReadDir(l.path(asideDir))
	if err != nil {
		return err
	}
	l.aside.there = true
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		l.aside.bytes += info.Size()
		if _, ok := parsePiece(e.Name()); ok {
			l.aside.files++
		}
		l.aside.awaited = l.aside.awaited || e.Name() == awaited
	}
	return nil
}

// WasDamaged tells whether damage was ever met in this log, or in one that it was made
// from. It looks into memory only.
func (l *Log) WasDamaged() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.aside.there
}

// PieceChanges grows with every piece that is kept or grows.
func (l *Log) PieceChanges() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.aside.changes
}

// HasPieceRoom tells whether so many more bytes may be kept.
func (l *Log) HasPieceRoom(n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.roomLocked(n)
}

func (l *Log) roomLocked(n int64) bool {
	return l.aside.bytes+n <= MaxAsideBytes && l.aside.files < MaxPieces
}

// Aside lists by name what is kept of damaged bytes. whole is false when something is
// known to be damaged or lost that is not kept, or something else lies there: then the
// list is not all that is missing. What is being kept right now is waited for. It reads
// all of the bytes.
func (l *Log) Aside() (pieces []Piece, whole bool, err error) {
	l.asideMu.Lock()
	entries, there, err := readAside(l.fs, l.dir)
	l.asideMu.Unlock()
	if err != nil || !there {
		return nil, err == nil, err
	}
	return asidePieces(l.fs, l.dir, entries)
}

// readAside reads the damaged directory, if it is there.
func readAside(fsys vfs.FS, dir string) (entries []fs.DirEntry, there bool, err error) {
	entries, err = fsys.ReadDir(path.Join(dir, asideDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("list the damaged bytes of %s: %w", dir, err)
	}
	return entries, true, nil
}

func asidePieces(fsys vfs.FS, dir string, entries []fs.DirEntry) (pieces []Piece, whole bool, err error) {
	whole = len(entries) > 0 // an empty one was made by a release that could keep nothing
	for _, e := range entries {
		name := e.Name()
		own, ok := parsePiece(name)
		switch half, _ := strings.CutSuffix(name, tmpSuffix); {
		case name == awaited, half != name && ValidPiece(half):
			// of the log that this one was made from, which still has it
		case !ok, len(pieces) >= MaxPieces:
			whole = false
		default:
			size, crc, err := checksum(fsys, path.Join(dir, asideDir, name))
			if err != nil {
				return nil, false, fmt.Errorf("list the damaged bytes of %s: %w", dir, err)
			}
			pieces = append(pieces, Piece{name, size, crc, own})
		}
	}
	return pieces, whole, nil // ReadDir sorts
}

func checksum(fsys vfs.FS, name string) (size int64, crc uint32, err error) {
	f, err := fsys.OpenRead(name)
	if err != nil {
		return 0, 0, err
	}
	buf := make([]byte, asideRead)
	for {
		n, err := f.ReadAt(buf, size)
		crc = crc32.Update(crc, castagnoli, buf[:n])
		size += int64(n)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return size, crc, errors.Join(err, f.Close())
		}
	}
}

// ReadAside reads bytes of a piece, like io.ReaderAt.
func ReadAside(fsys vfs.FS, dir, name string, b []byte, at int64) (int, error) {
	if _, ok := parsePiece(name); !ok {
		return 0, fmt.Errorf("read %q: %w", name, errPieceName)
	}
	f, err := fsys.OpenRead(path.Join(dir, asideDir, name))
	if err != nil {
		return 0, err
	}
	n, err := f.ReadAt(b, at)
	return n, errors.Join(err, f.Close())
}

// KeepPiece keeps bytes that were damaged in a log that this one is made from, durably,
// under a name that [ValidPiece] lets pass. One that is kept already stays as it is.
func (l *Log) KeepPiece(name string, b []byte) error {
	if !ValidPiece(name) {
		return fmt.Errorf("keep %q: %w", name, errPieceName)
	}
	l.asideMu.Lock()
	defer l.asideMu.Unlock()
	done, err := l.keptBefore(name, int64(len(b)))
	if !done && err == nil {
		err = l.keep(name, int64(len(b)), func() ([]byte, error) { return b, nil })
	}
	if err != nil {
		return fmt.Errorf("keep damaged bytes as %s: %w", name, err)
	}
	return nil
}

// keptBefore tells whether so many bytes are kept under a name. What an earlier process
// wrote may be in the page cache only.
func (l *Log) keptBefore(name string, size int64) (bool, error) {
	if l.isClosed() {
		return false, ErrClosed
	}
	at := path.Join(l.dir, asideDir, name)
	info, err := l.fs.Stat(at)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() < size {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	f, err := l.fs.Open(at)
	if err != nil {
		return false, err
	}
	return true, errors.Join(f.Sync(), f.Close(), l.syncAside())
}

// syncAside makes the names durable: what is copied may be cut from the log next, and
// that there was damage decides what becomes of a copy that moved away.
func (l *Log) syncAside() error {
	return errors.Join(l.fs.SyncDir(l.path(asideDir)), l.fs.SyncDir(l.dir))
}

// keep writes a piece. Its unfinished file is durable first. The caller holds asideMu.
func (l *Log) keep(name string, size int64, read func() ([]byte, error)) error {
	unfinished, final := l.path(asideDir+"/"+name+tmpSuffix), l.path(asideDir+"/"+name)
	if err := l.mark(name + tmpSuffix); err != nil {
		return err
	}
	was := int64(0) // one of fewer bytes is replaced
	if info, err := l.fs.Stat(final); err == nil {
		was = info.Size()
	}
	l.mu.Lock()
	full := !l.roomLocked(size - was)
	l.mu.Unlock()
	if full {
		return ErrAsideFull
	}
	b, err := read()
	if err != nil {
		return err
	}
	f, err := l.fs.Open(unfinished)
	if err != nil {
		return err
	}
	if err := errors.Join(writeSynced(f, b), f.Close()); err != nil {
		return err
	}
	if err := l.fs.Rename(unfinished, final); err != nil {
		return err
	}
	l.mu.Lock()
	l.aside.bytes += size - was
	l.aside.changes++
	if was == 0 {
		l.aside.files++
	}
	l.mu.Unlock()
	return l.syncAside()
}

func writeSynced(f vfs.File, b []byte) error {
	if err := f.Truncate(0); err != nil { // of an earlier try
		return err
	}
	_, err := writePieces(f, b, 0, asideWrite)
	if err == nil {
		err = f.Sync()
	}
	return err
}

// mark makes an empty file in the damaged directory, durably, if it is not there.
func (l *Log) mark(name string) error {
	if l.isClosed() {
		return ErrClosed
	}
	if err := l.fs.MkdirAll(l.path(asideDir)); err != nil {
		return err
	}
	l.mu.Lock()
	l.aside.there = true
	l.mu.Unlock()
	f, err := l.fs.Create(l.path(asideDir + "/" + name))
	if err == nil {
		err = f.Close()
	} else if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return errors.Join(err, l.syncAside())
}

func (l *Log) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// AwaitPieces notes, durably, that damaged bytes of a log that this one is made from
// are still to be fetched.
func (l *Log) AwaitPieces() error {
	l.asideMu.Lock()
	defer l.asideMu.Unlock()
	if l.PiecesAwaited() {
		return nil
	}
	if err := l.mark(awaited); err != nil {
		return fmt.Errorf("note that damaged bytes of %s are awaited: %w", l.dir, err)
	}
	l.mu.Lock()
	l.aside.awaited = true
	l.mu.Unlock()
	return nil
}

// NoteLoss notes, durably and for good, that the log, or one that it was made from,
// lacks frames that it had, and that nothing is kept of them here.
func (l *Log) NoteLoss() error {
	l.asideMu.Lock()
	defer l.asideMu.Unlock()
	if err := l.mark(lost); err != nil {
		return fmt.Errorf("note what %s has lost: %w", l.dir, err)
	}
	return nil
}

// PiecesAwaited tells whether such bytes are still to be fetched.
func (l *Log) PiecesAwaited() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.aside.awaited
}

// PiecesCame ends what AwaitPieces noted. A log of which nothing is damaged is as it was.
func (l *Log) PiecesCame() error {
	l.asideMu.Lock()
	defer l.asideMu.Unlock()
	if l.isClosed() || !l.PiecesAwaited() {
		return nil
	}
	err := l.fs.Remove(l.path(asideDir + "/" + awaited))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("damaged bytes of %s are awaited no more: %w", l.dir, err)
	}
	l.mu.Lock()
	l.aside.awaited = false
	l.mu.Unlock()
	left, err := l.fs.ReadDir(l.path(asideDir))
	switch {
	case err != nil:
	case len(left) > 0:
		err = l.fs.SyncDir(l.path(asideDir))
	default:
		if err = l.fs.Remove(l.path(asideDir)); err == nil {
			l.mu.Lock()
			l.aside.there = false
			l.mu.Unlock()
			err = l.fs.SyncDir(l.dir)
		}
	}
	if err != nil {
		return fmt.Errorf("damaged bytes of %s are awaited no more: %w", l.dir, err)
	}
	return nil
}
