package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// ownReplica is how long a change waits for this gateway's own replica.
	ownReplica = 2 * time.Second
	// lookupBudget is how long the leader may take over an unknown name.
	lookupBudget = 2 * time.Second
	// lookupFor is how long its answer is believed: a client that asks for a name
	// that is not there must not cost the leader a question each time.
	lookupFor = time.Second
	// maxLookups bounds the questions under way, and maxRemembered the answers.
	maxLookups    = 16
	maxRemembered = 10_000
)

// leaderAPI is the part of metaapi.Voter that topics need.
type leaderAPI interface {
	CreateTopic(ctx context.Context, req *metaapi.CreateTopicRequest) (*metaapi.TopicResult, error)
	UpdateTopic(ctx context.Context, req *metaapi.UpdateTopicRequest) (*metaapi.TopicResult, error)
	DeleteTopic(ctx context.Context, req *metaapi.DeleteTopicRequest) (*metaapi.ChangeResult, error)
	LookupTopic(ctx context.Context, req *metaapi.LookupTopicRequest) (*metaapi.TopicResult, error)
}

// topics implements api.Topics over the local replica and the leader.
type topics struct {
	view    metastate.View
	leader  leaderAPI
	applied func(ctx context.Context, index uint64) error
	purged  func(name string, id topic.Incarnation) // tells others of a life that has ended; does not wait
	asking  chan struct{}                           // a slot per question under way
	flights singleflight.Group

	mu    sync.Mutex // guards known
	known map[string]answer
}

// answer is what the leader said of a name.
type answer struct {
	topic *topic.Topic
	err   error
	until time.Time
}

var _ api.Topics = (*topics)(nil)

func newTopics(view metastate.View, leader leaderAPI, applied func(context.Context, uint64) error, purged func(string, topic.Incarnation)) *topics {
	return &topics{view: view, leader: leader, applied: applied, purged: purged, asking: make(chan struct{}, maxLookups), known: map[string]answer{}}
}

// Resolve implements api.Topics.
func (t *topics) Resolve(ctx context.Context, name string) (*topic.Topic, error) {
	found, err := t.view.Topic(name)
	if err == nil {
		return found, nil
	}
	if !errors.Is(err, metastate.ErrNoTopic) || !t.view.CaughtUpOnce() {
		return nil, problem.New(problem.NotReady, "this gateway has not been caught up with the metastore since its start")
	}
	if a, ok := t.remembered(name); ok {
		return a.topic, a.err
	}
	flight := t.flights.DoChan(name, func() (any, error) {
		a := t.ask(context.WithoutCancel(ctx), name)
		return a.topic, a.err
	})
	select {
	case res := <-flight:
		if res.Err != nil {
			return nil, res.Err
		}
		return res.Val.(*topic.Topic), nil
	case <-ctx.Done():
		return nil, problem.New(problem.NoMetastoreLeader, "the metastore leader did not answer in time")
	}
}

// ask puts one question to the leader and remembers the answer.
func (t *topics) ask(ctx context.Context, name string) answer {
	ctx, cancel := context.WithTimeout(ctx, lookupBudget)
	defer cancel()
	select {
	case t.asking <- struct{}{}:
		defer func() { <-t.asking }()
	case <-ctx.Done():
		return answer{err: problem.New(problem.NoMetastoreLeader, "the metastore leader is asked for too many names")}
	}
	res, err := t.leader.LookupTopic(ctx, &metaapi.LookupTopicRequest{Name: name})
	a := answer{until: time.Now().Add(lookupFor)}
	switch {
	case err == nil:
		a.topic = &res.Topic
	case problem.HasCode(err, problem.TopicNotFound):
		a.err = problem.New(problem.TopicNotFound, "there is no topic %q", name)
	default:
		return answer{err: problem.New(problem.NoMetastoreLeader, "no metastore leader answers, and this gateway does not know %q", name)}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.known) >= maxRemembered {
		clear(t.known)
	}
	t.known[name] = a
	return a
}

// remembered is the leader's recent answer. One that knows a life which this
// replica knows the end of is stale.
func (t *topics) remembered(name string) (answer, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, ok := t.known[name]
	if !ok || time.Now().After(a.until) || a.topic != nil && t.view.Ended(a.topic.Incarnation) {
		delete(t.known, name)
		return answer{}, false
	}
	return a, true
}

func (t *topics) forget(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.known, name)
}

// List implements api.Topics.
func (t *topics) List(prefix, after string, limit int) ([]*topic.Topic, error) {
	return t.view.Topics(prefix, after, limit)
}

// Create implements api.Topics.
func (t *topics) Create(ctx context.Context, name string, c topic.Config) (*topic.Topic, error) {
	defer t.forget(name)
	res, err := t.leader.CreateTopic(ctx, &metaapi.CreateTopicRequest{Name: name, Config: c})
	if err != nil {
		return nil, err
	}
	t.await(ctx, res.Index)
	return &res.Topic, nil
}

// Update implements api.Topics.
func (t *topics) Update(ctx context.Context, old *topic.Topic, c topic.Config) (*topic.Topic, error) {
	defer t.forget(old.Name)
	res, err := t.leader.UpdateTopic(ctx, &metaapi.UpdateTopicRequest{
		Name: old.Name, Incarnation: old.Incarnation, Version: old.Version, Config: c,
	})
	if problem.HasCode(err, problem.PreconditionFailed) || problem.HasCode(err, problem.TopicChanged) {
		t.outgrow(ctx, old)
	}
	if err != nil {
		return nil, err
	}
	t.await(ctx, res.Index)
	return &res.Topic, nil
}

// Delete implements api.Topics.
func (t *topics) Delete(ctx context.Context, old *topic.Topic, version uint64) error {
	defer t.forget(old.Name)
	res, err := t.leader.DeleteTopic(ctx, &metaapi.DeleteTopicRequest{Name: old.Name, Incarnation: old.Incarnation, Version: version})
	if err != nil {
		return err
	}
	t.purged(old.Name, old.Incarnation) // the life that was read and compared, not what has the name now
	t.await(ctx, res.Index)
	return nil
}

// outgrow waits until this replica shows something newer than what the leader
// refused as old: who reads the topic again now would read the same and be refused
// the same.
func (t *topics) outgrow(ctx context.Context, old *topic.Topic) {
	ctx, cancel := context.WithTimeout(ctx, ownReplica)
	defer cancel()
	for {
		changed := t.view.Changed()
		now, err := t.view.Topic(old.Name)
		if err != nil || now.Incarnation != old.Incarnation || now.Version > old.Version {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// await lets the caller read its own write here. The change is made, whatever
// this replica does: it is not worth an error that it lags.
func (t *topics) await(ctx context.Context, index uint64) {
	ctx, cancel := context.WithTimeout(ctx, ownReplica)
	defer cancel()
	_ = t.applied(ctx, index)
}
