package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"

	"github.com/urfave/cli/v2"
	"github.com/valyala/fasthttp"
)

// The two floors.
const (
	floorNetHTTP  = "nethttp"
	floorFastHTTP = "fasthttp"
)

// maxFloorBody bounds what the floor takes, as the gateway does.
const maxFloorBody = 16 << 20

// groupFile appends what concurrent callers give it, with one write and one
// sync for all that wait at that moment: what any durable broker must do at least.
type groupFile struct {
	mu    sync.Mutex // guards all below
	file  *os.File
	next  *group
	going bool
}

type group struct {
	buf  []byte
	done chan struct{}
	err  error
}

func newGroupFile(name string) (*groupFile, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &groupFile{file: f, next: &group{done: make(chan struct{})}}, nil
}

// append returns when body is on disk.
func (g *groupFile) append(body []byte) error {
	g.mu.Lock()
	mine := g.next
	mine.buf = append(mine.buf, body...)
	lead := !g.going
	g.going = true
	g.mu.Unlock()
	if lead {
		go g.run()
	}
	<-mine.done
	return mine.err
}

// run commits groups until none waits.
func (g *groupFile) run() {
	for {
		g.mu.Lock()
		current := g.next
		if len(current.buf) == 0 {
			g.going = false
			g.mu.Unlock()
			return
		}
		g.next = &group{done: make(chan struct{})}
		g.mu.Unlock()
		if _, current.err = g.file.Write(current.buf); current.err == nil {
			current.err = fdatasync(g.file)
		}
		close(current.done)
	}
}

func floorAction(c *cli.Context) error {
	file, err := newGroupFile(c.String("file"))
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	if c.String("kind") == floorFastHTTP {
		s := &fasthttp.Server{MaxRequestBodySize: maxFloorBody, NoDefaultServerHeader: true, Handler: func(ctx *fasthttp.RequestCtx) {
			if err := file.append(ctx.PostBody()); err != nil {
				ctx.Error(err.Error(), 500)
				return
			}
			ctx.SetStatusCode(202)
		}}
		return s.Serve(listener)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxFloorBody))
		if err == nil {
			err = file.append(body)
		}
		if err != nil {
			http.Error(w, err.Error(), 500)
			return
		}
		w.WriteHeader(202)
	})
	return http.Serve(listener, handler)
}

// startFloor runs a floor in a process of its own and returns its URL.
func startFloor(kind, dir string) (url string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(self, "floor", "--kind", kind, "--file", dir+"/floor-"+kind)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed: its status says so
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("start the %s floor: %w", kind, err)
	}
	return "http://" + strings.TrimSpace(line), stop, nil
}
