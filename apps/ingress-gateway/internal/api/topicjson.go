package api

import (
	"strconv"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

// appendTopic appends the topic's document without its closing brace, so that
// details can follow.
func appendTopic(dst []byte, t *topic.Topic) []byte {
	dst = append(dst, `{"name":"`...)
	dst = append(dst, t.Name...)
	dst = append(dst, `","incarnation":"`...)
	dst = appendID(dst, t.Incarnation)
	dst = append(dst, `","version":`...)
	dst = strconv.AppendUint(dst, t.Version, 10)
	dst = append(dst, `,"created_at":`...)
	dst = appendTime(dst, t.CreatedAtMS)
	dst = append(dst, `,"role":"`...)
	dst = append(append(dst, t.Role()...), '"')
	dst = appendNumber(dst, "partitions", int64(t.Partitions))
	dst = appendNumber(dst, "replication_factor", int64(t.ReplicationFactor))
	dst = appendNumber(dst, "retention_ms", t.RetentionMS)
	dst = appendNumber(dst, "retention_bytes", t.RetentionBytes)
	dst = appendNumber(dst, "visibility_timeout_ms", t.VisibilityTimeoutMS)
	dst = appendNumber(dst, "max_in_flight_per_partition", int64(t.MaxInFlight))
	dst = appendNumber(dst, "max_acked_ahead_per_partition", int64(t.MaxAckedAhead))
	dst = append(dst, `,"reroute":`...)
	dst = strconv.AppendBool(dst, t.Reroute)
	dst = appendNumber(dst, "max_deliveries", int64(t.MaxDeliveries))
	dst = append(dst, `,"dead_letter_topic":`...)
	dst = appendOptional(dst, t.DeadLetterTopic)
	dst = appendFamily(dst, t)
	return append(dst, `,"schema_version":null`...)
}

// appendFamily appends what the topic is to others.
func appendFamily(dst []byte, t *topic.Topic) []byte {
	if t.Parent == nil {
		dst = append(dst, `,"parent":null,"delay_ms":null,"children":[`...)
	} else {
		dst = append(dst, `,"parent":`...)
		dst = appendNumber(appendString(dst, t.Parent.Name), "delay_ms", t.Parent.DelayMS)
		dst = append(dst, `,"children":[`...)
	}
	for i := range t.Children {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, t.Children[i].Name)
	}
	return append(dst, ']')
}

// appendNumber appends ,"name":v.
func appendNumber(dst []byte, name string, v int64) []byte {
	dst = append(dst, ',', '"')
	dst = append(dst, name...)
	dst = append(dst, '"', ':')
	return strconv.AppendInt(dst, v, 10)
}

// appendOptional appends a string, null for an empty one.
func appendOptional(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return appendString(dst, s)
}

// getTopic: GET /v1/topics/{topic}.
func (c *call) getTopic() error {
	t, err := c.resolve()
	if err != nil {
		return err
	}
	ctx, cancel := c.within(detailsBudget)
	defer cancel()
	rows, err := c.api.deps.Consumer.Details(ctx, t)
	if err != nil {
		return err
	}
	c.json(200)
	c.resp.ETag = etag(t)
	c.out = appendTopic(c.out, t)
	c.out = appendTotals(c.out, rows)
	c.out = append(c.out, `,"partition_details":[`...)
	for i := range rows {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = appendPartition(c.out, &rows[i])
	}
	c.out = append(c.out, `]}`...)
	return nil
}

// known gives the numbers of a row, nil when they are not known.
func (r *PartitionRow) known() *nodeapi.PartitionDetails {
	if r.Status != "ok" {
		return nil
	}
	return r.Details
}

// appendTotals sums what is known; partial tells that something is not.
func appendTotals(dst []byte, rows []PartitionRow) []byte {
	var backlog, inFlight, oldest, size int64
	partial := false
	for i := range rows {
		d := rows[i].known()
		if d == nil {
			partial = true
			continue
		}
		backlog += d.HighWatermark - d.Frontier - d.SettledAhead
		inFlight += d.InFlight
		oldest = max(oldest, d.OldestUnsettledMS)
		size += d.Bytes
	}
	dst = appendNumber(dst, "backlog", backlog)
	dst = appendNumber(dst, "in_flight", inFlight)
	dst = appendNumber(dst, "oldest_unsettled_ms", oldest)
	dst = appendNumber(dst, "bytes", size)
	dst = append(dst, `,"partial":`...)
	return strconv.AppendBool(dst, partial)
}

func appendPartition(dst []byte, r *PartitionRow) []byte {
	status, d := r.Status, r.known()
	if status == "ok" && d == nil {
		status = "unavailable"
	}
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(r.Index), 10)
	dst = append(dst, `,"status":`...)
	dst = appendString(dst, status)
	dst = append(dst, `,"leader":`...)
	dst = appendOptional(dst, r.Leader)
	dst = appendNumber(dst, "leader_epoch", int64(r.Epoch))
	dst = appendNumber(dst, "config_version", int64(r.ConfigVersion))
	if d == nil {
		return append(dst, `,"replicas":[],"log_start":null,"high_watermark":null,"log_end":null,"frontier":null,"settled_ahead":null,`+
			`"in_flight":null,"oldest_unsettled_ms":null,"dropped_unsettled":null,"bytes":null}`...)
	}
	dst = append(dst, `,"replicas":[`...)
	for i := range d.Replicas {
		rep := &d.Replicas[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"id":`...)
		dst = appendString(dst, rep.ID)
		dst = appendNumber(dst, "log_end", rep.LogEnd)
		dst = appendNumber(dst, "lag", rep.Lag)
		dst = append(dst, `,"in_sync":`...)
		dst = append(strconv.AppendBool(dst, rep.InSync), '}')
	}
	dst = append(dst, ']')
	dst = appendNumber(dst, "log_start", d.LogStart)
	dst = appendNumber(dst, "high_watermark", d.HighWatermark)
	dst = appendNumber(dst, "log_end", d.LogEnd)
	dst = appendNumber(dst, "frontier", d.Frontier)
	dst = appendNumber(dst, "settled_ahead", d.SettledAhead)
	dst = appendNumber(dst, "in_flight", d.InFlight)
	dst = appendNumber(dst, "oldest_unsettled_ms", d.OldestUnsettledMS)
	dst = appendNumber(dst, "dropped_unsettled", d.DroppedUnsettled)
	dst = appendNumber(dst, "bytes", d.Bytes)
	return append(dst, '}')
}
