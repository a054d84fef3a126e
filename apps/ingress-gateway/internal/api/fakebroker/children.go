package fakebroker

import (
	"context"
	"slices"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// Attach implements api.Children.
func (b *Broker) Attach(_ context.Context, parent, child *topic.Topic, delayMS int64) (*topic.Topic, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail["Attach"]; err != nil {
		return nil, err
	}
	return b.attachLocked(parent, child, delayMS)
}

func (b *Broker) attachLocked(parent, child *topic.Topic, delayMS int64) (*topic.Topic, error) {
	if child.Parent != nil {
		return nil, problem.New(problem.AlreadyAttached, "%q has a parent", child.Name)
	}
	b.serial++
	row := topic.Child{Name: child.Name, Incarnation: child.Incarnation, DelayMS: delayMS, AttachEpoch: topic.ID64(b.serial), AttachedMS: CommitMS}
	p, c := *parent, *child
	p.Children = append(slices.Clone(p.Children), row)
	c.Parent = &topic.Parent{Name: p.Name, Incarnation: p.Incarnation, DelayMS: delayMS, AttachEpoch: row.AttachEpoch}
	b.topics[p.Name], b.topics[c.Name] = &p, &c
	return &c, nil
}

// Detach implements api.Children.
func (b *Broker) Detach(_ context.Context, parent *topic.Topic, child topic.Child) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail["Detach"]; err != nil {
		return err
	}
	p := *parent
	p.Children = slices.DeleteFunc(slices.Clone(p.Children), func(c topic.Child) bool { return c.AttachEpoch == child.AttachEpoch })
	b.topics[p.Name] = &p
	if c := b.topics[child.Name]; c != nil {
		alone := *c
		alone.Parent = nil
		b.topics[c.Name] = &alone
	}
	return nil
}

// CreateChild implements api.Children.
func (b *Broker) CreateChild(ctx context.Context, name string, cfg topic.Config, parent *topic.Topic, delayMS int64) (*topic.Topic, error) {
	cfg.Partitions = parent.Partitions
	child, err := b.Create(ctx, name, cfg)
	if err != nil {
		return nil, err
	}
	return b.Attach(ctx, parent, child, delayMS)
}

// Cursors implements api.Children: every partition is led by storage-1 and has its
// cursors three records behind its end.
func (b *Broker) Cursors(_ context.Context, parent *topic.Topic) ([]api.CursorRow, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail["Cursors"]; err != nil {
		return nil, err
	}
	rows := make([]api.CursorRow, parent.Partitions)
	for i := range rows {
		rows[i] = api.CursorRow{Node: "storage-1", Cursors: &nodeapi.PartitionCursors{Partition: int32(i), HighWatermark: 10}}
		for _, c := range parent.Children {
			rows[i].Cursors.Cursors = append(rows[i].Cursors.Cursors, nodeapi.CursorDetails{AttachEpoch: c.AttachEpoch, NextOffset: 7, DueLagMS: 5, Dropped: 1})
		}
	}
	return rows, nil
}
