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

// Ending says which incarnation ended, and who says so.
type Ending struct {
	Topic       string
	Incarnation topic.Incarnation
	Verdict     Verdict // on Incarnation, of this moment; only Gone removes anything
	// Dropped, when set, is called under the guard before a directory loses its
	// name, right after that, and after the removal: what is kept in memory of the
	// incarnation has to go each time, and nothing of it may write any more when
	// the call returns.
	Dropped func(topic.Incarnation)
}

func (e *Ending) drop() {
	if e.Dropped != nil {
		e.Dropped(e.Incarnation)
	}
}

// Ended is what the end of an incarnation removed.
type Ended struct {
	Directories int
	Bytes       int64 // of files
}

// Purge ends an incarnation on this disk: the directory under the topic's name
// is set aside and removed there, with any older quarantine of the incarnation, if
// their markers name exactly that id. Everything else is left alone, and that is no error: the
// directory may be gone already or belong to a successor. Without the verdict
// Gone it is ErrNotGone. Errors of the file system leave things such that the
// call, or a later sweep, can go on.
func (s *Store) Purge(e Ending) (Ended, error) {
	if err := topic.ValidateName(e.Topic); err != nil {
		return Ended{}, err
	}
	if e.Incarnation == 0 || e.Verdict != Gone {
		return Ended{}, fmt.Errorf("purge incarnation %s of topic %s: %w", e.Incarnation, e.Topic, ErrNotGone)
	}
	defer s.guard(e.Topic)()
	at, err := inspect(s.fs, s.path(e.Topic))
	if err != nil {
		return Ended{}, err
	}
	if at.id == e.Incarnation {
		if _, err := s.setAside(e.Topic, e.Incarnation, e.Verdict, e.Dropped); err != nil {
			return Ended{}, err
		}
	}
	out, err := s.removeAside(&e)
	e.drop()
	return out, err
}

// setAside takes a directory away from the topic's name and returns its new one.
// State in memory goes first, so that nothing writes by path while it moves.
func (s *Store) setAside(name string, id topic.Incarnation, v Verdict, dropped func(topic.Incarnation)) (string, error) {
	aside, err := s.freeName(name, id)
	if err != nil {
		return "", fmt.Errorf("set aside incarnation %s of topic %s: %w", id, name, err)
	}
	if dropped == nil {
		dropped = func(topic.Incarnation) {}
	}
	dropped(id)
	_, err = s.act(action{from: s.path(name), to: s.path(aside), id: id, verdict: v})
	dropped(id) // after a failure too: the rename may be done, only its sync not
	if err != nil {
		return "", fmt.Errorf("set aside incarnation %s of topic %s: %w", id, name, err)
	}
	return aside, nil
}

// removeAside removes the quarantines of an incarnation, as far as their names
// follow each other; a sweep finds others.
func (s *Store) removeAside(e *Ending) (out Ended, err error) {
	for n := range maxAside {
		name := asideName(e.Topic, e.Incarnation, n)
		bytes, err := s.act(action{from: s.path(name), id: e.Incarnation, verdict: e.Verdict})
		out.Bytes += bytes
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return out, nil
		case errors.Is(err, ErrChanged), errors.Is(err, ErrNotDirectory): // it only has the name; left alone
		case err != nil:
			return out, fmt.Errorf("remove %s: %w", name, err)
		default:
			out.Directories++
		}
	}
	return out, nil
}

// asideName is the n-th name for an incarnation that is set aside.
func asideName(name string, id topic.Incarnation, n int) string {
	base := name + staleInfix + id.String()
	if n == 0 {
		return base
	}
	return base + "-" + strconv.Itoa(n)
}

// Reclaim ends one entry of the inventory, as it was listed: a directory that
// still serves is set aside first. Errors that say that it was left alone:
// ErrNotGone, ErrChanged (its marker is another one by now), ErrNotDirectory,
// ErrAbsent (nothing stands there). bytes is what was removed, also next to an error.
func (s *Store) Reclaim(at Entry, v Verdict, dropped func(topic.Incarnation)) (bytes int64, err error) {
	if at.Kind == Foreign {
		return 0, fmt.Errorf("reclaim %s: %w: no name of ours", at.Key(), ErrNotGone)
	}
	defer s.guard(at.Topic)()
	e := Ending{Topic: at.Topic, Incarnation: at.Marker, Verdict: v, Dropped: dropped}
	from := path.Join(s.data, at.Key())
	if at.Kind == Serving {
		if v != Gone || at.Marker == 0 { // nothing is set aside but to be removed
			return 0, fmt.Errorf("reclaim %s: %w", at.Key(), ErrNotGone)
		}
		aside, err := s.setAside(at.Name, at.Marker, v, dropped)
		if err != nil {
			return 0, absent(err)
		}
		from = s.path(aside)
	}
	bytes, err = s.act(action{from: from, id: at.Marker, verdict: v})
	if at.Kind == Serving {
		e.drop()
	}
	if err != nil {
		return bytes, fmt.Errorf("reclaim %s: %w", at.Key(), absent(err))
	}
	return bytes, nil
}

// ErrAbsent: nothing stands under that name.
var ErrAbsent = errors.New("nothing stands there")

func absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	return err
}

// ParseKey reads what Key gives; false for anything else, so that no path of a
// request leads elsewhere.
func ParseKey(key string) (Entry, bool) {
	in, name, ok := strings.Cut(key, "/")
	if !ok || name == "" || name == "." || name == ".." || strings.Contains(name, "/") || in != topicsDir && in != stagingDir {
		return Entry{}, false
	}
	return entryOf(in, name), true
}
