package lives

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

const clusterID = "00000000000000000000000000000001"

// state is a metastore in memory.
type state map[metastate.Bucket]map[string]string

func newState() state {
	s := state{}
	for _, b := range metastate.Buckets() {
		s[b] = map[string]string{}
	}
	return s
}

func (s state) clone() state {
	out := state{}
	for b, m := range s {
		out[b] = maps.Clone(m)
	}
	return out
}

// Get implements metastate.Reader.
func (s state) Get(b metastate.Bucket, key []byte) []byte {
	if v, ok := s[b][string(key)]; ok {
		return []byte(v)
	}
	return nil
}

// Scan implements metastate.Reader.
func (s state) Scan(b metastate.Bucket, prefix []byte, fn func(key, value []byte) bool) {
	for _, k := range slices.Sorted(maps.Keys(s[b])) {
		if strings.HasPrefix(k, string(prefix)) && !fn([]byte(k), []byte(s[b][k])) {
			return
		}
	}
}

// Put implements metastate.Tx.
func (s state) Put(b metastate.Bucket, key, value []byte) error {
	s[b][string(key)] = string(value)
	return nil
}

// Delete implements metastate.Tx.
func (s state) Delete(b metastate.Bucket, key []byte) error {
	delete(s[b], string(key))
	return nil
}

// leader is the metastore: its state is the truth.
type leader struct {
	metaapi.Voter // what nobody here calls

	mu     sync.Mutex // guards all below
	state  state
	log    [][]byte
	silent bool
}

func newLeader() *leader {
	l := &leader{state: newState()}
	l.propose(&metastate.ClusterID{ID: clusterID})
	return l
}

// propose applies an entry; it fails the run when it is refused for the second time.
func (l *leader) propose(e metastate.Entry) metastate.Result {
	raw, err := metastate.Encode(e)
	if err != nil {
		panic(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	res, err := metastate.Apply(l.state, raw)
	if err != nil {
		panic(err)
	}
	l.log = append(l.log, raw)
	return res
}

func (l *leader) applied() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.log)
}

func (l *leader) entries(from, to int) [][]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.log[from:min(to, len(l.log))])
}

func (l *leader) snapshot() (state, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.clone(), len(l.log)
}

func (l *leader) live(id topic.Incarnation) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return metastate.IsLive(l.state, id)
}

func (l *leader) topic(name string) *topic.Topic {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, err := metastate.TopicByName(l.state, name)
	if err != nil {
		panic(err)
	}
	return t
}

func (l *leader) silence(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = on
}

var errSilent = errors.New("the metastore leader does not answer")

// Confirm implements metaapi.Voter.
func (l *leader) Confirm(_ context.Context, req *metaapi.ConfirmRequest) (*metaapi.ConfirmResult, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.silent {
		return nil, errSilent
	}
	res := &metaapi.ConfirmResult{}
	for _, q := range req.Questions {
		v := metaapi.VerdictUnknown
		switch {
		case metastate.IsLive(l.state, q.ID):
			v = metaapi.VerdictLive
		case metastate.IsEnded(l.state, q.ID):
			v = metaapi.VerdictGone
		}
		res.Verdicts = append(res.Verdicts, v)
	}
	return res, nil
}

// Members implements metaapi.Voter.
func (l *leader) Members(context.Context) (*metaapi.MembersResult, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.silent {
		return nil, errSilent
	}
	list, err := metastate.AllMembers(l.state)
	return &metaapi.MembersResult{LeaderID: "leader", ClusterID: clusterID, Members: list}, err
}

// Endings implements metaapi.Endings.
func (l *leader) Endings(_ context.Context, req *metaapi.EndingsRequest) (*metaapi.EndingsResult, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.silent {
		return nil, errSilent
	}
	list, err := metastate.Endings(l.state, req.After, metaapi.MaxEndings)
	res := &metaapi.EndingsResult{}
	for _, e := range list {
		res.Endings = append(res.Endings, metaapi.Ending{Incarnation: e.Incarnation, Topic: e.Name, EndedMS: e.EndedMS})
	}
	return res, err
}

// ForgetEnded implements metaapi.Endings.
func (l *leader) ForgetEnded(_ context.Context, req *metaapi.ForgetEndedRequest) (*metaapi.ChangeResult, error) {
	res := l.propose(&metastate.ForgetEnded{IDs: req.IDs})
	return &metaapi.ChangeResult{}, res.Err()
}

// replica is one node's copy of the metastore, over its process starts.
type replica struct {
	leader *leader

	mu       sync.Mutex // guards all below
	state    state
	applied  int
	needed   int  // applied before the latch is set
	deceived bool // the latch is set whatever was applied
	held     bool
	changed  chan struct{}
	topics   map[string]*topic.Topic
	parts    map[string]*metastate.Partitions
	members  *metastate.MemberTable
}

var _ metastate.View = (*replica)(nil)

func newReplica(l *leader) *replica {
	r := &replica{leader: l, state: newState(), changed: make(chan struct{})}
	r.forgetLocked()
	return r
}

func (r *replica) forgetLocked() {
	r.topics, r.parts, r.members = map[string]*topic.Topic{}, map[string]*metastate.Partitions{}, nil
}

func (r *replica) tellLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// begin is a process start: nothing is believed before needed is applied.
func (r *replica) begin(needed int, deceived bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.needed, r.deceived = needed, deceived
	r.tellLocked()
}

// restore puts the state back to what it was after the first n entries.
func (r *replica) restore(n int) {
	entries := r.leader.entries(0, n)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state, r.applied = newState(), len(entries)
	for _, raw := range entries {
		if _, err := metastate.Apply(r.state, raw); err != nil {
			panic(err)
		}
	}
	r.forgetLocked()
	r.tellLocked()
}

// install takes the leader's state at once, as a follower does that is far behind.
func (r *replica) install() {
	s, n := r.leader.snapshot()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state, r.applied = s, n
	r.forgetLocked()
	r.tellLocked()
}

func (r *replica) hold(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = on
}

// catchUp applies at most n entries; less than all, if it is held back.
func (r *replica) catchUp(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held {
		return
	}
	was := r.applied
	for _, raw := range r.leader.entries(r.applied, r.applied+n) {
		res, err := metastate.Apply(r.state, raw)
		if err != nil {
			panic(err)
		}
		r.applied++
		for _, name := range res.Effects.Topics {
			delete(r.topics, name)
			delete(r.parts, name)
		}
		if len(res.Effects.Members) > 0 {
			r.members = nil
		}
	}
	if r.applied != was {
		r.tellLocked()
	}
}

// current tells whether the replica has everything, as far as it knows.
func (r *replica) current() bool {
	n := r.leader.applied()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.deceived || r.applied >= n
}

// Topic implements metastate.View.
func (r *replica) Topic(name string) (*topic.Topic, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.topicLocked(name)
}

func (r *replica) topicLocked(name string) (*topic.Topic, error) {
	t, ok := r.topics[name]
	if !ok {
		var err error
		if t, err = metastate.TopicByName(r.state, name); err != nil {
			return nil, err
		}
		r.topics[name] = t
	}
	if t == nil {
		return nil, metastate.ErrNoTopic
	}
	return t, nil
}

// Assignments implements metastate.View.
func (r *replica) Assignments(name string) (*metastate.Partitions, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.latchedLocked() {
		return nil, metastate.ErrUnavailable
	}
	t, err := r.topicLocked(name)
	if err != nil {
		return nil, err
	}
	p := r.parts[name]
	if p == nil {
		list, err := metastate.AssignmentsByName(r.state, name)
		if err != nil {
			return nil, err
		}
		p = &metastate.Partitions{Incarnation: t.Incarnation, List: list}
		r.parts[name] = p
	}
	return p, nil
}

// AssignmentsOf implements metastate.View.
func (r *replica) AssignmentsOf(node string) ([]topic.Assignment, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.latchedLocked() {
		return nil, metastate.ErrUnavailable
	}
	var out []topic.Assignment
	for _, name := range metastate.TopicsOnNode(r.state, node) {
		list, err := metastate.AssignmentsByName(r.state, name)
		if err != nil {
			return nil, err
		}
		out = append(out, slices.DeleteFunc(list, func(a topic.Assignment) bool { return !a.On(node) })...)
	}
	return out, nil
}

// Topics implements metastate.View.
func (r *replica) Topics(prefix, after string, limit int) ([]*topic.Topic, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, err := metastate.AllTopics(r.state)
	var out []*topic.Topic
	for i := range all {
		if strings.HasPrefix(all[i].Name, prefix) && all[i].Name > after && len(out) < limit {
			out = append(out, &all[i])
		}
	}
	return out, err
}

// Members implements metastate.View.
func (r *replica) Members() *metastate.MemberTable {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.members == nil {
		r.members = &metastate.MemberTable{ByID: map[string]*topic.Member{}}
		list, err := metastate.AllMembers(r.state)
		if err != nil {
			panic(err)
		}
		for i := range list {
			r.members.ByID[list[i].ID] = &list[i]
		}
	}
	return r.members
}

// Ended implements metastate.View.
func (r *replica) Ended(id topic.Incarnation) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return metastate.IsEnded(r.state, id)
}

// Attachment implements metastate.View.
func (r *replica) Attachment(topic.ID64) (*topic.Attachment, error) { return nil, nil }

// ClusterID implements metastate.View.
func (r *replica) ClusterID() string { return clusterID }

// Changed implements metastate.View.
func (r *replica) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// CaughtUpOnce implements metastate.View.
func (r *replica) CaughtUpOnce() bool { return r.Latched() }

// Latched implements metastate.View.
func (r *replica) Latched() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.latchedLocked()
}

func (r *replica) latchedLocked() bool { return r.deceived || r.needed > 0 && r.applied >= r.needed }

func nowMS() int64 { return time.Now().UnixMilli() }
