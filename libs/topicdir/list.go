package topicdir

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/narad-mq/narad/libs/topic"
)

// Kind is what an entry of the inventory is.
type Kind uint8

// The kinds.
const (
	Serving    Kind = iota // it stands under a topic's name
	SetAside               // `<topic>.stale-<incarnation>`
	Superseded             // `.quarantine`
	Staged                 // under staging
	Foreign                // no name of ours
)

// Entry is one directory of the inventory.
type Entry struct {
	Name   string // as on disk
	Topic  string // the topic whose it is or was; "" for Foreign
	Kind   Kind
	Marker topic.Incarnation // 0: no valid marker
}

// Key is where the entry stands below the data directory, slash-separated. It
// orders the inventory.
func (e Entry) Key() string {
	if e.Kind == Staged {
		return path.Join(stagingDir, e.Name)
	}
	return path.Join(topicsDir, e.Name)
}

// List reads the inventory: every directory of the store in the order of Key,
// with what its marker says now. It takes no guard, so an entry may be outdated
// when it is read. One that cannot be looked at fails the whole list.
func (s *Store) List() ([]Entry, error) {
	out, _, err := s.list("", math.MaxInt, func(_ Entry, err error) error { return err })
	return out, err
}

// Page is List in parts: at most limit entries whose Key is greater than after
// ("" from the start); more tells that others follow. An entry that cannot be
// looked at does not hide the others: it is among them without a marker, and
// unread gets it with the reason.
func (s *Store) Page(after string, limit int, unread func(Entry, error)) (entries []Entry, more bool, err error) {
	return s.list(after, limit, func(e Entry, err error) error { unread(e, err); return nil })
}

func (s *Store) list(after string, limit int, unread func(Entry, error) error) (out []Entry, more bool, err error) {
	for _, in := range []string{stagingDir, topicsDir} {
		names, err := s.fs.ReadDir(path.Join(s.data, in))
		if err != nil {
			return nil, false, fmt.Errorf("list %s: %w", in, err)
		}
		for _, n := range names {
			entry := entryOf(in, n.Name())
			if entry.Key() <= after {
				continue
			}
			if len(out) == limit {
				return out, true, nil
			}
			at, err := inspect(s.fs, path.Join(s.data, entry.Key()))
			if err == nil && !at.exists {
				continue // gone since it was listed
			}
			if err != nil {
				if err = unread(entry, err); err != nil {
					return nil, false, err
				}
			}
			entry.Marker = at.id
			out = append(out, entry)
		}
	}
	return out, false, nil
}

// Topics counts the topics of which something lies here, by names only.
func (s *Store) Topics() (int, error) {
	topics := map[string]bool{}
	for _, in := range []string{stagingDir, topicsDir} {
		names, err := s.fs.ReadDir(path.Join(s.data, in))
		if err != nil {
			return 0, fmt.Errorf("list %s: %w", in, err)
		}
		for _, n := range names {
			if e := entryOf(in, n.Name()); e.Kind != Foreign {
				topics[topic.FoldName(e.Topic)] = true
			}
		}
	}
	return len(topics), nil
}

// Has tells whether something of an incarnation lies here that Purge would end:
// under the topic's name, or set aside. It takes no guard.
func (s *Store) Has(name string, id topic.Incarnation) (bool, error) {
	if err := topic.ValidateName(name); err != nil || id == 0 {
		return false, err
	}
	for _, at := range []string{name, asideName(name, id, 0)} {
		if found, err := inspect(s.fs, s.path(at)); err != nil || found.id == id {
			return err == nil, err
		}
	}
	return false, nil
}

// HasPartition tells whether a directory of one partition lies under a topic's name,
// whichever life that is of. It takes no guard.
func (s *Store) HasPartition(name string, partition int32) (bool, error) {
	if err := topic.ValidateName(name); err != nil {
		return false, err
	}
	_, err := s.fs.Stat(PartitionDir(s.path(name), partition))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func entryOf(in, name string) Entry {
	if in == stagingDir {
		of, _, _ := strings.Cut(name, stagedInfix)
		return Entry{Name: name, Topic: of, Kind: Staged}
	}
	return classify(name)
}

// classify reads a directory's name.
func classify(name string) Entry {
	if topic.ValidateName(name) == nil {
		return Entry{Name: name, Topic: name, Kind: Serving}
	}
	if of, ok := strings.CutSuffix(name, superseded); ok && topic.ValidateName(of) == nil {
		return Entry{Name: name, Topic: of, Kind: Superseded}
	}
	if i := strings.LastIndex(name, staleInfix); i > 0 && topic.ValidateName(name[:i]) == nil {
		return Entry{Name: name, Topic: name[:i], Kind: SetAside}
	}
	return Entry{Name: name, Kind: Foreign}
}

// ParsePartition reads the name of a partition copy's directory, as PartitionDir
// makes it; false for any other name.
func ParsePartition(name string) (int32, bool) {
	digits, ok := strings.CutPrefix(name, "p")
	n, err := strconv.ParseInt(digits, 10, 32)
	if !ok || err != nil || n < 0 || path.Base(PartitionDir("", int32(n))) != name {
		return 0, false
	}
	return int32(n), true
}
