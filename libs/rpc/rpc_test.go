package rpc

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
)

var (
	echo  = Method{Name: "echo", Class: ClassCommit, MaxRequest: 1 << 20, MaxReply: 1 << 20}
	hello = Method{Name: "hello", Class: ClassControl, MaxRequest: 1 << 10, MaxReply: 1 << 10}
)

type helloRequest struct {
	Name string      `json:"name"`
	More helloNested `json:"more"`
}
type helloNested struct {
	N int `json:"n"`
}
type helloReply struct {
	Greeting string `json:"greeting"`
}

// rig is one server with the two operations and one client of the same cluster.
type rig struct {
	server *Server
	client *Client
	addr   string
	log    *bytes.Buffer
}

func newRig(t testing.TB, handle Handler) *rig {
	t.Helper()
	r := &rig{log: &bytes.Buffer{}}
	r.server = NewServer(ServerConfig{
		NodeID: "n1", ClusterID: func() string { return "c1" },
		Log: slog.New(slog.NewTextHandler(r.log, nil)),
	})
	r.server.Handle(echo, handle)
	HandleJSON(r.server, hello, func(_ context.Context, req *helloRequest) (*helloReply, error) {
		if req.Name == "" {
			return nil, errors.New("secret path /etc/narad")
		}
		return &helloReply{Greeting: "hello " + req.Name}, nil
	})
	r.addr = testkit.Serve(t, r.server)
	r.client = NewClient(ClientConfig{NodeID: "n2", ClusterID: func() string { return "c1" }})
	t.Cleanup(r.client.Close)
	return r
}

func echoHandler(_ context.Context, req *Request, reply []byte) ([]byte, error) {
	return append(reply, req.Body...), nil
}

func TestEchoOfEverySize(t *testing.T) {
	r := newRig(t, echoHandler)
	peer := r.client.Peer("n1", r.addr)
	for _, n := range []int{1, 100, 4095, 4096, 4097, 70_000, 1 << 20} {
		want := bytes.Repeat([]byte{byte(n), 1, 2}, n/3+1)[:n]
		reply, err := peer.Call(t.Context(), echo, want[:n/2], want[n/2:])
		if err != nil || !bytes.Equal(reply.Body, want) {
			t.Fatalf("%d bytes: %v, equal: %t", n, err, bytes.Equal(reply.Body, want))
		}
		reply.Release()
	}
	var te *TransportError
	if _, err := peer.Call(t.Context(), echo, make([]byte, 1<<20+1)); !errors.As(err, &te) || te.Sent {
		t.Errorf("a body above the bound was sent: %v", err)
	}
}

// A reply in parts is one reply, however large they are, and its parts are in use
// until it has been written.
func TestReplyInParts(t *testing.T) {
	server := NewServer(ServerConfig{NodeID: "n1", ClusterID: func() string { return "c1" }, Log: slog.New(slog.DiscardHandler)})
	parted := Method{Name: "parted", Class: ClassFetch, MaxRequest: 1 << 20, MaxReply: 1 << 20}
	over := make(chan struct{}, 1)
	server.HandleParts(parted, func(_ context.Context, req *Request, reply []byte) ([][]byte, func(), error) {
		lent := bytes.Clone(req.Body)
		n := len(lent)
		done := func() { clear(lent); over <- struct{}{} }
		if n == 5 {
			return nil, done, problem.New(problem.NotReady, "no")
		}
		return [][]byte{append(reply, lent[:n/3]...), lent[n/3 : n-1], nil, lent[n-1:]}, done, nil
	})
	peer := testClient(t).Peer("n1", testkit.Serve(t, server))
	for _, n := range []int{1, 5, 100, 2048, 4096, 13_000, 300_000, 1 << 20} {
		want := make([]byte, n)
		for i := range want {
			want[i] = byte(i>>8 + i)
		}
		reply, err := peer.Call(t.Context(), parted, want)
		<-over
		var p *problem.Problem
		switch {
		case n == 5 && (!errors.As(err, &p) || p.Code != problem.NotReady):
			t.Fatalf("a refusal: %v", err)
		case n != 5 && (err != nil || !bytes.Equal(reply.Body, want)):
			t.Fatalf("%d bytes: %v, equal: %t", n, err, bytes.Equal(reply.Body, want))
		}
		reply.Release()
	}
}

func TestStrictJSON(t *testing.T) {
	r := newRig(t, echoHandler)
	peer := r.client.Peer("n1", r.addr)
	res, err := CallJSON[helloReply](t.Context(), peer, hello, helloRequest{Name: "x"})
	if err != nil || res.Greeting != "hello x" {
		t.Fatal(res, err)
	}
	for body, parameter := range map[string]string{
		`{"name":"x","nome":1}`:           "nome",
		`{"name":"x","Name":"y"}`:         "Name",
		`{"name":"x","name":"y"}`:         "name",
		`{"name":"x","more":{"m":1}}`:     "more.m",
		`{"name":"x","more":{"n":"1"}}`:   "more.n",
		`{"name":"x"} {}`:                 "",
		`{"name":`:                        "name",
		`not json`:                        "",
		"{\"name\":\"\xff\",\"more\":{}}": "name",
	} {
		_, err := peer.Call(t.Context(), hello, []byte(body))
		var p *problem.Problem
		if !errors.As(err, &p) || p.Code != problem.InvalidRequest || p.Members["parameter"] != parameter {
			t.Errorf("%s: %v, members %v, want parameter %q", body, err, p.Members, parameter)
		}
	}
	if n := strings.Count(r.log.String(), "refused a malformed call"); n != 1 {
		t.Errorf("logged %d times: %s", n, r.log)
	}
	if _, err := CallJSON[helloNested](t.Context(), peer, hello, helloRequest{Name: "x"}); err == nil {
		t.Error("an unknown field in a reply was accepted")
	}
}

func TestGoErrorBecomesInternalWithoutItsText(t *testing.T) {
	r := newRig(t, echoHandler)
	_, err := r.client.Peer("n1", r.addr).Call(t.Context(), hello, []byte(`{}`))
	var p *problem.Problem
	if !errors.As(err, &p) || p.Code != problem.Internal || p.Applied != problem.AppliedUnknown || strings.Contains(p.Detail, "secret") {
		t.Fatalf("got %v", err)
	}
	if n := strings.Count(r.log.String(), "secret path"); n != 1 {
		t.Errorf("logged %d times: %s", n, r.log)
	}
}

func TestWrongClusterIsRefused(t *testing.T) {
	r := newRig(t, echoHandler)
	call := func(cluster, id string) error {
		c := NewClient(ClientConfig{NodeID: "n9", ClusterID: func() string { return cluster }})
		defer c.Close()
		_, err := c.Peer(id, r.addr).Call(t.Context(), echo, []byte("x"))
		return err
	}
	if err := call("", ""); err != nil {
		t.Errorf("a node before its admission was refused: %v", err)
	}
	for range 3 {
		if err := call("c2", ""); !problem.HasCode(err, problem.WrongCluster) {
			t.Errorf("another cluster: %v", err)
		}
	}
	if err := call("c1", "n7"); !problem.HasCode(err, problem.WrongNode) {
		t.Errorf("another node: %v", err)
	}
	if n := strings.Count(r.log.String(), "their_cluster=c2"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

func TestUnknownOperationAndMethod(t *testing.T) {
	r := newRig(t, echoHandler)
	m := echo
	for _, m.Name = range []string{"nothing", "nothing", strings.Repeat("n", 1000)} {
		if _, err := r.client.Peer("", r.addr).Call(t.Context(), m, []byte("x")); !problem.HasCode(err, problem.RouteNotFound) {
			t.Error(err)
		}
	}
	if n := strings.Count(r.log.String(), "operation=nothing"); n != 1 || strings.Count(r.log.String(), "level=WARN") != 1 {
		t.Errorf("logged %d times: %s", n, r.log)
	}
	r.log.Reset()
	r.server.complains[complaintRoute].Store(0)
	if _, err := r.client.Peer("", r.addr).Call(t.Context(), m, []byte("x")); !problem.HasCode(err, problem.RouteNotFound) || strings.Count(r.log.String(), "n") > 100 {
		t.Errorf("%v; a long name was logged whole: %s", err, r.log)
	}
	big := echo
	big.MaxRequest *= 2
	if _, err := r.client.Peer("", r.addr).Call(t.Context(), big, make([]byte, echo.MaxRequest+1)); !problem.HasCode(err, problem.BodyTooLarge) {
		t.Error(err)
	}
}

func TestClassesDoNotStarveEachOther(t *testing.T) {
	release := make(chan struct{})
	started := make(chan struct{}, 4)
	r := newRig(t, func(context.Context, *Request, []byte) ([]byte, error) {
		started <- struct{}{}
		<-release
		return []byte("x"), nil
	})
	r.server.limits[ClassCommit].slots = 2
	peer := r.client.Peer("n1", r.addr)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if _, err := peer.Call(t.Context(), echo, []byte("x")); err != nil {
				t.Error(err)
			}
		})
		<-started
	}
	_, err := peer.Call(t.Context(), echo, []byte("x"))
	var p *problem.Problem
	if !errors.As(err, &p) || p.Code != problem.Overloaded || p.Applied != problem.AppliedNo || p.Status != 503 {
		t.Errorf("the third commit: %v", err)
	}
	if _, err := CallJSON[helloReply](t.Context(), peer, hello, helloRequest{Name: "x"}); err != nil {
		t.Errorf("control starves behind commits: %v", err)
	}
	close(release)
	wg.Wait()
	if _, err := peer.Call(t.Context(), echo, []byte("x")); err != nil {
		t.Errorf("slots were not given back: %v", err)
	}
}

func TestBodyMemoryIsBounded(t *testing.T) {
	r := newRig(t, echoHandler)
	r.server.limits[ClassCommit].bytes = 1000
	peer := r.client.Peer("n1", r.addr)
	if _, err := peer.Call(t.Context(), echo, make([]byte, 1001)); !problem.HasCode(err, problem.Overloaded) {
		t.Error(err)
	}
	if _, err := peer.Call(t.Context(), echo, make([]byte, 1000)); err != nil {
		t.Errorf("memory was not given back: %v", err)
	}
}

func TestCallerThatGivesUpFreesItsSlot(t *testing.T) {
	ended := make(chan struct{}, 100)
	r := newRig(t, func(ctx context.Context, _ *Request, _ []byte) ([]byte, error) {
		<-ctx.Done()
		ended <- struct{}{}
		return nil, ctx.Err()
	})
	for limit := 30 * time.Millisecond; ; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, err := r.client.Peer("n1", r.addr).Call(ctx, echo, []byte("x"))
		cancel()
		var te *TransportError
		if !errors.As(err, &te) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		if te.Sent {
			break // else a busy machine had not even sent it
		}
		if limit > testkit.Patience {
			t.Fatalf("not sent within %s: %v", limit, err)
		}
	}
	select {
	case <-ended:
	case <-time.After(testkit.Patience):
		t.Fatal("the handler never heard that its caller is gone")
	}
}

func BenchmarkEcho(b *testing.B) {
	r := newRig(b, echoHandler)
	peer := r.client.Peer("n1", r.addr)
	body := make([]byte, 1024)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			reply, err := peer.Call(context.Background(), echo, body)
			if err != nil {
				b.Error(err)
				return
			}
			reply.Release()
		}
	})
}
