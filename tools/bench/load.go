package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// maxSeconds bounds a phase; the whole run is a small multiple of it.
const maxSeconds = 600

// callTimeout bounds one request; a consume waits at most consumeWait of it.
const (
	callTimeout = 30 * time.Second
	consumeWait = "2s"
)

// settings of a run.
type settings struct {
	servers     []string
	endpoints   string
	connections int
	size        int
	length      time.Duration
	only        string
	replicated  bool
}

// target is one base URL with its connections.
type target struct {
	client *fasthttp.HostClient
	base   string
}

func newTarget(url string, connections int) target {
	host := strings.TrimPrefix(strings.TrimSuffix(url, "/"), "http://")
	return target{base: "http://" + host, client: &fasthttp.HostClient{
		Addr: host, MaxConns: connections + 8, ReadTimeout: callTimeout, WriteTimeout: callTimeout,
		MaxIdleConnDuration: time.Minute, NoDefaultUserAgentHeader: true, DisablePathNormalizing: true,
		RetryIfErr: func(*fasthttp.Request, int, error) (bool, bool) { return false, false },
	}}
}

// call is one worker's reusable request and answer.
type call struct {
	target
	req  *fasthttp.Request
	resp *fasthttp.Response
}

func (t target) newCall() *call {
	return &call{target: t, req: fasthttp.AcquireRequest(), resp: fasthttp.AcquireResponse()}
}

// do sends one request; the body of the answer is valid until the next call.
func (c *call) do(method, path, contentType, accept string, body []byte) (int, []byte, error) {
	c.req.Reset()
	c.req.Header.SetMethod(method)
	c.req.SetRequestURI(c.base + path)
	if contentType != "" {
		c.req.Header.SetContentType(contentType)
	}
	if accept != "" {
		c.req.Header.Set("Accept", accept)
	}
	c.req.SetBodyRaw(body)
	if err := c.client.DoTimeout(c.req, c.resp, callTimeout); err != nil {
		return 0, nil, err
	}
	return c.resp.StatusCode(), c.resp.Body(), nil
}

// expect is do with one wanted status.
func (c *call) expect(want int, method, path, contentType string, body []byte) error {
	status, answer, err := c.do(method, path, contentType, "", body)
	if err == nil && status != want {
		err = fmt.Errorf("%s %s: status %d: %.200s", method, path, status, answer)
	}
	return err
}

// result is what one phase measured.
type result struct {
	Name       string   `json:"name"`
	Messages   int64    `json:"messages"`
	Seconds    float64  `json:"seconds"`
	PerSecond  float64  `json:"messages_per_second"`
	P50        float64  `json:"p50_ms"`
	P99        float64  `json:"p99_ms"`
	P999       float64  `json:"p99_9_ms"`
	Errors     int64    `json:"errors"`
	FirstError string   `json:"first_error,omitempty"`
	ToFloor    float64  `json:"ratio_to_floor,omitempty"`
	Programs   []usages `json:"programs,omitempty"`
	Note       string   `json:"note,omitempty"` // what the columns do not say
}

// errEnd ends a worker without being an error.
var errEnd = errors.New("nothing left")

// step does one unit of work and tells how many messages it moved, and how long
// the caller should say it took (0: the duration of the step itself).
type step func() (messages int, took time.Duration, err error)

// drive runs one step function per worker until the time is over or errEnd.
func drive(name string, length time.Duration, workers []step) result {
	var messages, failures atomic.Int64
	var first atomic.Pointer[string]
	times := make([][]time.Duration, len(workers))
	last := make([]time.Time, len(workers)) // when each moved something last
	begin := time.Now()
	end := begin.Add(length)
	var wg sync.WaitGroup
	for i, work := range workers {
		wg.Go(func() {
			for {
				at := time.Now()
				if !at.Before(end) {
					return
				}
				n, took, err := work()
				if errors.Is(err, errEnd) {
					return
				}
				if err != nil {
					failures.Add(1)
					text := err.Error()
					first.CompareAndSwap(nil, &text)
					continue
				}
				if took == 0 {
					took = time.Since(at)
				}
				messages.Add(int64(n))
				if n > 0 {
					last[i] = time.Now()
					times[i] = append(times[i], took)
				}
			}
		})
	}
	wg.Wait()
	// A backlog that is drained early ends with a wait for nothing: not counted.
	over := slices.MaxFunc(last, time.Time.Compare)
	r := result{Name: name, Messages: messages.Load(), Errors: failures.Load()}
	if r.Messages > 0 {
		r.Seconds = over.Sub(begin).Seconds()
		r.PerSecond = float64(r.Messages) / r.Seconds
	}
	if text := first.Load(); text != nil {
		r.FirstError = *text
	}
	r.quantiles(slices.Concat(times...))
	return r
}

func (r *result) quantiles(all []time.Duration) {
	if len(all) == 0 {
		return
	}
	slices.Sort(all)
	at := func(q float64) float64 {
		return float64(all[min(int(q*float64(len(all))), len(all)-1)].Microseconds()) / 1000
	}
	r.P50, r.P99, r.P999 = at(0.5), at(0.99), at(0.999)
}
