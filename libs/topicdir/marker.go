package topicdir

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path"
	"syscall"

	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

const (
	markerName = "incarnation"
	markerSize = 26
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encodeMarker(id topic.Incarnation) []byte {
	digits := id.String()
	return fmt.Appendf(nil, "%s %08x\n", digits, crc32.Checksum([]byte(digits), castagnoli))
}

// parseMarker returns 0 for anything that encodeMarker did not write.
func parseMarker(b []byte) topic.Incarnation {
	if len(b) != markerSize {
		return 0
	}
	id, err := topic.ParseID64(string(b[:16]))
	if err != nil || string(encodeMarker(id)) != string(b) {
		return 0
	}
	return id
}

// found is what stands under a name.
type found struct {
	exists bool
	other  bool              // it is no directory: a file, or a link to wherever
	id     topic.Incarnation // 0: without a valid marker
}

// inspect looks at a directory. An error means that it could not look.
func inspect(fsys vfs.FS, dir string) (found, error) {
	info, err := fsys.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return found{}, nil
	}
	if err != nil {
		return found{}, fmt.Errorf("look at %s: %w", dir, err)
	}
	if !info.IsDir() {
		return found{exists: true, other: true}, nil
	}
	f, err := fsys.OpenRead(path.Join(dir, markerName))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EISDIR) {
		return found{exists: true}, nil
	}
	if err != nil {
		return found{}, fmt.Errorf("open the marker of %s: %w", dir, err)
	}
	// One byte more than a marker has, so that a longer file is seen to be none.
	b := make([]byte, markerSize+1)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return found{}, errors.Join(fmt.Errorf("read the marker of %s: %w", dir, err), f.Close())
	}
	return found{exists: true, id: parseMarker(b[:n])}, f.Close()
}

// writeMarker makes the marker in a new directory, durable with it.
func writeMarker(fsys vfs.FS, dir string, id topic.Incarnation) error {
	f, err := fsys.Create(path.Join(dir, markerName))
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(encodeMarker(id), 0); err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}
