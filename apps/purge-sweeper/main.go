// Command purge-sweeper finds what missed purges left, and has it reclaimed.
package main

import (
	"context"
	"io"
	"log/slog"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/apps/purge-sweeper/sweeper"
	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/tlsconf"
)

func main() { proc.MainTask(task()) }

// task is this program's flags and work.
func task() proc.Task {
	return proc.Task{
		Name:  "purge-sweeper",
		Usage: "find what nodes keep of deleted topics, and have them reclaim it",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "dry-run", EnvVars: proc.EnvVar("dry-run"), Usage: "list and judge; reclaim, tell and forget nothing"},
			&cli.BoolFlag{Name: "json", EnvVars: proc.EnvVar("json"), Usage: "print one JSON document in place of tables"},
			&cli.DurationFlag{Name: "timeout", Value: sweeper.DefaultTimeout, EnvVars: proc.EnvVar("timeout"), Usage: "end the pass after this `time`; what was not reached counts as undecided"},
			&cli.BoolFlag{Name: "yes", EnvVars: proc.EnvVar("yes"), Usage: "let a pass take more than 100 directories of a node when they are more than a tenth of what it has"},
		},
		Run: run,
	}
}

func run(ctx context.Context, c *cli.Context, out io.Writer, log *slog.Logger) error {
	plane, err := tlsconf.Load(tlsconf.Config{Files: proc.TLSFiles(c), Plane: "nodes", Log: log})
	if err != nil {
		return proc.Usagef("TLS between nodes: %v", err)
	}
	s, err := sweeper.New(sweeper.Config{
		Join: c.StringSlice("join"), DryRun: c.Bool("dry-run"), Yes: c.Bool("yes"), JSON: c.Bool("json"), Timeout: c.Duration("timeout"),
		Bus: proc.BusSettings(c),
	}, sweeper.Deps{Out: out, Log: log, Dial: plane.Dial(rpc.Dial)})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}
