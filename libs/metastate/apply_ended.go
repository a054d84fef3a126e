package metastate

import (
	"encoding/binary"
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// ForgetEnded forgets the ends of lives of which nothing is left anywhere.
type ForgetEnded struct {
	IDs []topic.Incarnation `json:"ids"`
}

// EntryType implements Entry.
func (*ForgetEnded) EntryType() Type { return TypeForgetEnded }

// applyForgetEnded refuses all when one of them lives: who asks is mistaken, and
// may be mistaken about the others.
func applyForgetEnded(tx Tx, e *ForgetEnded) (Result, error) {
	for _, id := range e.IDs {
		if IsLive(tx, id) {
			return refuse(problem.TopicChanged, "an incarnation to forget is the live one of a topic").with("incarnation", id), nil
		}
	}
	for _, id := range e.IDs {
		if err := tx.Delete(BucketEnded, incarnationKey(id)); err != nil {
			return Result{}, err
		}
	}
	return Result{}, nil
}

// Ending is one end that is remembered.
type Ending struct {
	Incarnation topic.Incarnation
	EndedRecord
}

// Endings lists at most limit ends whose ids are above after, in order of ids.
func Endings(r Reader, after topic.Incarnation, limit int) ([]Ending, error) {
	var out []Ending
	var failed error
	r.Scan(BucketEnded, nil, func(k, raw []byte) bool {
		if len(k) != 8 {
			failed = fmt.Errorf("read %s/%q: a key of %d bytes", BucketEnded, k, len(k))
			return false
		}
		e := Ending{Incarnation: topic.Incarnation(binary.BigEndian.Uint64(k))}
		if e.Incarnation <= after {
			return true
		}
		if err := json.Unmarshal(raw, &e.EndedRecord); err != nil {
			failed = fmt.Errorf("read %s/%q: %w", BucketEnded, k, err)
			return false
		}
		out = append(out, e)
		return len(out) < limit
	})
	return out, failed
}
