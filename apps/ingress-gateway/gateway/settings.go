package gateway

import (
	"fmt"
	"net"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/accept"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/edge"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/route"
	"github.com/narad-mq/narad/libs/member"
	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/tlsconf"
	"github.com/narad-mq/narad/libs/topic"
)

// DefaultDrainDelay is how long a stopping gateway still answers: until load
// balancers have noticed that it is not ready.
const DefaultDrainDelay = 5 * time.Second

// minConnections are allowed however little memory there is.
const minConnections = 64

// maxDrainDelay bounds it: a stop must end.
const maxDrainDelay = 5 * time.Minute

// Flags are the role's own flags.
func Flags() []cli.Flag {
	text := func(name, value, usage string) cli.Flag {
		return &cli.StringFlag{Name: name, Value: value, Usage: usage, EnvVars: proc.EnvVar(name)}
	}
	number := func(name string, value int, usage string) cli.Flag {
		return &cli.IntFlag{Name: name, Value: value, Usage: usage, EnvVars: proc.EnvVar(name)}
	}
	duration := func(name string, value time.Duration, usage string) cli.Flag {
		return &cli.DurationFlag{Name: name, Value: value, Usage: usage, EnvVars: proc.EnvVar(name)}
	}
	return []cli.Flag{
		text("http-addr", ":7942", "listen `address` for clients"),
		text("auth", "", "`mode`: none; users are not in this release (default: none on loopback, else it must be given)"),
		text("http-tls-cert", "", "certificate `file` of the client port, read again when it changes; without it the port speaks plain HTTP"),
		text("http-tls-key", "", "key `file` of that certificate"),
		duration("drain-delay", DefaultDrainDelay, "`time` that a stopping gateway still answers"),
		&cli.BoolFlag{Name: "no-wal", Usage: "keep no write-ahead log: take only what is committed before the answer", EnvVars: proc.EnvVar("no-wal")},
		number("max-message-bytes", api.DefaultMaxMessageBytes, "largest payload, in `bytes`, 1 KiB to 4 MiB"),
		number("max-connections", edge.DefaultMaxConnections, "client `connections` at once (less by default when a quarter of the memory limit does not hold their buffers)"),
		number("max-waiting", route.DefaultMaxWaiting, "consume `requests` that wait at once"),
		duration("idle-timeout", edge.DefaultIdleTimeout, "`time` until an idle client connection is closed"),
		number("max-body-memory", 0, "`bytes` of request bodies in memory at once (default: a quarter of the memory limit, at least 64 MiB)"),
		number("disk-watermark", accept.DefaultWatermark, "`percent` of the disk above which produce is refused"),
	}
}

// Configure turns the settings of a program into a Config, or says which setting
// refuses to start (proc.ErrUsage).
func Configure(common proc.Common, c *cli.Context) (Config, error) {
	cfg := Config{
		Member: member.FromCommon(common, topic.RoleGateway), Bus: common.Bus, HTTPAddr: c.String("http-addr"),
		HTTPTLS: tlsconf.Files{Cert: c.String("http-tls-cert"), Key: c.String("http-tls-key")},
		API: api.Config{
			NodeID: common.NodeID, Release: proc.Release, Features: []string{"replication", "committed", "fan_out"},
			MaxMessageBytes: c.Int("max-message-bytes"), MaxBodyMemory: int64(c.Int("max-body-memory")),
		},
		Edge:      edge.Config{MaxConnections: c.Int("max-connections"), IdleTimeout: c.Duration("idle-timeout")},
		Watermark: c.Int("disk-watermark"), MaxWaiting: c.Int("max-waiting"), DrainDelay: c.Duration("drain-delay"), NoWAL: c.Bool("no-wal"),
	}
	host, _, err := net.SplitHostPort(cfg.HTTPAddr)
	if err != nil {
		return cfg, proc.Usagef("--http-addr %q: want host:port or :port", cfg.HTTPAddr)
	}
	if err := checkAuth(c, host); err != nil {
		return cfg, err
	}
	switch {
	case (cfg.HTTPTLS.Cert == "") != (cfg.HTTPTLS.Key == ""):
		return cfg, proc.Usagef("--http-tls-cert and --http-tls-key go together")
	case len(common.Join) == 0:
		return cfg, proc.Usagef("--join is required: a gateway must know its cluster")
	case cfg.API.MaxMessageBytes < api.MinMaxMessageBytes || cfg.API.MaxMessageBytes > api.MaxMaxMessageBytes:
		return cfg, proc.Usagef("--max-message-bytes: between %d and %d", api.MinMaxMessageBytes, api.MaxMaxMessageBytes)
	case cfg.Edge.MaxConnections < 1 || cfg.MaxWaiting < 1 || cfg.Edge.IdleTimeout <= 0 || cfg.API.MaxBodyMemory < 0:
		return cfg, proc.Usagef("--max-connections, --max-waiting, --idle-timeout and --max-body-memory must be above 0")
	case cfg.Watermark < 1 || cfg.Watermark > 99:
		return cfg, proc.Usagef("--disk-watermark: 1 to 99")
	case cfg.DrainDelay < 0 || cfg.DrainDelay > maxDrainDelay:
		return cfg, proc.Usagef("--drain-delay: 0s to %s", maxDrainDelay)
	}
	fitMemory(&cfg, proc.MemoryLimit(), c.IsSet("max-connections"))
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return cfg, fmt.Errorf("read the limit of open files: %w", err)
	}
	fitFiles(&cfg, files.Cur)
	return cfg, nil
}

// fitFiles leaves a quarter of the descriptors to the logs and to other nodes:
// clients beyond it wait in the listen queue and cannot keep the WAL from its files.
func fitFiles(cfg *Config, files uint64) {
	if share := files / 4 * 3; share < uint64(cfg.Edge.MaxConnections) {
		cfg.Edge.MaxConnections = max(int(share), 1)
	}
}

// fitMemory gives request bodies and the buffers of connections a quarter of the
// memory limit each (0: there is none), unless the operator chose otherwise.
func fitMemory(cfg *Config, limit int64, connectionsChosen bool) {
	if limit <= 0 {
		return
	}
	if cfg.API.MaxBodyMemory == 0 {
		cfg.API.MaxBodyMemory = limit / 4
	}
	if fit := int(limit / 4 / edge.ConnectionBytes); !connectionsChosen {
		cfg.Edge.MaxConnections = max(min(cfg.Edge.MaxConnections, fit), minConnections)
	}
}

// checkAuth refuses what this release cannot do, and an open gateway that nobody
// asked for: without users only a loopback address is open by itself.
func checkAuth(c *cli.Context, host string) error {
	ip := net.ParseIP(host)
	loopback := host == "localhost" || ip != nil && ip.IsLoopback()
	switch mode := c.String("auth"); {
	case mode == "none", mode == "" && loopback:
		return nil
	case mode == "":
		return proc.Usagef("--auth none is needed on %q: this release has no users, and everybody who reaches the port may do everything", c.String("http-addr"))
	default:
		return proc.Usagef("--auth %q: this release knows only none", mode)
	}
}

// StopDeadline is the stop deadline of the program.
func StopDeadline(c *cli.Context) time.Duration { return c.Duration("drain-delay") + StopTimeout }
