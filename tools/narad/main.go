// Command narad is the command line of the broker: topics, messages, the cluster's
// state, and `narad dev`, a whole cluster on one machine.
//
// It is built on libs/client only: everything it does, a program can do. It prints
// tables for people; --json prints the API's JSON as it came, one object per line
// where there are many and none where the API answers without a body. Flags may stand
// before or after arguments. Exit status: 0, 1 (failed), 2 (usage). An error says what
// to do next.
//
// TestCommands walks through it against a gateway in memory.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/proc"
)

func main() {
	// A second signal ends the process at once: stop is called after the first.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args, streams{os.Stdin, os.Stdout, os.Stderr}))
}

// streams are where a command reads and writes.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// run executes one command line and returns the exit status.
func run(ctx context.Context, args []string, s streams) int {
	app := newApp(s)
	args, err := permute(app, args)
	if err == nil {
		err = app.RunContext(ctx, args)
	}
	if err == nil {
		return 0
	}
	fmt.Fprintf(s.err, "narad: %s\n", strings.TrimPrefix(err.Error(), proc.ErrUsage.Error()+": "))
	if hint := nextStep(err); hint != "" {
		fmt.Fprintf(s.err, "  %s\n", hint)
	}
	if errors.Is(err, proc.ErrUsage) {
		return proc.ExitUsage
	}
	return proc.ExitFailed
}

func newApp(s streams) *cli.App {
	app := &cli.App{
		Name:        "narad",
		Usage:       "talk to a Narad broker, or run one on this machine",
		Description: "Start with `narad dev`, then in another terminal: narad topic add orders; narad pub orders hello; narad sub orders --count 1",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "server", Aliases: []string{"s"}, EnvVars: []string{"NARAD_URL"}, Usage: "gateway `url`, or several with commas (default: the selected context, else http://127.0.0.1:7942)"},
			&cli.BoolFlag{Name: "json", Usage: "print the API's JSON, one object per line"},
		},
		Commands: []*cli.Command{
			topicCommand(), childrenCommand(), pubCommand(), subCommand(), replayCommand(), clusterCommand(),
			ctxCommand(), devCommand(), certsCommand(), versionCommand(), completionCommand(),
		},
		EnableBashCompletion: true,
		HideVersion:          true,
		HideHelpCommand:      true,
		Reader:               s.in, Writer: s.out, ErrWriter: s.err,
		ExitErrHandler: func(*cli.Context, error) {}, // run prints, once
	}
	app.OnUsageError = usageError
	hardenCommands(app.Commands)
	return app
}

// hardenCommands makes every command report usage errors alike.
func hardenCommands(cmds []*cli.Command) {
	for _, c := range cmds {
		c.OnUsageError = usageError
		c.HideHelpCommand = true
		hardenCommands(c.Subcommands)
	}
}

func usageError(_ *cli.Context, err error, _ bool) error { return proc.Usagef("%v", err) }

// wantArgs checks the number of positional arguments; names are for the message.
func wantArgs(c *cli.Context, least, most int) error {
	if n := c.NArg(); n < least || n > most {
		args := c.Command.ArgsUsage
		if args == "" {
			args = "no argument"
		}
		return proc.Usagef("%s wants %s, got %d argument(s); see %[1]s --help", c.Command.HelpName, args, n)
	}
	return nil
}
