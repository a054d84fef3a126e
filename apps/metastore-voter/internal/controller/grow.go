package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// grow changes a topic that gets more partitions: the new ones are placed like those
// of a create, the old ones stay as they are. Keys go by the new number from then on,
// so that messages of one key may lie in two partitions.
func (c *Controller) grow(ctx context.Context, have *topic.Topic, req *metaapi.UpdateTopicRequest) (*metaapi.TopicResult, error) {
	t, err := c.leading()
	if err != nil {
		return nil, err
	}
	attempt, err := drawIncarnation() // of one topic there may be two at once
	if err != nil {
		return nil, err
	}
	added, err := c.placeMore(t, attempt, have, req.Config.Partitions)
	if problem.HasCode(err, problem.NotEnoughStorage) {
		if err := c.sure(ctx); err != nil {
			return nil, err
		}
		added, err = c.placeMore(t, attempt, have, req.Config.Partitions)
	}
	if err != nil {
		return nil, err
	}
	defer c.placed(t, attempt)
	if c.term.Load() != t {
		return nil, superseded()
	}
	index, res, err := c.propose(ctx, &metastate.GrowTopic{
		Name: req.Name, Incarnation: req.Incarnation, Version: req.Version, Config: req.Config, Added: added,
	})
	if err != nil {
		return nil, err
	}
	c.moves.Placed()
	c.log.Info("a topic got more partitions", "topic", req.Name, "had", have.Partitions, "has", req.Config.Partitions)
	return &metaapi.TopicResult{Index: index, Topic: *res.Topic}, nil
}

// placeMore places the partitions that a topic does not have yet; they count as under
// way until the attempt is placed.
func (c *Controller) placeMore(t *term, attempt topic.Incarnation, have *topic.Topic, wanted int) ([]topic.Assignment, error) {
	t.placeMu.Lock() // one look at memory after the other; no I/O
	defer t.placeMu.Unlock()
	nodes, err := c.nodes(t.placing)
	if err != nil {
		return nil, err
	}
	more := *have
	more.Partitions = wanted - have.Partitions
	list, err := placement.AssignAway(&more, nodes, c.awayFrom(have))
	var few *placement.NotEnoughNodesError
	if errors.As(err, &few) {
		return nil, notEnough(few)
	}
	if err != nil {
		return nil, fmt.Errorf("place partitions of topic %s: %w", have.Name, err)
	}
	for i := range list {
		list[i].Partition += int32(have.Partitions)
	}
	t.placing[attempt] = list
	return list, nil
}

// awayFrom are the nodes that the partitions after those of a child keep away from, as
// they did when it was created.
func (c *Controller) awayFrom(have *topic.Topic) []string {
	if have.Parent == nil {
		return nil
	}
	leaders := c.leadersOf(have.Parent.Name)
	return leaders[min(have.Partitions, len(leaders)):]
}

func notEnough(few *placement.NotEnoughNodesError) *problem.Problem {
	return problem.New(problem.NotEnoughStorage, "%d live storage nodes, %d are needed", few.Live, few.Wanted).
		With("live", few.Live).With("wanted", few.Wanted)
}

// grows returns the topic as it is when a change gives it more partitions, else nil.
func (c *Controller) grows(req *metaapi.UpdateTopicRequest) *topic.Topic {
	have, err := c.raft.View().Topic(req.Name)
	if err != nil || have.Incarnation != req.Incarnation || req.Config.Partitions <= have.Partitions {
		return nil // the entry says what is wrong, if something is
	}
	return have
}
