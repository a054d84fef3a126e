package topic

import (
	"errors"
	"fmt"
	"strconv"
)

// incarnationDigits is the length of an ID64 in text.
const incarnationDigits = 16

// ErrInvalidID is returned for text that is not 16 lower-case hex digits.
var ErrInvalidID = errors.New("not 16 lower-case hex digits")

// ID64 is a random 64-bit identity, written as 16 lower-case hex digits.
// Zero means "none" everywhere; generators never draw it.
type ID64 uint64

// Incarnation identifies one life of a topic name. It is drawn by the proposer
// of the create and carried in the Raft entry; everything that belongs to the
// topic is compared by it, never by name only.
type Incarnation = ID64

// String gives the 16 hex digits.
func (id ID64) String() string { return fmt.Sprintf("%016x", uint64(id)) }

// MarshalText writes the 16 hex digits.
func (id ID64) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads exactly what MarshalText writes.
func (id *ID64) UnmarshalText(b []byte) error {
	v, err := ParseID64(string(b))
	if err == nil {
		*id = v
	}
	return err
}

// ParseID64 reads exactly 16 lower-case hex digits, else ErrInvalidID.
func ParseID64(s string) (ID64, error) {
	if len(s) != incarnationDigits {
		return 0, ErrInvalidID
	}
	for i := range len(s) {
		if !hexDigit(s[i]) {
			return 0, ErrInvalidID
		}
	}
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		return 0, ErrInvalidID
	}
	return ID64(v), nil
}

// Epoch numbers a partition leadership. It grows by one per election and is
// written into every batch. Zero is "no leadership yet".
type Epoch uint32

// Ref names one partition of one life of a topic.
type Ref struct {
	Topic       string      `json:"topic"`
	Incarnation Incarnation `json:"incarnation"`
	Partition   int32       `json:"partition"`
}

// String is the form for logs and errors: orders/3@3f9a17c4e2b08d51.
func (r Ref) String() string {
	return fmt.Sprintf("%s/%d@%s", r.Topic, r.Partition, r.Incarnation)
}
