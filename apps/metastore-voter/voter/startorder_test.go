package voter

import (
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/testkit"
)

// What a machine waits for before it starts, besides those that start before it.
const (
	atOnce  = ""  // for nothing
	formed  = ">" // until the one before it has formed a cluster, which nobody leads yet while it is alone
	founded = "|" // until a leader of those that run has given the cluster its id
)

// TestInitialVotersConverge: whatever the order of their starts and the time between
// them, three initial members with empty disks end up as one cluster with three voters:
// they form it together, or join what the others have formed.
func TestInitialVotersConverge(t *testing.T) {
	for _, starts := range []string{
		"v1 v2 v3", "v3 v2 v1", // at once, as fast as they open
		"v1 >v2 v3", "v3 >v1 v2", // one forms alone, and nobody elects it
		"v2 >v3 >v1", "v3 >v2 |v1", "v1 v2 |v3", // the last one is late
		"v2 >v1 |v3",
	} {
		t.Run(starts, func(t *testing.T) {
			t.Parallel()
			c := newVoters(t, 3)
			byID := map[string]*machine{}
			for _, m := range c {
				byID[m.cfg.NodeID] = m
			}
			var running cluster
			for _, step := range strings.Fields(starts) {
				id := strings.TrimLeft(step, formed+founded)
				switch strings.TrimSuffix(step, id) {
				case formed:
					last := running[len(running)-1]
					testkit.Poll(t, patience, last.cfg.NodeID+" has a configuration", func() bool { return !last.member.Raft().Empty() })
				case founded:
					running.leader(t)
				case atOnce:
				}
				byID[id].start()
				running = append(running, byID[id])
			}
			c.waitReady(t)
			for _, m := range c {
				testkit.Poll(t, patience, m.cfg.NodeID+" knows three voters", func() bool { return threeVote(m) })
				if m.member.ClusterID() != c[0].member.ClusterID() {
					t.Errorf("%s is of cluster %q, v1 of %q", m.cfg.NodeID, m.member.ClusterID(), c[0].member.ClusterID())
				}
			}
		})
	}
}

// threeVote tells whether m knows v1, v2 and v3 as voters, and no other server.
func threeVote(m *machine) bool {
	votes := map[string]bool{}
	servers := m.member.Raft().Configuration().Servers
	for _, s := range servers {
		votes[s.ID] = s.Voter
	}
	return len(servers) == 3 && votes["v1"] && votes["v2"] && votes["v3"]
}
