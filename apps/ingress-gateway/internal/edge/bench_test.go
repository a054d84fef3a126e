package edge

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/problem"
)

// produceLike reads the body and answers like a produce.
type produceLike struct{ pool sync.Pool }

func (h *produceLike) Serve(req *api.Request, resp *api.Response) {
	buf, _ := h.pool.Get().(*[]byte)
	if buf == nil {
		b := make([]byte, 64<<10)
		buf = &b
	}
	defer h.pool.Put(buf)
	if _, n := req.Headers.Get("Content-Type"); n != 1 {
		resp.Status = 415
		return
	}
	if _, err := io.ReadFull(req.Body, (*buf)[:req.ContentLength]); err != nil {
		resp.Status = 400
		return
	}
	*resp = api.Response{
		Status: 202, ContentType: "application/json", RequestID: "01JE5V6Q8S7M2R4T",
		Body: []byte(`{"id":"9c0f3b7a11d2e4f5-1042","incarnation":"3f9a17c4e2b08d51"}`),
	}
}

func (h *produceLike) Refuse(resp *api.Response, p *problem.Problem) { resp.Status = p.Status }

// netHTTP runs an api.Handler on net/http: the other choice, for comparison.
type netHTTP struct{ h Handler }

type netHeaders http.Header

func (h netHeaders) Get(name string) ([]byte, int) {
	v := http.Header(h)[name]
	if len(v) == 0 {
		return nil, 0
	}
	return []byte(v[0]), len(v)
}

func (h netHeaders) Each(f func(name, value []byte) bool) {
	for name, values := range h {
		for _, v := range values {
			if !f([]byte(name), []byte(v)) {
				return
			}
		}
	}
}

func (n netHTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var resp api.Response
	n.h.Serve(&api.Request{
		Method: []byte(r.Method), Path: []byte(r.URL.EscapedPath()), Query: []byte(r.URL.RawQuery), Host: []byte(r.Host),
		Headers: netHeaders(r.Header), ContentLength: r.ContentLength, Body: r.Body,
	}, &resp)
	h := w.Header()
	h["Narad-Request-Id"] = []string{resp.RequestID}
	h["Content-Type"] = []string{resp.ContentType}
	w.WriteHeader(resp.Status)
	_, err := w.Write(resp.Body)
	resp.Finish(err == nil)
}

// BenchmarkServer compares the two servers with 64 connections and 256 bytes.
func BenchmarkServer(b *testing.B) {
	h := &produceLike{}
	b.Run("fasthttp", func(b *testing.B) {
		s := New(Config{}, h, nil)
		ln := listen(b)
		go func() { _ = s.Serve(ln) }()
		defer func() { _ = s.Shutdown(context.Background()) }()
		load(b, ln.Addr().String())
	})
	b.Run("nethttp", func(b *testing.B) {
		s := &http.Server{Handler: netHTTP{h}}
		ln := listen(b)
		go func() { _ = s.Serve(ln) }()
		defer func() { _ = s.Close() }()
		load(b, ln.Addr().String())
	})
}

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return ln
}

func load(b *testing.B, addr string) {
	b.ReportAllocs()
	b.SetParallelism(32) // times two cores
	request := []byte("POST /v1/topics/orders/produce?key=k1 HTTP/1.1\r\nHost: gateway\r\nUser-Agent: bench\r\n" +
		"Content-Type: text/plain\r\nContent-Length: 256\r\n\r\n" + string(bytes.Repeat([]byte("x"), 256)))
	b.RunParallel(func(pb *testing.PB) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Error(err)
			return
		}
		defer c.Close()
		r := bufio.NewReaderSize(c, 4096)
		for pb.Next() {
			if _, err := c.Write(request); err != nil {
				b.Error(err)
				return
			}
			if !readAnswer(b, r) {
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

// readAnswer reads one answer with the cheapest reader that is right for these.
func readAnswer(b *testing.B, r *bufio.Reader) bool {
	length := 0
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil || first && !bytes.HasPrefix(line, []byte("HTTP/1.1 202")) {
			b.Errorf("%q, %v", line, err)
			return false
		}
		if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			for _, d := range bytes.TrimSpace(v) {
				length = length*10 + int(d-'0')
			}
		}
		if len(line) == 2 {
			break
		}
	}
	_, err := r.Discard(length)
	return err == nil
}
