package testkit

import (
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// Meta is a metastate.View that a test fills by hand. The zero value is not
// usable; call NewMeta. It starts latched and caught up.
type Meta struct {
	mu          sync.Mutex // guards all below
	topics      map[string]*topic.Topic
	partitions  map[string]*metastate.Partitions
	members     *metastate.MemberTable
	ended       map[topic.Incarnation]bool
	attachments map[topic.ID64]*topic.Attachment
	changed     chan struct{}
	caughtUp    bool
	latched     bool
}

var (
	_ metastate.View  = (*Meta)(nil)
	_ metastate.Index = (*Meta)(nil)
)

// NewMeta returns an empty view of a cluster.
func NewMeta() *Meta {
	return &Meta{
		topics: map[string]*topic.Topic{}, partitions: map[string]*metastate.Partitions{},
		members: &metastate.MemberTable{ByID: map[string]*topic.Member{}},
		ended:   map[topic.Incarnation]bool{}, attachments: map[topic.ID64]*topic.Attachment{}, changed: make(chan struct{}), caughtUp: true, latched: true,
	}
}

func (m *Meta) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.changed)
	m.changed = make(chan struct{})
}

// PutTopic adds or replaces a topic with these assignments.
func (m *Meta) PutTopic(t topic.Topic, list []topic.Assignment) {
	m.change(func() {
		m.topics[t.Name] = &t
		m.partitions[t.Name] = &metastate.Partitions{Incarnation: t.Incarnation, List: list}
	})
}

// DeleteTopic ends the live incarnation of a name.
func (m *Meta) DeleteTopic(name string) {
	m.change(func() {
		if t := m.topics[name]; t != nil {
			m.ended[t.Incarnation] = true
		}
		delete(m.topics, name)
		delete(m.partitions, name)
	})
}

// PutMember adds or replaces a member.
func (m *Meta) PutMember(mem topic.Member) {
	m.change(func() {
		next := make(map[string]*topic.Member, len(m.members.ByID)+1)
		for id, old := range m.members.ByID {
			next[id] = old
		}
		next[mem.ID] = &mem
		m.members = &metastate.MemberTable{ByID: next}
	})
}

// SetState sets what the latch and the catch-up show.
func (m *Meta) SetState(caughtUp, latched bool) {
	m.change(func() { m.caughtUp, m.latched = caughtUp, latched })
}

// Topic implements metastate.View.
func (m *Meta) Topic(name string) (*topic.Topic, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.topics[name]; t != nil {
		return t, nil
	}
	return nil, metastate.ErrNoTopic
}

// Assignments implements metastate.View.
func (m *Meta) Assignments(name string) (*metastate.Partitions, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.latched {
		return nil, metastate.ErrUnavailable
	}
	if p := m.partitions[name]; p != nil {
		return p, nil
	}
	return nil, metastate.ErrNoTopic
}

// AssignmentsOf implements metastate.View.
func (m *Meta) AssignmentsOf(node string) ([]topic.Assignment, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.latched {
		return nil, metastate.ErrUnavailable
	}
	var out []topic.Assignment
	for _, p := range m.partitions {
		for _, a := range p.List {
			if a.On(node) {
				out = append(out, a)
			}
		}
	}
	return out, nil
}

// Loads implements metastate.Index.
func (m *Meta) Loads(beside []topic.Assignment) (topic.Loads, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.latched && len(m.partitions) > 0 {
		return nil, metastate.ErrUnavailable
	}
	out := topic.Loads{}
	for _, p := range m.partitions {
		for i := range p.List {
			out.Add(&p.List[i])
		}
	}
	for i := range beside {
		if p := m.partitions[beside[i].Topic]; p == nil || p.Incarnation != beside[i].Incarnation || int(beside[i].Partition) >= len(p.List) {
			out.Add(&beside[i])
		}
	}
	return out, nil
}

// Led implements metastate.Index.
func (m *Meta) Led(by func(topic.Replica) bool) ([]topic.Assignment, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.latched && len(m.partitions) > 0 {
		return nil, metastate.ErrUnavailable
	}
	var out []topic.Assignment
	for _, name := range slices.Sorted(maps.Keys(m.partitions)) {
		for _, a := range m.partitions[name].List {
			leader, _ := a.ReplicaOn(a.Leader)
			leader.CopyID = 0
			if len(a.Replicas) > 1 && by(leader) {
				out = append(out, a)
			}
		}
	}
	return out, nil
}

// Topics implements metastate.View.
func (m *Meta) Topics(prefix, after string, limit int) ([]*topic.Topic, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*topic.Topic
	for name, t := range m.topics {
		if strings.HasPrefix(name, prefix) && name > after {
			out = append(out, t)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out[:min(limit, len(out))], nil
}

// Members implements metastate.View.
func (m *Meta) Members() *metastate.MemberTable {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.members
}

// Ended implements metastate.View.
func (m *Meta) Ended(id topic.Incarnation) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended[id]
}

// PutAttachment adds an attachment.
func (m *Meta) PutAttachment(at topic.Attachment) {
	m.change(func() { m.attachments[at.AttachEpoch] = &at })
}

// Attachment implements metastate.View.
func (m *Meta) Attachment(epoch topic.ID64) (*topic.Attachment, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.latched {
		return nil, metastate.ErrUnavailable
	}
	return m.attachments[epoch], nil
}

// ClusterID implements metastate.View.
func (m *Meta) ClusterID() string { return "00000000000000000000000000000001" }

// Changed implements metastate.View.
func (m *Meta) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// CaughtUpOnce implements metastate.View.
func (m *Meta) CaughtUpOnce() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.caughtUp
}

// Latched implements metastate.View.
func (m *Meta) Latched() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.latched
}
