// Command metastore-voter is a Raft voter of a Narad cluster's metadata.
package main

import (
	"context"
	"errors"
	"log/slog"

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
		},
		Run: run,
	})
}

func run(ctx context.Context, c *cli.Context, common proc.Common, log *slog.Logger) (err error) {
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
