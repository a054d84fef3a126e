package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// Queue names what the dispatcher keeps in order: the records of one topic
// incarnation that were accepted for one partition, pinned or not.
type Queue struct {
	Incarnation topic.Incarnation
	Partition   int32
	Pinned      bool
}

// String is also the name of a parked queue's directory.
func (q Queue) String() string {
	kind := "free"
	if q.Pinned {
		kind = "pinned"
	}
	return fmt.Sprintf("%s-%d-%s", q.Incarnation, q.Partition, kind)
}

func parseQueue(s string) (Queue, bool) {
	parts := strings.Split(s, "-")
	if len(parts) != 3 {
		return Queue{}, false
	}
	inc, err := topic.ParseID64(parts[0])
	if err != nil {
		return Queue{}, false
	}
	n, err := strconv.ParseInt(parts[1], 10, 32)
	q := Queue{inc, int32(n), parts[2] == "pinned"}
	return q, err == nil && q.String() == s
}

// parkedDir is the directory beside the segments of a WAL that holds them.
const parkedDir = "parked"

// parkedFrame is how much is gathered into one frame of a parked log.
const parkedFrame = 1 << 20

// Parked is the log of one stuck queue: records moved out of the WAL so that
// they do not pin it. They keep their IDs and their order, and are drained
// before anything newer of the queue.
//
// Records are parked when Append returns; only then may they be Done in the
// WAL. After a crash between the two they stand in both: parked ones first, the
// WAL's after them, with the same IDs. So the queue's order holds, and the
// partition drops the second ones as known. It keeps no record of how far it
// was drained: after a restart it starts at its oldest segment again.
//
// It is for one goroutine at a time.
type Parked struct {
	fs    vfs.FS
	dir   string
	log   *seglog.Log
	opt   Options
	next  uint64 // base of the next segment: one more than the frames ever written
	fresh bool   // the last segment was started by this process
	r     *seglog.Reader
	u     unit
	names interner
	buf   []byte
}

// ListParked names the queues parked in the directory of a WAL.
func ListParked(fsys vfs.FS, walDir string) ([]Queue, error) {
	entries, err := fsys.ReadDir(path.Join(walDir, parkedDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list parked queues: %w", err)
	}
	var out []Queue
	for _, e := range entries {
		if q, ok := parseQueue(e.Name()); ok && e.IsDir() {
			out = append(out, q)
		}
	}
	return out, nil
}

// OpenParked opens or makes the parked log of a queue. Of opt only OnDamage counts.
func OpenParked(fsys vfs.FS, walDir string, q Queue, opt Options) (*Parked, error) {
	parent := path.Join(walDir, parkedDir)
	p := &Parked{fs: fsys, dir: path.Join(parent, q.String()), opt: opt, next: 1}
	if err := p.open(parent, walDir); err != nil {
		return nil, fmt.Errorf("open parked queue %s: %w", q, errors.Join(err, p.Close()))
	}
	return p, nil
}

func (p *Parked) open(parent, walDir string) error {
	if err := p.fs.MkdirAll(parent); err != nil {
		return err
	}
	if err := p.fs.SyncDir(walDir); err != nil {
		return err
	}
	frames := uint64(0)
	log, err := seglog.Open(p.fs, p.dir, seglog.Options{
		Format: format{parked: true}, MaxFrame: MaxUnitBytes, OnDamage: p.opt.OnDamage,
		Visit: func(seglog.Frame) error { frames++; return nil },
	})
	if err != nil {
		return err
	}
	// Nothing is written before the first Append: a full disk must not keep it from being read.
	p.log = log
	p.r = log.NewReader(log.Start())
	segs := log.Segments()
	if len(segs) == 0 { // whoever made the directory may not have got to sync its name
		return p.fs.SyncDir(parent)
	}
	p.next = segs[len(segs)-1].Base + frames + 1
	return nil
}

// Append parks records, in order, and syncs them. After an error they are not
// parked (though a restart may show them again): they must stay in the WAL, and
// the call may be repeated.
func (p *Parked) Append(recs []Record) error {
	if err := p.append(recs); err != nil {
		return fmt.Errorf("park %d records in %s: %w", len(recs), p.dir, err)
	}
	return nil
}

func (p *Parked) append(recs []Record) error {
	if none := p.log.End() == (seglog.Pos{}); !none && !p.log.Appendable() {
		if err := p.log.TruncateTo(p.log.Synced()); err != nil {
			return err
		}
	}
	// Never append to a file of an earlier process: see seglog on failed syncs.
	if full := p.log.End().Offset >= DefaultSegmentBytes; !p.fresh || full || !p.log.Appendable() {
		p.next++
		if err := p.log.Roll(p.next, nil); err != nil {
			return err
		}
		p.fresh = true
	}
	h, err := p.log.Header(p.log.End().Segment)
	if err != nil {
		return err
	}
	for len(recs) > 0 {
		n := p.encode(recs)
		setNonce(p.buf, h.Nonce)
		if _, err := p.log.Append(p.buf); err != nil {
			return err
		}
		p.next++
		recs = recs[n:]
	}
	return p.log.Sync()
}

// encode puts as many records into one frame as belong together, and returns
// their number.
func (p *Parked) encode(recs []Record) int {
	first := recs[0].ID
	n, size := 0, frameHead
	for n < len(recs) {
		id := recs[n].ID
		size += recordHead + len(recs[n].Topic) + len(recs[n].Body)
		fits := id.Identity == first.Identity && id.Seq >= first.Seq && id.Seq-first.Seq < 1<<32
		if n > 0 && (!fits || size > parkedFrame) {
			break
		}
		n++
	}
	b := appendHead(p.buf[:0], n, first)
	for i := range n {
		b = appendRecord(b, 0, uint32(recs[i].Seq-first.Seq), &recs[i].Entry)
	}
	sealFrame(b, 0)
	p.buf = b
	return n
}

// Next returns the next parked record, or io.EOF when all were given. Body is
// valid until the next call.
func (p *Parked) Next() (Record, error) {
	for {
		rec, ok, err := p.u.next(&p.names)
		if err != nil {
			return Record{}, fmt.Errorf("unit at %s: %w", p.u.pos, err)
		}
		if ok {
			return rec, nil
		}
		p.u = unit{}
		f, err := p.r.Next(p.log.Synced())
		if err != nil {
			return Record{}, err
		}
		if u := openUnit(f); u.sound() {
			p.u = u
		} else if p.opt.OnDamage != nil {
			p.opt.OnDamage(seglog.Damage{Segment: f.Pos.Segment, From: f.Pos.Offset, To: f.Pos.Offset + int64(len(f.Bytes))})
		}
	}
}

// ReadAt is WAL.ReadAt for a position that Next gave.
func (p *Parked) ReadAt(pos Position, buf []byte) (Record, error) {
	return readRecord(p.log, pos, buf, &p.names)
}

// Drained tells that everything before pos is done, so that whole segments of
// it can go.
func (p *Parked) Drained(pos Position) error { return p.log.RemoveBelow(pos.Segment) }

// ReleaseFiles closes the files until the next use.
func (p *Parked) ReleaseFiles() error { return p.log.ReleaseFiles() }

// Bytes is the size on disk.
func (p *Parked) Bytes() int64 { return p.log.Bytes() }

// Close closes the files; the records stay.
func (p *Parked) Close() error {
	if p.log == nil {
		return nil
	}
	return p.log.Close()
}

// Remove closes the log and removes it, when every record is done.
func (p *Parked) Remove() error {
	err := p.Close()
	if rerr := p.fs.RemoveAll(p.dir); rerr != nil {
		return errors.Join(err, rerr)
	}
	return errors.Join(err, p.fs.SyncDir(path.Dir(p.dir)))
}
