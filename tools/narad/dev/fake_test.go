package dev

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/testkit"
)

// fakeVar makes this test binary act as a node ("node") or as `narad dev` ("dev").
const fakeVar = "DEVTEST_ACT_AS"

func TestMain(m *testing.M) {
	switch os.Getenv(fakeVar) {
	case "node":
		os.Exit(fakeNode(os.Args[1:]))
	case "dev":
		os.Exit(fakeDev(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// fakeNode serves /readyz and ends at SIGTERM. Files in its data directory's parent
// steer it: unready-<id> keeps it from being ready, voteless-<id> lets a voter say that one
// waits for its vote, stubborn-<id> makes it deaf to SIGTERM.
func fakeNode(args []string) int {
	flags := map[string]string{}
	for i := 0; i < len(args); i++ {
		name, value, found := strings.Cut(strings.TrimPrefix(args[i], "--"), "=")
		if !found && i+1 < len(args) && !strings.HasPrefix(args[i+1], "--") {
			i++
			value = args[i]
		}
		flags[name] = value
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	id, above := flags["node-id"], filepath.Dir(flags["data-dir"])
	fmt.Println("started", id, strings.Join(args, " "), "env:", os.Getenv("NARAD_JOIN"))
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			if id == "voter-1" { // it leads
				note(filepath.Join(above, "asked"), id)
				waits := map[bool]int{true: 1}[exists(filepath.Join(above, "voteless-"+id))]
				fmt.Fprintf(w, "# TYPE narad_raft_voters_pending gauge\nnarad_raft_voters_pending %d\n", waits)
			}
			return
		}
		if exists(filepath.Join(above, "unready-"+id)) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	for _, name := range []string{"ops-addr", "rpc-addr", "raft-addr", "http-addr"} {
		if a := flags[name]; a != "" {
			l, err := net.Listen("tcp", a)
			if err != nil {
				fmt.Println(err)
				return 1
			}
			go http.Serve(l, handler)
		}
	}
	for range term {
		if exists(filepath.Join(above, "stubborn-"+id)) {
			continue
		}
		return note(filepath.Join(above, "stopped"), id)
	}
	return 0
}

// note adds a line to a file; 1: it cannot.
func note(file, line string) int {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 1
	}
	fmt.Fprintln(f, line)
	if f.Close() != nil {
		return 1
	}
	return 0
}

func fakeDev(args []string) int {
	base, err := strconv.Atoi(args[1])
	if err != nil {
		return 1
	}
	os.Setenv(fakeVar, "node")
	c, err := New(fakeConfig(args[0], base, Size{1, 1, 1}))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if c.Run(context.Background(), nil) != nil {
		return 1
	}
	return 0
}

func fakeConfig(dir string, base int, size Size) Config {
	return Config{
		Size: size, BasePort: base, DataDir: dir, ReadyFile: filepath.Join(dir, "ready"),
		Program: func(string) (string, error) { return os.Executable() },
	}
}

func freeBase(t *testing.T) int { return testkit.FreePorts(t, PortSpan) }

// running is a cluster of fakes.
type running struct {
	t    *testing.T
	dir  string
	c    *Cluster
	stop context.CancelFunc
	end  chan error
}

const limit = testkit.Patience

func run(t *testing.T, size Size, before ...string) *running {
	t.Helper()
	return runWith(t, size, func(*Cluster) {}, before...)
}

func runWith(t *testing.T, size Size, change func(*Cluster), before ...string) *running {
	t.Helper()
	t.Setenv(fakeVar, "node")
	t.Setenv("NARAD_JOIN", "leaked")
	r := &running{t: t, dir: t.TempDir(), end: make(chan error, 1)}
	for _, name := range before {
		r.touch(name)
	}
	var err error
	if r.c, err = New(fakeConfig(r.dir, freeBase(t), size)); err != nil {
		t.Fatal(err)
	}
	change(r.c)
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go func() { r.end <- r.c.Run(ctx, nil) }()
	t.Cleanup(func() {
		stop()
		select {
		case <-r.c.kill:
		default:
			r.c.Kill()
		}
		<-r.end
	})
	return r
}

func (r *running) touch(name string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *running) read(name string) string {
	raw, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		return ""
	}
	return string(raw)
}

func (r *running) ready() {
	r.t.Helper()
	testkit.Poll(r.t, limit, "the ready file is there", func() bool { return exists(filepath.Join(r.dir, "ready")) })
}

func (r *running) node(id string) endpoint {
	r.t.Helper()
	return findNode(r.t, r.dir, id)
}

func findNode(t *testing.T, dir, id string) endpoint {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "run", "endpoints.json"))
	if err != nil {
		t.Fatal(err)
	}
	var list []endpoint
	if err := json.Unmarshal(raw, &list); err != nil {
		t.Fatalf("endpoints.json: %v: %s", err, raw)
	}
	for _, e := range list {
		if e.ID == id {
			return e
		}
	}
	t.Fatalf("no %s in %s", id, raw)
	return endpoint{}
}

func (r *running) kill(id string) int {
	r.t.Helper()
	pid := r.node(id).PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	return pid
}

func (r *running) finish() error {
	r.t.Helper()
	r.stop()
	select {
	case err := <-r.end:
		r.end <- nil // for the cleanup
		return err
	case <-time.After(limit):
		r.t.Fatal("it did not stop")
		return nil
	}
}

func alive(pid int) bool {
	if pid <= 0 || syscall.Kill(pid, 0) != nil {
		return false
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !strings.Contains(string(raw), ") Z ")
}

// devProcess is a `narad dev` of fakes that can be killed.
func devProcess(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, dir, strconv.Itoa(freeBase(t)))
	cmd.Env = append(os.Environ(), fakeVar+"=dev")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}
