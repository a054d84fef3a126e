package api

import (
	"strconv"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// settlement is what ack, extend and nack differ in.
type settlement struct {
	kind      nodeapi.SettleKind
	arg       string // parameter and field; "": none
	required  bool
	low, high int64
}

func (c *call) ack() error { return c.settle(settlement{kind: nodeapi.SettleAck}) }

func (c *call) extend() error {
	return c.settle(settlement{
		kind: nodeapi.SettleExtend, arg: "visibility_timeout_ms", required: true,
		low: topic.MinVisibilityMS, high: topic.MaxVisibilityMS,
	})
}

func (c *call) nack() error {
	return c.settle(settlement{kind: nodeapi.SettleNack, arg: "delay_ms", high: MaxNackDelayMS})
}

// settle takes one handle from the query or a list from the body, never both.
func (c *call) settle(s settlement) error {
	if len(c.req.Query) == 0 {
		return c.settleMany(s)
	}
	if c.req.ContentLength != 0 {
		if err := c.refuseBody(); err != nil {
			return err
		}
	}
	return c.settleOne(s)
}

func (c *call) settleOne(s settlement) error {
	handle, ok, err := c.query.text("receipt_handle", c.key)
	if err != nil {
		return invalidHandle()
	}
	if !ok {
		return badParameter("receipt_handle", "send receipt_handle in the query or receipt_handles in the body")
	}
	var arg int64
	if s.arg != "" {
		if _, given := c.query.raw(s.arg); !given && s.required {
			return badParameter(s.arg, "%s is needed", s.arg)
		}
		if arg, err = c.query.integer(s.arg, 0, s.low, s.high); err != nil {
			return err
		}
	}
	var r receipt
	if !parseReceipt(handle, &r) {
		return invalidHandle()
	}
	t, err := c.resolve()
	if err != nil {
		return err
	}
	op, ok := s.op(t, &r, arg)
	if !ok {
		return leaseLost()
	}
	c.ops = append(c.ops[:0], op)
	statuses, err := c.settleOps(t)
	if err != nil {
		return err
	}
	switch statuses[0] {
	case nodeapi.SettleOK:
		c.resp.Status = 204
		return nil
	case nodeapi.SettleLost:
		return leaseLost()
	default:
		return problem.New(problem.PartitionUnavailable, "partition %d of %q cannot settle now", r.partition, t.Name).
			With("partition", r.partition)
	}
}

func invalidHandle() *problem.Problem {
	return problem.New(problem.InvalidReceiptHandle, "this is not a receipt handle")
}

func leaseLost() *problem.Problem {
	return problem.New(problem.LeaseLost, "the lease has ended or was settled in another way")
}

// op makes the operation; false when the handle cannot be of this topic.
func (s *settlement) op(t *topic.Topic, r *receipt, arg int64) (nodeapi.SettleOp, bool) {
	if r.incarnation != t.Incarnation || int(r.partition) >= t.Partitions {
		return nodeapi.SettleOp{}, false
	}
	return nodeapi.SettleOp{
		Ref:  topic.Ref{Topic: t.Name, Incarnation: t.Incarnation, Partition: r.partition},
		Kind: s.kind, Offset: r.offset, Epoch: r.epoch, Nonce: r.nonce, ArgMS: arg,
	}, true
}

func (c *call) settleOps(t *topic.Topic) ([]nodeapi.SettleStatus, error) {
	ctx, cancel := c.within(settleBudget)
	defer cancel()
	statuses, err := c.api.deps.Consumer.Settle(ctx, t, c.ops)
	if err == nil && len(statuses) != len(c.ops) {
		return nil, problem.New(problem.OutcomeUnknown, "the owner's answer does not match the request")
	}
	return statuses, err
}

// settleMany settles a list: each result is what a single call would have got.
func (c *call) settleMany(s settlement) error {
	r, err := c.jsonDocument(MaxJSONBytes)
	if err != nil {
		return err
	}
	handles, arg, err := c.readHandles(r, s)
	if err != nil {
		return err
	}
	t, err := c.resolve()
	if err != nil {
		return err
	}
	c.ops, c.codes = c.ops[:0], c.codes[:0]
	for _, h := range handles {
		var rec receipt
		code := problem.Code("")
		if !parseReceipt(h, &rec) {
			code = problem.InvalidReceiptHandle
		} else if op, ok := s.op(t, &rec, arg); ok {
			c.ops = append(c.ops, op)
		} else {
			code = problem.LeaseLost
		}
		c.codes = append(c.codes, code)
	}
	var statuses []nodeapi.SettleStatus
	if len(c.ops) > 0 {
		if statuses, err = c.settleOps(t); err != nil {
			return err
		}
	}
	c.writeResults(statuses)
	return nil
}

// readHandles reads {"receipt_handles":[..]} and the argument; only the shape of
// the body can be refused here.
func (c *call) readHandles(r *jsonReader, s settlement) (handles [][]byte, arg int64, err error) {
	names := []string{"receipt_handles"}
	if s.arg != "" {
		names = append(names, s.arg)
	}
	given := false
	err = r.object("body", names, 0, func(i int) error {
		if i == 1 {
			given = true
			if arg, err = r.integer(s.arg); err != nil {
				return err
			}
			if arg < s.low || arg > s.high {
				return badParameter(s.arg, "%s must be between %d and %d", s.arg, s.low, s.high)
			}
			return nil
		}
		return r.array("receipt_handles", func(i int) error {
			if i == MaxMessages {
				return badParameter("receipt_handles", "at most %d handles are allowed", MaxMessages)
			}
			at := len(c.arena)
			if c.arena, err = r.str("receipt_handles", c.arena); err != nil {
				return err
			}
			handles = append(handles, c.arena[at:len(c.arena):len(c.arena)])
			return nil
		})
	})
	if err != nil {
		return nil, 0, err
	}
	if err := r.end(); err != nil {
		return nil, 0, err
	}
	if len(handles) == 0 {
		return nil, 0, badParameter("receipt_handles", "send receipt_handle in the query or receipt_handles in the body")
	}
	if s.required && !given {
		return nil, 0, badParameter(s.arg, "%s is needed", s.arg)
	}
	return handles, arg, nil
}

// writeResults merges what the owner said with what never reached it.
func (c *call) writeResults(statuses []nodeapi.SettleStatus) {
	c.json(200)
	c.out = append(c.out, `{"results":[`...)
	for i, code := range c.codes {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		if code == "" {
			code = statusCode(statuses[0])
			statuses = statuses[1:]
		}
		c.out = appendResult(c.out, code)
	}
	c.out = append(c.out, `]}`...)
}

func statusCode(s nodeapi.SettleStatus) problem.Code {
	switch s {
	case nodeapi.SettleOK:
		return ""
	case nodeapi.SettleLost:
		return problem.LeaseLost
	default:
		return problem.PartitionUnavailable
	}
}

func appendResult(dst []byte, code problem.Code) []byte {
	if code == "" {
		return append(dst, `{"status":204}`...)
	}
	p := problem.New(code, "")
	dst = append(dst, `{"status":`...)
	dst = strconv.AppendInt(dst, int64(p.Status), 10)
	dst = append(dst, `,"code":"`...)
	dst = append(dst, code...)
	dst = append(dst, '"')
	if p.Status == 503 {
		dst = append(dst, `,"applied":"no"`...)
	}
	return append(dst, '}')
}
