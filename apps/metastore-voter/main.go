// Command metastore-voter is a Raft voter of a Narad cluster's metadata.
package main

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/apps/metastore-voter/voter"
	"github.com/narad-mq/narad/libs/ops"
	"github.com/narad-mq/narad/libs/proc"
)

func main() {
	proc.Main(proc.Program{
		Name:  "metastore-voter",
		Usage: "keep and replicate the metadata of a Narad cluster",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{
				Name: "initial-members", EnvVars: proc.EnvVar("initial-members"),
				Usage: "the voters that form the cluster together, as `id=host:raftport`, separated by commas; needs --join",
			},
			&cli.BoolFlag{Name: "single", EnvVars: proc.EnvVar("single"), Usage: "form a cluster of this voter alone"},
			&cli.StringFlag{Name: "recover", Usage: "make --data-dir that of a cluster's only voter, from the copy of any member's data `directory`, and exit; see the README"},
			&cli.BoolFlag{Name: "dry-run", Usage: "with --recover: only say what the copy has and what would be done"},
			&cli.StringFlag{Name: "confirm", Usage: "with --recover: the `term/entry` that it said"},
			&cli.StringFlag{Name: "restore", Usage: "make --data-dir that of a cluster's only voter, from a backup `file`, and exit"},
		},
		Run: run,
	})
}

func run(ctx context.Context, c *cli.Context, common proc.Common, log *slog.Logger) (err error) {
	found := voter.FoundSettings{Recover: c.String("recover"), Restore: c.String("restore"), DryRun: c.Bool("dry-run"), Confirm: c.String("confirm")}
	if found.Wanted() {
		return voter.FoundCluster(common, found, os.Stdout)
	}
	cfg, err := voter.Configure(common, voter.Settings{InitialMembers: c.StringSlice("initial-members"), Single: c.Bool("single")})
	if err != nil {
		return err
	}
	registry := ops.NewRegistry()
	port, err := ops.Start(common.OpsAddr, ops.Identity{NodeID: common.NodeID, Role: "metastore-voter", Release: proc.Release}, registry, ops.WithProfiles(common.Pprof))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, port.Close()) }()
	v, err := voter.New(cfg, voter.Deps{Log: log, Registry: registry})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	port.SetSource(v.Source())
	return v.Run(ctx)
}
