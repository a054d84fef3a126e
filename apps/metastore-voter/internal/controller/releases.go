package controller

import (
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// What two releases in one cluster mean for the leader: it proposes no entry
// that somebody would stop at, and admits nobody who would stop at what others
// already apply.

// supported is nil when every Raft server and every member of record reports
// that it applies this type. An answer holds only while nobody is admitted.
func (c *Controller) supported(t metastate.Type) error {
	conf := c.raft.Configuration()
	servers := make([]string, len(conf.Servers))
	for i, s := range conf.Servers {
		servers[i] = s.ID
	}
	return gate(t, c.cfg.NodeID, servers, c.raft.View().Members().ByID)
}

func gate(t metastate.Type, self string, servers []string, members map[string]*topic.Member) error {
	lacking := metastate.Lacking(t, self, servers, members)
	if len(lacking) == 0 {
		return nil
	}
	return metaapi.Upgrading(metastate.NameOf(t)+" entries", lacking)
}

// olderRelease refuses a joiner that is no server yet and applies fewer types
// than everybody of record, or than what was applied already; newest is that.
func olderRelease(req *metaapi.JoinRequest, newest metastate.Type, members map[string]*topic.Member) error {
	if !metastate.OlderThanAll(req.NewestEntryType, newest, members) {
		return nil
	}
	return problem.New(problem.OlderRelease, "release %q of node %q does not know all entries that this cluster uses: upgrade it", req.Release, req.NodeID)
}

// misreported tells that a heartbeat says other things of the member's release
// than its record does: it registered with a leader that did not take them.
func misreported(m *topic.Member, req *metaapi.HeartbeatRequest) bool {
	return req.Release != "" && req.Release != m.Release ||
		req.NewestEntryType != 0 && req.NewestEntryType != m.NewestEntryType
}
