package controller

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/topic"
)

// CreateTopic implements metaapi.Voter.
func (c *Controller) CreateTopic(ctx context.Context, req *metaapi.CreateTopicRequest) (*metaapi.TopicResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	if err := topic.ValidateName(req.Name); err != nil {
		return nil, problem.New(problem.InvalidTopicName, "%s", err.Error())
	}
	if err := checkConfig(req.Config); err != nil {
		return nil, err
	}
	return c.createTopic(ctx, req.Name, req.Config, nil, func(create metastate.CreateTopic) metastate.Entry { return &create })
}

// createTopic places a topic, away from the given leaders of each partition, and
// proposes what entry makes of it.
func (c *Controller) createTopic(
	ctx context.Context, name string, cfg topic.Config, away []string, entry func(metastate.CreateTopic) metastate.Entry,
) (*metaapi.TopicResult, error) {
	res, err := c.create(ctx, name, cfg, away, entry)
	if problem.HasCode(err, problem.NotReady) { // a node changed its disk after the look, or this is another term: look once more
		res, err = c.create(ctx, name, cfg, away, entry)
	}
	return res, err
}

// create makes one attempt, as a life of its own. What it says no to from this
// node's own state is true when it is said: a leader that was replaced, and does
// not know it yet, remembers names that are free by now.
func (c *Controller) create(
	ctx context.Context, name string, cfg topic.Config, away []string, entry func(metastate.CreateTopic) metastate.Entry,
) (*metaapi.TopicResult, error) {
	t, err := c.leading()
	if err != nil {
		return nil, err
	}
	incarnation, err := drawIncarnation()
	if err != nil {
		return nil, err
	}
	next := topic.Topic{Name: name, Incarnation: incarnation, CreatedAtMS: c.wallMS(), Config: cfg}
	list, err := c.place(t, &next, away)
	if problem.HasCode(err, problem.TopicExists) || problem.HasCode(err, problem.NotEnoughStorage) {
		if err := c.sure(ctx); err != nil {
			return nil, err
		}
		list, err = c.place(t, &next, away)
	}
	if err != nil {
		return nil, err
	}
	defer c.placed(t, incarnation)
	if c.term.Load() != t {
		return nil, superseded()
	}
	index, res, err := c.propose(ctx, entry(metastate.CreateTopic{Topic: next, Assignments: list}))
	if err != nil {
		return nil, err
	}
	return &metaapi.TopicResult{Index: index, Topic: *res.Topic}, nil
}

// place chooses the nodes, from this node's own replica and what is under way.
func (c *Controller) place(t *term, next *topic.Topic, away []string) ([]topic.Assignment, error) {
	if err := c.checkFree(next.Name); err != nil {
		return nil, err
	}
	t.placeMu.Lock() // one look at memory after the other; no I/O
	defer t.placeMu.Unlock()
	nodes, err := c.nodes(t.placing)
	if err != nil {
		return nil, err
	}
	list, err := placement.AssignAway(next, nodes, away)
	var few *placement.NotEnoughNodesError
	if errors.As(err, &few) {
		return nil, notEnough(few)
	}
	if err != nil {
		return nil, fmt.Errorf("place topic %s: %w", next.Name, err)
	}
	t.placing[next.Incarnation] = list
	return list, nil
}

// superseded refuses what was decided in a term that ended: the next one
// decides from its own state.
func superseded() *problem.Problem {
	return problem.New(problem.NotReady, "the leadership changed meanwhile")
}

func (c *Controller) placed(t *term, id topic.Incarnation) {
	t.placeMu.Lock()
	defer t.placeMu.Unlock()
	delete(t.placing, id)
}

// checkFree answers an existing name before a want of nodes would.
func (c *Controller) checkFree(name string) error {
	var have *topic.Topic
	err := c.raft.Read(func(r metastate.Reader) (err error) {
		have, err = metastate.TopicByFolded(r, name)
		return err
	})
	if err == nil && have != nil {
		return problem.New(problem.TopicExists, "topic %q exists", have.Name).With("topic", have)
	}
	return err
}

// nodes lists who may get replicas, with what each holds; the partitions of creates
// under way count, each once. A replica that is not latched cannot tell: it is a
// leader's only for the moment until its own registration is applied.
func (c *Controller) nodes(placing map[topic.Incarnation][]topic.Assignment) ([]placement.Node, error) {
	loads, err := c.raft.Index().Loads(slices.Concat(slices.Collect(maps.Values(placing))...))
	if err != nil {
		return nil, unregistered(err)
	}
	return placement.Loaded(c.memberList(), loads), nil
}

// unregistered says of a leader's own replica why it cannot tell who has what.
func unregistered(err error) error {
	if errors.Is(err, metastate.ErrUnavailable) {
		return problem.New(problem.NotReady, "the leader has not registered itself yet")
	}
	return err
}

// UpdateTopic implements metaapi.Voter.
func (c *Controller) UpdateTopic(ctx context.Context, req *metaapi.UpdateTopicRequest) (*metaapi.TopicResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	if err := checkConfig(req.Config); err != nil {
		return nil, err
	}
	if have := c.grows(req); have != nil {
		return c.grow(ctx, have, req)
	}
	index, res, err := c.propose(ctx, &metastate.UpdateTopic{
		Name: req.Name, Incarnation: req.Incarnation, Version: req.Version, Config: req.Config,
	})
	if err != nil {
		return nil, err
	}
	return &metaapi.TopicResult{Index: index, Topic: *res.Topic}, nil
}

// DeleteTopic implements metaapi.Voter.
func (c *Controller) DeleteTopic(ctx context.Context, req *metaapi.DeleteTopicRequest) (*metaapi.ChangeResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	index, _, err := c.propose(ctx, &metastate.DeleteTopic{
		Name: req.Name, Incarnation: req.Incarnation, Version: req.Version, NowMS: c.wallMS(),
	})
	if err != nil {
		return nil, err
	}
	return &metaapi.ChangeResult{Index: index}, nil
}

// LookupTopic implements metaapi.Voter. What is found may have ended since, like
// what any replica shows; that a name is not there is said only behind a barrier,
// because the caller answers 404 for it.
func (c *Controller) LookupTopic(ctx context.Context, req *metaapi.LookupTopicRequest) (*metaapi.TopicResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	index := c.raft.Applied() // before the look: what is found is at least as new
	t, err := c.raft.View().Topic(req.Name)
	if errors.Is(err, metastate.ErrNoTopic) {
		if err := c.sure(ctx); err != nil {
			return nil, err
		}
		index = c.raft.Applied()
		t, err = c.raft.View().Topic(req.Name)
	}
	if errors.Is(err, metastate.ErrNoTopic) {
		return nil, problem.New(problem.TopicNotFound, "there is no topic %q", req.Name)
	}
	if err != nil {
		return nil, err
	}
	return &metaapi.TopicResult{Index: index, Topic: *t}, nil
}

// Confirm implements metaapi.Voter: one barrier, then one read at one moment.
// Gone is said only of what the metastore remembers the end of.
func (c *Controller) Confirm(ctx context.Context, req *metaapi.ConfirmRequest) (*metaapi.ConfirmResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	if len(req.Questions) > metaapi.MaxQuestions {
		return nil, invalid("questions", fmt.Sprintf("may be %d", metaapi.MaxQuestions))
	}
	if err := c.raft.Barrier(ctx); err != nil {
		if errors.Is(err, raftnode.ErrOutcomeUnknown) { // nothing was changed: the caller asks again
			return nil, problem.New(problem.NotReady, "the leader could not confirm in time")
		}
		return nil, c.refusal(err)
	}
	out := &metaapi.ConfirmResult{Verdicts: make([]metaapi.Verdict, len(req.Questions))}
	err := c.raft.Read(func(r metastate.Reader) error {
		for i, q := range req.Questions {
			out.Verdicts[i] = verdict(r, q)
			if q.Kind == metaapi.KindPartition {
				out.Holdings = append(out.Holdings, holding(r, q))
			}
		}
		return nil
	})
	return out, err
}

func verdict(r metastate.Reader, q metaapi.Question) metaapi.Verdict {
	live, ended := false, metastate.IsEnded(r, q.ID)
	switch q.Kind {
	case metaapi.KindIncarnation:
		live = metastate.IsLive(r, q.ID)
	case metaapi.KindAttachEpoch:
		at, err := metastate.AttachmentByEpoch(r, q.ID)
		if err != nil {
			return metaapi.VerdictUnknown
		}
		live = at != nil
	default:
		return metaapi.VerdictUnknown
	}
	switch {
	case live && !ended:
		return metaapi.VerdictLive
	case ended && !live:
		return metaapi.VerdictGone
	}
	return metaapi.VerdictUnknown
}

func checkConfig(cfg topic.Config) error {
	err := cfg.Validate()
	var field *topic.FieldError
	if errors.As(err, &field) {
		return invalid(field.Field, field.Reason)
	}
	return err
}

func drawIncarnation() (topic.Incarnation, error) {
	var b [8]byte
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, fmt.Errorf("draw an incarnation: %w", err)
		}
		if id := topic.Incarnation(binary.BigEndian.Uint64(b[:])); id != 0 {
			return id, nil
		}
	}
}
