package api

import (
	"bytes"
	"context"
	"strconv"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// Children is the fan-out side of the API. Refusals are *problem.Problem: those of
// metaapi.Children.
type Children interface {
	// Attach, Detach and CreateChild answer after this gateway's own replica shows the
	// change (at most 2 s after the commit). What Attach and CreateChild return is the
	// child.
	Attach(ctx context.Context, parent, child *topic.Topic, delayMS int64) (*topic.Topic, error)
	Detach(ctx context.Context, parent *topic.Topic, child topic.Child) error
	// CreateChild creates a topic with as many partitions as its parent.
	CreateChild(ctx context.Context, name string, c topic.Config, parent *topic.Topic, delayMS int64) (*topic.Topic, error)
	// Cursors asks the leaders of all partitions of a parent, at most 2 s; a row per
	// partition.
	Cursors(ctx context.Context, parent *topic.Topic) ([]CursorRow, error)
}

// CursorRow is the cursors of one partition of a parent. Cursors is nil when the
// leader did not answer.
type CursorRow struct {
	Node    string // "": no leader
	Cursors *nodeapi.PartitionCursors
}

// childOf reads the path's second parameter.
func (c *call) childOf() (string, error) {
	seg := c.params[1]
	if bytes.IndexByte(seg, '%') >= 0 {
		var ok bool
		if seg, ok = appendUnescaped(nil, seg, false); !ok {
			return "", problem.New(problem.InvalidTopicName, "the child's name is not percent-encoded")
		}
	}
	if err := topic.ValidateName(string(seg)); err != nil {
		return "", problem.New(problem.InvalidTopicName, "%s", err.Error())
	}
	return string(seg), nil
}

// checkDelay refuses a delay that no child can have.
func checkDelay(ms int64) error {
	if ms < 0 || ms > topic.MaxDelayMS {
		return badParameter("delay_ms", "delay_ms must be between 0 and %d", int64(topic.MaxDelayMS))
	}
	return nil
}

// attachChild: POST /v1/topics/{topic}/children.
func (c *call) attachChild() error {
	r, err := c.jsonDocument(MaxJSONBytes)
	if err != nil {
		return err
	}
	name, delay := "", int64(0)
	err = r.object("body", []string{"child", "delay_ms"}, 0, func(i int) (err error) {
		if i == 0 {
			var b []byte
			b, err = r.str("child", nil)
			name = string(b)
			return err
		}
		delay, err = r.integer("delay_ms")
		return err
	})
	if err == nil {
		err = r.end()
	}
	if err != nil {
		return err
	}
	if err := topic.ValidateName(name); err != nil {
		return problem.New(problem.InvalidTopicName, "child: %s", err.Error())
	}
	if err := checkDelay(delay); err != nil {
		return err
	}
	parent, err := c.resolve()
	if err != nil {
		return err
	}
	ctx, cancel := c.within(metadataBudget)
	defer cancel()
	child, err := c.api.deps.Topics.Resolve(ctx, name)
	if err != nil {
		return err
	}
	attached, err := c.api.deps.Children.Attach(ctx, parent, child, delay)
	if err != nil {
		return err
	}
	row := topic.Child{Name: attached.Name, Incarnation: attached.Incarnation, DelayMS: delay}
	if p := attached.Parent; p != nil {
		row.AttachEpoch = p.AttachEpoch
	}
	if now, err := c.api.deps.Topics.Resolve(ctx, parent.Name); err == nil {
		if seen, ok := now.ChildNamed(name); ok && seen.AttachEpoch == row.AttachEpoch {
			row = seen
		}
	}
	c.json(201)
	c.out = appendChild(c.out, &row, nil)
	return nil
}

// listChildren: GET /v1/topics/{topic}/children.
func (c *call) listChildren() error {
	t, err := c.resolve()
	if err != nil {
		return err
	}
	ctx, cancel := c.within(detailsBudget)
	defer cancel()
	var rows []CursorRow
	if len(t.Children) > 0 {
		if rows, err = c.api.deps.Children.Cursors(ctx, t); err != nil {
			return err
		}
	}
	c.json(200)
	c.out = append(c.out, `{"parent":`...)
	c.out = appendString(c.out, t.Name)
	c.out = append(c.out, `,"incarnation":"`...)
	c.out = appendID(c.out, t.Incarnation)
	c.out = append(c.out, `","children":[`...)
	for i := range t.Children {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = appendChild(c.out, &t.Children[i], rows)
	}
	c.out = append(c.out, `]}`...)
	return nil
}

// standing is what the rows say of one child.
type standing struct {
	lag, dueMS, dropped int64
	partial             bool // a partition did not say
}

// appendChild appends the document of a child. Without rows nothing is known of its
// cursors yet.
func appendChild(dst []byte, child *topic.Child, rows []CursorRow) []byte {
	s := standing{partial: rows == nil}
	cursors := append([]byte(nil), '[')
	for i := range rows {
		d := s.add(&rows[i], child.AttachEpoch)
		if d == nil {
			continue
		}
		if len(cursors) > 1 {
			cursors = append(cursors, ',')
		}
		cursors = append(cursors, `{"partition":`...)
		cursors = strconv.AppendInt(cursors, int64(i), 10)
		cursors = append(cursors, `,"node":`...)
		cursors = appendString(cursors, rows[i].Node)
		cursors = appendNumber(cursors, "next_offset", d.NextOffset)
		cursors = appendNumber(cursors, "high_watermark", rows[i].Cursors.HighWatermark)
		cursors = append(appendNumber(cursors, "due_lag_ms", d.DueLagMS), '}')
	}
	dst = append(dst, `{"child":`...)
	dst = appendString(dst, child.Name)
	dst = append(dst, `,"incarnation":"`...)
	dst = append(appendID(dst, child.Incarnation), '"')
	dst = appendNumber(dst, "delay_ms", child.DelayMS)
	dst = append(dst, `,"attach_epoch":"`...)
	dst = appendID(dst, child.AttachEpoch)
	dst = append(dst, `","attached_at":`...)
	dst = appendTime(dst, child.AttachedMS)
	dst = appendNumber(dst, "lag_messages", s.lag)
	dst = appendNumber(dst, "due_lag_ms", s.dueMS)
	dst = appendNumber(dst, "dropped_messages", s.dropped)
	dst = append(dst, `,"partial":`...)
	dst = strconv.AppendBool(dst, s.partial)
	dst = append(dst, `,"cursors":`...)
	return append(append(append(dst, cursors...), ']'), '}')
}

// add takes over what one partition says of an attachment, and returns its cursor.
func (s *standing) add(r *CursorRow, attach topic.ID64) *nodeapi.CursorDetails {
	if r.Cursors != nil {
		for i := range r.Cursors.Cursors {
			if d := &r.Cursors.Cursors[i]; d.AttachEpoch == attach {
				s.lag += max(r.Cursors.HighWatermark-d.NextOffset, 0)
				s.dueMS = max(s.dueMS, d.DueLagMS)
				s.dropped += d.Dropped
				return d
			}
		}
	}
	s.partial = true
	return nil
}

// detachChild: DELETE /v1/topics/{topic}/children/{child}.
func (c *call) detachChild() error {
	name, err := c.childOf()
	if err != nil {
		return err
	}
	t, err := c.resolve()
	if err != nil {
		return err
	}
	child, ok := t.ChildNamed(name)
	if !ok {
		return problem.New(problem.ChildNotFound, "%q is not a child of %q", name, t.Name)
	}
	ctx, cancel := c.within(metadataBudget)
	defer cancel()
	if err := c.api.deps.Children.Detach(ctx, t, child); err != nil {
		return err
	}
	c.resp.Status = 204
	return nil
}

// takesProduce refuses direct produce to a topic whose messages come later by promise.
func takesProduce(t *topic.Topic) error {
	if t.Role() == topic.RoleDelayChild {
		return problem.New(problem.RoleConflict, "%q is a delay child: produce to %q", t.Name, t.Parent.Name).With("parent", t.Parent.Name)
	}
	return nil
}
