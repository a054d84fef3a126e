package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"
)

const (
	// maxAnswerBytes is above the largest answer: 16 MiB of payload as base64, with
	// keys and attributes of 1000 messages beside it.
	maxAnswerBytes = 64 << 20
	// maxProblemBytes holds any problem; a proxy's page beyond that is not of interest.
	maxProblemBytes = 1 << 20
	// jsonType of request bodies.
	jsonType = "application/json"
	// batchType of binary bodies and answers (api.md, section 8).
	batchType = "application/vnd.narad.batch"
)

// Call is one request in the API's own terms.
type Call struct {
	Op          string // for errors, e.g. `produce to "orders"`
	Method      string
	Path        string // escaped, below the base URL: "/v1/info"
	Query       url.Values
	Header      http.Header // added to the ones that the client sets
	ContentType string      // of Body; empty sends none
	Accept      string      // empty sends none: JSON
	Body        []byte
	Safety      Safety
	Wait        time.Duration // how long the server may wait on purpose: added to the attempt's timeout
}

// Answer is a 2xx answer with its whole body.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	// AfterUnknown tells that an earlier attempt of the call may have been applied too.
	AfterUnknown bool

	closing bool // the gateway closes the connection, as one does that is stopping
}

// attempt sends the call once. The error's Op, Gateway and Attempts are the caller's to fill in.
func (c *Client) attempt(ctx context.Context, base string, call Call) (*Answer, *Error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout+call.Wait)
	defer cancel()
	var asked, got atomic.Bool
	req, err := c.request(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { got.Store(true) },
	}), base, call)
	if err != nil {
		return nil, &Error{Applied: AppliedNo, Err: err, final: true}
	}
	mutating := call.Method != http.MethodGet
	res, err := c.http.Do(req)
	if err != nil {
		e := &Error{Err: transportCause(err)}
		if mutating {
			// Without a connection nothing left this machine. A transport that does not
			// report connections proves nothing.
			e.Applied = AppliedUnknown
			if asked.Load() && !got.Load() {
				e.Applied = AppliedNo
			}
		}
		return nil, e
	}
	defer res.Body.Close()
	return readAnswer(res, mutating)
}

func (c *Client) request(ctx context.Context, base string, call Call) (*http.Request, error) {
	target := base + call.Path
	if len(call.Query) > 0 {
		target += "?" + call.Query.Encode()
	}
	var body io.Reader
	if call.Body != nil {
		body = bytes.NewReader(call.Body)
	}
	req, err := http.NewRequestWithContext(ctx, call.Method, target, body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	for k, v := range call.Header {
		req.Header[k] = v
	}
	req.Header.Set("User-Agent", c.userAgent)
	if call.ContentType != "" {
		req.Header.Set("Content-Type", call.ContentType)
	}
	if call.Accept != "" {
		req.Header.Set("Accept", call.Accept)
	}
	return req, nil
}

func readAnswer(res *http.Response, mutating bool) (*Answer, *Error) {
	switch {
	case res.StatusCode/100 == 2:
		body, err := readAll(res.Body, res.ContentLength, maxAnswerBytes)
		if err == nil {
			return &Answer{Status: res.StatusCode, Header: res.Header, Body: body, closing: res.Close}, nil
		}
		e := &Error{Status: res.StatusCode, RequestID: res.Header.Get("Narad-Request-Id"), Detail: "the answer was cut", Err: err}
		if mutating {
			e.Applied = AppliedUnknown
		}
		e.final = errors.Is(err, errTooLarge)
		return nil, e
	case res.StatusCode/100 == 3:
		e := problemError(res.StatusCode, res.Header, nil, mutating)
		e.Detail = "a redirect, which Narad never sends, was refused: give the gateway's own url"
		e.final = true
		return nil, e
	}
	body, _ := readAll(res.Body, -1, maxProblemBytes) // cut or endless: the status alone must do
	return nil, problemError(res.StatusCode, res.Header, body, mutating)
}

var errTooLarge = errors.New("larger than any answer of a gateway")

func readAll(r io.Reader, length, limit int64) ([]byte, error) {
	var buf bytes.Buffer
	if length > 0 && length <= limit {
		buf.Grow(int(length) + bytes.MinRead) // no growing, no copy
	}
	n, err := buf.ReadFrom(io.LimitReader(r, limit+1))
	if err == nil && n > limit {
		err = errTooLarge
	}
	return buf.Bytes(), err
}

// transportCause drops the method and URL that url.Error repeats: the Error has them.
func transportCause(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// doJSON sends a call and decodes its answer into out (nil: not looked at).
func (c *Client) doJSON(ctx context.Context, call Call, out any) (*Answer, error) {
	ans, err := c.Do(ctx, call)
	if err != nil {
		return nil, err
	}
	if out == nil {
		return ans, nil
	}
	if err := json.Unmarshal(ans.Body, out); err != nil {
		return nil, c.unreadable(call, ans, err)
	}
	return ans, nil
}

func (c *Client) unreadable(call Call, ans *Answer, err error) *Error {
	e := &Error{
		Op: call.Op, Status: ans.Status, RequestID: ans.Header.Get("Narad-Request-Id"),
		Detail: "the answer cannot be read", Err: err, final: true,
	}
	if call.Method != http.MethodGet {
		e.Applied = AppliedUnknown
	}
	return e
}
