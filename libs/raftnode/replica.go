package raftnode

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// replica is the node's metastate.View: the live topics and members as
// immutable values in memory, in proportion to what is live. The state machine
// publishes changes after their transaction; a reader of one name pays two
// atomic loads and one map look-up.
//
// Invariant: a published value equals the record in the state of some applied
// index, and once WaitApplied has returned for an index, of that one or later.
type replica struct {
	self  string
	nonce topic.ID64

	live      atomic.Pointer[sync.Map] // name -> *liveTopic; a restore replaces the map
	members   atomic.Pointer[metastate.MemberTable]
	clusterID atomic.Pointer[string]
	changed   atomic.Pointer[chan struct{}]

	caughtUp   atomic.Bool // once since the start; never cleared
	latched    atomic.Bool // never cleared
	registered atomic.Bool // the member record of this process start was applied

	state *state // for Ended, which is not on a hot path

	mu     sync.Mutex     // guards the fields below, and the order of publications
	index  index          // of what is live
	sorted []*topic.Topic // by name; nil after a change
}

// liveTopic is what is published of one life of a topic.
type liveTopic struct {
	topic      *topic.Topic
	partitions *metastate.Partitions
}

// changes is what one transaction changed, read inside it.
type changes struct {
	topics    map[string]*liveTopic // nil value: gone
	members   map[string]*topic.Member
	clusterID *string
}

var _ metastate.View = (*replica)(nil)

func newReplica(self string, nonce topic.ID64, s *state) (*replica, error) {
	r := &replica{self: self, nonce: nonce, state: s}
	ch := make(chan struct{})
	r.changed.Store(&ch)
	return r, r.reload(s)
}

// stage reads what the effects name; nil when nothing that is published changed.
func (r *replica) stage(tx metastate.Reader, e *metastate.Effects) (*changes, error) {
	if !e.Any() {
		return nil, nil
	}
	c := &changes{topics: map[string]*liveTopic{}, members: map[string]*topic.Member{}}
	for _, name := range e.Topics {
		if _, done := c.topics[name]; done {
			continue
		}
		t, err := readLive(tx, name)
		if err != nil {
			return nil, err
		}
		c.topics[name] = t
	}
	for _, id := range e.Members {
		m, err := metastate.MemberByID(tx, id)
		if err != nil {
			return nil, err
		}
		c.members[id] = m
	}
	if e.ClusterID {
		id, err := metastate.ReadClusterID(tx)
		if err != nil {
			return nil, err
		}
		c.clusterID = &id
	}
	return c, nil
}

func readLive(tx metastate.Reader, name string) (*liveTopic, error) {
	t, err := metastate.TopicByName(tx, name)
	if err != nil || t == nil {
		return nil, err
	}
	list, err := metastate.AssignmentsByName(tx, name)
	if err != nil {
		return nil, err
	}
	return &liveTopic{t, &metastate.Partitions{Incarnation: t.Incarnation, List: list}}, nil
}

// publish makes staged changes visible and wakes those who wait for a change.
func (r *replica) publish(c *changes) {
	if c == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	live := r.live.Load()
	for name, next := range c.topics {
		if old, ok := live.Load(name); ok {
			r.index.remove(old.(*liveTopic))
		}
		if next == nil {
			live.Delete(name)
			continue
		}
		r.index.add(next)
		live.Store(name, next)
	}
	if len(c.topics) > 0 {
		r.sorted = nil
	}
	if len(c.members) > 0 {
		r.publishMembersLocked(c.members)
	}
	if c.clusterID != nil {
		r.clusterID.Store(c.clusterID)
	}
	r.wakeLocked()
}

func (r *replica) publishMembersLocked(changed map[string]*topic.Member) {
	old := r.members.Load().ByID
	next := make(map[string]*topic.Member, len(old)+len(changed))
	for id, m := range old {
		next[id] = m
	}
	for id, m := range changed {
		if m == nil {
			delete(next, id)
		} else {
			next[id] = m
		}
	}
	r.setMembersLocked(next)
}

func (r *replica) setMembersLocked(all map[string]*topic.Member) {
	r.members.Store(&metastate.MemberTable{ByID: all})
	if m := all[r.self]; m != nil && m.BootNonce == r.nonce {
		r.registered.Store(true)
	}
}

func (r *replica) wakeLocked() {
	next := make(chan struct{})
	close(*r.changed.Swap(&next))
}

// world is everything that is published, read at one moment.
type world struct {
	topics    []*liveTopic
	members   map[string]*topic.Member
	clusterID string
}

func readWorld(tx metastate.Reader) (*world, error) {
	w := &world{members: map[string]*topic.Member{}}
	topics, err := metastate.AllTopics(tx)
	if err != nil {
		return nil, err
	}
	for i := range topics {
		t, err := readLive(tx, topics[i].Name)
		if err != nil {
			return nil, err
		}
		w.topics = append(w.topics, t)
	}
	members, err := metastate.AllMembers(tx)
	if err != nil {
		return nil, err
	}
	for i := range members {
		w.members[members[i].ID] = &members[i]
	}
	w.clusterID, err = metastate.ReadClusterID(tx)
	return w, err
}

// reload builds the view anew from a state: at the start and after a restore.
// What the new state does not have is forgotten.
func (r *replica) reload(s *state) error {
	var w *world
	err := s.read(func(tx stateTx) (err error) {
		w, err = readWorld(tx)
		return err
	})
	if err != nil {
		return fmt.Errorf("read the metastore: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	live := new(sync.Map)
	r.index, r.sorted = newIndex(), nil
	for _, t := range w.topics {
		live.Store(t.topic.Name, t)
		r.index.add(t)
	}
	r.live.Store(live)
	r.setMembersLocked(w.members)
	r.clusterID.Store(&w.clusterID)
	r.wakeLocked()
	return nil
}

func (r *replica) find(name string) *liveTopic {
	if v, ok := r.live.Load().Load(name); ok {
		return v.(*liveTopic)
	}
	return nil
}

// Topic implements metastate.View.
func (r *replica) Topic(name string) (*topic.Topic, error) {
	if t := r.find(name); t != nil {
		return t.topic, nil
	}
	return nil, metastate.ErrNoTopic
}

// Assignments implements metastate.View.
func (r *replica) Assignments(name string) (*metastate.Partitions, error) {
	if !r.latched.Load() {
		return nil, metastate.ErrUnavailable
	}
	if t := r.find(name); t != nil {
		return t.partitions, nil
	}
	return nil, metastate.ErrNoTopic
}

// AssignmentsOf implements metastate.View.
func (r *replica) AssignmentsOf(node string) ([]topic.Assignment, error) {
	if !r.latched.Load() {
		return nil, metastate.ErrUnavailable
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	names := make([]string, 0, len(r.index.onNode[node]))
	for name := range r.index.onNode[node] {
		names = append(names, name)
	}
	slices.Sort(names)
	var out []topic.Assignment
	for _, name := range names {
		for _, a := range r.find(name).partitions.List {
			if a.On(node) {
				out = append(out, a)
			}
		}
	}
	return out, nil
}

// Topics implements metastate.View.
func (r *replica) Topics(prefix, after string, limit int) ([]*topic.Topic, error) {
	all := r.byName()
	at := sort.Search(len(all), func(i int) bool { return all[i].Name > after && all[i].Name >= prefix })
	var out []*topic.Topic
	for ; at < len(all) && len(out) < limit && strings.HasPrefix(all[at].Name, prefix); at++ {
		out = append(out, all[at])
	}
	return out, nil
}

// byName sorts the topics at the first listing after a change.
func (r *replica) byName() []*topic.Topic {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sorted == nil {
		r.sorted = []*topic.Topic{}
		r.live.Load().Range(func(_, v any) bool {
			r.sorted = append(r.sorted, v.(*liveTopic).topic)
			return true
		})
		slices.SortFunc(r.sorted, func(a, b *topic.Topic) int { return strings.Compare(a.Name, b.Name) })
	}
	return r.sorted
}

// Members implements metastate.View.
func (r *replica) Members() *metastate.MemberTable { return r.members.Load() }

// Attachment implements metastate.View.
func (r *replica) Attachment(epoch topic.ID64) (at *topic.Attachment, err error) {
	if !r.latched.Load() {
		return nil, metastate.ErrUnavailable
	}
	err = r.state.read(func(tx stateTx) error {
		at, err = metastate.AttachmentByEpoch(tx, epoch)
		return err
	})
	return at, err
}

// Ended implements metastate.View. It reads the state, and says no when that fails.
func (r *replica) Ended(id topic.Incarnation) bool {
	ended := false
	err := r.state.read(func(tx stateTx) error { ended = metastate.IsEnded(tx, id); return nil })
	return err == nil && ended
}

// ClusterID implements metastate.View.
func (r *replica) ClusterID() string { return *r.clusterID.Load() }

// Changed implements metastate.View.
func (r *replica) Changed() <-chan struct{} { return *r.changed.Load() }

// CaughtUpOnce implements metastate.View.
func (r *replica) CaughtUpOnce() bool { return r.caughtUp.Load() }

// Latched implements metastate.View.
func (r *replica) Latched() bool { return r.latched.Load() }

// setCaughtUp notes the first catch-up since the start.
func (r *replica) setCaughtUp() {
	if r.caughtUp.CompareAndSwap(false, true) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.wakeLocked()
	}
}

// setLatch sets the ownership latch.
func (r *replica) setLatch() {
	if r.latched.CompareAndSwap(false, true) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.wakeLocked()
	}
}
