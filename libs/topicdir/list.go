package topicdir

import (
	"fmt"
	"path"
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

// List reads the inventory: every directory of the store, with what its marker
// says now. It takes no guard, so an entry may be outdated when it is read.
func (s *Store) List() ([]Entry, error) {
	var out []Entry
	for _, in := range []string{topicsDir, stagingDir} {
		entries, err := s.fs.ReadDir(path.Join(s.data, in))
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", in, err)
		}
		for _, e := range entries {
			at, err := inspect(s.fs, path.Join(s.data, in, e.Name()))
			if err != nil {
				return nil, err
			}
			if !at.exists {
				continue // gone since it was listed
			}
			entry := classify(e.Name())
			if in == stagingDir {
				entry.Kind = Staged
				entry.Topic, _, _ = strings.Cut(e.Name(), stagedInfix)
			}
			entry.Marker = at.id
			out = append(out, entry)
		}
	}
	return out, nil
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
