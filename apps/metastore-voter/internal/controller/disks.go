package controller

import (
	"slices"
	"strings"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// diskUse is how full a member's disk was when it was heard last. It says nothing of
// another disk under the same name.
type diskUse struct {
	disk    topic.ID64
	percent int
}

// use notes it.
func (t *term) use(member string, u diskUse) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.disks[member] = u
}

// stampedUse is what the leaders before put into their stamps: a new one has to place
// topics before it has heard everybody.
func (c *Controller) stampedUse() map[string]diskUse {
	out := map[string]diskUse{}
	err := c.raft.Read(func(r metastate.Reader) error {
		list, err := metastate.AllMembers(r)
		for i := range list {
			out[list[i].ID] = diskUse{disk: list[i].DiskID, percent: list[i].DiskUsedPercent}
		}
		return err
	})
	if err != nil {
		c.log.Warn("the stamps of the members cannot be read; full disks are known when their nodes are heard", "err", err)
	}
	return out
}

// memberList lists everybody by id, with the use of the disk as it was heard last. The
// table of the view has that as of the registration: stamps do not refresh it, and to
// read the records from the state costs a create more than all of its placement.
func (c *Controller) memberList() []topic.Member {
	table := c.raft.View().Members().ByID
	out := make([]topic.Member, 0, len(table))
	for _, m := range table {
		out = append(out, *m)
	}
	slices.SortFunc(out, func(a, b topic.Member) int { return strings.Compare(a.ID, b.ID) })
	t := c.term.Load()
	if t == nil {
		return out
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range out {
		if u, ok := t.disks[out[i].ID]; ok && u.disk == out[i].DiskID {
			out[i].DiskUsedPercent = u.percent
		}
	}
	return out
}
