package topicdir

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/narad-mq/narad/libs/topic"
)

// Retiring names the copy of a partition that its node holds no more: another
// leader has replaced it.
type Retiring struct {
	Topic       string
	Incarnation topic.Incarnation // that the marker of the topic's directory has to carry
	Partition   int32
	// Judge looks at the copy in a directory and says what becomes of it; with an
	// error, such as that the node holds the partition by now, the copy stays. It is
	// called under the guard, so what it saw is what is moved.
	Judge func(dir string) (Judged, error)
}

// Judged is what becomes of a copy.
type Judged struct {
	Copy topic.ID64 // its id
	// Remove: a leader holds all that the copy has. Else it is only set aside, for an
	// operator, with a note that says since when and why.
	Remove bool
	Note   Note
}

// quarantined and leaving end the names of copies that are set aside: for an
// operator, and to be removed.
const (
	quarantined = ".quarantine-"
	leaving     = ".superseded-"
)

// Retire takes the directory of a copy away from the partition's name, durably, and
// removes it there if it is to be removed, with what an interrupted call left.
// Errors that say that it was left alone: ErrAbsent, ErrChanged, those of Judge. bytes
// is what was removed.
func (s *Store) Retire(r Retiring) (bytes int64, err error) {
	if err := topic.ValidateName(r.Topic); err != nil || r.Incarnation == 0 {
		return 0, fmt.Errorf("retire a copy of topic %s: %w", r.Topic, ErrChanged)
	}
	defer s.guard(r.Topic)()
	top := s.path(r.Topic)
	at, err := inspect(s.fs, top)
	if err != nil {
		return 0, err
	}
	if at.id != r.Incarnation {
		return 0, fmt.Errorf("retire a copy of topic %s: %w", r.Topic, ErrChanged)
	}
	from := PartitionDir(top, r.Partition)
	if _, err := s.fs.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("retire %s: %w", from, ErrAbsent)
	} else if err != nil {
		return 0, err
	}
	v, err := r.Judge(from)
	if err != nil {
		return 0, fmt.Errorf("retire %s: %w", from, err)
	}
	suffix := quarantined
	if v.Remove {
		suffix = leaving
	} else if err := writeNote(s.fs, from, v.Note); err != nil {
		return 0, fmt.Errorf("note why %s is set aside: %w", from, err)
	}
	to, err := s.freeAside(from + suffix + v.Copy.String())
	if err == nil {
		err = s.fs.Rename(from, to)
	}
	if err != nil {
		return 0, fmt.Errorf("set %s aside: %w", from, err)
	}
	if err := s.fs.SyncDir(top); err != nil || !v.Remove {
		return 0, err
	}
	return s.removeCopies(top, path.Base(from)+leaving)
}

// freeAside is a name for a copy that is set aside. Copies that never had an id share
// one, and so does a copy that came back here and left again.
func (s *Store) freeAside(name string) (string, error) {
	for n := range maxAside {
		try := name
		if n > 0 {
			try = fmt.Sprintf("%s-%d", name, n)
		}
		if _, err := s.fs.Lstat(try); errors.Is(err, fs.ErrNotExist) {
			return try, nil
		} else if err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("%w: %s", errNoFreeName, name)
}

// removeCopies removes what was set aside under names with this prefix to be removed,
// by this call and by any that was interrupted.
func (s *Store) removeCopies(top, prefix string) (bytes int64, err error) {
	in, err := s.fs.ReadDir(top)
	if err != nil {
		return 0, fmt.Errorf("list %s: %w", top, err)
	}
	for _, e := range in {
		if !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		at := path.Join(top, e.Name())
		size := s.size(at, e)
		if err := s.fs.RemoveAll(at); err != nil {
			return bytes, fmt.Errorf("remove %s: %w", at, err)
		}
		bytes += size
	}
	return bytes, s.fs.SyncDir(top)
}

// AsideCopy is a copy of a partition that is out of the partition's name.
type AsideCopy struct {
	Name      string // of its directory, in the topic's
	Partition int32
	Copy      topic.ID64
	// Leaving: a leader held all that it has, and its removal was interrupted. Else it
	// is quarantined: an operator has to look.
	Leaving bool
	Note    Note // of a quarantined one; zero when it cannot be told
}

// ParseAside reads the name of the directory of a copy that is out of the partition's
// name; false for any other.
func ParseAside(name string) (c AsideCopy, ok bool) {
	base, id, quarantine := strings.Cut(name, quarantined)
	if !quarantine {
		if base, id, ok = strings.Cut(name, leaving); !ok {
			return c, false
		}
	}
	p, isPartition := ParsePartition(base)
	id, n, taken := strings.Cut(id, "-") // behind one of the same id
	if taken && !isAsideNumber(n) {
		return c, false
	}
	copyID, err := topic.ParseID64(id)
	return AsideCopy{Name: name, Partition: p, Copy: copyID, Leaving: !quarantine}, isPartition && (err == nil || id == topic.ID64(0).String())
}

// isAsideNumber reads the end that freeAside gives to a name.
func isAsideNumber(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n > 0 && n < maxAside && strconv.Itoa(n) == s
}

// Aside lists the copies in the directory of an entry that are out of their partition's
// name. It takes no guard.
func (s *Store) Aside(e Entry) (out []AsideCopy, err error) {
	dir := path.Join(s.data, e.Key())
	in, err := s.fs.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	for _, d := range in {
		c, ok := ParseAside(d.Name())
		if !ok {
			continue
		}
		if !c.Leaving {
			if c.Note, err = readNote(s.fs, path.Join(dir, d.Name())); err != nil {
				return nil, err
			}
		}
		out = append(out, c)
	}
	return out, nil
}

// FinishRetire removes what an interrupted Retire has left of a copy that was to be
// removed. Errors that say that it was left alone: ErrAbsent, ErrChanged.
func (s *Store) FinishRetire(name string, id topic.Incarnation, c AsideCopy) (bytes int64, err error) {
	if err := topic.ValidateName(name); err != nil || id == 0 || !c.Leaving {
		return 0, fmt.Errorf("remove %s of topic %s: %w", c.Name, name, ErrChanged)
	}
	defer s.guard(name)()
	top := s.path(name)
	at, err := inspect(s.fs, top)
	switch {
	case err != nil:
		return 0, err
	case !at.exists:
		return 0, fmt.Errorf("remove %s of topic %s: %w", c.Name, name, ErrAbsent)
	case at.id != id:
		return 0, fmt.Errorf("remove %s of topic %s: %w", c.Name, name, ErrChanged)
	}
	return s.removeCopies(top, path.Base(PartitionDir(top, c.Partition))+leaving)
}
