package controller

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

var _ metaapi.Children = (*Controller)(nil)

// marksBudget is how long the leaders of a parent's partitions have to say where a
// child begins: one look at memory each, and well within the budget of the change.
const marksBudget = 3 * time.Second

// AttachChild implements metaapi.Children. What cannot be is refused before anybody
// is asked for attach points; the entry judges again.
func (c *Controller) AttachChild(ctx context.Context, req *metaapi.AttachChildRequest) (*metaapi.TopicResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	at := &metastate.AttachChild{Attachment: topic.Attachment{
		Parent: req.Parent, ParentIncarnation: req.ParentIncarnation,
		Child: topic.Child{Name: req.Child, Incarnation: req.ChildIncarnation, DelayMS: req.DelayMS},
	}}
	if err := c.attachment(ctx, &at.Attachment, metastate.CheckAttach); err != nil {
		return nil, err
	}
	index, res, err := c.propose(ctx, at)
	if err != nil {
		return nil, err
	}
	return &metaapi.TopicResult{Index: index, Topic: *res.Topic}, nil
}

// attachment fills in what the proposer decides, unless the state refuses it.
func (c *Controller) attachment(ctx context.Context, at *topic.Attachment, check func(metastate.Reader, *topic.Attachment) (metastate.Result, error)) error {
	epoch, err := drawIncarnation()
	if err != nil {
		return err
	}
	at.AttachEpoch, at.AttachedMS = epoch, c.wallMS()
	if err := c.sure(ctx); err != nil { // what is refused now is true now
		return err
	}
	err = c.raft.Read(func(r metastate.Reader) error {
		res, err := check(r, at)
		if err != nil {
			return err
		}
		return res.Err()
	})
	if err != nil {
		return err
	}
	at.Points, err = c.marks(ctx, at.Parent, at.ParentIncarnation)
	return err
}

// marks asks the leaders of all partitions of a topic for their high watermarks. All
// answer, or nothing is attached.
func (c *Controller) marks(ctx context.Context, name string, id topic.Incarnation) ([]int64, error) {
	p, err := c.raft.View().Assignments(name)
	if err != nil || p.Incarnation != id {
		return nil, problem.New(problem.NotReady, "the leader does not show the partitions of %q yet", name)
	}
	ctx, cancel := context.WithTimeout(ctx, marksBudget)
	defer cancel()
	byLeader := map[string][]nodeapi.Target{}
	for i := range p.List {
		a := &p.List[i]
		r, ok := a.ReplicaOn(a.Leader)
		if !ok {
			return nil, problem.New(problem.PartitionUnavailable, "partition %d of %q has no leader", i, name)
		}
		byLeader[a.Leader] = append(byLeader[a.Leader], nodeapi.Target{Ref: a.Ref, DiskID: r.DiskID, Epoch: a.LeaderEpoch})
	}
	out := make([]int64, len(p.List)) // each index is written once
	var mu sync.Mutex                 // guards failed
	var failed error
	var all sync.WaitGroup
	for node, targets := range byLeader {
		for part := range slices.Chunk(targets, nodeapi.MaxCursorPartitions) {
			all.Go(func() {
				res, err := c.cfg.Marks(ctx, node, &nodeapi.MarksRequest{Partitions: part})
				if err != nil {
					c.log.Warn("a leader does not say where a child begins", "topic", name, "node", node, "err", err)
					mu.Lock()
					defer mu.Unlock()
					failed = problem.New(problem.PartitionUnavailable, "storage node %s does not say where its partitions of %q end", node, name)
					return
				}
				for i, t := range part {
					out[t.Partition] = res.Marks[i]
				}
			})
		}
	}
	all.Wait()
	return out, failed
}

// DetachChild implements metaapi.Children.
func (c *Controller) DetachChild(ctx context.Context, req *metaapi.DetachChildRequest) (*metaapi.ChangeResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	index, _, err := c.propose(ctx, &metastate.DetachChild{
		Parent: req.Parent, ParentIncarnation: req.ParentIncarnation, Child: req.Child, AttachEpoch: req.AttachEpoch, NowMS: c.wallMS(),
	})
	if err != nil {
		return nil, err
	}
	return &metaapi.ChangeResult{Index: index}, nil
}

// CreateChild implements metaapi.Children: one entry creates and attaches.
func (c *Controller) CreateChild(ctx context.Context, req *metaapi.CreateChildRequest) (*metaapi.TopicResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	if err := topic.ValidateName(req.Name); err != nil {
		return nil, problem.New(problem.InvalidTopicName, "%s", err.Error())
	}
	at := topic.Attachment{
		Parent: req.Parent, ParentIncarnation: req.ParentIncarnation,
		Child: topic.Child{Name: req.Name, DelayMS: req.DelayMS},
	}
	if err := c.attachment(ctx, &at, metastate.CheckParent); err != nil {
		return nil, err
	}
	away := c.leadersOf(at.Parent)
	cfg := req.Config
	if cfg.Partitions == 0 {
		cfg.Partitions = len(at.Points)
	}
	if err := checkConfig(cfg); err != nil {
		return nil, err
	}
	return c.createTopic(ctx, req.Name, cfg, away, func(create metastate.CreateTopic) metastate.Entry {
		at.Incarnation = create.Topic.Incarnation
		return &metastate.CreateChild{Create: create, Attach: metastate.AttachChild{Attachment: at}}
	})
}

// leadersOf lists the leaders of a topic's partitions, by index, as far as they are known.
func (c *Controller) leadersOf(name string) []string {
	p, err := c.raft.View().Assignments(name)
	if err != nil {
		return nil
	}
	out := make([]string, len(p.List))
	for i := range p.List {
		out[i] = p.List[i].Leader
	}
	return out
}
