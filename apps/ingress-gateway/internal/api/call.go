package api

import (
	"bytes"
	"errors"
	"io"

	"github.com/narad-mq/narad/libs/client/batch"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// errWantsBody ends a dry run at the point where the body is first needed.
var errWantsBody = errors.New("the handler wants the body")

// call is the state of one request, reused from one to the next. Everything in
// it is private to the goroutine that serves the request.
type call struct {
	api  *API
	req  *Request
	resp *Response

	route  *Route
	params [maxPathParams][]byte
	query  query
	id     []byte // request id
	topic  string // validated name, "" on routes without one

	out      []byte // the answer's body
	raw      []byte // the body as sent
	arena    []byte // decoded bytes: inflated bodies, unquoted strings
	key      []byte // decoded key
	reserved int64  // taken from the budget of bodies

	msgs    []Produced
	attrs   []record.Attr
	decoder batch.Decoder
	reader  *jsonReader
	ops     []nodeapi.SettleOp
	codes   []problem.Code // by handle of a list that could not be read
	attrErr error
	visit   func(name, value []byte) bool // collectAttribute, made once

	leasedOf *topic.Topic
	leased   []nodeapi.Delivery
}

func newCall(a *API) *call {
	c := &call{api: a, key: make([]byte, 0, 128)}
	c.visit = c.collectAttribute
	return c
}

// handle routes the request and runs what every route has in common.
func (c *call) handle() error {
	c.takeRequestID()
	n := c.api.router.find(c.req.Path, &c.params)
	if n == nil {
		return problem.New(problem.RouteNotFound, "no such route")
	}
	route := n.methods[string(c.req.Method)]
	if route == nil {
		c.resp.Allow = n.allow
		return problem.New(problem.MethodNotAllowed, "this route takes %s", n.allow)
	}
	c.route = route
	if c.api.deps.Removed() {
		c.resp.Close = true // the next connection finds another gateway
		return problem.New(problem.Draining, "this gateway was decommissioned: it is no member of the cluster any more")
	}
	if !route.AnySite && crossSite(c.req.Headers, c.req.Host) {
		return problem.New(problem.CrossOrigin, "a page of another site may not call this")
	}
	if v, n := c.req.Headers.Get("Expect"); n > 1 || n == 1 && !bytes.EqualFold(v, []byte("100-continue")) {
		c.resp.Close = true
		return problem.New(problem.ExpectationFailed, "only 100-continue can be expected")
	}
	if route.Feature != "" {
		return notImplemented(route.Feature)
	}
	if err := c.query.parse(c.req.Query, route.Query); err != nil {
		return err
	}
	if route.topicParam {
		if err := c.takeTopicName(); err != nil {
			return err
		}
	}
	c.resp.NoStore = route.NoStore
	if c.req.Dry && c.req.ContentLength == 0 {
		return errWantsBody // what follows may have an effect
	}
	if !route.Body {
		if err := c.refuseBody(); err != nil {
			return err
		}
	}
	return route.handle(c)
}

func notImplemented(feature string) error {
	return problem.New(problem.NotImplemented, "%s is not built yet", feature).With("feature", feature)
}

func (c *call) routeName() string {
	if c.route == nil {
		return ""
	}
	return c.route.Pattern
}

func (c *call) takeRequestID() {
	if own, n := c.req.Headers.Get("X-Request-Id"); n == 1 && validRequestID(own) {
		c.id = append(c.id[:0], own...)
	} else {
		c.id = c.api.ids.appendNew(c.id[:0])
	}
	c.resp.RequestID = viewString(c.id)
}

// takeTopicName decodes the path segment once and checks the result, which is
// the string that everything behind sees.
func (c *call) takeTopicName() error {
	seg := c.params[0]
	if bytes.IndexByte(seg, '%') >= 0 {
		decoded, ok := appendUnescaped(nil, seg, false)
		if !ok {
			return problem.New(problem.InvalidTopicName, "the topic's name is not percent-encoded")
		}
		seg = decoded
	}
	name := string(seg)
	if err := topic.ValidateName(name); err != nil {
		return problem.New(problem.InvalidTopicName, "%s", err.Error())
	}
	c.topic = name
	return nil
}

// refuseBody is for routes that take none: they would ignore what the caller meant.
func (c *call) refuseBody() error {
	if c.req.ContentLength == 0 {
		return nil
	}
	if c.req.ContentLength < 0 {
		if c.req.Dry {
			return errWantsBody
		}
		var one [1]byte
		n, err := io.ReadFull(c.req.Body, one[:])
		if n == 0 && err == io.EOF {
			return nil
		}
		if n == 0 {
			return c.brokenBody(err)
		}
	}
	return badParameter("body", "this route takes no body")
}

// json begins a JSON answer.
func (c *call) json(status int) {
	c.resp.Status, c.resp.ContentType = status, typeJSON
	c.out = c.out[:0]
}

// hold remembers leases that must go back if the answer is not written.
func (c *call) hold(t *topic.Topic, ds []nodeapi.Delivery) {
	c.leasedOf, c.leased = t, ds
	c.resp.Leased = len(ds) > 0
}

// dropLeases gives held leases back at once.
func (c *call) dropLeases() {
	if len(c.leased) > 0 {
		c.api.deps.Consumer.Release(c.leasedOf, c.leased)
	}
	c.leasedOf, c.leased = nil, nil
	c.resp.Leased = false
}

// finish ends the exchange and gives all memory back.
func (c *call) finish(sent bool) {
	if !sent {
		c.dropLeases()
	}
	c.api.bodies.give(c.reserved)
	clear(c.msgs)
	clear(c.attrs)
	*c = call{
		api: c.api, visit: c.visit, id: c.id[:0], key: c.key[:0],
		out: keep(c.out), raw: keep(c.raw), arena: keep(c.arena),
		msgs: c.msgs[:0], attrs: c.attrs[:0], ops: c.ops[:0], codes: c.codes[:0],
		decoder: c.decoder, reader: c.reader,
	}
	c.api.calls.Put(c)
}

// keep returns b empty for reuse, unless it is too large to hold on to.
func keep(b []byte) []byte {
	if cap(b) > pooledBytes {
		return nil
	}
	return b[:0]
}
