package partlog

import (
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/narad-mq/narad/libs/seglog"
)

// Piece is what is kept of one damaged range, under a name that no other copy of any
// partition gives to its own: what a log found in its own segments is named after its
// copy id. So the bytes of a copy can be told from those of all that were made from it.
type Piece struct {
	Name string
	Size int64
	CRC  uint32 // CRC-32C of the bytes
}

// ErrPiecesFull: as many damaged bytes are kept as may be.
var ErrPiecesFull = seglog.ErrAsideFull

// ErrBadPiece: what came is not the piece that was announced, or none. Nothing of it was kept.
var ErrBadPiece = errors.New("not the damaged bytes that were announced")

// WasDamaged tells whether damage was ever met in this log, or in one that it was made
// from. It reads nothing.
func (l *Log) WasDamaged() bool { return l.seg.WasDamaged() }

// PieceChanges grows with every piece that is kept or grows.
func (l *Log) PieceChanges() uint64 { return l.seg.PieceChanges() }

// HasPieceRoom tells whether so many more bytes may be kept.
func (l *Log) HasPieceRoom(n int64) bool { return l.seg.HasPieceRoom(n) }

// AwaitPieces notes, durably, that this copy has a gap of which the leader may have the
// damaged bytes; PiecesAwaited tells so, in later processes too; PiecesCame ends it.
func (l *Log) AwaitPieces() error { return l.seg.AwaitPieces() }

// PiecesAwaited: see AwaitPieces.
func (l *Log) PiecesAwaited() bool { return l.seg.PiecesAwaited() }

// PiecesCame: see AwaitPieces.
func (l *Log) PiecesCame() error { return l.seg.PiecesCame() }

// NoteLoss notes, durably and for good, that records are missing in this copy, or in one
// that it was made from, of which no bytes are kept: Pieces is never whole again.
func (l *Log) NoteLoss() error { return l.seg.NoteLoss() }

// Pieces lists what this copy keeps of damaged bytes, ascending by name; whole is false
// when that is not all that is known to be missing. It reads all of them.
func (l *Log) Pieces() (list []Piece, whole bool, err error) {
	if !l.WasDamaged() {
		return nil, true, nil
	}
	kept, whole, err := l.seg.Aside()
	if l.closed.Load() {
		err = ErrClosed
	}
	if err != nil {
		return nil, false, err
	}
	st, _ := l.State()
	return named(kept, st), whole, nil
}

func named(list []seglog.Piece, st State) []Piece {
	out := make([]Piece, len(list))
	for i, p := range list {
		if out[i] = (Piece{p.Name, p.Size, p.CRC}); p.Own {
			out[i].Name = prefix(st) + p.Name
		}
	}
	slices.SortFunc(out, func(a, b Piece) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func prefix(st State) string { return st.CopyID.String() + "-" }

// ReadPiece reads bytes of a piece, like io.ReaderAt.
func (l *Log) ReadPiece(name string, b []byte, at int64) (int, error) {
	if !seglog.ValidPiece(name) {
		return 0, fmt.Errorf("read %q: %w", name, ErrBadPiece)
	}
	st, _ := l.State()
	own := strings.TrimPrefix(name, prefix(st))
	n, err := seglog.ReadAside(l.fs, l.dir, own, b, at)
	if l.closed.Load() {
		return 0, ErrClosed
	}
	return n, err
}

// KeepPiece keeps a piece of the leader's, durably. Errors: ErrBadPiece, ErrClosed, or of
// the file system, after which it may be repeated, and ErrPiecesFull.
func (l *Log) KeepPiece(p Piece, b []byte) error {
	if !p.Plausible() || int64(len(b)) != p.Size || crc32.Checksum(b, castagnoli) != p.CRC {
		return fmt.Errorf("keep %q of %d bytes: %w", p.Name, p.Size, ErrBadPiece)
	}
	return l.seg.KeepPiece(p.Name, b)
}

// Plausible tells whether a piece that a leader announces can be one.
func (p Piece) Plausible() bool {
	return seglog.ValidPiece(p.Name) && p.Size > 0 && p.Size <= MaxPieceBytes
}

const (
	// MaxPieces bounds the pieces of one copy.
	MaxPieces = seglog.MaxPieces
	// MaxPieceBytes bounds all of them together.
	MaxPieceBytes = seglog.MaxAsideBytes
)
