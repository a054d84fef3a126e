// Command storage-node keeps, leases and replays the messages of a Narad cluster.
package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/apps/storage-node/internal/daemon"
	"github.com/narad-mq/narad/libs/ops"
	"github.com/narad-mq/narad/libs/proc"
)

func main() {
	proc.Main(proc.Program{
		Name:  "storage-node",
		Usage: "keep the partition logs of a Narad cluster and serve them to gateways",
		Flags: []cli.Flag{&cli.BoolFlag{
			Name: "topic-metrics", Value: true, EnvVars: proc.EnvVar("topic-metrics"),
			Usage: "serve series per topic at /metrics/topics of the operator port",
		}},
		Run: run,
	})
}

func run(ctx context.Context, c *cli.Context, common proc.Common, log *slog.Logger) (err error) {
	cfg, err := daemon.Configure(common)
	if err != nil {
		return err
	}
	registry := ops.NewRegistry()
	port, err := ops.Start(common.OpsAddr, ops.Identity{NodeID: common.NodeID, Role: "storage-node", Release: proc.Release}, registry, ops.WithProfiles(common.Pprof))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, port.Close()) }()
	d, err := daemon.New(cfg, log, registry)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	port.SetSource(d.Source(c.Bool("topic-metrics")))
	return d.Run(ctx)
}
