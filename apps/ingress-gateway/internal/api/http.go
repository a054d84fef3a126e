package api

import (
	"errors"
	"io"
)

// Errors of Request.Body that an adapter must use. Any other error means that
// the client broke off or sent a malformed body.
var (
	// ErrBodyTimeout: the body took longer than the adapter allows.
	ErrBodyTimeout = errors.New("request body too slow")
)

// Headers gives access to the headers of a request.
type Headers interface {
	// Get returns the value of a header by its canonical name (Content-Type) and
	// how many headers of that name there are. With several, which value is
	// returned is not defined.
	Get(name string) (value []byte, count int)
	// Each calls f for every header line until f returns false. Names may be in any case.
	Each(f func(name, value []byte) bool)
}

// Client is the connection that a request came on.
type Client interface {
	// Gone tells whether the client has closed its side. It is cheap and does not block.
	Gone() bool
}

// Request is one HTTP request. All slices are valid until Response.Finish.
type Request struct {
	Method  []byte
	Path    []byte // as it stands in the request line, escapes and all, without the query
	Query   []byte // as it stands, without the question mark
	Host    []byte
	Headers Headers
	Client  Client // nil: cannot tell

	// ContentLength is the announced length of the body: 0 none, -1 not announced.
	ContentLength int64
	// Body gives the body; it may be nil when ContentLength is 0. The adapter
	// limits the time, the handlers the size.
	Body io.Reader
	// Dry asks to stop where the body is first wanted, with Response.WantsBody
	// set. Nothing has an effect before that point.
	Dry bool
}

// Response is the answer. The adapter writes it and then calls Finish.
type Response struct {
	Status      int
	ContentType string // "": no body
	Body        []byte // valid until Finish
	// Stream is the body in place of Body, Length bytes of it. Finish closes it; the
	// adapter may as well. An error of it ends the connection.
	Stream    io.ReadCloser
	Length    int64
	RequestID string

	NoStore     bool   // Cache-Control: no-store
	Location    string // "": none, as for the next ones
	ETag        string
	Allow       string
	RetryAfterS int
	Unavailable int  // Narad-Partitions-Unavailable; 0: none
	Close       bool // the connection must end after this answer

	// WantsBody is set instead of everything else when a dry run got that far.
	WantsBody bool
	// Leased tells that records are lost for a while if this answer is not
	// written: an adapter that defers writes must not defer this one.
	Leased bool

	call *call
}

// Finish ends the exchange: sent tells whether the answer was handed to the
// network in full. It must be called once for each Serve, also after a dry run.
// Neither Body nor the Request's slices may be used afterwards.
func (r *Response) Finish(sent bool) {
	if r.Stream != nil {
		_ = r.Stream.Close() // only read from
		r.Stream = nil
	}
	if c := r.call; c != nil {
		r.call = nil
		c.finish(sent)
	}
}
