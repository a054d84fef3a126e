package edge

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
)

// streamer answers everything with a stream of 3 MiB, which may end early.
type streamer struct {
	api.API
	broken error
	closed chan struct{}
}

const streamBytes = 3 << 20

func (s *streamer) Serve(_ *api.Request, resp *api.Response) {
	*resp = api.Response{Status: 200, ContentType: "application/vnd.narad.backup", Length: streamBytes}
	r, w := io.Pipe()
	broken := s.broken // of this answer: the test changes it for the next one
	go func() {
		n := streamBytes
		if broken != nil {
			n /= 2
		}
		_, _ = io.CopyN(w, zeros{}, int64(n)) // the reader may be gone
		_ = w.CloseWithError(broken)
	}()
	resp.Stream = closer{r, s.closed}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type closer struct {
	*io.PipeReader
	closed chan struct{}
}

func (c closer) Close() error {
	select {
	case c.closed <- struct{}{}:
	default:
	}
	return c.PipeReader.Close()
}

// TestStreams: a stream goes out whole, or the client sees that it was cut; it is
// closed in any case, also when the client goes away.
func TestStreams(t *testing.T) {
	h := &streamer{closed: make(chan struct{}, 1)}
	r := &rig{TB: t, server: New(Config{}, h, nil), served: make(chan error, 1)}
	ln := listen(t)
	r.addr = ln.Addr().String()
	go func() { r.served <- r.server.Serve(ln) }()
	p := r.dial()
	for range 2 { // and the connection lives on
		p.send("GET /v1/cluster/backup HTTP/1.1\r\nHost: x\r\n\r\n")
		if a := p.read("GET"); a.StatusCode != 200 || len(a.body) != streamBytes || a.ContentLength != streamBytes {
			t.Errorf("%d, %d bytes of %d", a.StatusCode, len(a.body), a.ContentLength)
		}
		<-h.closed
	}
	h.broken = io.ErrNoProgress
	p.send("GET /v1/cluster/backup HTTP/1.1\r\nHost: x\r\n\r\n")
	resp, err := http.ReadResponse(p.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, resp.Body); err != io.ErrUnexpectedEOF {
		t.Errorf("a stream that broke: %d bytes, %v", n, err)
	}
	<-h.closed
	h.broken = nil
	gone := r.dial()
	gone.send("GET /v1/cluster/backup HTTP/1.1\r\nHost: x\r\n\r\n")
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-h.closed:
	case <-time.After(patience):
		t.Error("the stream to a client that went away stays open")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = p.Close()
	if err := r.server.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if err := <-r.served; err != nil {
		t.Error(err)
	}
}
