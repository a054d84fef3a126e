// Command purge-sweeper looks for what missed purges left on storage nodes.
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

func main() {
	proc.MainTask(proc.Task{
		Name:  "purge-sweeper",
		Usage: "list what storage nodes keep of topics, and what of it is gone",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "dry-run", EnvVars: proc.EnvVar("dry-run"), Usage: "list and judge, reclaim nothing; required in this release, which cannot reclaim"},
			&cli.BoolFlag{Name: "json", EnvVars: proc.EnvVar("json"), Usage: "print one JSON document in place of tables"},
			&cli.DurationFlag{Name: "timeout", Value: sweeper.DefaultTimeout, EnvVars: proc.EnvVar("timeout"), Usage: "end the pass after this `time`; what was not reached counts as undecided"},
			&cli.BoolFlag{Name: "yes", EnvVars: proc.EnvVar("yes"), Usage: "let a pass take unusually much (accepted, not used in this release)"},
		},
		Run: run,
	})
}

func run(ctx context.Context, c *cli.Context, out io.Writer, log *slog.Logger) error {
	plane, err := tlsconf.Load(tlsconf.Config{Files: proc.TLSFiles(c), Plane: "nodes", Log: log})
	if err != nil {
		return proc.Usagef("TLS between nodes: %v", err)
	}
	s, err := sweeper.New(sweeper.Config{
		Join: c.StringSlice("join"), DryRun: c.Bool("dry-run"), JSON: c.Bool("json"), Timeout: c.Duration("timeout"),
	}, sweeper.Deps{Out: out, Log: log, Dial: plane.Dial(rpc.Dial)})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}
