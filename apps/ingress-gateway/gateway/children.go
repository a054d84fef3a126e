package gateway

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

// cursorsBudget is how long the leaders have to say where cursors stand.
const cursorsBudget = 2 * time.Second

// children implements api.Children over the metastore leader and the storage nodes.
type children struct {
	*topics
	leader metaapi.Children
	node   func(id string) nodeapi.Fanout // nil: it is not there
}

var _ api.Children = (*children)(nil)

// Attach implements api.Children.
func (c *children) Attach(ctx context.Context, parent, child *topic.Topic, delayMS int64) (*topic.Topic, error) {
	defer c.forget(child.Name)
	defer c.forget(parent.Name)
	res, err := c.leader.AttachChild(ctx, &metaapi.AttachChildRequest{
		Parent: parent.Name, ParentIncarnation: parent.Incarnation, Child: child.Name, ChildIncarnation: child.Incarnation, DelayMS: delayMS,
	})
	if err != nil {
		return nil, err
	}
	c.await(ctx, res.Index)
	return &res.Topic, nil
}

// Detach implements api.Children.
func (c *children) Detach(ctx context.Context, parent *topic.Topic, child topic.Child) error {
	defer c.forget(child.Name)
	defer c.forget(parent.Name)
	res, err := c.leader.DetachChild(ctx, &metaapi.DetachChildRequest{
		Parent: parent.Name, ParentIncarnation: parent.Incarnation, Child: child.Name, AttachEpoch: child.AttachEpoch,
	})
	if err != nil {
		return err
	}
	c.await(ctx, res.Index)
	return nil
}

// CreateChild implements api.Children.
func (c *children) CreateChild(ctx context.Context, name string, cfg topic.Config, parent *topic.Topic, delayMS int64) (*topic.Topic, error) {
	defer c.forget(name)
	defer c.forget(parent.Name)
	cfg.Partitions = 0 // the parent's
	res, err := c.leader.CreateChild(ctx, &metaapi.CreateChildRequest{
		Name: name, Config: cfg, Parent: parent.Name, ParentIncarnation: parent.Incarnation, DelayMS: delayMS,
	})
	if err != nil {
		return nil, err
	}
	c.await(ctx, res.Index)
	return &res.Topic, nil
}

// Cursors implements api.Children: all leaders are asked at once.
func (c *children) Cursors(ctx context.Context, parent *topic.Topic) ([]api.CursorRow, error) {
	rows := make([]api.CursorRow, parent.Partitions)
	parts, err := c.view.Assignments(parent.Name)
	if err != nil || parts.Incarnation != parent.Incarnation {
		return rows, nil // this replica does not know who leads
	}
	byLeader := map[string][]int32{}
	for i := range min(len(rows), len(parts.List)) {
		if rows[i].Node = parts.List[i].Leader; rows[i].Node != "" {
			byLeader[rows[i].Node] = append(byLeader[rows[i].Node], int32(i))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, cursorsBudget)
	defer cancel()
	var all sync.WaitGroup
	for leader, list := range byLeader {
		node := c.node(leader)
		if node == nil {
			continue
		}
		for part := range slices.Chunk(list, nodeapi.MaxCursorPartitions) {
			all.Go(func() { // each writes the rows of its own partitions
				res, err := node.Cursors(ctx, &nodeapi.CursorsRequest{Topic: parent.Name, Incarnation: parent.Incarnation, Partitions: part})
				if err != nil {
					return
				}
				for i := range res.Partitions {
					if p := &res.Partitions[i]; slices.Contains(part, p.Partition) {
						rows[p.Partition].Cursors = p
					}
				}
			})
		}
	}
	all.Wait()
	return rows, nil
}
