package raftnode

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
)

// slogAdapter lets Raft log through log/slog; warnings and errors are damped.
type slogAdapter struct {
	log  *slog.Logger
	damp *damper // shared by all that come from one
	name string
	args []any
}

var _ hclog.Logger = (*slogAdapter)(nil)

func newHCLog(l *slog.Logger) hclog.Logger { return newHCLogAt(l, time.Now) }

func newHCLogAt(l *slog.Logger, now func() time.Time) hclog.Logger {
	return &slogAdapter{log: l.With("component", "raft"), damp: newDamper(now), name: "raft"}
}

func slogLevel(l hclog.Level) slog.Level {
	switch l {
	case hclog.Info:
		return slog.LevelInfo
	case hclog.Warn:
		return slog.LevelWarn
	case hclog.Error:
		return slog.LevelError
	}
	return slog.LevelDebug
}

// Log implements hclog.Logger.
func (a *slogAdapter) Log(level hclog.Level, msg string, args ...any) {
	level = calm(level, msg, args)
	at := slogLevel(level)
	if !a.log.Enabled(context.Background(), at) {
		return
	}
	ok, suppressed := a.damp.admit(level, msg, args)
	if !ok {
		return
	}
	if suppressed > 0 {
		args = append(args[:len(args):len(args)], "suppressed", suppressed)
	}
	for i, v := range args {
		if f, ok := v.(hclog.Format); ok && len(f) > 0 {
			args[i] = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
	}
	a.log.Log(context.Background(), at, msg, args...)
}

// Trace implements hclog.Logger.
func (a *slogAdapter) Trace(msg string, args ...any) { a.Log(hclog.Trace, msg, args...) }

// Debug implements hclog.Logger.
func (a *slogAdapter) Debug(msg string, args ...any) { a.Log(hclog.Debug, msg, args...) }

// Info implements hclog.Logger.
func (a *slogAdapter) Info(msg string, args ...any) { a.Log(hclog.Info, msg, args...) }

// Warn implements hclog.Logger.
func (a *slogAdapter) Warn(msg string, args ...any) { a.Log(hclog.Warn, msg, args...) }

// Error implements hclog.Logger.
func (a *slogAdapter) Error(msg string, args ...any) { a.Log(hclog.Error, msg, args...) }

func (a *slogAdapter) enabled(l hclog.Level) bool {
	return a.log.Enabled(context.Background(), slogLevel(l))
}

// IsTrace implements hclog.Logger.
func (a *slogAdapter) IsTrace() bool { return false }

// IsDebug implements hclog.Logger.
func (a *slogAdapter) IsDebug() bool { return a.enabled(hclog.Debug) }

// IsInfo implements hclog.Logger.
func (a *slogAdapter) IsInfo() bool { return a.enabled(hclog.Info) }

// IsWarn implements hclog.Logger.
func (a *slogAdapter) IsWarn() bool { return a.enabled(hclog.Warn) }

// IsError implements hclog.Logger.
func (a *slogAdapter) IsError() bool { return a.enabled(hclog.Error) }

// ImpliedArgs implements hclog.Logger.
func (a *slogAdapter) ImpliedArgs() []any { return a.args }

// With implements hclog.Logger.
func (a *slogAdapter) With(args ...any) hclog.Logger {
	return &slogAdapter{log: a.log.With(args...), damp: a.damp, name: a.name, args: append(append([]any(nil), a.args...), args...)}
}

// Name implements hclog.Logger.
func (a *slogAdapter) Name() string { return a.name }

// Named implements hclog.Logger.
func (a *slogAdapter) Named(name string) hclog.Logger { return a.ResetNamed(a.name + "." + name) }

// ResetNamed implements hclog.Logger.
func (a *slogAdapter) ResetNamed(name string) hclog.Logger {
	return &slogAdapter{log: a.log, damp: a.damp, name: name, args: a.args}
}

// SetLevel implements hclog.Logger; the level is the slog handler's.
func (a *slogAdapter) SetLevel(hclog.Level) {}

// GetLevel implements hclog.Logger.
func (a *slogAdapter) GetLevel() hclog.Level {
	switch {
	case a.IsDebug():
		return hclog.Debug
	case a.IsInfo():
		return hclog.Info
	case a.IsWarn():
		return hclog.Warn
	}
	return hclog.Error
}

// StandardLogger implements hclog.Logger.
func (a *slogAdapter) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return log.New(lineWriter{a}, "", 0)
}

// StandardWriter implements hclog.Logger.
func (a *slogAdapter) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return lineWriter{a} }

// lineWriter logs what is written, at info.
type lineWriter struct{ a *slogAdapter }

// Write implements io.Writer.
func (w lineWriter) Write(p []byte) (int, error) {
	w.a.Info(strings.TrimSpace(string(bytes.ToValidUTF8(p, nil))))
	return len(p), nil
}
