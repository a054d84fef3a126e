package proc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/tlsconf"
)

// start runs a program whose Run records what it was given.
func start(t *testing.T, args ...string) (got Common, limit int, status int, stderr string) {
	t.Helper()
	var buf bytes.Buffer
	p := Program{
		Name: "prog", Flags: []cli.Flag{&cli.IntFlag{Name: "limit", Value: 5, EnvVars: EnvVar("limit")}},
		Run: func(_ context.Context, c *cli.Context, k Common, _ *slog.Logger) error {
			got, limit = k, c.Int("limit")
			return nil
		},
	}
	status = run(p, append([]string{"prog"}, args...), &buf)
	return got, limit, status, buf.String()
}

func TestPrecedenceFileEnvFlag(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	content := "node-id: from-file\nzone: from-file\nlimit: 7\ninsecure: true\njoin: [a:1, b:2]\ndata-dir: /x\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NARAD_ZONE", "from-env")
	t.Setenv("NARAD_NODE_ID", "from-env")
	t.Setenv("NARAD_SERVICE_PORT", "7942") // Kubernetes injects such: ignored
	got, limit, status, stderr := start(t, "--config", file, "--node-id", "from-flag")
	if status != 0 {
		t.Fatal(stderr)
	}
	if got.NodeID != "from-flag" || got.Zone != "from-env" || limit != 7 || !slices.Equal(got.Join, []string{"a:1", "b:2"}) || got.DataDir != "/x" {
		t.Errorf("got %+v, limit %d", got, limit)
	}
}

// TestFileValues: a value is the text that stands in the file, and one that does
// not fit is refused with its key, its line and what is wanted.
func TestFileValues(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	run := func(content string) (Common, int, int, string) {
		if err := os.WriteFile(file, []byte("insecure: true\ndata-dir: /x\n"+content), 0o600); err != nil {
			t.Fatal(err)
		}
		return start(t, "--config", file)
	}
	got, limit, status, stderr := run("node-id: 007\nzone: 1e3\nlimit: 0x10\njoin: a:1,b:2\n")
	if status != 0 || got.NodeID != "007" || got.Zone != "1e3" || limit != 16 || !slices.Equal(got.Join, []string{"a:1", "b:2"}) {
		t.Errorf("got %+v, limit %d, %s", got, limit, stderr)
	}
	for content, want := range map[string]string{
		"limit: lots\n":         "limit: line 3: want a whole number",
		"limit: 1.5\n":          "limit: line 3: want a whole number",
		"limit: [1, 2]\n":       "limit: line 3: want a whole number",
		"limit: ~\n":            "limit: line 3: want a whole number",
		"limit:\n":              "limit: line 3: want a whole number",
		"zone: {a: b}\n":        "zone: line 3: want a plain value",
		"zone: [a]\n":           "zone: line 3: want a plain value",
		"join: {a: b}\n":        "join: line 3: want a plain value or a list",
		"join:\n- a:1\n- [b]\n": "join: line 5: want a plain value or a list",
		"limit: 1\nlimit: 2\n":  `"limit" already defined`,
		"pprof: maybe\n":        "pprof: line 3: want true or false",
	} {
		if _, _, status, stderr := run(content); status != ExitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%q: status %d, %q, want %q", content, status, stderr, want)
		}
	}
}

func TestRefusesToStart(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(bad, []byte("no-such-key: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ok := []string{"--insecure", "--data-dir", "/x", "--node-id", "n1"}
	for want, args := range map[string][]string{
		"no-such-flag":                           {"--no-such-flag"},
		"no-such-key":                            {"--config", bad},
		"unexpected argumen":                     {"extra"},
		"--insecure":                             {"--data-dir", "/x"},
		"--data-dir":                             {"--insecure"},
		"--node-id":                              {"--node-id", "../x"},
		"--join":                                 {"--join", "host:0"},
		"--rpc-addr":                             {"--rpc-addr", "nonsense"},
		"--gossip-addr":                          {"--gossip-addr", "nonsense"},
		"--cluster-secret-file":                  {"--data-dir", "/x", "--tls-cert", "c", "--tls-key", "k", "--tls-ca", "a"},
		"--tls-cert":                             {"--tls-cert", "x"}, // beside --insecure
		"--log-level":                            {"--log-level", "loud"},
		"--log-format":                           {"--log-format", "xml"},
		"--nats-creds-file":                      {"--nats-url", "nats://bob:hunter2@host:4222"},
		"--nats-url: want nats://":               {"--nats-url", "hunter2"},
		"--nats-tls-ca":                          {"--nats-tls-ca", "a"}, // without --nats-url
		"--tls-cert without --tls-key, --tls-ca": {"--data-dir", "/x", "--tls-cert", "c"},
		"--tls-key, --tls-ca without --tls-cert": {"--data-dir", "/x", "--tls-key", "k", "--tls-ca", "a"},
	} {
		all := append(slices.Clone(ok), args...)
		if want == "--insecure" || want == "--data-dir" || want == "--cluster-secret-file" || strings.Contains(want, "without") {
			all = args
		}
		_, _, status, stderr := start(t, all...)
		if status != ExitUsage || !strings.Contains(stderr, want) || strings.Contains(stderr, "hunter2") {
			t.Errorf("%v: status %d, stderr %q", args, status, stderr)
		}
	}
}

// TestTLSFiles: all three stand for --insecure.
func TestTLSFiles(t *testing.T) {
	t.Setenv("NARAD_TLS_CA", "a")
	got, _, status, stderr := start(t, "--data-dir", "/x", "--node-id", "n1", "--tls-cert", "c", "--tls-key", "k", "--gossip-addr=")
	if want := (tlsconf.Files{Cert: "c", Key: "k", CA: "a"}); status != 0 || got.TLS != want || got.Insecure {
		t.Errorf("status %d, %+v, %s", status, got, stderr)
	}
}

// TestTask: the same rules as for a daemon, without a node's settings.
func TestTask(t *testing.T) {
	start := func(args ...string) (join []string, status int, stdout, stderr string) {
		var out, errs bytes.Buffer
		task := Task{
			Name: "task", Flags: []cli.Flag{&cli.BoolFlag{Name: "fail"}},
			Run: func(_ context.Context, c *cli.Context, w io.Writer, _ *slog.Logger) error {
				join = c.StringSlice("join")
				if c.Bool("fail") {
					return errors.New("boom")
				}
				_, err := io.WriteString(w, "done")
				return err
			},
		}
		status = runTask(task, append([]string{"task"}, args...), &out, &errs)
		return join, status, out.String(), errs.String()
	}
	t.Setenv("NARAD_JOIN", "a:1,b:2")
	if join, status, out, stderr := start("--insecure"); status != 0 || out != "done" || !slices.Equal(join, []string{"a:1", "b:2"}) {
		t.Errorf("join %v, status %d, %q, %q", join, status, out, stderr)
	}
	if _, status, _, stderr := start("--insecure", "--fail"); status != ExitFailed || !strings.Contains(stderr, "task: boom") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
	for want, args := range map[string][]string{
		"--insecure":         {},
		"data-dir":           {"--insecure", "--data-dir", "/x"},
		"--join":             {"--insecure", "--join", "host"},
		"--tls-ca":           {"--insecure", "--tls-ca", "x"},
		"unexpected argumen": {"--insecure", "extra"},
		"--log-level":        {"--insecure", "--log-level", "loud"},
	} {
		if _, status, _, stderr := start(args...); status != ExitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%v: status %d, stderr %q", args, status, stderr)
		}
	}
}

func TestMemoryLimit(t *testing.T) {
	for content, want := range map[string]int64{"max\n": 0, "1000\n": 900, "9223372036854771712": 0, "": 0, "-1": 0} {
		if got := memoryLimit(content); got != want {
			t.Errorf("memoryLimit(%q) = %d, want %d", content, got, want)
		}
	}
}

func TestGroupStopsInReverseOrder(t *testing.T) {
	var g Group
	stopped := make(chan string, 3)
	for _, name := range []string{"a", "b", "c"} {
		g.Add(name, func(ctx context.Context) error { <-ctx.Done(); stopped <- name; return nil })
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := g.Run(ctx, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"c", "b", "a"} {
		if got := <-stopped; got != want {
			t.Errorf("stopped %s, want %s", got, want)
		}
	}
}

func TestGroupEndsWithItsFirstActor(t *testing.T) {
	boom := errors.New("boom")
	var g Group
	g.Add("waits", func(ctx context.Context) error { <-ctx.Done(); return nil })
	g.Add("fails", func(context.Context) error { return boom })
	if err := g.Run(context.Background(), slog.New(slog.DiscardHandler)); !errors.Is(err, boom) {
		t.Errorf("Run = %v, want boom", err)
	}
	var early Group
	early.Add("returns", func(context.Context) error { return nil })
	if err := early.Run(context.Background(), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("an actor that returned by itself was taken for an ordered stop")
	}
}
