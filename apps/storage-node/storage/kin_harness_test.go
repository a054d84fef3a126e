package storage_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/storage-node/storage"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// kin is four storage nodes with a parent of three copies and its children, in fake
// time. The test is their network and, by the rules of libs/quorum, their controller:
// it elects, and it moves copies.
type kin struct {
	t    *testing.T
	rng  *rand.Rand
	meta *testkit.Meta

	mu     sync.Mutex // guards all below
	nodes  map[string]*kinNode
	topics map[string]*topic.Topic
	parts  map[topic.Ref]*topic.Assignment
	living map[topic.ID64]bool
	cut    map[string]bool // "s1>s2": calls of s1 do not reach s2
	lossy  int             // of 100 answers to a commit of a cursor so many are lost
	luck   *rand.Rand      // which ones
	next   uint64          // ids, boots and record numbers
}

// kinNode is one storage node; its disk outlives its processes.
type kinNode struct {
	id   string
	disk topic.ID64
	fs   *vfs.Mem
	role *storage.Role
	reg  *prometheus.Registry
	logs *logBook
	stop context.CancelFunc
	err  chan error
}

var kinNodes = []string{"s1", "s2", "s3", "s4"}

func newKin(t *testing.T, seed uint64) *kin {
	k := &kin{
		t: t, rng: seeded(seed), meta: testkit.NewMeta(), nodes: map[string]*kinNode{}, topics: map[string]*topic.Topic{},
		parts: map[topic.Ref]*topic.Assignment{}, living: map[topic.ID64]bool{}, cut: map[string]bool{}, luck: seeded(seed + 1), next: 1,
	}
	for i, id := range kinNodes {
		n := &kinNode{id: id, disk: topic.ID64(i + 1), fs: vfs.NewMem()}
		if err := errors.Join(n.fs.MkdirAll("/data"), n.fs.SyncDir("/")); err != nil {
			t.Fatal(err)
		}
		k.nodes[id] = n
		k.start(n)
	}
	return k
}

func (k *kin) number() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next++
	return k.next
}

// create makes a topic with its partitions on nodes drawn at random.
func (k *kin) create(name string, partitions, factor int) {
	cfg := topic.DefaultConfig()
	cfg.Partitions, cfg.ReplicationFactor = partitions, factor
	t := &topic.Topic{Name: name, Incarnation: topic.ID64(k.number() << 8), Version: 1, Config: cfg}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.topics[name] = t
	for i := range partitions {
		a := &topic.Assignment{Ref: topic.Ref{Topic: name, Incarnation: t.Incarnation, Partition: int32(i)}, LeaderEpoch: 1}
		for _, n := range k.rng.Perm(len(kinNodes))[:factor] {
			a.Replicas = append(a.Replicas, topic.Replica{Node: kinNodes[n], DiskID: k.nodes[kinNodes[n]].disk})
		}
		leadAlone(a)
		k.parts[a.Ref] = a
	}
	k.publishLocked(name)
}

func (k *kin) publishLocked(name string) {
	t := *k.topics[name]
	t.Children = slices.Clone(t.Children)
	list := make([]topic.Assignment, t.Partitions)
	for i := range list {
		a := k.parts[topic.Ref{Topic: name, Incarnation: t.Incarnation, Partition: int32(i)}]
		list[i] = *a
		list[i].Replicas, list[i].Observers, list[i].Before = slices.Clone(a.Replicas), slices.Clone(a.Observers), slices.Clone(a.Before)
	}
	k.meta.PutTopic(t, list)
}

// change changes an assignment as an entry of the metastore does.
func (k *kin) change(ref topic.Ref, f func(a *topic.Assignment)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(k.parts[ref])
	k.publishLocked(ref.Topic)
}

func (k *kin) assignment(ref topic.Ref) topic.Assignment {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := *k.parts[ref]
	a.Replicas, a.Observers = slices.Clone(a.Replicas), slices.Clone(a.Observers)
	return a
}

func (k *kin) ref(name string, i int) topic.Ref {
	k.mu.Lock()
	defer k.mu.Unlock()
	return topic.Ref{Topic: name, Incarnation: k.topics[name].Incarnation, Partition: int32(i)}
}

// refs lists all partitions, in order.
func (k *kin) refs() []topic.Ref {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.SortedFunc(maps.Keys(k.parts), func(a, b topic.Ref) int {
		if a.Topic != b.Topic {
			return map[bool]int{true: -1, false: 1}[a.Topic < b.Topic]
		}
		return int(a.Partition - b.Partition)
	})
}

// start is a new process on the node's disk; its registration gives up what it led.
func (k *kin) start(n *kinNode) {
	k.t.Helper()
	boot := topic.ID64(k.number())
	k.meta.PutMember(topic.Member{ID: n.id, Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: n.disk, BootNonce: boot})
	k.resign(n.id)
	for _, ref := range k.refs() {
		if a := k.assignment(ref); len(a.Replicas) == 1 && a.Leader == n.id {
			k.change(ref, func(a *topic.Assignment) { a.LeaderEpoch++ })
		}
	}
	reg, logs, failed := prometheus.NewRegistry(), &logBook{}, make(chan error, 1)
	role, err := storage.New(storage.Config{NodeID: n.id, DiskID: n.disk, DataDir: "/data"}, storage.Deps{
		View: k.meta, FS: n.fs, Registry: reg, BootNonce: boot, Log: slog.New(logs),
		Confirm: k.confirm, ConfirmAttached: k.confirm, Holders: k.holders, Elections: &kinElections{k},
		Gateways:   func(string) (gatewayapi.Gateway, error) { return nil, errors.New("no gateway") },
		Peers:      func(to string) (nodeapi.Replica, error) { return &kinLink{k, n.id, to}, nil },
		Candidates: func(to string) (nodeapi.Candidate, error) { return k.candidate(n.id, to) },
		Leaders:    func(to string) (nodeapi.Node, error) { return &kinPeer{kinLink: kinLink{k, n.id, to}}, nil },
	})
	if err != nil {
		k.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.mu.Lock()
	n.role, n.reg, n.logs, n.err, n.stop = role, reg, logs, failed, cancel
	k.mu.Unlock()
	go func() { failed <- role.Run(ctx) }()
}

// leadAlone has a single copy lead: there is no election of one.
func leadAlone(a *topic.Assignment) {
	if len(a.Replicas) == 1 && a.Leader == "" {
		a.Leader = a.Replicas[0].Node
		a.LeaderEpoch++
	}
}

// resign takes the leadership of everything from a node, but of single copies.
func (k *kin) resign(id string) {
	for _, ref := range k.refs() {
		if a := k.assignment(ref); a.Leader == id && len(a.Replicas) > 1 {
			k.change(ref, func(a *topic.Assignment) { a.Leader = ""; a.LeaderEpoch++ })
		}
	}
}

func (k *kin) confirm(_ context.Context, ids []topic.ID64) (map[topic.ID64]metaapi.Verdict, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[topic.ID64]metaapi.Verdict{}
	for _, id := range ids {
		live := k.living[id] || slices.ContainsFunc(slices.Collect(maps.Values(k.topics)), func(t *topic.Topic) bool { return t.Incarnation == id })
		out[id] = metaapi.VerdictGone
		if live {
			out[id] = metaapi.VerdictLive
		}
	}
	return out, nil
}

func (k *kin) holders(_ context.Context, refs []topic.Ref) (map[topic.Ref]metaapi.Holding, error) {
	out := map[topic.Ref]metaapi.Holding{}
	for _, ref := range refs {
		a := k.assignment(ref)
		h := metaapi.Holding{Known: true, Leader: a.Leader, LeaderEpoch: a.LeaderEpoch}
		for _, r := range slices.Concat(a.Replicas, a.Observers) {
			h.Nodes = append(h.Nodes, r.Node)
		}
		out[ref] = h
	}
	return out, nil
}

// end ends a process: in order, or with what remains of its disk at that moment. What
// it was told or told others until then is on it.
func (k *kin) end(n *kinNode, remains func(*vfs.Mem) *vfs.Mem) {
	k.t.Helper()
	var left *vfs.Mem
	if remains != nil {
		k.route(n.id, true) // from now on it tells nobody anything
		left = remains(n.fs)
	}
	n.stop()
	err := errors.Join(<-n.err, n.role.Close())
	k.mu.Lock()
	n.role = nil
	if left != nil {
		n.fs = left
	}
	k.mu.Unlock()
	k.route(n.id, false)
	if err != nil && left == nil {
		k.t.Errorf("stop of %s: %v", n.id, err)
	}
	k.resign(n.id) // it is seen to be silent
}

// route cuts a node off from all others and the controller, or ends that.
func (k *kin) route(id string, cut bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, other := range append(slices.Clone(kinNodes), "voter") {
		k.cut[id+">"+other], k.cut[other+">"+id] = cut, cut
	}
}

// reach gives the node that a call gets to, or none.
func (k *kin) reach(from, to string) *storage.Role {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n := k.nodes[to]; n != nil && !k.cut[from+">"+to] {
		return n.role
	}
	return nil
}

func (k *kin) candidate(from, to string) (nodeapi.Candidate, error) {
	if role := k.reach(from, to); role != nil {
		return role.Replica(), nil
	}
	return nil, errNoRoute
}

// kinLink is one node as another one fetches from it.
type kinLink struct {
	*kin
	from, to string
}

func (l *kinLink) Fetch(ctx context.Context, req *nodeapi.FetchRequest) (*nodeapi.FetchResult, error) {
	role := l.reach(l.from, l.to)
	if role == nil {
		return nil, errNoRoute
	}
	res, err := role.Replica().Fetch(ctx, req)
	if l.reach(l.from, l.to) == nil {
		return nil, errNoRoute
	}
	return res, err
}

func (l *kinLink) Fence(context.Context, *nodeapi.FenceRequest) (*nodeapi.FenceResult, error) {
	return nil, errors.New("storage nodes do not fence each other")
}

func (l *kinLink) Handover(context.Context, *nodeapi.HandoverRequest) (*nodeapi.HandoverResult, error) {
	return nil, errors.New("storage nodes ask no hand-over of each other")
}

// kinPeer is one node as a cursor of another one sends to it: some answers are lost.
type kinPeer struct {
	nodeapi.Node
	kinLink
}

func (p *kinPeer) Commit(ctx context.Context, req *nodeapi.CommitRequest) (*nodeapi.CommitResult, error) {
	role := p.reach(p.from, p.to)
	if role == nil {
		return nil, errNoRoute
	}
	res, err := role.Node().Commit(ctx, req)
	p.mu.Lock()
	lost := p.luck.IntN(100) < p.lossy
	p.mu.Unlock()
	if lost || p.reach(p.from, p.to) == nil {
		return nil, errNoRoute // whatever came of it
	}
	return res, err
}

// kinElections is the controller as nodes ask it.
type kinElections struct{ *kin }

func (e *kinElections) RecordCopies(_ context.Context, req *metaapi.RecordCopiesRequest) (*metaapi.RecordCopiesResult, error) {
	if len(req.Copies) > 0 && e.reach("voter", req.Copies[0].Node) == nil {
		return nil, errNoRoute
	}
	res := &metaapi.RecordCopiesResult{Done: make([]bool, len(req.Copies))}
	for i, c := range req.Copies {
		e.change(c.Ref, func(a *topic.Assignment) {
			at := slices.IndexFunc(a.Replicas, func(r topic.Replica) bool { return r.Node == c.Node })
			if at < 0 {
				return
			}
			r := &a.Replicas[at]
			first := c.Was == 0 && c.DiskID == r.DiskID
			vouched := c.Epoch != 0 && c.Epoch == a.LeaderEpoch && c.ConfigVersion == a.ConfigVersion && a.Leader != "" && a.Leader != c.Node
			if r.CopyID != c.Was || r.DiskID != c.WasDisk || !first && !vouched {
				return
			}
			r.DiskID, r.CopyID, res.Done[i] = c.DiskID, c.CopyID, true
			a.ConfigVersion++
			a.Before = nil
		})
	}
	return res, nil
}

func (e *kinElections) StepDown(_ context.Context, req *metaapi.StepDownRequest) (*metaapi.StepDownResult, error) {
	if e.reach("voter", req.NodeID) == nil {
		return nil, errNoRoute
	}
	res := &metaapi.StepDownResult{}
	for _, ref := range e.refs() {
		if a := e.assignment(ref); a.Leader == req.NodeID && !slices.ContainsFunc(a.Replicas, func(r topic.Replica) bool {
			return r.Node != req.NodeID && e.handOver(ref, r.Node) == nil
		}) {
			res.Left++
		}
	}
	return res, nil
}

func (e *kinElections) Suspect(context.Context, *metaapi.SuspectRequest) error { return nil }

func kinCopy(r topic.Replica) quorum.Replica {
	return quorum.Replica{Node: r.Node, Disk: r.DiskID, Copy: r.CopyID}
}
