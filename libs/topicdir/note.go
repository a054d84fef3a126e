package topicdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"github.com/narad-mq/narad/libs/vfs"
)

// Note says, in a copy that was set aside, since when and why.
type Note struct {
	SinceMS int64  `json:"since_ms"` // Unix ms
	Reason  string `json:"reason"`   // for people
}

// noteName is the file in the copy's directory, JSON. maxNote bounds what is read of
// it: reasons are one line.
const (
	noteName = "set-aside.json"
	maxNote  = 4096
)

// writeNote makes the note durable before the copy is renamed; one of an interrupted
// call is replaced.
func writeNote(fsys vfs.FS, dir string, n Note) error {
	b, err := json.Marshal(n)
	if err != nil {
		return err
	}
	at := path.Join(dir, noteName)
	if err := fsys.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := fsys.Create(at)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(b, 0); err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// readNote reads the note of a copy; the zero one when there is none that can be read
// as such.
func readNote(fsys vfs.FS, dir string) (n Note, err error) {
	f, err := fsys.OpenRead(path.Join(dir, noteName))
	if errors.Is(err, fs.ErrNotExist) {
		return Note{}, nil
	}
	if err != nil {
		return Note{}, fmt.Errorf("read the note in %s: %w", dir, err)
	}
	b := make([]byte, maxNote)
	got, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return Note{}, errors.Join(fmt.Errorf("read the note in %s: %w", dir, err), f.Close())
	}
	if json.Unmarshal(b[:got], &n) != nil {
		n = Note{}
	}
	return n, f.Close()
}
