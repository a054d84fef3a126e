package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/backup"
	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/vfs"
)

// backupTimeout is above what a gateway allows itself.
const backupTimeout = 15 * time.Minute

// clusterBackup writes a backup beside FILE, reads it back whole, and gives it the
// name only then: a file of that name is a backup.
func clusterBackup(c *cli.Context) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	path := c.Args().First()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("back up to %s: it exists already, or cannot be looked at (%v)", path, err)
	}
	cl, err := connect(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(c.Context, backupTimeout)
	defer cancel()
	head, err := fetchBackup(ctx, cl, path)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		doc, err := json.Marshal(head)
		if err != nil {
			return fmt.Errorf("show the header: %w", err)
		}
		return printJSON(c.App.Writer, doc)
	}
	_, err = fmt.Fprintf(c.App.Writer, "%s: cluster %s at entry %d of term %d, taken at %s by %s: %d topics, %d partitions, %d members. It has no messages.\n",
		path, head.ClusterID, head.AppliedIndex, head.Term, head.TakenAt, head.TakenBy, head.Counts.Topics, head.Counts.Assignments, head.Counts.Members)
	return err
}

func fetchBackup(ctx context.Context, cl *client.Client, path string) (head backup.Header, err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".partial-*")
	if err != nil {
		return head, fmt.Errorf("back up to %s: %w", path, err)
	}
	defer func() {
		if closed := tmp.Close(); err == nil {
			err = closed
		}
		if err == nil {
			err = os.Link(tmp.Name(), path) // unlike a rename it replaces nothing
		}
		err = errors.Join(err, os.Remove(tmp.Name()))
		if err == nil {
			err = vfs.OS().SyncDir(filepath.Dir(path))
		}
	}()
	if _, err := cl.Backup(ctx, tmp); err != nil {
		return head, err
	}
	if err := tmp.Sync(); err != nil {
		return head, fmt.Errorf("back up to %s: %w", path, err)
	}
	if _, err := tmp.Seek(0, io.SeekStart); err != nil {
		return head, fmt.Errorf("back up to %s: %w", path, err)
	}
	if head, err = backup.Verify(tmp); err != nil {
		return head, fmt.Errorf("back up to %s: what came is not whole: %w", path, err)
	}
	return head, nil
}
