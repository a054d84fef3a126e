package dev

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

const (
	fileMode = 0o600
	dirMode  = 0o700
	// tailBytes of a log are looked at for its last line.
	tailBytes = 4096
)

// endpoint is one line of endpoints.json. pid is 0 while the node is down.
type endpoint struct {
	ID   string  `json:"id"`
	Role string  `json:"role"`
	PID  int     `json:"pid"`
	HTTP *string `json:"http"`
	RPC  *string `json:"rpc"`
	Raft *string `json:"raft"`
	Ops  *string `json:"ops"`
}

// made is dev.json: what cannot change between two runs over the same data, because
// the voters' Raft configuration has it.
type made struct {
	BasePort int `json:"base_port"`
	Voters   int `json:"voters"`
}

// claim makes the directories and checks that an earlier run over the same data was
// of the same shape.
func claim(dataDir string, want made) error {
	if err := os.MkdirAll(filepath.Join(dataDir, "run"), dirMode); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	path := filepath.Join(dataDir, "dev.json")
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return writeJSON(path, want)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	var have made
	if err := json.Unmarshal(raw, &have); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if have != want {
		return fmt.Errorf("%s was made with --base-port %d --voters %d: start it with these, or use another --data-dir",
			dataDir, have.BasePort, have.Voters)
	}
	return nil
}

func writeJSON(path string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return replace(path, append(raw, '\n'))
}

// replace writes a file that is seen whole or not at all.
func replace(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Close()) // CreateTemp makes it 0600
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}

// remove is os.Remove for a file that need not be there.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// exists takes a file that cannot be looked at as there: a hold must not be passed by mistake.
func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// lastLine of a log, for the message about a process that died. Empty when there is none.
func lastLine(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if end, err := f.Seek(0, io.SeekEnd); err != nil || end == 0 {
		return ""
	} else if _, err := f.Seek(max(end-tailBytes, 0), io.SeekStart); err != nil {
		return ""
	}
	raw, err := io.ReadAll(f)
	if err != nil {
		return ""
	}
	text := strings.TrimSpace(string(raw))
	return text[strings.LastIndexByte(text, '\n')+1:]
}
