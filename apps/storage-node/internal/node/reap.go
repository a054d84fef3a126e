package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/topicdir"
)

const (
	// askEvery is how often the leader is asked about one topic at most, so that a
	// flood of purges, real or forged, costs next to nothing.
	askEvery = 5 * time.Second
	// maxWanted bounds the purges that wait: as many as a node has topics. The
	// sweep does what is forgotten.
	maxWanted = 10_000
	// confirmLimit ends one question to the leader.
	confirmLimit = 15 * time.Second
)

// life is one life of a topic.
type life struct {
	name string
	id   topic.Incarnation
}

// reaper remembers what may have to be ended. It decides nothing.
type reaper struct {
	kick chan struct{}

	mu      sync.Mutex                   // guards all below
	here    map[string]topic.Incarnation // the life that has a topic's directory and that was seen alive
	wanted  map[life]struct{}            // purges that wait
	asked   map[string]time.Time         // when the leader was asked about a topic, for askEvery
	odd     map[string]bool              // directories that were reported
	refused int                          // directories that the last sweep did not take because they were too many
}

func newReaper() *reaper {
	return &reaper{
		kick: make(chan struct{}, 1), here: map[string]topic.Incarnation{}, wanted: map[life]struct{}{},
		asked: map[string]time.Time{}, odd: map[string]bool{},
	}
}

// learn remembers whose directory stands under a name.
func (r *reaper) learn(name string, id topic.Incarnation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.here[name] = id
}

// want asks for a purge; false when too many wait.
func (r *reaper) want(l life) bool {
	r.mu.Lock()
	_, have := r.wanted[l]
	ok := have || len(r.wanted) < maxWanted
	if ok {
		r.wanted[l] = struct{}{}
	}
	r.mu.Unlock()
	select {
	case r.kick <- struct{}{}:
	default:
	}
	return ok
}

// due takes what may be asked about now, at most what one call may ask. more is
// when to look again; 0: nothing waits.
func (r *reaper) due(now time.Time) (list []life, more time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, at := range r.asked {
		if now.Sub(at) >= askEvery {
			delete(r.asked, name)
		}
	}
	for l := range r.wanted {
		at, wait := r.asked[l.name]
		switch {
		case wait:
			if left := askEvery - now.Sub(at); more == 0 || left < more {
				more = left
			}
		case len(list) == metaapi.MaxQuestions:
			return list, time.Millisecond
		default:
			delete(r.wanted, l)
			list = append(list, l)
		}
	}
	return list, more
}

func (r *reaper) askedAbout(list []life, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range list {
		r.asked[l.name] = now
	}
}

// Purge says that a life of a topic may have ended: from the bus, where anybody
// may have said it. It only makes the node ask, if it has anything of that life,
// and never waits.
func (n *Node) Purge(name string, id topic.Incarnation) {
	if topic.ValidateName(name) != nil || id == 0 || !n.reaper.want(life{name, id}) {
		n.metrics.PurgesIgnored.Inc()
	}
}

// applied looks, after each change, which lives that were here the replica does not
// show any more. Before it has caught up none was seen.
func (n *Node) applied() {
	r := n.reaper
	var ended []life
	r.mu.Lock()
	for name, id := range r.here {
		if !n.lives(name, id) {
			ended = append(ended, life{name, id})
			delete(r.here, name) // asked about once; what that does not end is the sweep's
		}
	}
	r.mu.Unlock()
	for _, l := range ended {
		r.want(l)
	}
}

// lives tells whether the replica shows that life as the live one; true when it
// cannot tell.
func (n *Node) lives(name string, id topic.Incarnation) bool {
	t, err := n.view.Topic(name)
	if err != nil {
		return !errors.Is(err, metastate.ErrNoTopic)
	}
	return t.Incarnation == id
}

// purges carries out what is wanted, until ctx ends.
func (n *Node) purges(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		list, more := n.reaper.due(time.Now())
		if len(list) > 0 {
			n.purgeAll(ctx, list)
			if more == 0 {
				continue // what came meanwhile
			}
		}
		timer.Stop()
		if more > 0 {
			timer.Reset(more)
		}
		select {
		case <-ctx.Done():
			return
		case <-n.reaper.kick:
		case <-timer.C:
		}
	}
}

// purgeAll asks about those lives of which something lies here, and ends those
// that are gone.
func (n *Node) purgeAll(ctx context.Context, list []life) {
	var here []life
	var ids []topic.Incarnation
	for _, l := range list {
		has, err := n.cfg.Dirs.Has(l.name, l.id)
		switch {
		case err != nil:
			n.metrics.PurgeFailures.Inc()
			n.log.Warn("the directory of a topic to purge cannot be looked at", "topic", l.name, "incarnation", l.id.String(), "error", err)
		case has:
			here, ids = append(here, l), append(ids, l.id)
		default:
			n.metrics.PurgesIgnored.Inc()
		}
	}
	if len(here) == 0 {
		return
	}
	n.reaper.askedAbout(here, time.Now())
	verdicts, err := n.confirm(ctx, ids)
	if err != nil {
		n.log.Warn("nobody confirms what should be purged; it is asked again", "topics", len(here), "error", err)
	}
	for _, l := range here {
		v, said := verdicts[l.id]
		switch {
		case ctx.Err() != nil:
			return
		case !said:
			n.reaper.want(l)
		case v != metaapi.VerdictGone:
			n.metrics.PurgesIgnored.Inc()
		default:
			n.purge(ctx, l, v)
		}
	}
}

func (n *Node) confirm(ctx context.Context, ids []topic.Incarnation) (map[topic.Incarnation]metaapi.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, confirmLimit)
	defer cancel()
	return n.cfg.Confirm(ctx, ids)
}

// purge ends one life on this disk, by a verdict of this pass.
func (n *Node) purge(ctx context.Context, l life, v metaapi.Verdict) {
	var out topicdir.Ended
	err := n.alone(ctx, l.name, func() (err error) {
		out, err = n.cfg.Dirs.Purge(topicdir.Ending{Topic: l.name, Incarnation: l.id, Verdict: verdictOf(v), Dropped: n.dropLife})
		return err
	})
	n.metrics.PurgedDirs.Add(float64(out.Directories))
	n.metrics.ReclaimedBytes.Add(float64(out.Bytes))
	if errors.Is(err, context.Canceled) {
		return // the node stops before its turn came; the sweep of its next start goes on
	}
	if err != nil {
		n.metrics.PurgeFailures.Inc()
		n.log.Error("a deleted topic could not be removed from the disk; the next sweep tries again",
			"topic", l.name, "incarnation", l.id.String(), "error", err)
		return
	}
	n.log.Info("a deleted topic was removed from the disk", "topic", l.name, "incarnation", l.id.String(),
		"directories", out.Directories, "bytes", out.Bytes)
}

// alone runs do, which removes something, when it has the turn and while no open of
// the name runs. Nothing holds the name while it waits for the turn.
func (n *Node) alone(ctx context.Context, name string, do func() error) error {
	if err := n.pace.enter(ctx); err != nil {
		return err
	}
	defer n.pace.leave()
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	if err := n.gates.enter(ctx, name, nobody); err != nil {
		return err
	}
	defer n.gates.leave(name)
	return do()
}
