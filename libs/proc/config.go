package proc

import (
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
	"gopkg.in/yaml.v3"

	"github.com/narad-mq/narad/libs/bus"
	"github.com/narad-mq/narad/libs/tlsconf"
)

// Common are the settings that the three daemons share (contract.md, "Programs").
type Common struct {
	NodeID     string
	DataDir    string
	RPCAddr    string   // listen address of the node RPC plane
	RaftAddr   string   // listen address of the Raft plane
	GossipAddr string   // listen address of gossip; "": none
	OpsAddr    string   // listen address of the operator port
	Advertise  string   // host that others dial
	Join       []string // RPC addresses of voters
	Bus        bus.Settings
	Zone       string
	Insecure   bool          // the planes between nodes speak plaintext
	TLS        tlsconf.Files // of these planes; none when Insecure
	// ClusterSecretFile has the secret of which the gossip key is made; "" with
	// Insecure or without gossip only.
	ClusterSecretFile string
	LogLevel          string
	LogFormat         string
	Pprof             bool // profiles on the operator port
}

// MaxNodeIDLength keeps node ids short enough for file names, labels and logs.
const MaxNodeIDLength = 63

// maxConfigFileBytes bounds the --config file: settings, not data.
const maxConfigFileBytes = 1 << 20

var nodeIDPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// EnvVar is the environment variable of a flag.
func EnvVar(flag string) []string {
	return []string{"NARAD_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))}
}

func stringFlag(name, value, usage string) cli.Flag {
	return &cli.StringFlag{Name: name, Value: value, Usage: usage, EnvVars: EnvVar(name)}
}

// TaskFlags declares the settings of whatever speaks node RPC.
func TaskFlags() []cli.Flag {
	return []cli.Flag{
		stringFlag("config", "", "YAML `file` with the same names as the flags"),
		&cli.StringSliceFlag{Name: "join", Usage: "RPC `addresses` of voters, separated by commas", EnvVars: EnvVar("join")},
		stringFlag("nats-url", "", "`URL` of a NATS server, or several separated by commas; empty: no bus"),
		stringFlag("nats-creds-file", "", "`file` with the credentials of a NATS user"),
		stringFlag("nats-tls-ca", "", "`file` with the authorities of the NATS server's certificate; given, the bus speaks TLS"),
		&cli.BoolFlag{Name: "insecure", Usage: "speak plaintext between nodes; needed when there are no --tls-* files", EnvVars: EnvVar("insecure")},
		stringFlag("tls-cert", "", "certificate `file` for mutual TLS between nodes; it has to name the host that others dial"),
		stringFlag("tls-key", "", "key `file` of the certificate"),
		stringFlag("tls-ca", "", "`file` with the certificate of the cluster's CA, or several"),
		stringFlag("log-level", "info", "`level`: debug, info, warn or error"),
		stringFlag("log-format", "text", "`format`: text or json"),
	}
}

// CommonFlags declares the settings of Common.
func CommonFlags() []cli.Flag {
	return append(TaskFlags(),
		stringFlag("node-id", "", "this node's `id` in the cluster (default: the host name)"),
		stringFlag("data-dir", "", "`directory` of everything that this node keeps"),
		stringFlag("rpc-addr", ":7944", "listen `address` of the node RPC plane"),
		stringFlag("raft-addr", ":7943", "listen `address` of the Raft plane"),
		stringFlag("gossip-addr", ":7946", "listen `address` of gossip, TCP and UDP; empty: none"),
		stringFlag("ops-addr", ":7941", "listen `address` of the operator port"),
		stringFlag("advertise", "", "`host` that other nodes dial (default: the host name)"),
		stringFlag("zone", "", "failure `zone` of this node"),
		stringFlag("cluster-secret-file", "", "`file` with the secret of which the gossip key is made; gossip without it needs --insecure"),
		&cli.BoolFlag{Name: "pprof", Usage: "serve /debug/pprof/ on the operator port", EnvVars: EnvVar("pprof")},
	)
}

// applyFile sets from the --config file what neither a flag nor the environment set.
func applyFile(c *cli.Context) error {
	path := c.String("config")
	if path == "" {
		return nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return Usagef("--config: %v", err)
	}
	if len(raw) > maxConfigFileBytes {
		return Usagef("--config %s: larger than %d bytes", path, maxConfigFileBytes)
	}
	// Nodes, not values: node-id 007 is three characters, not a number.
	var values map[string]yaml.Node
	if err := yaml.Unmarshal(raw, &values); err != nil {
		return Usagef("--config %s: %v", path, err)
	}
	known := map[string]cli.Flag{}
	for _, f := range c.App.Flags {
		for _, name := range f.Names() {
			known[name] = f
		}
	}
	for name, value := range values {
		if known[name] == nil || name == "config" || name == "help" || name == "version" {
			return Usagef("--config %s: unknown key %q", path, name)
		}
		if c.IsSet(name) {
			continue
		}
		if err := setFromFile(c, known[name], name, &value); err != nil {
			return Usagef("--config %s: %s: %v", path, name, err)
		}
	}
	return nil
}

// setFromFile sets one flag to the text of its value, as the command line would.
func setFromFile(c *cli.Context, f cli.Flag, name string, value *yaml.Node) error {
	items := []*yaml.Node{value}
	_, takesList := f.(*cli.StringSliceFlag)
	if value.Kind == yaml.SequenceNode && takesList {
		items = value.Content
	}
	for _, item := range items {
		if item.Kind != yaml.ScalarNode || item.ShortTag() == "!!null" || c.Set(name, item.Value) != nil {
			return fmt.Errorf("line %d: want %s", item.Line, kindOf(f))
		}
	}
	return nil
}

// kindOf says what a flag takes.
func kindOf(f cli.Flag) string {
	switch f.(type) {
	case *cli.StringSliceFlag:
		return "a plain value or a list of them"
	case *cli.BoolFlag:
		return "true or false"
	case *cli.IntFlag:
		return "a whole number"
	case *cli.DurationFlag:
		return "a time like 500ms, 5s or 1m"
	}
	return "a plain value"
}

func readCommon(c *cli.Context) (Common, error) {
	host, err := os.Hostname()
	if err != nil {
		return Common{}, fmt.Errorf("read the host name: %w", err)
	}
	orHost := func(s string) string {
		if s == "" {
			return host
		}
		return s
	}
	k := Common{
		NodeID: orHost(c.String("node-id")), DataDir: c.String("data-dir"),
		RPCAddr: c.String("rpc-addr"), RaftAddr: c.String("raft-addr"), GossipAddr: c.String("gossip-addr"),
		OpsAddr: c.String("ops-addr"), Advertise: orHost(c.String("advertise")), Join: c.StringSlice("join"),
		Bus: BusSettings(c), Zone: c.String("zone"), Insecure: c.Bool("insecure"),
		TLS: TLSFiles(c), ClusterSecretFile: c.String("cluster-secret-file"), LogLevel: c.String("log-level"), LogFormat: c.String("log-format"),
		Pprof: c.Bool("pprof"),
	}
	if err := checkPlane(c); err != nil {
		return Common{}, err
	}
	return k, k.validate()
}

// checkPlane refuses settings of the node RPC plane and of the bus that mean nothing.
func checkPlane(c *cli.Context) error {
	var given, missing []string
	for _, name := range []string{"tls-cert", "tls-key", "tls-ca"} {
		if c.String(name) != "" {
			given = append(given, "--"+name)
		} else {
			missing = append(missing, "--"+name)
		}
	}
	switch insecure := c.Bool("insecure"); {
	case insecure && len(given) > 0:
		return Usagef("--insecure and %s: nodes speak either plaintext or TLS", strings.Join(given, ", "))
	case !insecure && len(given) == 0:
		return Usagef("give --tls-cert, --tls-key and --tls-ca, or --insecure to speak plaintext on a network of your own")
	case !insecure && len(missing) > 0:
		return Usagef("%s without %s: TLS between nodes needs all three", strings.Join(given, ", "), strings.Join(missing, ", "))
	}
	for _, a := range c.StringSlice("join") {
		if err := ValidateHostPort(a); err != nil {
			return Usagef("--join %q: %v", a, err)
		}
	}
	if err := BusSettings(c).Check(); err != nil {
		return Usagef("%v", err)
	}
	return nil
}

// BusSettings say where the bus is; a program that runs has checked them.
func BusSettings(c *cli.Context) bus.Settings {
	return bus.Settings{URL: c.String("nats-url"), CredsFile: c.String("nats-creds-file"), CAFile: c.String("nats-tls-ca")}
}

// ValidNodeID tells whether a node may have this id.
func ValidNodeID(id string) bool { return len(id) <= MaxNodeIDLength && nodeIDPattern.MatchString(id) }

// TLSFiles are the files of the planes between nodes; none with --insecure.
func TLSFiles(c *cli.Context) tlsconf.Files {
	return tlsconf.Files{Cert: c.String("tls-cert"), Key: c.String("tls-key"), CA: c.String("tls-ca")}
}

func (k Common) validate() error {
	switch {
	case !ValidNodeID(k.NodeID):
		return Usagef("--node-id %q: 1 to %d of A-Z a-z 0-9 . _ -, with a letter or digit at both ends", k.NodeID, MaxNodeIDLength)
	case k.DataDir == "":
		return Usagef("--data-dir is required")
	case k.GossipAddr != "" && k.ClusterSecretFile == "" && !k.Insecure:
		return Usagef("--cluster-secret-file is needed for gossip, which TLS does not cover; or give --gossip-addr= for none, or --insecure")
	}
	addrs := []struct{ flag, addr string }{{"rpc-addr", k.RPCAddr}, {"raft-addr", k.RaftAddr}, {"ops-addr", k.OpsAddr}}
	if k.GossipAddr != "" {
		addrs = append(addrs, struct{ flag, addr string }{"gossip-addr", k.GossipAddr})
	}
	for _, a := range addrs {
		if _, _, err := net.SplitHostPort(a.addr); err != nil {
			return Usagef("--%s %q: want host:port or :port", a.flag, a.addr)
		}
	}
	return nil
}

// ValidateHostPort accepts host:port with a host and a port of 1..65535.
func ValidateHostPort(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" {
		return fmt.Errorf("want host:port")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("want a port of 1 to 65535")
	}
	return nil
}

// AdvertiseAddr is what others dial for a listener bound at addr: the
// advertised host with the port that was bound.
func AdvertiseAddr(host string, bound net.Addr) string {
	_, port, err := net.SplitHostPort(bound.String())
	if err != nil {
		return bound.String()
	}
	return net.JoinHostPort(host, port)
}
