package member

import (
	"fmt"
	"time"

	"github.com/narad-mq/narad/libs/ops"
)

// Ready lists why this member is not ready; none: it is. A role adds its own.
func (m *Member) Ready() []ops.Reason {
	var out []ops.Reason
	add := func(code, format string, args ...any) {
		out = append(out, ops.Reason{Code: code, Detail: fmt.Sprintf(format, args...)})
	}
	if !m.running.Load() {
		add(ops.ReasonStarting, "the role has not started yet")
	}
	if m.removed.Load() {
		add(ops.ReasonNotAdmitted, "this node was decommissioned")
	}
	if m.stopping.Load() {
		add(ops.ReasonStopping, "the process is stopping")
	}
	if err := m.raft.Err(); err != nil {
		add(ops.ReasonApplyStopped, "the metastore replica has stopped; the log has the reason")
		return out
	}
	if m.raft.DiskFull() {
		add(ops.ReasonDiskFull, "the metastore replica waits for room on the disk")
	}
	leader, _ := m.raft.Leader()
	age, heard := m.raft.LeaderContact()
	switch {
	case m.raft.Empty():
		add(ops.ReasonNotAdmitted, "no leader has admitted this node yet")
	case leader == "":
		detail := "no Raft leader in view"
		if at := m.lostAt.Load(); at != nil {
			detail = fmt.Sprintf("%s for %.1f s", detail, time.Since(*at).Seconds())
		}
		add(ops.ReasonNoLeader, "%s", detail)
	case !heard || age > m.cfg.Timing.FreshContact:
		add(ops.ReasonContactStale, "the leader was heard %.1f s ago", age.Seconds())
	}
	if !m.View().Latched() {
		add(ops.ReasonNotCaughtUp, "the replica has not caught up since the start")
	}
	return out
}
