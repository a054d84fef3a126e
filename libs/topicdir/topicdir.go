package topicdir

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"

	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// Verdict is what the metastore says of an incarnation.
type Verdict uint8

// The verdicts. The zero value is the careful one.
const (
	Unknown Verdict = iota // not certain
	Live                   // it is the live one of its name
	Gone                   // its end is recorded
)

// Errors of this package.
var (
	// ErrLive: the directory belongs to an incarnation that the metastore calls
	// live, so the caller's view is behind: try again when it has caught up.
	ErrLive = errors.New("the directory belongs to the live incarnation")
	// ErrAmbiguous: several quarantines carry the incarnation that is opened; an
	// operator has to say which one holds the data.
	ErrAmbiguous = errors.New("several directories set aside carry this incarnation")
	// ErrIncarnation: an incarnation of 0 names nothing.
	ErrIncarnation = errors.New("no incarnation given")
	// ErrNotDirectory: a file or a link stands under the name. It is left alone.
	ErrNotDirectory = errors.New("not a directory")
	errNoFreeName   = errors.New("no free name to set a directory aside")
)

// VerdictNeeded is Open's error when the directory belongs to an incarnation on
// which no verdict was handed in: ask for one and open again.
type VerdictNeeded struct {
	Topic string
	Found topic.Incarnation
}

// Error says whose verdict is missing.
func (e *VerdictNeeded) Error() string {
	return fmt.Sprintf("the directory of topic %s belongs to incarnation %s: a verdict is needed", e.Topic, e.Found)
}

const (
	topicsDir  = "topics"
	stagingDir = "staging"
	staleInfix = ".stale-"
	// stagedInfix stands between topic and incarnation under staging; no topic
	// name has it.
	stagedInfix = "@"
	// superseded ends the names of copies that a later leader replaced.
	superseded = ".quarantine"
	// maxAside bounds the search for a free name; nobody deletes and creates a
	// topic under one incarnation that often.
	maxAside = 1000
)

// Store is the topic directories of one data directory. Safe for concurrent use.
type Store struct {
	fs   vfs.FS
	data string

	mu     sync.Mutex // guards guards; never held while one is waited for
	guards map[string]*openGuard
}

// openGuard is the open guard of one name, while someone holds or waits for it.
type openGuard struct {
	mu   sync.Mutex // held across the renames of one topic: that is its purpose
	uses int        // guarded by Store.mu
}

// New returns the store of a data directory, making `topics` and `staging` when
// they are missing, and clears what a killed process left: directories under
// staging that hold at most a marker, and quarantines that hold nothing, not even a
// marker, because the last step of their removal is missing.
func New(fsys vfs.FS, data string) (*Store, error) {
	s := &Store{fs: fsys, data: data, guards: map[string]*openGuard{}}
	for _, d := range []string{topicsDir, stagingDir} {
		if err := fsys.MkdirAll(path.Join(data, d)); err != nil {
			return nil, fmt.Errorf("make %s: %w", d, err)
		}
	}
	if err := fsys.SyncDir(data); err != nil {
		return nil, fmt.Errorf("sync %s: %w", data, err)
	}
	entries, err := fsys.ReadDir(path.Join(data, stagingDir))
	if err != nil {
		return nil, fmt.Errorf("list staging: %w", err)
	}
	for _, e := range entries {
		if err := s.clearStaged(path.Join(data, stagingDir, e.Name())); err != nil {
			return nil, err
		}
	}
	return s, s.clearEmptied()
}

// clearEmptied removes quarantines that are empty. Nobody could ask about them: what
// they belonged to went with the marker. Whatever cannot be looked at or is refused
// stays, for the inventory to show.
func (s *Store) clearEmptied() error {
	names, err := s.fs.ReadDir(path.Join(s.data, topicsDir))
	if err != nil {
		return fmt.Errorf("list topics: %w", err)
	}
	for _, n := range names {
		if classify(n.Name()).Kind == SetAside {
			_, _ = s.act(action{from: s.path(n.Name())})
		}
	}
	return nil
}

// clearStaged removes a staged directory that holds at most a marker; this
// package makes no other. It leaves one alone that has arrived under topics: on a
// disk that lost power in the middle of the rename both names may stand.
func (s *Store) clearStaged(dir string) error {
	entries, err := s.fs.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("clear staging: %w", err)
	}
	name, _, _ := strings.Cut(path.Base(dir), stagedInfix)
	staged, err := inspect(s.fs, dir)
	if err != nil {
		return fmt.Errorf("clear staging: %w", err)
	}
	arrived, err := inspect(s.fs, s.path(name))
	if err != nil {
		return fmt.Errorf("clear staging: %w", err)
	}
	if arrived.exists && arrived.id == staged.id || len(entries) > 1 || len(entries) == 1 && entries[0].Name() != markerName {
		return nil
	}
	if len(entries) == 1 {
		if err := s.fs.Remove(path.Join(dir, markerName)); err != nil {
			return fmt.Errorf("clear staging: %w", err)
		}
	}
	if err := s.fs.Remove(dir); err != nil {
		return fmt.Errorf("clear staging: %w", err)
	}
	return nil
}

// guard takes the open guard of a topic and returns what gives it back. Names
// that a disk may take for one have one guard.
func (s *Store) guard(name string) (release func()) {
	name = topic.FoldName(name)
	s.mu.Lock()
	g := s.guards[name]
	if g == nil {
		g = &openGuard{}
		s.guards[name] = g
	}
	g.uses++
	s.mu.Unlock()
	g.mu.Lock()
	return func() {
		g.mu.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		if g.uses--; g.uses == 0 {
			delete(s.guards, name)
		}
	}
}

// Request says which directory to open for whom.
type Request struct {
	Topic       string
	Incarnation topic.Incarnation // the live one, as the caller's replica has it
	// Judged and Verdict answer an earlier VerdictNeeded.
	Judged  topic.Incarnation
	Verdict Verdict
	// Dropped, when set, is called under the guard before a directory is set aside
	// and again right after, before a fresh one exists: what is kept in memory of
	// the old one has to go each time.
	Dropped func(old topic.Incarnation)
}

// Opened is an open topic directory.
type Opened struct {
	Path     string // of the directory, marked with the incarnation
	Created  bool   // it did not exist
	Restored bool   // it was moved back from quarantine
	// SetAside is the name under which another directory was set aside by this
	// call; "" when none was. It has to be reported when Unsure is set: it had no
	// valid marker, or the metastore could not tell, so only an operator may end it.
	SetAside string
	Unsure   bool
}

// Open finds or makes the directory of one incarnation of a topic. A directory
// of another incarnation under that name is *VerdictNeeded at first; with the
// verdict Gone or Unknown it is set aside and a fresh one is made, with Live the
// answer is ErrLive. One without a valid marker is set aside and reported.
// Errors of the file system leave things such that the call can be repeated.
func (s *Store) Open(req Request) (Opened, error) {
	if err := topic.ValidateName(req.Topic); err != nil {
		return Opened{}, err
	}
	if req.Incarnation == 0 {
		return Opened{}, fmt.Errorf("open the directory of topic %s: %w", req.Topic, ErrIncarnation)
	}
	defer s.guard(req.Topic)()
	out := Opened{Path: s.path(req.Topic)}
	at, err := inspect(s.fs, out.Path)
	if err != nil {
		return Opened{}, err
	}
	if at.other {
		return Opened{}, fmt.Errorf("open the directory of topic %s: %w", req.Topic, ErrNotDirectory)
	}
	if at.exists && at.id == req.Incarnation {
		// A killed process may have renamed without reaching the sync.
		if err := s.fs.SyncDir(path.Join(s.data, topicsDir)); err != nil {
			return Opened{}, fmt.Errorf("open the directory of topic %s: %w", req.Topic, err)
		}
		return out, nil
	}
	if at.exists {
		if err := s.replace(&req, at.id, &out); err != nil {
			return Opened{}, err
		}
	}
	return out, s.fill(&req, &out)
}

// replace sets aside what is not the caller's.
func (s *Store) replace(req *Request, old topic.Incarnation, out *Opened) error {
	if old != 0 {
		switch {
		case req.Judged != old:
			return &VerdictNeeded{req.Topic, old}
		case req.Verdict == Live:
			return fmt.Errorf("open the directory of topic %s for incarnation %s: %w: %s", req.Topic, req.Incarnation, ErrLive, old)
		}
	}
	name, err := s.setAside(req.Topic, old, req.Verdict, req.Dropped)
	if err != nil {
		return err
	}
	out.SetAside, out.Unsure = name, old == 0 || req.Verdict == Unknown
	return nil
}

// fill puts a directory where none is: the incarnation's own from quarantine, or
// a fresh one.
func (s *Store) fill(req *Request, out *Opened) error {
	own, err := s.quarantined(req.Topic, req.Incarnation)
	if err != nil {
		return fmt.Errorf("open the directory of topic %s: %w", req.Topic, err)
	}
	if own != "" {
		if _, err := s.act(action{from: s.path(own), to: out.Path, id: req.Incarnation}); err != nil {
			return fmt.Errorf("move %s back: %w", own, err)
		}
		out.Restored = true
		return nil
	}
	staged := path.Join(s.data, stagingDir, req.Topic+stagedInfix+req.Incarnation.String())
	err = s.clearStaged(staged)
	if err == nil {
		err = s.fs.MkdirAll(staged)
	}
	if err == nil {
		err = writeMarker(s.fs, staged, req.Incarnation)
	}
	if err == nil {
		_, err = s.act(action{from: staged, to: out.Path, id: req.Incarnation})
	}
	if err != nil {
		return fmt.Errorf("make the directory of topic %s: %w", req.Topic, err)
	}
	out.Created = true
	return nil
}

// quarantined returns the name of the directory set aside that carries an
// incarnation, by its marker; "" when there is none.
func (s *Store) quarantined(name string, id topic.Incarnation) (string, error) {
	entries, err := s.fs.ReadDir(path.Join(s.data, topicsDir))
	if err != nil {
		return "", err
	}
	own := ""
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), name+staleInfix) {
			continue
		}
		at, err := inspect(s.fs, s.path(e.Name()))
		switch {
		case err != nil:
			return "", err
		case at.id != id:
		case own != "":
			return "", fmt.Errorf("%w: %s and %s", ErrAmbiguous, own, e.Name())
		default:
			own = e.Name()
		}
	}
	return own, nil
}

// freeName is a name for a directory that is set aside.
func (s *Store) freeName(name string, id topic.Incarnation) (string, error) {
	for n := range maxAside {
		try := asideName(name, id, n)
		switch _, err := s.fs.Lstat(s.path(try)); {
		case errors.Is(err, fs.ErrNotExist):
			return try, nil
		case err != nil:
			return "", err
		}
	}
	return "", fmt.Errorf("%w: %s", errNoFreeName, asideName(name, id, 0))
}

func (s *Store) path(name string) string { return path.Join(s.data, topicsDir, name) }

// PartitionDir is the directory of one partition copy within an opened one.
func PartitionDir(opened string, partition int32) string {
	return path.Join(opened, fmt.Sprintf("p%05d", partition))
}
