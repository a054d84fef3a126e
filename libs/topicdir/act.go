package topicdir

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/narad-mq/narad/libs/topic"
)

// Errors of what ends directories. None of them changed anything.
var (
	// ErrNotGone: the metastore does not remember the end of the incarnation, or
	// there is no valid marker to ask about.
	ErrNotGone = errors.New("the end of the incarnation is not confirmed")
	// ErrChanged: what stands there is not what was judged.
	ErrChanged = errors.New("another directory stands there than the one that was judged")
)

// action is one change of where a topic directory stands.
type action struct {
	from, to string            // paths; to is "" for a removal
	id       topic.Incarnation // that the marker of from has to carry now; 0: no valid one
	verdict  Verdict           // on id
}

// permitted tells whether an action may be done to what was found at from. It is
// the one rule about it: only what has ended is removed, and nothing that lives
// loses its name.
func (a *action) permitted(at found, empty bool) error {
	kind := entryOf(path.Base(path.Dir(a.from)), path.Base(a.from)).Kind
	switch {
	case !at.exists:
		return fs.ErrNotExist
	case at.other:
		return ErrNotDirectory
	case at.id != a.id:
		return fmt.Errorf("%w: its marker says %s", ErrChanged, at.id)
	case a.to != "" && kind == Serving && a.verdict == Live:
		return ErrLive
	case a.to != "":
		return nil
	case kind == SetAside && empty: // what a power cut left of a removal; there is nothing to lose
		return nil
	case a.id == 0 || a.verdict != Gone:
		return ErrNotGone
	}
	return nil
}

// act is the only function that renames or removes topic directories (tools/arch
// holds that). The caller holds the guard of the topic and has seen that nothing
// stands at the new name. It looks at the marker again. It is durable when it
// returns nil; after a failed rename either name may stand, after a failed removal
// what is left still carries its marker. bytes is what was removed.
func (s *Store) act(a action) (bytes int64, err error) {
	at, err := inspect(s.fs, a.from)
	if err != nil {
		return 0, err
	}
	var in []fs.DirEntry
	if a.to == "" && at.exists && !at.other {
		if in, err = s.fs.ReadDir(a.from); err != nil {
			return 0, fmt.Errorf("list %s: %w", a.from, err)
		}
	}
	if err := a.permitted(at, len(in) == 0); err != nil {
		return 0, err
	}
	if a.to == "" {
		return s.remove(a.from, in)
	}
	if err := s.fs.Rename(a.from, a.to); err != nil {
		return 0, err
	}
	return 0, s.fs.SyncDir(path.Join(s.data, topicsDir))
}

// remove ends a directory: first what it holds, durably, then its marker, so that
// at any moment it can be told whose it is.
func (s *Store) remove(dir string, in []fs.DirEntry) (bytes int64, err error) {
	for _, e := range in {
		if e.Name() == markerName {
			continue
		}
		at := path.Join(dir, e.Name())
		size := s.size(at, e)
		if err := s.fs.RemoveAll(at); err != nil {
			return bytes, err
		}
		bytes += size
	}
	if err := s.fs.SyncDir(dir); err != nil {
		return bytes, err
	}
	if err := s.fs.Remove(path.Join(dir, markerName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return bytes, err
	}
	if err := s.fs.Remove(dir); err != nil {
		return bytes, err
	}
	return bytes, s.fs.SyncDir(path.Dir(dir))
}

// size adds up the files of a tree, without following links; what cannot be
// looked at counts nothing.
func (s *Store) size(at string, e fs.DirEntry) (total int64) {
	if !e.IsDir() {
		if info, err := e.Info(); err == nil {
			total = info.Size()
		}
		return total
	}
	in, err := s.fs.ReadDir(at)
	if err != nil {
		return 0
	}
	for _, e := range in {
		total += s.size(path.Join(at, e.Name()), e)
	}
	return total
}
