package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
)

// StopTimeout is how long an ordered stop may take before the process ends
// anyway: half of the 30 s that Kubernetes grants by default.
const StopTimeout = 15 * time.Second

// Exit statuses of every program.
const (
	ExitFailed = 1
	ExitUsage  = 2
)

// ErrUsage marks a setting that refuses to start; the exit status is 2.
var ErrUsage = errors.New("usage")

// Usagef makes an error that refuses to start because of a setting.
func Usagef(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUsage, fmt.Sprintf(format, args...))
}

// Program is one daemon as main declares it.
type Program struct {
	Name  string
	Usage string
	Flags []cli.Flag // its own, beside CommonFlags
	// StopTimeout overrides the stop deadline; 0: StopTimeout.
	StopTimeout func(*cli.Context) time.Duration
	// Run does the work until ctx ends. It returns nil after an ordered stop.
	Run func(ctx context.Context, c *cli.Context, common Common, log *slog.Logger) error
}

// Task is a program that does one thing and ends, as main declares it.
type Task struct {
	Name  string
	Usage string
	Flags []cli.Flag // its own, beside config, join, nats-*, insecure, tls-* and log-*
	// Run does the work, or as much of it as it can before ctx ends, and writes
	// its result to out.
	Run func(ctx context.Context, c *cli.Context, out io.Writer, log *slog.Logger) error
}

// Main runs a program to its end and exits the process with its status.
func Main(p Program) {
	os.Exit(run(p, os.Args, os.Stderr))
}

// MainTask runs a task to its end and exits the process with its status.
func MainTask(t Task) {
	os.Exit(runTask(t, os.Args, os.Stdout, os.Stderr))
}

// run is Main without the exit.
func run(p Program, args []string, stderr io.Writer) int {
	app := &cli.App{
		Name: p.Name, Usage: p.Usage, Flags: append(CommonFlags(), p.Flags...), ErrWriter: stderr,
		Action: func(c *cli.Context) error { return action(p, c, stderr) },
	}
	return execute(app, args, stderr)
}

// runTask is MainTask without the exit.
func runTask(t Task, args []string, stdout, stderr io.Writer) int {
	app := &cli.App{
		Name: t.Name, Usage: t.Usage, Flags: append(TaskFlags(), t.Flags...), Writer: stdout, ErrWriter: stderr,
		Action: func(c *cli.Context) error { return taskAction(t, c, stdout, stderr) },
	}
	return execute(app, args, stderr)
}

// execute runs what both kinds of programs have in common.
func execute(app *cli.App, args []string, stderr io.Writer) int {
	app.Version, app.HideHelpCommand = Release, true
	// The program prints its own errors, once, below.
	app.ExitErrHandler = func(*cli.Context, error) {}
	app.OnUsageError = func(_ *cli.Context, err error, _ bool) error { return Usagef("%v", err) }
	do := app.Action
	app.Action = func(c *cli.Context) error {
		if c.Args().Present() {
			return Usagef("unexpected argument %q", c.Args().First())
		}
		if err := applyFile(c); err != nil {
			return err
		}
		return do(c)
	}
	err := app.Run(args)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrUsage):
		fmt.Fprintf(stderr, "%s: %s\nSee %s --help.\n", app.Name, strings.TrimPrefix(err.Error(), "usage: "), app.Name)
		return ExitUsage
	default:
		fmt.Fprintf(stderr, "%s: %v\n", app.Name, err)
		return ExitFailed
	}
}

func action(p Program, c *cli.Context, stderr io.Writer) error {
	common, err := readCommon(c)
	if err != nil {
		return err
	}
	log, err := NewLogger(stderr, common.LogLevel, common.LogFormat)
	if err != nil {
		return err
	}
	log = log.With("node", common.NodeID, "role", p.Name)
	setMemoryLimit(log)
	limit := StopTimeout
	if p.StopTimeout != nil {
		limit = p.StopTimeout(c)
	}
	ctx, stop := withSignals(c.Context, log, limit)
	defer stop()
	return p.Run(ctx, c, common, log)
}

func taskAction(t Task, c *cli.Context, stdout, stderr io.Writer) error {
	if err := checkPlane(c); err != nil {
		return err
	}
	log, err := NewLogger(stderr, c.String("log-level"), c.String("log-format"))
	if err != nil {
		return err
	}
	log = log.With("role", t.Name)
	setMemoryLimit(log)
	ctx, stop := withSignals(c.Context, log, StopTimeout)
	defer stop()
	return t.Run(ctx, c, stdout, log)
}

// withSignals ends the returned context at the first SIGTERM or SIGINT, and the
// process at the second one or when limit has passed after the first.
func withSignals(parent context.Context, log *slog.Logger, limit time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	done := make(chan struct{})
	go func() {
		select {
		case s := <-signals:
			log.Info("stopping", "signal", s.String(), "deadline", limit)
			cancel()
		case <-done:
			return
		}
		deadline := time.NewTimer(limit)
		defer deadline.Stop()
		select {
		case <-signals:
			log.Error("second signal: ending at once")
		case <-deadline.C:
			log.Error("stop deadline passed: ending at once")
		case <-done:
			return
		}
		os.Exit(ExitFailed)
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}

// NewLogger makes the structured logger of a program. Messages of users are
// never among its attributes.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, Usagef("--log-level %q: use debug, info, warn or error", level)
	}
	options := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, Usagef("--log-format %q: use text or json", format)
}
