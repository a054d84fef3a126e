package raftnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/narad-mq/narad/libs/backup"
	"github.com/narad-mq/narad/libs/metastate"
)

// MaxBackups bounds the backups that stream from one node at once: while one does,
// the state file reuses no page, and grows.
const MaxBackups = 2

// ErrNotCaughtUp: this replica may lack what was committed before the call.
var ErrNotCaughtUp = errors.New("this replica has not caught up")

// Backup is the state of one moment as a stream. It must be closed.
type Backup struct {
	io.Reader
	Size   int64 // in bytes, of all that Read gives
	Header backup.Header
	close  func()
}

// Close implements io.Closer. It may be called before the end of the stream.
func (b *Backup) Close() error { b.close(); return nil }

// Backup opens a backup of this replica, which must have caught up: it has
// everything that was committed when Backup was called. It takes one page of
// memory at a time, whatever the size. It ends with an error when ctx does, or the node.
// ErrBusy: MaxBackups are under way; ErrNotCaughtUp.
func (n *Node) Backup(ctx context.Context, release string, now time.Time) (*Backup, error) {
	if ok, why := n.CaughtUp(); !ok {
		return nil, fmt.Errorf("back the metastore up: %w: %s", ErrNotCaughtUp, why)
	}
	if n.backups.Add(1) > MaxBackups {
		n.backups.Add(-1)
		return nil, fmt.Errorf("back the metastore up: %w", ErrBusy)
	}
	tx, err := n.stores.state.db.Load().Begin(false)
	if err != nil {
		n.backups.Add(-1)
		return nil, fmt.Errorf("back the metastore up: %w", err)
	}
	out, err := n.backupHead(stateTx{tx}, release, now)
	if err != nil {
		n.backups.Add(-1)
		return nil, errors.Join(err, tx.Rollback())
	}
	r, w := io.Pipe()
	stop := context.AfterFunc(ctx, func() { _ = w.CloseWithError(context.Cause(ctx)) })
	closing := context.AfterFunc(n.life, func() { _ = w.CloseWithError(ErrClosed) })
	n.tasks.Go(func() {
		defer n.backups.Add(-1)
		err := backup.Write(w, &out.Header, tx)
		stop()
		closing()
		_ = w.CloseWithError(errors.Join(err, tx.Rollback())) // nil ends the stream with io.EOF
	})
	// Closing the reader ends the writer, at its next page.
	out.Reader, out.close = r, func() { _ = r.Close() }
	return out, nil
}

func (n *Node) backupHead(tx stateTx, release string, now time.Time) (*Backup, error) {
	id, err := metastate.ReadClusterID(tx)
	if err != nil {
		return nil, fmt.Errorf("back the metastore up: %w", err)
	}
	newest, err := metastate.NewestApplied(tx)
	if err != nil {
		return nil, fmt.Errorf("back the metastore up: %w", err)
	}
	b := &Backup{Header: backup.Header{
		ClusterID: id, AppliedIndex: tx.applied(), Term: n.Stats().Term, TakenAt: now.UTC().Format(time.RFC3339), TakenBy: n.cfg.NodeID,
		Release: release, NewestEntryType: uint8(newest), Counts: metastate.Count(tx), StateBytes: tx.tx.Size(),
	}}
	b.Size, err = backup.Size(&b.Header)
	return b, err
}
