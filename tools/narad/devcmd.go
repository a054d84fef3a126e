package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/tools/narad/dev"
)

func devCommand() *cli.Command {
	return &cli.Command{
		Name: "dev", Usage: "run a whole cluster on this machine until Ctrl-C",
		Description: "Every node is a process of its own on loopback. Steer it by files under <data-dir>/run: " +
			"<node-id>.pid and endpoints.json tell the processes; touch <node-id>.hold to keep a node down after it died.",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "voters", Value: 1, Usage: "metastore voters: 1, 3 or 5"},
			&cli.IntFlag{Name: "storage-nodes", Value: 1, Usage: "storage nodes"},
			&cli.IntFlag{Name: "gateways", Value: 1, Usage: "ingress gateways"},
			&cli.IntFlag{Name: "base-port", Value: 7942, Usage: "client `port` of the first gateway; all other ports lie within the 60 from there"},
			&cli.StringFlag{Name: "data-dir", Usage: "`directory` for all nodes (default: a temporary one, removed at the end)"},
			&cli.StringFlag{Name: "ready-file", Usage: "`file` that is written once every node is ready and every voter has its vote"},
			&cli.BoolFlag{Name: "tls", Usage: "let the nodes speak mutual TLS with each other; certificates are made under <data-dir>/certs (the client port stays plain HTTP)"},
			&cli.BoolFlag{Name: "no-gossip", Usage: "start every node without gossip: dead nodes are then avoided once the metastore says so"},
			&cli.StringFlag{Name: "nats-url", Usage: "`URL` of the NATS server that the nodes use as a bus (default: one inside this process)"},
			&cli.StringFlag{Name: "log-level", Value: "info", Usage: "of the nodes: debug, info, warn or error"},
		},
		Action: devAction,
	}
}

func devAction(c *cli.Context) (err error) {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	dir, ran := c.String("data-dir"), false
	if dir == "" {
		if dir, err = os.MkdirTemp("", "narad-dev-"); err != nil {
			return fmt.Errorf("make a data directory: %w", err)
		}
		defer func() {
			if err == nil || !ran {
				err = errors.Join(err, os.RemoveAll(dir))
			} else {
				err = fmt.Errorf("%w (data and logs are kept in %s)", err, dir)
			}
		}()
	}
	cluster, err := dev.New(dev.Config{
		Size:     dev.Size{Voters: c.Int("voters"), StorageNodes: c.Int("storage-nodes"), Gateways: c.Int("gateways")},
		BasePort: c.Int("base-port"), DataDir: dir, ReadyFile: c.String("ready-file"), LogLevel: c.String("log-level"), TLS: c.Bool("tls"), NoGossip: c.Bool("no-gossip"), NATSURL: c.String("nats-url"),
		Log: c.App.ErrWriter,
	})
	if errors.Is(err, dev.ErrConfig) {
		return proc.Usagef("%v", err)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "starting %d voters, %d storage nodes, %d gateways; data and logs in %s\n",
		c.Int("voters"), c.Int("storage-nodes"), c.Int("gateways"), dir)
	ran = true
	return runDev(c, cluster)
}

// runDev runs until the first signal, and kills at the second.
func runDev(c *cli.Context, cluster *dev.Cluster) error {
	done := make(chan struct{})
	defer close(done)
	context.AfterFunc(c.Context, func() {
		again := make(chan os.Signal, 1)
		signal.Notify(again, os.Interrupt, syscall.SIGTERM)
		defer signal.Stop(again)
		fmt.Fprintln(c.App.ErrWriter, "stopping; once more to kill")
		select {
		case <-again:
			cluster.Kill()
		case <-done:
		}
	})
	return cluster.Run(c.Context, func() { printReady(c, cluster.URLs()) })
}

func printReady(c *cli.Context, urls []string) {
	if len(urls) == 0 {
		fmt.Fprintln(c.App.Writer, "ready, without a gateway")
		return
	}
	fmt.Fprintf(c.App.Writer, `
Narad is ready at %[1]s. Try:

  curl -X POST %[1]s/v1/topics -d '{"name":"orders"}'
  curl -X POST %[1]s/v1/topics/orders/produce -d 'hello'
  curl -X POST '%[1]s/v1/topics/orders/consume?wait=5s'

Ctrl-C stops it.
`, urls[0])
}
