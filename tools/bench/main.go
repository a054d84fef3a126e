package main

import (
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"
)

func main() {
	app := &cli.App{
		Name: "bench", Usage: "measure a Narad cluster and the floor below it", HideHelpCommand: true,
		Commands: []*cli.Command{
			{Name: "run", Usage: "measure a running cluster", Flags: runFlags(), Action: runAction},
			{Name: "dev", Usage: "start `narad dev` and the floors, and measure all", Flags: runFlags(), Action: devAction},
			{Name: "floor", Usage: "serve the floor", Flags: []cli.Flag{
				&cli.StringFlag{Name: "kind", Value: floorNetHTTP, Usage: "nethttp or fasthttp"},
				&cli.StringFlag{Name: "file", Required: true, Usage: "`file` to append to"},
			}, Action: floorAction},
		},
	}
	if err := app.Run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func runFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "server", Value: cli.NewStringSlice("http://127.0.0.1:7942"), Usage: "base `URL` of a gateway"},
		&cli.StringFlag{Name: "endpoints", Usage: "endpoints.json `file` of narad dev, for processor time and memory of each program"},
		&cli.IntFlag{Name: "seconds", Value: 5, Usage: "length of each phase"},
		&cli.IntFlag{Name: "connections", Value: 64, Usage: "connections of the single-message phases"},
		&cli.IntFlag{Name: "size", Value: 256, Usage: "payload bytes"},
		&cli.StringFlag{Name: "json", Usage: "write the figures to this `file` too"},
		&cli.BoolFlag{Name: "replicated", Usage: "compare one copy with three, accepted with committed; needs three storage nodes, which dev starts"},
		&cli.StringFlag{Name: "only", Usage: "run only phases whose name contains this"},
	}
}

func settingsOf(c *cli.Context) settings {
	return settings{
		servers: c.StringSlice("server"), endpoints: c.String("endpoints"), connections: c.Int("connections"), size: c.Int("size"),
		length: time.Duration(min(max(c.Int("seconds"), 1), maxSeconds)) * time.Second, only: c.String("only"), replicated: c.Bool("replicated"),
	}
}

func runAction(c *cli.Context) error {
	r, err := measure(settingsOf(c), nil)
	if err != nil {
		return err
	}
	return r.print(os.Stdout, c.String("json"))
}
