package gossip

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"time"
)

// logAgainAfter is how long memberlist's warnings and errors stay silent after one
// was logged: a lost peer, or a stranger who sends garbage, makes many a second.
const logAgainAfter = 30 * time.Second

// logWriter takes what memberlist logs, one call per line: "[ERR] memberlist: ...".
type logWriter struct {
	log *slog.Logger
	now func() time.Time

	mu         sync.Mutex // guards what follows
	at         time.Time  // when a warning or error was logged last
	suppressed int        // since then
}

// Write implements io.Writer. Nothing that memberlist meets ends a program or
// needs an operator at once, so its errors are warnings here.
func (w *logWriter) Write(p []byte) (int, error) {
	line := bytes.TrimSpace(p)
	level := slog.LevelDebug
	if bytes.HasPrefix(line, []byte("[WARN]")) || bytes.HasPrefix(line, []byte("[ERR]")) {
		level = slog.LevelWarn
	}
	if bytes.Contains(line, []byte(errNoMember.Error())) {
		level = slog.LevelDebug // each joiner, until its registration has come here
	}
	if _, text, ok := bytes.Cut(line, []byte("memberlist: ")); ok {
		line = text
	}
	kept := 0
	if level == slog.LevelWarn {
		var ok bool
		if ok, kept = w.admit(); !ok {
			return len(p), nil
		}
	}
	w.log.Log(context.Background(), level, "gossip: "+string(line), "suppressed", kept)
	return len(p), nil
}

// admit tells whether to log a warning now, and how many were kept back before.
func (w *logWriter) admit() (ok bool, kept int) {
	now := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.at.IsZero() && now.Sub(w.at) < logAgainAfter {
		w.suppressed++
		return false, 0
	}
	kept = w.suppressed
	w.at, w.suppressed = now, 0
	return true, kept
}
