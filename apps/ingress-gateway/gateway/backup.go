package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/raftnode"
)

// Backup implements api.Cluster. It is of this gateway's own replica: that has
// everything, and costs the voters nothing.
func (c *cluster) Backup(ctx context.Context) (*api.BackupStream, error) { return c.backup(ctx) }

// backupOf opens backups of a node's replica.
func backupOf(n *raftnode.Node) func(context.Context) (*api.BackupStream, error) {
	return func(ctx context.Context) (*api.BackupStream, error) {
		b, err := n.Backup(ctx, proc.Release, time.Now())
		if err != nil {
			return nil, refusedBackup(err)
		}
		return &api.BackupStream{ReadCloser: b, Size: b.Size}, nil
	}
}

func refusedBackup(err error) error {
	switch {
	case errors.Is(err, raftnode.ErrNotCaughtUp):
		return problem.New(problem.NotReady, "this gateway's replica may lack what was committed last; with no leader in view, metastore-voter --recover reads a copy of its data directory")
	case errors.Is(err, raftnode.ErrBusy):
		return problem.New(problem.Overloaded, "%d backups are on their way already", raftnode.MaxBackups)
	}
	return err
}
