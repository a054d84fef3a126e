// Command ingress-gateway is the way in for the clients of a Narad cluster.
package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/apps/ingress-gateway/gateway"
	"github.com/narad-mq/narad/libs/ops"
	"github.com/narad-mq/narad/libs/proc"
)

func main() {
	proc.Main(proc.Program{
		Name: "ingress-gateway", Usage: "answer the clients of a Narad cluster", Flags: gateway.Flags(),
		StopTimeout: gateway.StopDeadline, Run: run,
	})
}

func run(ctx context.Context, c *cli.Context, common proc.Common, log *slog.Logger) (err error) {
	cfg, err := gateway.Configure(common, c)
	if err != nil {
		return err
	}
	registry := ops.NewRegistry()
	port, err := ops.Start(common.OpsAddr, ops.Identity{NodeID: common.NodeID, Role: "ingress-gateway", Release: proc.Release}, registry, ops.WithProfiles(common.Pprof))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, port.Close()) }()
	g, err := gateway.New(cfg, gateway.Deps{Log: log, Registry: registry})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	port.SetSource(g.Source())
	log.Warn("no users: everybody who reaches the client port may do everything", "address", g.Addr().String())
	return g.Run(ctx)
}
