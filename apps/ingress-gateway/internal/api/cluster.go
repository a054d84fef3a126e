package api

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/diagnosis"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// listMembers: GET /v1/cluster/members.
func (c *call) listMembers() error {
	view, err := c.members()
	if err != nil {
		return err
	}
	c.json(200)
	c.out = append(c.out, `{"cluster_id":`...)
	c.out = appendString(c.out, view.ClusterID)
	c.out = append(c.out, `,"answered_by":`...)
	c.out = appendString(c.out, c.api.cfg.NodeID)
	c.out = append(c.out, `,"leader_id":`...)
	c.out = appendOptional(c.out, view.LeaderID)
	c.out = append(c.out, `,"as_of":`...)
	c.out = appendTime(c.out, view.AsOf.UnixMilli())
	c.out = append(c.out, `,"stale":`...)
	c.out = strconv.AppendBool(c.out, view.Stale)
	c.out = append(c.out, `,"members":[`...)
	members := slices.Clone(view.Members) // the view may be shared
	slices.SortFunc(members, func(a, b topic.Member) int { return strings.Compare(a.ID, b.ID) })
	for i := range members {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = append(appendMember(c.out, view, &members[i]), '}')
	}
	c.out = append(c.out, `],"tombstones":[`...)
	for i := range view.Tombstones {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = append(c.out, `{"id":`...)
		c.out = appendString(c.out, view.Tombstones[i].ID)
		c.out = append(c.out, `,"removed_at":`...)
		c.out = append(appendTime(c.out, view.Tombstones[i].RemovedMS), '}')
	}
	c.out = append(c.out, `]}`...)
	return nil
}

func (c *call) members() (*MembersView, error) {
	ctx, cancel := c.within(detailsBudget)
	defer cancel()
	return c.api.deps.Cluster.Members(ctx)
}

// getMember: GET /v1/cluster/members/{id}.
func (c *call) getMember() error {
	id, err := c.memberID()
	if err != nil {
		return err
	}
	view, err := c.members()
	if err != nil {
		return err
	}
	for i := range view.Members {
		if m := &view.Members[i]; m.ID == id {
			leaves, err := c.appendDecommission(nil, m)
			if err != nil {
				return err
			}
			c.json(200)
			c.out = append(appendMember(c.out, view, m), `,"decommission":`...)
			c.out = append(append(c.out, leaves...), '}')
			return nil
		}
	}
	return problem.New(problem.MemberNotFound, "no such member")
}

// memberID is the path's first parameter.
func (c *call) memberID() (string, error) {
	id := c.params[0]
	if bytes.IndexByte(id, '%') >= 0 {
		var ok bool
		if id, ok = appendUnescaped(nil, id, false); !ok {
			return "", problem.New(problem.MemberNotFound, "no such member")
		}
	}
	return string(id), nil
}

// forgetMember: POST /v1/cluster/members/{id}/forget.
func (c *call) forgetMember() error {
	id, err := c.memberID()
	if err != nil {
		return err
	}
	ctx, cancel := c.within(metadataBudget)
	defer cancel()
	if err := c.api.deps.Cluster.Forget(ctx, id); err != nil {
		return err
	}
	c.resp.Status = 204
	return nil
}

// status: GET /v1/cluster/status.
func (c *call) status() error {
	ctx, cancel := c.within(quorumBudget)
	defer cancel()
	report, err := c.api.deps.Cluster.Status(ctx)
	if err != nil {
		return err
	}
	c.json(200)
	c.out = append(c.out, `{"status":`...)
	c.out = appendString(c.out, report.Status)
	c.out = append(c.out, `,"as_of":`...)
	c.out = appendTime(c.out, report.AsOf.UnixMilli())
	c.out = append(c.out, `,"problems":[`...)
	for i := range report.Problems {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = appendProblemRow(c.out, &report.Problems[i])
	}
	c.out = append(c.out, `]}`...)
	return nil
}

func appendProblemRow(dst []byte, p *diagnosis.Problem) []byte {
	dst = append(dst, `{"code":`...)
	dst = appendString(dst, p.Code)
	dst = append(dst, `,"severity":`...)
	dst = appendString(dst, p.Severity)
	dst = append(dst, `,"subject":`...)
	dst = appendString(dst, p.Subject)
	dst = append(dst, `,"since":`...)
	if p.Since.IsZero() {
		dst = append(dst, "null"...)
	} else {
		dst = appendTime(dst, p.Since.UnixMilli())
	}
	dst = append(dst, `,"detail":`...)
	dst = appendString(dst, p.Detail)
	dst = append(dst, `,"do":`...)
	return append(appendString(dst, p.Do), '}')
}

// appendMember appends a row without its closing brace. Its "voter" tells the role; who
// votes by now is said by the quorum.
func appendMember(dst []byte, view *MembersView, m *topic.Member) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, m.ID)
	dst = append(dst, `,"role":`...)
	dst = appendString(dst, string(m.Role))
	dst = append(dst, `,"status":`...)
	dst = appendString(dst, string(m.Status))
	dst = append(dst, `,"draining":`...)
	dst = strconv.AppendBool(dst, m.Draining)
	dst = append(dst, `,"voter":`...)
	dst = strconv.AppendBool(dst, m.Role == topic.RoleVoter)
	dst = append(dst, `,"leader":`...)
	dst = strconv.AppendBool(dst, m.ID == view.LeaderID && m.ID != "")
	dst = append(dst, `,"address":`...)
	dst = appendString(dst, m.RPCAddr)
	dst = append(dst, `,"zone":`...)
	dst = appendOptional(dst, m.Zone)
	dst = append(dst, `,"release":`...)
	dst = appendString(dst, m.Release)
	dst = append(dst, `,"heartbeat_age_ms":`...)
	if age, ok := view.AgesMS[m.ID]; ok {
		dst = strconv.AppendInt(dst, age, 10)
	} else {
		dst = append(dst, "null"...)
	}
	dst = appendNumber(dst, "partitions_led", int64(view.LedBy[m.ID]))
	dst = appendNumber(dst, "replicas", int64(view.ReplicasOn[m.ID]))
	dst = append(dst, `,"wal_backlog_records":`...)
	if m.Role == topic.RoleGateway {
		dst = strconv.AppendInt(dst, m.WALBacklog, 10)
	} else {
		dst = append(dst, "null"...)
	}
	dst = appendNumber(dst, "disk_used_percent", int64(m.DiskUsedPercent))
	return append(dst, `,"blocked":[]`...)
}

// quorum: GET /v1/cluster/quorum.
func (c *call) quorum() error {
	ctx, cancel := c.within(quorumBudget)
	defer cancel()
	res, err := c.api.deps.Cluster.Quorum(ctx)
	if err != nil {
		return err
	}
	shown := *res
	if shown.CommittedBy == nil {
		shown.CommittedBy = []string{}
	}
	if shown.Servers == nil {
		shown.Servers = []metaapi.QuorumServer{}
	}
	doc, err := json.Marshal(&shown)
	if err != nil {
		return err
	}
	c.json(200)
	c.out = append(c.out, doc...)
	return nil
}

// info: GET /v1/info.
func (c *call) info() error {
	cfg := &c.api.cfg
	c.json(200)
	c.out = append(c.out, `{"api":"v1","release":`...)
	c.out = appendString(c.out, cfg.Release)
	c.out = append(c.out, `,"cluster_id":`...)
	c.out = appendString(c.out, c.api.deps.ClusterID())
	c.out = append(c.out, `,"node_id":`...)
	c.out = appendString(c.out, cfg.NodeID)
	c.out = append(c.out, `,"limits":{"max_message_bytes":`...)
	c.out = strconv.AppendInt(c.out, int64(cfg.MaxMessageBytes), 10)
	c.out = appendNumber(c.out, "max_batch_messages", MaxBatchMessages)
	c.out = appendNumber(c.out, "max_batch_bytes", MaxBatchBytes)
	c.out = appendNumber(c.out, "max_wait_ms", MaxWait.Milliseconds())
	c.out = append(c.out, `},"features":[`...)
	for i, f := range cfg.Features {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = appendString(c.out, f)
	}
	c.out = append(c.out, `]}`...)
	return nil
}
