package backup

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/go-json-experiment/json"

	"github.com/narad-mq/narad/libs/metastate"
)

const (
	magic = "NARADBK1"
	// MaxHeaderBytes is ten times what a header takes.
	MaxHeaderBytes = 4 << 10

	prefixBytes = len(magic) + 4
	crcBytes    = 4
)

// ErrDamaged: the file is no backup, or not what was written. The error around it
// says which.
var ErrDamaged = errors.New("damaged or no metastore backup")

// Header says what a backup is of.
type Header struct {
	ClusterID       string           `json:"cluster_id"`
	AppliedIndex    uint64           `json:"applied_index"` // Raft index up to which every entry's effects are in the state
	Term            uint64           `json:"term"`          // Raft term at that moment
	TakenAt         string           `json:"taken_at"`      // RFC 3339, UTC, by the clock of TakenBy
	TakenBy         string           `json:"taken_by"`      // node id
	Release         string           `json:"release"`       // of that node
	NewestEntryType uint8            `json:"newest_entry_type"`
	Counts          metastate.Counts `json:"counts"`
	StateBytes      int64            `json:"state_bytes"`
}

// encode gives everything before the state.
func (h *Header) encode() ([]byte, error) {
	doc, err := json.Marshal(h, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode backup header: %w", err)
	}
	if len(doc) > MaxHeaderBytes || h.StateBytes < 0 {
		return nil, fmt.Errorf("encode backup header: %d bytes for a state of %d", len(doc), h.StateBytes)
	}
	out := append(make([]byte, 0, prefixBytes+len(doc)+crcBytes), magic...)
	out = binary.BigEndian.AppendUint32(out, uint32(len(doc)))
	out = append(out, doc...)
	return binary.BigEndian.AppendUint32(out, checksum(out)), nil
}

// Size is the length in bytes of the whole backup with this header.
func Size(h *Header) (int64, error) {
	head, err := h.encode()
	return int64(len(head)) + h.StateBytes + sha256.Size, err
}

// Write writes a backup. state must write exactly StateBytes of the header.
func Write(w io.Writer, h *Header, state io.WriterTo) error {
	head, err := h.encode()
	if err != nil {
		return err
	}
	sum := sha256.New()
	all := io.MultiWriter(w, sum)
	if _, err := all.Write(head); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	n, err := state.WriteTo(all)
	if err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	if n != h.StateBytes {
		return fmt.Errorf("write backup: a state of %d bytes where %d were announced", n, h.StateBytes)
	}
	if _, err := w.Write(sum.Sum(nil)); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	return nil
}

// Reader reads a backup. Its Read gives the state; see the package comment for
// what io.EOF means.
type Reader struct {
	r    io.Reader
	head Header
	sum  hash.Hash
	left int64 // of the state
	err  error // what every further Read answers
}

// NewReader reads and checks everything before the state. Errors wrap ErrDamaged,
// or are those of r.
func NewReader(r io.Reader) (*Reader, error) {
	prefix := make([]byte, prefixBytes)
	if err := readFull(r, prefix, "its beginning"); err != nil {
		return nil, err
	}
	if string(prefix[:len(magic)]) != magic {
		return nil, fmt.Errorf("%w: it does not begin with %s", ErrDamaged, magic)
	}
	n := binary.BigEndian.Uint32(prefix[len(magic):])
	if n > MaxHeaderBytes {
		return nil, fmt.Errorf("%w: a header of %d bytes", ErrDamaged, n)
	}
	head := append(prefix, make([]byte, int(n)+crcBytes)...)
	if err := readFull(r, head[prefixBytes:], "its header"); err != nil {
		return nil, err
	}
	body := head[:len(head)-crcBytes]
	if binary.BigEndian.Uint32(head[len(body):]) != checksum(body) {
		return nil, fmt.Errorf("%w: wrong checksum of the header", ErrDamaged)
	}
	b := &Reader{r: r, sum: sha256.New()}
	if err := json.Unmarshal(body[prefixBytes:], &b.head, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("%w: header: %w", ErrDamaged, err)
	}
	if b.head.StateBytes < 0 {
		return nil, fmt.Errorf("%w: a state of %d bytes", ErrDamaged, b.head.StateBytes)
	}
	b.left = b.head.StateBytes
	b.sum.Write(head)
	return b, nil
}

// Header is what the backup is of.
func (b *Reader) Header() Header { return b.head }

// Read implements io.Reader over the state.
func (b *Reader) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.left == 0 {
		b.err = b.end()
		return 0, b.err
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.sum.Write(p[:n])
	b.left -= int64(n)
	switch {
	case err == io.EOF && b.left > 0:
		err = fmt.Errorf("%w: it ends %d bytes before its state does", ErrDamaged, b.left)
	case err == io.EOF:
		err = nil // the checksum is still to come
	}
	b.err = err
	return n, err
}

// end checks what stands behind the state.
func (b *Reader) end() error {
	rest := make([]byte, sha256.Size)
	if err := readFull(b.r, rest, "its checksum"); err != nil {
		return err
	}
	if string(rest) != string(b.sum.Sum(nil)) {
		return fmt.Errorf("%w: wrong checksum", ErrDamaged)
	}
	var more [1]byte
	switch n, err := io.ReadFull(b.r, more[:]); {
	case n > 0:
		return fmt.Errorf("%w: something stands behind its end", ErrDamaged)
	case err != io.EOF:
		return err
	}
	return io.EOF
}

// Verify reads a whole backup and tells whether it is what was written.
func Verify(r io.Reader) (Header, error) {
	b, err := NewReader(r)
	if err != nil {
		return Header{}, err
	}
	if _, err := io.Copy(io.Discard, b); err != nil {
		return Header{}, err
	}
	return b.head, nil
}

// readFull tells a file that ends too early from one that cannot be read.
func readFull(r io.Reader, p []byte, what string) error {
	_, err := io.ReadFull(r, p)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: it ends within %s", ErrDamaged, what)
	}
	return err
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }
