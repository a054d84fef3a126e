package route

import (
	"context"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// What is under way for a topic ends when the topic does: its storage nodes may be
// down, or busy with removing it, and nobody is served by waiting for them.

// untilEnd returns a context that ends when this replica shows the end of the life
// too; stop has to be called.
func (r *Router) untilEnd(ctx context.Context, t *topic.Topic) (until context.Context, stop context.CancelFunc) {
	until, stop = context.WithCancel(ctx)
	go func() {
		for {
			changed := r.deps.View.Changed()
			if r.ended(t) != nil {
				stop()
				return
			}
			select {
			case <-changed:
			case <-until.Done():
				return
			}
		}
	}()
	return until, stop
}

// settled waits for a job: an error when the life ended first, false when ctx did.
// changed was taken before the job's leader was looked up.
func (r *Router) settled(ctx context.Context, t *topic.Topic, j *settleJob, changed <-chan struct{}) (bool, error) {
	for {
		select {
		case <-j.done:
			return true, nil
		case <-ctx.Done():
			return false, nil
		case <-changed:
		}
		changed = r.deps.View.Changed()
		if err := r.ended(t); err != nil {
			return false, err
		}
	}
}

// ended is Ended by this gateway's replica.
func (r *Router) ended(t *topic.Topic) error { return Ended(r.deps.View, t) }

// Ended is the refusal of a life that a view shows the end of; nil otherwise. That the
// name is missing, or has another life, is no end: the view may lag.
func Ended(view metastate.View, t *topic.Topic) error {
	parts, err := view.Assignments(t.Name)
	if err == nil && parts.Incarnation == t.Incarnation { // cheap, and what most see
		return nil
	}
	if view.Ended(t.Incarnation) {
		return problem.New(problem.TopicNotFound, "there is no topic %q any more", t.Name)
	}
	return nil
}
