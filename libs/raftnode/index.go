package raftnode

import (
	"maps"
	"slices"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// index is what is known of all partitions together without a look at each: it
// follows every publication, because with 30,000 partitions a look takes a leader
// 20 ms of each create. It is derived, never stored: a start or a restore builds
// it anew. The replica's mu guards it.
//
// Invariant: it equals what a scan of the published topics gives
// (TestIndexEqualsAScan).
type index struct {
	onNode names[string] // node -> topics with a copy there
	// led has replicated partitions only, by the replica that leads them; the zero
	// replica: none does. A copy's id says nothing of who leads, and is left out.
	led   names[topic.Replica]
	loads topic.Loads
}

// names is a set of topics per key; no set is empty.
type names[K comparable] map[K]map[string]struct{}

func (n names[K]) add(key K, name string) {
	set := n[key]
	if set == nil {
		set = map[string]struct{}{}
		n[key] = set
	}
	set[name] = struct{}{}
}

func (n names[K]) remove(key K, name string) {
	delete(n[key], name)
	if len(n[key]) == 0 {
		delete(n, key)
	}
}

func newIndex() index {
	return index{onNode: names[string]{}, led: names[topic.Replica]{}, loads: topic.Loads{}}
}

func (x *index) add(t *liveTopic) {
	for i := range t.partitions.List {
		a := &t.partitions.List[i]
		for _, r := range slices.Concat(a.Replicas, a.Observers) {
			x.onNode.add(r.Node, t.topic.Name)
		}
		if len(a.Replicas) > 1 {
			x.led.add(ledBy(a), t.topic.Name)
		}
		x.loads.Add(a)
	}
}

func (x *index) remove(t *liveTopic) {
	for i := range t.partitions.List {
		a := &t.partitions.List[i]
		for _, r := range slices.Concat(a.Replicas, a.Observers) {
			x.onNode.remove(r.Node, t.topic.Name)
		}
		x.led.remove(ledBy(a), t.topic.Name)
		x.loads.Remove(a)
	}
}

// ledBy is the replica that leads, without its copy's id; zero: none of the set does.
func ledBy(a *topic.Assignment) topic.Replica {
	r, _ := a.ReplicaOn(a.Leader)
	return topic.Replica{Node: r.Node, DiskID: r.DiskID}
}

// Index answers what a leading voter asks of all partitions together.
func (n *Node) Index() metastate.Index { return n.replica }

// hiddenLocked tells whether the latch keeps back what is known: where there is no
// partition there is nothing to keep back, and a new cluster's first create need
// not wait.
func (r *replica) hiddenLocked() bool { return !r.latched.Load() && len(r.index.onNode) > 0 }

// Loads implements metastate.Index.
func (r *replica) Loads(beside []topic.Assignment) (topic.Loads, error) {
	r.mu.Lock() // a topic is published and counted under it: beside counts once, before and after
	defer r.mu.Unlock()
	if r.hiddenLocked() {
		return nil, metastate.ErrUnavailable
	}
	out := maps.Clone(r.index.loads)
	for i := range beside {
		if t := r.find(beside[i].Topic); t == nil || t.topic.Incarnation != beside[i].Incarnation || int(beside[i].Partition) >= len(t.partitions.List) {
			out.Add(&beside[i])
		}
	}
	return out, nil
}

// Led implements metastate.Index.
func (r *replica) Led(by func(leader topic.Replica) bool) ([]topic.Assignment, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hiddenLocked() {
		return nil, metastate.ErrUnavailable
	}
	found := map[string]struct{}{}
	meant := map[topic.Replica]bool{}
	for leader, topics := range r.index.led {
		if by(leader) {
			meant[leader] = true
			maps.Copy(found, topics)
		}
	}
	var out []topic.Assignment
	for _, name := range slices.Sorted(maps.Keys(found)) {
		for _, a := range r.find(name).partitions.List {
			if len(a.Replicas) > 1 && meant[ledBy(&a)] {
				out = append(out, a)
			}
		}
	}
	return out, nil
}
