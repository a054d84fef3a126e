package api

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// Decommissions is the part of Cluster about members that leave and partitions that
// are lost. Refusals are those of metaapi.Decommissions.
type Decommissions interface {
	Decommission(ctx context.Context, req *metaapi.DecommissionRequest) (*metaapi.DecommissionResult, error)
	CancelDecommission(ctx context.Context, req *metaapi.CancelDecommissionRequest) error
	// MemberDetail is the leader's judgement, or without one what the replica shows of
	// a draining member. At most 3 s.
	MemberDetail(ctx context.Context, m *topic.Member) (*metaapi.MemberDetailResult, error)
	// ResetPartition begins a lost partition of the life t anew.
	ResetPartition(ctx context.Context, t *topic.Topic, partition int32, operator string) error
}

// Tombstone is a member that was removed and is none again.
type Tombstone struct {
	ID        string
	RemovedMS int64 // Unix ms
}

// flag reads a query parameter that is true or false.
func (c *call) flag(name string) (bool, error) {
	v, ok := c.query.raw(name)
	if !ok {
		return false, nil
	}
	if s := string(v); s != "true" && s != "false" {
		return false, badParameter(name, "%s is true or false", name)
	}
	return string(v) == "true", nil
}

// operator names who asks, for the log of the leader: there are no users yet.
func (c *call) operator() string { return "request " + string(c.id) + " at " + c.api.cfg.NodeID }

// decommission: POST /v1/cluster/members/{id}/decommission.
func (c *call) decommission() error {
	id, err := c.memberID()
	if err != nil {
		return err
	}
	req := &metaapi.DecommissionRequest{NodeID: id, Operator: c.operator()}
	if req.DryRun, err = c.flag("dry_run"); err != nil {
		return err
	}
	if req.AcceptDataLoss, err = c.flag("accept_data_loss"); err != nil {
		return err
	}
	ctx, cancel := c.within(metadataBudget)
	defer cancel()
	res, err := c.api.deps.Cluster.Decommission(ctx, req)
	if err != nil {
		return err
	}
	if !req.DryRun {
		c.json(202)
		c.out = append(c.out, `{"id":`...)
		c.out = append(appendString(c.out, id), `,"draining":true}`...)
		return nil
	}
	reasons, err := appendReasons(nil, res.Reasons)
	if err != nil {
		return err
	}
	c.json(200)
	c.out = append(c.out, `{"id":`...)
	c.out = appendString(c.out, id)
	c.out = append(c.out, `,"would_decommission":`...)
	c.out = strconv.AppendBool(c.out, res.Would)
	c.out = append(c.out, `,"reasons":`...)
	c.out = append(c.out, reasons...)
	c.out = appendNumber(c.out, "partitions_led", int64(res.PartitionsLed))
	c.out = appendNumber(c.out, "replicas", int64(res.Replicas))
	c.out = append(appendNumber(c.out, "wal_backlog_records", res.WALBacklogRecords), '}')
	return nil
}

// appendReasons appends a list that is never null.
func appendReasons(dst []byte, list []metaapi.Reason) ([]byte, error) {
	if len(list) == 0 {
		return append(dst, "[]"...), nil
	}
	doc, err := json.Marshal(list)
	return append(dst, doc...), err
}

// cancelDecommission: DELETE /v1/cluster/members/{id}/decommission.
func (c *call) cancelDecommission() error {
	id, err := c.memberID()
	if err != nil {
		return err
	}
	ctx, cancel := c.within(metadataBudget)
	defer cancel()
	if err := c.api.deps.Cluster.CancelDecommission(ctx, &metaapi.CancelDecommissionRequest{NodeID: id, Operator: c.operator()}); err != nil {
		return err
	}
	c.resp.Status = 204
	return nil
}

// appendDecommission appends how far the decommission of a member is, or null.
func (c *call) appendDecommission(dst []byte, m *topic.Member) ([]byte, error) {
	if !m.Draining {
		return append(dst, "null"...), nil
	}
	ctx, cancel := c.within(detailsBudget)
	defer cancel()
	d, err := c.api.deps.Cluster.MemberDetail(ctx, m)
	if err != nil {
		return dst, err
	}
	if !d.Draining { // the leader knows of its end already
		return append(dst, "null"...), nil
	}
	dst = append(dst, `{"started_at":`...)
	dst = appendTime(dst, d.StartedMS)
	dst = appendNumber(dst, "partitions_left", int64(d.PartitionsLeft))
	dst = appendNumber(dst, "wal_backlog_records", d.WALBacklogRecords)
	dst = append(dst, `,"blocked":`...)
	if dst, err = appendReasons(dst, d.Blocked); err != nil {
		return dst, err
	}
	return append(dst, '}'), nil
}

// resetPartition: POST /v1/topics/{topic}/partitions/{partition}/reset.
func (c *call) resetPartition() error {
	p, err := strconv.ParseUint(string(c.params[1]), 10, 31)
	if err != nil || len(c.params[1]) > 1 && bytes.HasPrefix(c.params[1], []byte("0")) {
		return badParameter("partition", "must be 0 to %d", topic.MaxPartitions-1)
	}
	accepts, err := c.flag("accept_data_loss")
	if err != nil {
		return err
	}
	if !accepts {
		return badParameter("accept_data_loss", "a reset gives up what is lost of the partition: it has to be accepted with accept_data_loss=true")
	}
	t, err := c.resolve()
	if err != nil {
		return err
	}
	if p >= uint64(t.Partitions) {
		return problem.New(problem.PartitionOutOfRange, "topic %q has %d partitions", t.Name, t.Partitions).With("partitions", t.Partitions)
	}
	ctx, cancel := c.within(metadataBudget)
	defer cancel()
	if err := c.api.deps.Cluster.ResetPartition(ctx, t, int32(p), c.operator()); err != nil {
		return err
	}
	c.resp.Status = 202
	return nil
}
