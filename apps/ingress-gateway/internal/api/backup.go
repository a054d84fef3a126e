package api

import (
	"context"
	"io"
)

// typeBackup is the format of package backup.
const typeBackup = "application/vnd.narad.backup"

// backup: GET /v1/cluster/backup. It is streamed: it may be larger than what a
// gateway wants to hold.
func (c *call) backup() error {
	ctx, cancel := c.within(BackupBudget)
	stream, err := c.api.deps.Cluster.Backup(ctx)
	if err != nil {
		cancel()
		return err
	}
	c.out = c.out[:0]
	c.resp.Status, c.resp.ContentType = 200, typeBackup
	c.resp.Stream, c.resp.Length = &bounded{stream, cancel}, stream.Size
	return nil
}

// bounded is a stream that ends with its context.
type bounded struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close implements io.Closer. It may be called again.
func (b *bounded) Close() error {
	b.cancel()
	return b.ReadCloser.Close()
}
