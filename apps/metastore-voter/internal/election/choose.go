package election

import (
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// choose elects from the promises, and keeps the positions only of those whose
// union the leader begins with. An error says why nobody is chosen; the next pass
// asks again.
func (c *contest) choose() error {
	won, err := c.vote()
	if err != nil {
		return err
	}
	c.elected, _ = c.a.ReplicaOn(won.Leader.Node)
	for _, r := range won.Positions {
		for i := range c.answers {
			if copyOf(c.answers[i].replica) == r && len(c.answers[i].Positions) > 0 {
				c.positions = append(c.positions, c.answers[i].Positions)
			}
		}
	}
	return nil
}

// vote is the rule over the promises that are there.
func (c *contest) vote() (quorum.Elected, error) {
	set := make([]quorum.Replica, 0, len(c.a.Replicas))
	for _, r := range c.a.Replicas {
		set = append(set, copyOf(r))
	}
	answers := make([]quorum.FenceAnswer, 0, len(c.answers))
	for i := range c.answers {
		a := &c.answers[i]
		answers = append(answers, quorum.FenceAnswer{
			Replica: copyOf(a.replica), Epoch: c.a.LeaderEpoch, LastEpoch: a.LastEpoch, LEO: a.LEO, Generation: a.Generation,
			Damaged: a.Damaged, Settled: a.Settled, HWM: a.HWM,
		})
	}
	wanted, _ := c.a.ReplicaOn(c.wanted)
	return quorum.Elect(c.a.LeaderEpoch, answers, set, copyOf(wanted))
}

func copyOf(r topic.Replica) quorum.Replica {
	return quorum.Replica{Node: r.Node, Disk: r.DiskID, Copy: r.CopyID}
}
