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
		Run:   run,
	})
}

func run(ctx context.Context, _ *cli.Context, common proc.Common, log *slog.Logger) (err error) {
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
	port.SetSource(d.Source())
	return d.Run(ctx)
}
