package partlog

import (
	"errors"
	"testing"

	"github.com/narad-mq/narad/libs/vfs"
)

// A closed log touches no path any more: another life of the topic may have its
// directory there. And it never says that a record is missing.
func TestAClosedLogTouchesNothing(t *testing.T) {
	mem := newFS(t)
	closed := false
	l := lead(t, vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
		if closed {
			t.Errorf("%s %s after Close", op.Kind, op.Path)
		}
		return vfs.Fault{}
	}), Options{SegmentBytes: 4 << 10})
	for i := range uint64(20) {
		app(t, l, batch(t, streamOf(1), i*10+1, 10, 100), 1000)
	}
	end := syncLog(t, l)
	save(t, l, end, true)
	st, _ := l.State()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	closed = true
	for what, err := range map[string]error{
		"read":        func() error { _, err := l.Read(5, end, 1000, nil); return err }(),
		"read of end": func() error { _, err := l.Read(end, end, 1000, nil); return err }(),
		"save":        l.SaveState(st, true),
		"append":      func() error { _, err := l.Append(batch(t, streamOf(1), 900, 1, 10), l.LastEpoch(), 1); return err }(),
		"sync":        func() error { _, err := l.Sync(); return err }(),
		"begin":       l.BeginEpoch(99, end),
		"follow":      l.BeginFollow(99),
		"copy":        func() error { _, err := l.AppendCopied(nil, end, 0); return err }(),
		"export":      func() error { _, _, err := l.ExportStart(); return err }(),
		"truncate":    l.Truncate(end),
		"retain":      func() error { _, err := l.Retain(1<<40, 1, 1, end); return err }(),
	} {
		if !errors.Is(err, ErrClosed) || errors.Is(err, ErrGone) || errors.Is(err, ErrFailed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := errors.Join(l.ReleaseFiles(), l.Close()); err != nil {
		t.Error(err)
	}
}

// A read that is on its way while the log is closed and its directory given to
// somebody else answers closed, neither missing nor the other's bytes.
func TestAReadThatOutlivesTheLogSaysClosed(t *testing.T) {
	mem := newFS(t)
	armed, at := false, make(chan struct{})
	var l *Log
	l = lead(t, vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
		if armed && (op.Kind == vfs.OpOpen || op.Kind == vfs.OpRead) {
			armed = false
			close(at)
			if err := errors.Join(l.Close(), mem.Rename("data/topics/orders", "data/topics/old")); err != nil {
				t.Error(err)
			}
		}
		return vfs.Fault{}
	}), Options{SegmentBytes: 4 << 10})
	for i := range uint64(20) {
		app(t, l, batch(t, streamOf(1), i*10+1, 10, 100), 1000)
	}
	end := syncLog(t, l)
	if err := l.ReleaseFiles(); err != nil {
		t.Fatal(err)
	}
	armed = true
	if chunk, err := l.Read(5, end, 1000, nil); !errors.Is(err, ErrClosed) || len(chunk.Batches) != 0 {
		t.Errorf("%+v, %v", chunk, err)
	}
	<-at
}
