package storage_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/storage-node/storage"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// trio is three storage nodes with one replicated partition, in fake time. The test
// is their network and, by the rules of libs/metastate, their controller.
type trio struct {
	t       *testing.T
	meta    *testkit.Meta
	nodes   map[string]*member
	cfg     topic.Config
	segment int64
	cache   int

	holdersDown atomic.Bool // nobody says who holds a partition

	mu       sync.Mutex // guards all below
	a        topic.Assignment
	gone     bool
	cut      map[string]bool // "s1>s2": calls of s1 do not reach s2
	spoil    func(from, to string, req *nodeapi.FetchRequest, res *nodeapi.FetchResult)
	pieces   answerPieces // nil: as the leader answers
	vouched  func()       // nil, or called once a leader has vouched for an old copy, before that is judged
	suspects map[string]int
	boots    topic.ID64
	reports  int  // of copies to be recorded
	refuses  bool // all of them
}

// member is one storage node; its disk outlives its processes.
type member struct {
	*trio
	id   string
	disk topic.ID64
	fs   *vfs.Mem
	rule vfs.Rule // faults of the next start; nil: none

	lag   *lateView // of this process
	woken []gatewayapi.Ready

	boot topic.ID64
	role *storage.Role
	reg  *prometheus.Registry
	logs *logBook
	stop context.CancelFunc
	err  chan error
}

const trioTopic = "orders"

// inTrio runs a test with three nodes up, s1 leading; prepare changes what they are
// made with.
func inTrio(t *testing.T, test func(c *trio), prepare ...func(c *trio)) {
	t.Helper()
	testkit.Bubble(t, func(t *testing.T) {
		c := newTrio(t)
		for _, f := range prepare {
			f(c)
		}
		c.change(func(*topic.Assignment) {})
		for _, id := range []string{"s1", "s2", "s3"} {
			c.nodes[id].start()
		}
		defer c.shutDown()
		c.until("copies are recorded", func() bool {
			return !slices.ContainsFunc(c.assignment().Replicas, func(r topic.Replica) bool { return r.CopyID == 0 })
		})
		c.mustElect("s1")
		test(c)
	})
}

func newTrio(t *testing.T) *trio {
	c := &trio{t: t, meta: testkit.NewMeta(), nodes: map[string]*member{}, cut: map[string]bool{}, suspects: map[string]int{}, cfg: onePartition()}
	c.cfg.ReplicationFactor = 3
	c.a = topic.Assignment{Ref: topic.Ref{Topic: trioTopic, Incarnation: 7}, LeaderEpoch: 1}
	for i, id := range []string{"s1", "s2", "s3"} {
		m := &member{trio: c, id: id, disk: topic.ID64(i + 1), fs: vfs.NewMem()}
		m.format()
		c.nodes[id] = m
		c.a.Replicas = append(c.a.Replicas, topic.Replica{Node: id, DiskID: m.disk})
	}
	c.publishLocked()
	return c
}

func (c *trio) shutDown() {
	for _, m := range c.nodes {
		if m.role != nil {
			m.shutDown()
		}
	}
}

// format makes the data directory, as whoever makes its identity does.
func (m *member) format() {
	if err := errors.Join(m.fs.MkdirAll("/data"), m.fs.SyncDir("/")); err != nil {
		m.t.Fatal(err)
	}
}

// dir is the partition's directory.
func (m *member) dir() string { return path.Join("/data/topics", trioTopic, "p00000") }

func (c *trio) publishLocked() {
	a := c.a
	a.Replicas = slices.Clone(c.a.Replicas)
	c.meta.PutTopic(topic.Topic{Name: trioTopic, Incarnation: c.a.Incarnation, Version: 1, Config: c.cfg}, []topic.Assignment{a})
}

// change changes the assignment as an entry of the metastore does.
func (c *trio) change(f func(a *topic.Assignment)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.a)
	c.publishLocked()
}

func (c *trio) assignment() topic.Assignment {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.a
	a.Replicas = slices.Clone(a.Replicas)
	return a
}

// start is a new process on the node's disk; its registration gives up what it led.
func (m *member) start() {
	m.t.Helper()
	m.mu.Lock()
	m.boots++
	m.boot = m.boots
	m.mu.Unlock()
	m.meta.PutMember(topic.Member{ID: m.id, Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: m.disk, BootNonce: m.boot})
	m.change(func(a *topic.Assignment) {
		if a.Leader == m.id {
			a.Leader = ""
			a.LeaderEpoch++
		}
	})
	var disk vfs.FS = m.fs
	if m.rule != nil {
		disk = vfs.NewFault(m.fs, m.rule)
	}
	m.reg, m.logs, m.err = prometheus.NewRegistry(), &logBook{}, make(chan error, 1)
	role, err := storage.New(storage.Config{NodeID: m.id, DiskID: m.disk, DataDir: "/data", SegmentBytes: m.segment, CacheBytes: m.cache}, storage.Deps{
		View: m.late(), FS: disk, Registry: m.reg, BootNonce: m.boot, Log: slog.New(m.logs),
		Confirm:   m.confirm,
		Gateways:  func(string) (gatewayapi.Gateway, error) { return &ears{m}, nil },
		Peers:     func(to string) (nodeapi.Replica, error) { return &link{m.trio, m.id, to}, nil },
		Elections: &elections{m.trio, m},
		Holders:   m.holders,
		Candidates: func(to string) (nodeapi.Candidate, error) {
			if role := m.reach(m.id, to); role != nil {
				return &asker{role.Replica(), m.trio}, nil
			}
			return nil, errNoRoute
		},
	})
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.mu.Lock()
	m.role, m.stop = role, cancel
	m.mu.Unlock()
	failed := m.err
	go func() { failed <- role.Run(ctx) }()
}

func (c *trio) confirm(_ context.Context, ids []topic.Incarnation) (map[topic.Incarnation]metaapi.Verdict, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[topic.Incarnation]metaapi.Verdict{}
	for _, id := range ids {
		out[id] = metaapi.VerdictLive
		if c.gone {
			out[id] = metaapi.VerdictGone
		}
	}
	return out, nil
}

// holders answers as the metastore leader does.
func (c *trio) holders(_ context.Context, refs []topic.Ref) (map[topic.Ref]metaapi.Holding, error) {
	if c.holdersDown.Load() {
		return nil, errNoRoute
	}
	a := c.assignment()
	out := map[topic.Ref]metaapi.Holding{}
	for _, ref := range refs {
		h := metaapi.Holding{Known: ref == a.Ref, Leader: a.Leader, LeaderEpoch: a.LeaderEpoch}
		for _, r := range a.Replicas {
			h.Nodes = append(h.Nodes, r.Node)
		}
		out[ref] = h
	}
	return out, nil
}

// shutDown is a graceful stop.
func (m *member) shutDown() {
	m.t.Helper()
	m.stop()
	err := errors.Join(<-m.err, m.role.Close())
	m.mu.Lock()
	m.role = nil
	m.mu.Unlock()
	if err != nil && m.rule == nil {
		m.t.Errorf("stop of %s: %v", m.id, err)
	}
}

// kill ends the process; the disk keeps what the process had written.
func (m *member) kill() {
	m.t.Helper()
	left := m.fs.Copy()
	m.bury(left)
}

// powerCut ends the process; the disk keeps what was synced.
func (m *member) powerCut() {
	m.t.Helper()
	m.bury(m.fs.CrashClone(nil))
}

func (m *member) bury(left *vfs.Mem) {
	m.sever(m.id, "voter") // it hands nothing over
	for id := range m.nodes {
		m.sever(m.id, id)
	}
	m.stop()
	<-m.err
	_ = m.role.Close() // into a disk that nobody looks at any more
	m.mu.Lock()
	m.role, m.fs, m.rule = nil, left, nil
	m.mu.Unlock()
	m.heal(m.id, "voter")
	for id := range m.nodes {
		m.heal(m.id, id)
	}
}

func (c *trio) sever(a, b string) { c.route(a, b, true) }
func (c *trio) heal(a, b string)  { c.route(a, b, false) }

func (c *trio) route(a, b string, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut[a+">"+b], c.cut[b+">"+a] = cut, cut
}

// reach gives the node that a call gets to, or none.
func (c *trio) reach(from, to string) *storage.Role {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.nodes[to]; m != nil && !c.cut[from+">"+to] {
		return m.role
	}
	return nil
}

var errNoRoute = errors.New("no route")

// link is one node as another one calls it.
type link struct {
	*trio
	from, to string
}

func (l *link) Fetch(ctx context.Context, req *nodeapi.FetchRequest) (*nodeapi.FetchResult, error) {
	role := l.reach(l.from, l.to)
	if role == nil {
		return nil, errNoRoute
	}
	res, err := role.Replica().Fetch(ctx, req)
	l.mu.Lock()
	spoil, cut := l.spoil, l.cut[l.from+">"+l.to]
	l.mu.Unlock()
	if cut {
		return nil, errNoRoute
	}
	if err == nil && spoil != nil {
		spoil(l.from, l.to, req, res)
	}
	return res, err
}

func (l *link) Fence(ctx context.Context, req *nodeapi.FenceRequest) (*nodeapi.FenceResult, error) {
	return nil, errors.New("storage nodes do not fence each other")
}

func (l *link) Handover(context.Context, *nodeapi.HandoverRequest) (*nodeapi.HandoverResult, error) {
	return nil, errors.New("storage nodes ask no hand-over of each other")
}

// elections is the controller for one node.
type elections struct {
	*trio
	m *member
}

func (e *elections) RecordCopies(_ context.Context, req *metaapi.RecordCopiesRequest) (*metaapi.RecordCopiesResult, error) {
	if e.reach("voter", e.m.id) == nil {
		return nil, errNoRoute
	}
	res := &metaapi.RecordCopiesResult{Done: make([]bool, len(req.Copies))}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reports++
	if e.refuses {
		return nil, errNoRoute
	}
	for i, c := range req.Copies {
		k := slices.IndexFunc(e.a.Replicas, func(r topic.Replica) bool { return r.Node == c.Node })
		if k < 0 {
			continue // an observer's is told by the leader
		}
		r := &e.a.Replicas[k]
		first := c.Was == 0 && c.DiskID == r.DiskID
		vouched := c.Epoch != 0 && c.Epoch == e.a.LeaderEpoch && c.ConfigVersion == e.a.ConfigVersion && e.a.Leader != "" && e.a.Leader != c.Node
		if r.CopyID != c.Was || r.DiskID != c.WasDisk || !first && !vouched {
			continue
		}
		r.DiskID, r.CopyID, res.Done[i] = c.DiskID, c.CopyID, true
		if !first || e.a.Replicated() {
			e.a.ConfigVersion++
		}
		e.publishLocked()
	}
	return res, nil
}

func (e *elections) StepDown(_ context.Context, req *metaapi.StepDownRequest) (*metaapi.StepDownResult, error) {
	if e.reach("voter", req.NodeID) == nil {
		return nil, errNoRoute
	}
	a := e.assignment()
	if a.Leader != req.NodeID {
		return &metaapi.StepDownResult{}, nil
	}
	for _, r := range a.Replicas {
		if r.Node != req.NodeID && e.handOver(r.Node) == nil {
			return &metaapi.StepDownResult{}, nil
		}
	}
	return &metaapi.StepDownResult{Left: 1}, nil
}

func (e *elections) Suspect(_ context.Context, req *metaapi.SuspectRequest) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.suspects[req.NodeID]++
	return nil
}

// handOver moves the leadership as the controller does.
func (c *trio) handOver(to string) error {
	a := c.assignment()
	from, _ := a.ReplicaOn(a.Leader)
	want, _ := a.ReplicaOn(to)
	role := c.reach("voter", from.Node)
	if role == nil {
		return errNoRoute
	}
	res, err := role.Replica().Handover(context.Background(), &nodeapi.HandoverRequest{
		Target: nodeapi.Target{Ref: a.Ref, DiskID: from.DiskID, Epoch: a.LeaderEpoch}, To: to, ToDisk: want.DiskID,
	})
	if err != nil || !res.Ready {
		return fmt.Errorf("hand-over to %s: %+v, %w", to, res, err)
	}
	return c.elect(to)
}

// fence asks one node to promise the epoch.
func (c *trio) fence(id string, epoch topic.Epoch) nodeapi.FenceAnswer {
	a := c.assignment()
	m := c.nodes[id]
	role := c.reach("voter", id)
	if role == nil {
		return nodeapi.FenceAnswer{Status: nodeapi.FenceUnavailable}
	}
	res, err := role.Replica().Fence(context.Background(), &nodeapi.FenceRequest{
		WithPositions: true, Items: []nodeapi.FenceItem{{Ref: a.Ref, DiskID: m.disk, Epoch: epoch}},
	})
	if err != nil {
		return nodeapi.FenceAnswer{Status: nodeapi.FenceUnavailable}
	}
	return res.Answers[0]
}

// elect runs one election; of equals it prefers wanted.
func (c *trio) elect(wanted string) error {
	c.change(func(a *topic.Assignment) {
		if a.Leader != "" {
			a.Leader = ""
			a.LeaderEpoch++
		}
	})
	a := c.assignment()
	var set []quorum.Replica
	var answers []quorum.FenceAnswer
	positions := map[string][]byte{}
	for _, r := range a.Replicas {
		q := quorum.Replica{Node: r.Node, Disk: r.DiskID, Copy: r.CopyID}
		set = append(set, q)
		got := c.fence(r.Node, a.LeaderEpoch)
		damaged := got.Status == nodeapi.FenceDamaged
		if (damaged || got.Status == nodeapi.FencePromised) && got.CopyID == r.CopyID && got.PromisedEpoch == a.LeaderEpoch {
			answers = append(answers, quorum.FenceAnswer{
				Replica: q, Epoch: a.LeaderEpoch, LastEpoch: got.LastEpoch, LEO: got.LEO, Generation: got.PositionGeneration,
				Damaged: damaged, Settled: got.Settled, HWM: got.HWM,
			})
			positions[r.Node] = got.Position
		}
	}
	want, _ := a.ReplicaOn(wanted)
	won, err := quorum.Elect(a.LeaderEpoch, answers, set, quorum.Replica{Node: want.Node, Disk: want.DiskID, Copy: want.CopyID})
	if err != nil {
		return err
	}
	item := nodeapi.PrimeItem{Target: nodeapi.Target{Ref: a.Ref, DiskID: won.Leader.Disk, Epoch: a.LeaderEpoch}}
	for _, r := range won.Positions {
		item.Positions = append(item.Positions, positions[r.Node])
	}
	if err := c.nodes[won.Leader.Node].role.Replica().Prime(context.Background(), &nodeapi.PrimeRequest{Items: []nodeapi.PrimeItem{item}}); err != nil {
		return err
	}
	c.change(func(now *topic.Assignment) {
		if now.LeaderEpoch == a.LeaderEpoch && now.ConfigVersion == a.ConfigVersion {
			now.Leader = won.Leader.Node
		}
	})
	return nil
}

// mustElect elects, and waits until the leader serves.
func (c *trio) mustElect(want string) {
	c.t.Helper()
	if err := c.elect(want); err != nil {
		c.t.Fatal(err)
	}
	if got := c.assignment().Leader; got != want {
		c.t.Fatalf("%q was elected, want %s", got, want)
	}
	c.until(want+" serves", func() bool { _, err := c.read(want); return err == nil })
}

// until lets time go by until ok, a minute at most.
func (c *trio) until(what string, ok func() bool) {
	c.t.Helper()
	for range 3000 {
		if ok() {
			return
		}
		pass(20 * time.Millisecond)
	}
	for id, m := range c.nodes {
		if m.logs != nil {
			c.t.Log(id, m.logs.all())
		}
	}
	c.t.Fatalf("not in a minute: %s; %+v", what, c.assignment())
}

func (c *trio) target(id string) nodeapi.Target {
	a := c.assignment()
	return nodeapi.Target{Ref: a.Ref, DiskID: c.nodes[id].disk, Epoch: a.LeaderEpoch}
}

// commit sends a batch to a node, for at most a second.
func (c *trio) commit(id string, b []byte) (*nodeapi.CommitResult, error) {
	if id == "" {
		return nil, errNoRoute // nobody leads now
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return c.nodes[id].role.Node().Commit(ctx, &nodeapi.CommitRequest{Target: c.target(id), Batch: b})
}

func (c *trio) mustCommit(id string, b []byte) *nodeapi.CommitResult {
	c.t.Helper()
	res, err := c.commit(id, b)
	if err != nil {
		c.t.Fatalf("commit at %s: %v; %s", id, err, c.nodes[id].logs.all())
	}
	return res
}

// read replays everything from a node.
func (c *trio) read(id string) (out []string, err error) {
	req := &nodeapi.ReadRequest{Target: c.target(id), Offset: -1, Limit: 1000, MaxBytes: 8 << 20}
	for {
		res, err := c.nodes[id].role.Node().Read(context.Background(), req)
		if err != nil {
			return out, err
		}
		for _, r := range res.Records {
			v, err := record.ParseBody(r.Body)
			if err != nil {
				return out, err
			}
			out = append(out, string(v.Payload))
		}
		if res.NextOffset >= res.HighWatermark {
			return out, nil
		}
		req.Offset = res.NextOffset
	}
}

// replicas is what a leader says of its replicas.
func (c *trio) replicas(id string) map[string]nodeapi.ReplicaDetails {
	out := map[string]nodeapi.ReplicaDetails{}
	res, err := c.nodes[id].role.Node().Details(context.Background(), &nodeapi.DetailsRequest{Topic: trioTopic, Incarnation: 7, Partitions: []int32{0}})
	if err != nil || len(res.Partitions) != 1 {
		return out
	}
	for _, r := range res.Partitions[0].Replicas {
		out[r.ID] = r
	}
	return out
}

// inSync waits until a leader says that replicas have everything.
func (c *trio) inSync(leader string, ids ...string) {
	c.t.Helper()
	c.until(fmt.Sprint(ids, " are in sync"), func() bool {
		have := c.replicas(leader)
		return !slices.ContainsFunc(ids, func(id string) bool { return !have[id].InSync || have[id].Lag > 0 })
	})
}

// count is a counter of a node.
func (m *member) count(name string) float64 {
	all, err := m.reg.Gather()
	if err != nil {
		m.t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	m.t.Fatalf("no metric %s", name)
	return 0
}

// files reads the segments of a node's copy, in order.
func (m *member) segments() []string {
	list, err := m.fs.ReadDir(m.dir())
	if err != nil {
		m.t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		if strings.HasSuffix(e.Name(), ".log") {
			out = append(out, path.Join(m.dir(), e.Name()))
		}
	}
	slices.Sort(out)
	return out
}

func wantProblem(t *testing.T, err error, codes ...problem.Code) {
	t.Helper()
	if !slices.ContainsFunc(codes, func(c problem.Code) bool { return problem.HasCode(err, c) }) {
		t.Fatalf("%v, want one of %v", err, codes)
	}
}

// logBook keeps what a node logs at warn and above, and of its copies at info.
type logBook struct {
	mu    sync.Mutex // guards lines
	lines []string
}

func (b *logBook) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (b *logBook) WithAttrs([]slog.Attr) slog.Handler           { return b }
func (b *logBook) WithGroup(string) slog.Handler                { return b }

func (b *logBook) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += fmt.Sprintf(" %s=%v", a.Key, a.Value); return true })
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, line)
	return nil
}

func (b *logBook) all() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.lines, "\n")
}

func (b *logBook) says(what string) int { return strings.Count(b.all(), what) }

type topicAssignment = topic.Assignment

func topicRefs(c *trio) []topic.Ref { return []topic.Ref{c.assignment().Ref} }

// take claims records from a leader, as one consumer.
func (c *trio) take(id string, n int) []nodeapi.Delivery {
	c.t.Helper()
	at := c.target(id)
	res, err := c.nodes[id].role.Node().Claim(context.Background(), &nodeapi.ClaimRequest{Gateway: "g1", Claims: []nodeapi.Claim{{
		Topic: trioTopic, Incarnation: at.Incarnation, Takers: []nodeapi.Taker{{Max: n, MaxBytes: 8 << 20}},
		Partitions: []nodeapi.ClaimPartition{{DiskID: at.DiskID, Epoch: at.Epoch}},
	}}})
	if err != nil {
		c.t.Fatal(err)
	}
	return res.Claims[0].Deliveries[0]
}

func (c *trio) ack(id string, ds []nodeapi.Delivery) {
	c.t.Helper()
	req := &nodeapi.SettleRequest{}
	for _, d := range ds {
		req.Ops = append(req.Ops, nodeapi.SettleOp{Ref: c.assignment().Ref, Kind: nodeapi.SettleAck, Offset: d.Offset, Epoch: d.Epoch, Nonce: d.Nonce})
	}
	res, err := c.nodes[id].role.Node().Settle(context.Background(), req)
	if err != nil || slices.ContainsFunc(res.Statuses, func(s nodeapi.SettleStatus) bool { return s != nodeapi.SettleOK }) {
		c.t.Fatalf("ack at %s: %+v, %v", id, res, err)
	}
}
