package testkit

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// Journal is a log that a test reads while it is written. The zero value is empty. Safe
// for concurrent use.
type Journal struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

// Write implements io.Writer.
func (j *Journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// String is what was written so far, or since Take.
func (j *Journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// Take gives what was written since the last time.
func (j *Journal) Take() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.text.Reset()
	return j.text.String()
}

// Count is how often text stands in String.
func (j *Journal) Count(text string) int { return strings.Count(j.String(), text) }

// Logger writes into it, one line for each record.
func (j *Journal) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(j, nil)) }
