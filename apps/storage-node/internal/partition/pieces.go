package partition

import (
	"errors"
	"fmt"
	"io"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/partlog"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/quorum"
)

const (
	// piecesWait is for how long an observer that lacks pieces is not called near. All
	// that a copy may keep of them, 64 MiB, takes 4 s at the slowest that a leader sends;
	// one that has not got them by then, because its release does not ask or its disk is
	// full, moves without them, and the copy that it was made from is set aside.
	piecesWait = 60_000
	// gatherFirst is the pause, in ms, after a try to get damaged bytes that did not bring
	// all, doubled up to gatherMost.
	gatherFirst = 1_000
	gatherMost  = 60_000
	// maxServed bounds the copies of which a leader remembers that they have its pieces.
	maxServed = 64
)

var errBadPieces = errors.New("the leader does not list damaged bytes as one does")

// served is what a leader knows of the pieces of another copy.
type served struct {
	asked  uint64 // PieceChanges when it began to ask
	has    bool   // it has all that there were at hasAt
	hasAt  uint64
	nearMS int64 // monotonic ms at which it lacked nothing else; 0: it did
}

// Damaged tells whether damage is known of the log that is led here, met in it or in one
// that it was made from.
func (p *Partition) Damaged() bool { return p.log.WasDamaged() && p.Epoch() > 0 }

// AwaitsPieces tells whether this copy has a gap of which the leader may have the
// damaged bytes, and it is time to ask.
func (p *Partition) AwaitsPieces() bool {
	return p.log.PiecesAwaited() && p.s.Mono() >= p.gatherAt.Load()
}

// VouchPieces adds to what this copy says as the leader what it keeps of damaged bytes,
// and whether that is all that it lacks, if that is asked for. If not, and nobody else has
// what is missing here, it vouches for no copy that others have left: those may have it.
func (p *Partition) VouchPieces(v *nodeapi.Vouch, asked bool) error {
	if v.Epoch == 0 {
		return nil
	}
	p.mu.Lock()
	lacks, alone := p.lacks, p.setSize < 2
	p.mu.Unlock()
	if !asked {
		v.Proven = v.Proven && !lacks && !(alone && p.log.WasDamaged())
		return nil
	}
	list, whole, err := p.kept()
	v.Pieces, v.Lost = list, lacks || !whole
	return err
}

// Pieces answers a copy of this partition that asks for damaged bytes; who it is has
// been judged.
func (p *Partition) Pieces(from quorum.Replica, req *nodeapi.PiecesRequest) (*nodeapi.PiecesResult, error) {
	if p.Epoch() != req.Epoch {
		return nil, problem.New(problem.NotPartitionLeader, "this node does not lead %s under epoch %d", p.ref, req.Epoch)
	}
	if req.Name != "" {
		return p.pieceBytes(req)
	}
	before := p.log.PieceChanges()
	list, whole, err := p.kept()
	if err != nil {
		return nil, err
	}
	res := &nodeapi.PiecesResult{Pieces: []nodeapi.Piece{}, Lacks: p.log.PiecesAwaited(), Lost: !whole}
	for _, k := range list {
		if k.Name > req.After && k.Size > 0 && len(res.Pieces) < nodeapi.MaxPieceList {
			res.Pieces = append(res.Pieces, k)
		}
	}
	p.served(from, req.After == "", len(res.Pieces) == 0, before)
	return res, nil
}

// kept lists the damaged bytes that this copy keeps, see partlog.Log.Pieces. Errors are
// problems.
func (p *Partition) kept() (out []nodeapi.Piece, whole bool, err error) {
	list, whole, err := p.log.Pieces()
	if err != nil {
		return nil, false, p.unreadable(err)
	}
	out = make([]nodeapi.Piece, len(list))
	for i, k := range list {
		out[i] = nodeapi.Piece(k)
	}
	return out, whole, nil
}

func (p *Partition) unreadable(err error) *problem.Problem {
	p.s.Log.Warn("damaged bytes that are kept cannot be read", "partition", p.ref.String(), "error", err)
	return problem.New(problem.PartitionUnavailable, "the damaged bytes of %s cannot be read now", p.ref)
}

func (p *Partition) pieceBytes(req *nodeapi.PiecesRequest) (*nodeapi.PiecesResult, error) {
	if !(partlog.Piece{Name: req.Name, Size: 1}).Plausible() || req.Offset < 0 {
		return nil, problem.New(problem.InvalidRequest, "no name of damaged bytes").With("parameter", "name")
	}
	b := make([]byte, min(max(req.MaxBytes, 1), nodeapi.MaxPieceBytes))
	n, err := p.log.ReadPiece(req.Name, b, req.Offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, p.unreadable(err)
	}
	return &nodeapi.PiecesResult{Pieces: []nodeapi.Piece{}, Bytes: b[:n]}, nil
}

// served takes note of what another copy has: all, once it has asked from the first to
// behind the last and nothing has come to them meanwhile.
func (p *Partition) served(from quorum.Replica, first, last bool, changes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.servedLocked(from)
	if first {
		s.asked = changes
	}
	if last {
		s.has, s.hasAt = true, s.asked
	}
}

func (p *Partition) servedLocked(from quorum.Replica) *served {
	s := p.pieces[from]
	if s == nil {
		if p.pieces == nil || len(p.pieces) >= maxServed {
			p.pieces = map[quorum.Replica]*served{}
		}
		s = &served{}
		p.pieces[from] = s
	}
	return s
}

// hasPiecesLocked tells whether an observer that lacks few records lacks no damaged bytes
// either, or was waited for long enough.
func (p *Partition) hasPiecesLocked(of quorum.Replica) bool {
	if p.setSize > 1 || !p.log.WasDamaged() { // others have what is damaged here, as records
		return true
	}
	s, now := p.servedLocked(of), max(p.s.Mono(), 1)
	if s.nearMS == 0 {
		s.nearMS = now
	}
	return s.has && s.hasAt == p.log.PieceChanges() || now-s.nearMS >= piecesWait
}

// AskPieces asks the leader; the fields that name who asks whom are filled in.
type AskPieces func(*nodeapi.PiecesRequest) (*nodeapi.PiecesResult, error)

// GatherPieces fetches what the leader keeps of damaged bytes and this copy does not,
// each of them once and byte for byte. When something is missing then it may be repeated,
// after ever longer pauses: who does not know the question now will not soon.
func (p *Partition) GatherPieces(ask AskPieces) error {
	pause := min(max(2*p.gatherPause.Load(), gatherFirst), gatherMost)
	p.gatherPause.Store(pause)
	p.gatherAt.Store(p.s.Mono() + pause)
	p.mu.Lock()
	gaps := p.gapsCopied
	p.mu.Unlock()
	have, _, err := p.log.Pieces()
	if err != nil {
		return fmt.Errorf("damaged bytes of %s: %w", p.ref, err)
	}
	g := gathering{p: p, ask: ask, have: map[partlog.Piece]bool{}}
	for _, k := range have {
		g.have[k] = true
	}
	for more := true; more && err == nil; {
		more, err = g.page()
	}
	switch {
	case errors.Is(err, errBadPieces), errors.Is(err, partlog.ErrBadPiece):
		p.s.Metrics.BadFetches.Inc()
		p.s.Complain("a leader sent damaged bytes that it did not announce, or announced none", "partition", p.ref.String(), "error", err)
		fallthrough
	case err != nil:
		return fmt.Errorf("damaged bytes of %s: %w", p.ref, err)
	}
	if g.lost {
		if err := p.log.NoteLoss(); err != nil {
			return fmt.Errorf("damaged bytes of %s: %w", p.ref, err)
		}
	}
	if g.got > 0 {
		p.s.Log.Warn("the damaged bytes of another copy are kept here too", "partition", p.ref.String(), "ranges", g.got, "bytes", g.bytes)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gapsCopied != gaps {
		p.gatherPause.Store(0)
	}
	if p.gapsCopied != gaps || g.lacks {
		return nil // there is another gap, or the leader waits for more: it is asked again
	}
	return p.log.PiecesCame()
}

// gathering is one run of GatherPieces.
type gathering struct {
	p     *Partition
	ask   AskPieces
	have  map[partlog.Piece]bool
	after string
	total int64 // bytes listed
	n     int   // pieces listed
	lacks bool  // the leader awaits some itself
	lost  bool  // the leader lacks what is in no piece
	got   int
	bytes int64
}

// page fetches what one answer lists; more is false when that is nothing. A list is
// judged before anything of it is fetched.
func (g *gathering) page() (more bool, err error) {
	res, err := g.ask(&nodeapi.PiecesRequest{After: g.after})
	if err != nil {
		return false, err
	}
	if err := g.judge(res.Pieces); err != nil {
		return false, err
	}
	g.lacks, g.lost = res.Lacks, g.lost || res.Lost
	for _, k := range res.Pieces {
		piece := partlog.Piece(k)
		if g.have[piece] {
			continue
		}
		b, err := g.fetch(piece)
		if err == nil {
			err = g.p.log.KeepPiece(piece, b)
		}
		if err != nil {
			return false, err
		}
		g.got, g.bytes = g.got+1, g.bytes+piece.Size
	}
	return len(res.Pieces) > 0, nil
}

func (g *gathering) judge(list []nodeapi.Piece) error {
	if len(list) > nodeapi.MaxPieceList {
		return fmt.Errorf("%w: %d at once", errBadPieces, len(list))
	}
	for _, k := range list {
		g.n, g.total = g.n+1, g.total+k.Size
		if !partlog.Piece(k).Plausible() || k.Name <= g.after || g.n > partlog.MaxPieces || g.total > partlog.MaxPieceBytes {
			return fmt.Errorf("%w: %q of %d bytes behind %q, number %d", errBadPieces, k.Name, k.Size, g.after, g.n)
		}
		g.after = k.Name
	}
	return nil
}

func (g *gathering) fetch(piece partlog.Piece) ([]byte, error) {
	if !g.p.log.HasPieceRoom(piece.Size) {
		return nil, fmt.Errorf("%s of %d bytes: %w", piece.Name, piece.Size, partlog.ErrPiecesFull)
	}
	b := make([]byte, 0, piece.Size)
	for at := int64(0); at < piece.Size; at = int64(len(b)) {
		most := int(min(piece.Size-at, nodeapi.MaxPieceBytes))
		res, err := g.ask(&nodeapi.PiecesRequest{Name: piece.Name, Offset: at, MaxBytes: most})
		switch {
		case err != nil:
			return nil, err
		case len(res.Bytes) == 0 || len(res.Bytes) > most:
			return nil, fmt.Errorf("%w: %d bytes of %d at %d of %s", errBadPieces, len(res.Bytes), most, at, piece.Name)
		}
		b = append(b, res.Bytes...)
	}
	return b, nil
}
