package node

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/topicdir"
)

// Confirm asks the Raft leader about incarnations, in calls of metaapi.MaxQuestions.
// What is missing in the answer is unknown; an error is no verdict on the rest.
type Confirm func(ctx context.Context, ids []topic.Incarnation) (map[topic.Incarnation]metaapi.Verdict, error)

// directory finds or makes the directory of one life of a topic. What another
// life left under the name is set aside, after the metastore was asked about it.
func (n *Node) directory(ctx context.Context, name string, id topic.Incarnation) (string, error) {
	req := topicdir.Request{Topic: name, Incarnation: id, Dropped: func(topic.Incarnation) { n.dropOthers(name, id) }}
	out, err := n.cfg.Dirs.Open(req)
	var needed *topicdir.VerdictNeeded
	if errors.As(err, &needed) {
		verdicts, cerr := n.cfg.Confirm(ctx, []topic.Incarnation{needed.Found})
		if cerr != nil {
			return "", fmt.Errorf("ask about incarnation %s of topic %s: %w", needed.Found, name, cerr)
		}
		req.Judged, req.Verdict = needed.Found, verdictOf(verdicts[needed.Found])
		out, err = n.cfg.Dirs.Open(req)
	}
	if err != nil {
		return "", err
	}
	n.reaper.learn(name, id)
	if out.SetAside != "" {
		n.metrics.StaleDirectories.Inc()
		n.log.Warn("a topic directory of another life was set aside", "topic", name, "incarnation", id.String(),
			"set_aside", out.SetAside, "operator_needed", out.Unsure)
		if !out.Unsure {
			n.reaper.want(life{name, req.Judged}) // by a question of its own
		}
	}
	if out.Restored {
		n.log.Warn("a topic directory was moved back from quarantine", "topic", name, "incarnation", id.String())
	}
	return out.Path, nil
}

func verdictOf(v metaapi.Verdict) topicdir.Verdict {
	switch v {
	case metaapi.VerdictGone:
		return topicdir.Gone
	case metaapi.VerdictLive:
		return topicdir.Live
	case metaapi.VerdictUnknown:
	}
	return topicdir.Unknown
}

// dropOthers ends what is in memory of other lives of a name, before their
// directory goes, and waits for it: an object that outlived it would write by path
// into the successor's.
func (n *Node) dropOthers(name string, id topic.Incarnation) {
	name = topic.FoldName(name) // a disk that ignores case has one directory for both
	n.dropIf(func(ref topic.Ref) bool { return ref.Incarnation != id && topic.FoldName(ref.Topic) == name })
}

// dropLife ends what is in memory of one life, and waits for it.
func (n *Node) dropLife(id topic.Incarnation) {
	n.dropIf(func(ref topic.Ref) bool { return ref.Incarnation == id })
}

func (n *Node) dropIf(which func(topic.Ref) bool) {
	var ends []<-chan struct{}
	n.slots.Range(func(k, v any) bool {
		if ref, _ := k.(topic.Ref); which(ref) {
			ends = append(ends, n.drop(ref, asSlot(v)))
		}
		return true
	})
	for _, end := range ends {
		<-end
	}
}

// gates let opens of one life of a name run side by side, and never those of
// two lives: an open that still uses the path of the old one must have ended
// before the new one's directory stands there.
type gates struct {
	mu sync.Mutex // guards m and what is in it
	m  map[string]*gate
}

type gate struct {
	id   topic.Incarnation
	n    int
	free chan struct{} // closed when nobody is in
}

// nobody is who enters a gate to move or remove what stands behind it.
const nobody topic.Incarnation = 0

func (g *gates) enter(ctx context.Context, name string, id topic.Incarnation) error {
	key := topic.FoldName(name)
	for {
		g.mu.Lock()
		at := g.m[key]
		if at == nil {
			at = &gate{id: id, free: make(chan struct{})}
			if g.m == nil {
				g.m = map[string]*gate{}
			}
			g.m[key] = at
		}
		if at.id == id {
			at.n++
			g.mu.Unlock()
			return nil
		}
		g.mu.Unlock()
		select {
		case <-at.free:
		case <-ctx.Done():
			return fmt.Errorf("wait for another life of topic %s: %w", name, ctx.Err())
		}
	}
}

func (g *gates) leave(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := topic.FoldName(name)
	at := g.m[key]
	if at.n--; at.n == 0 {
		delete(g.m, key)
		close(at.free)
	}
}
