package storage_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/storage-node/storage"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

const (
	nodeID = "storage-1"
	diskID = topic.ID64(0xd15c)
)

// cluster is what lives longer than a process: the metastore and the disk.
type cluster struct {
	t       testing.TB
	meta    *testkit.Meta
	fs      vfs.FS
	dir     string
	epoch   topic.Epoch // of every assignment; a start raises it
	topics  map[string]topic.Topic
	segment int64
	hold    func(point string, ref topic.Ref)
	clock   *atomic.Int64 // ns by which the wall clock is ahead of the machine's
	log     *slog.Logger  // nil discards

	*oracle
}

// oracle is the leader of the metastore, as far as confirm goes.
type oracle struct {
	mu               sync.Mutex // guards what it knows, and was asked
	verdict          metaapi.Verdict
	living           map[topic.Incarnation]bool
	silent           error
	asked, questions int
}

func newCluster(t testing.TB, fs vfs.FS, dir string) *cluster {
	c := &cluster{t: t, meta: testkit.NewMeta(), fs: fs, dir: dir, topics: map[string]topic.Topic{}, clock: new(atomic.Int64), oracle: &oracle{verdict: metaapi.VerdictGone, living: map[topic.Incarnation]bool{}}}
	if err := errors.Join(fs.MkdirAll(dir), fs.SyncDir(path.Dir(dir))); err != nil {
		t.Fatal(err) // whoever makes the identity of the disk makes it durable
	}
	for _, id := range []string{"gateway-1", "gateway-2"} {
		c.meta.PutMember(topic.Member{ID: id, Role: topic.RoleGateway, Status: topic.StatusAlive})
	}
	return c
}

// startOrders starts a node that leads one topic of one partition.
func startOrders(t testing.TB, fs vfs.FS) (*cluster, *process) {
	t.Helper()
	c := newCluster(t, fs, "data")
	c.put("orders", 1, onePartition())
	return c, c.start()
}

// put makes a topic, or changes it.
func (c *cluster) put(name string, id topic.Incarnation, cfg topic.Config) topic.Topic {
	t := topic.Topic{Name: name, Incarnation: id, Version: 1, Config: cfg}
	c.topics[name] = t
	c.leads(func() { c.living[id] = true })
	c.publish(t)
	return t
}

func (c *cluster) publish(t topic.Topic) {
	var list []topic.Assignment
	for i := range t.Partitions {
		list = append(list, topic.Assignment{
			Ref:      topic.Ref{Topic: t.Name, Incarnation: t.Incarnation, Partition: int32(i)},
			Replicas: []topic.Replica{{Node: nodeID, DiskID: diskID}}, Leader: nodeID, LeaderEpoch: c.epoch,
		})
	}
	c.meta.PutTopic(t, list)
}

func (c *cluster) remove(name string) {
	c.leads(func() { delete(c.living, c.topics[name].Incarnation) })
	delete(c.topics, name)
	c.meta.DeleteTopic(name)
}

// process is one start of a storage node.
type process struct {
	*cluster
	role *storage.Role
	node nodeapi.Node
	reg  *prometheus.Registry
	stop func() error // ends Run and returns its error
	err  chan error

	mu    sync.Mutex // guards woken
	woken map[string][]gatewayapi.Ready
	wakes chan string
	deaf  map[string]bool
}

// start registers anew, as every start does, and runs the role.
func (c *cluster) start() *process {
	c.t.Helper()
	c.epoch++
	for _, t := range c.topics {
		c.publish(t)
	}
	p := &process{
		cluster: c, reg: prometheus.NewRegistry(), woken: map[string][]gatewayapi.Ready{}, wakes: make(chan string, 1000),
		deaf: map[string]bool{}, err: make(chan error, 1),
	}
	role, err := storage.New(storage.Config{NodeID: nodeID, DiskID: diskID, DataDir: c.dir, SegmentBytes: c.segment}, storage.Deps{
		View: c.meta, FS: c.fs, Log: c.log, Registry: p.reg, Now: func() time.Time { return time.Now().Add(time.Duration(c.clock.Load())).Round(0) },
		Confirm: c.confirm, ConfirmAttached: c.confirm, Hold: c.hold,
		Gateways: func(id string) (gatewayapi.Gateway, error) { return &gateway{p, id}, nil },
	})
	if err != nil {
		c.t.Fatal(err)
	}
	p.role, p.node = role, role.Node()
	ctx, cancel := context.WithCancel(context.Background())
	go func() { p.err <- role.Run(ctx) }()
	p.stop = sync.OnceValue(func() error { cancel(); return <-p.err })
	return p
}

// shutDown is a graceful stop.
func (p *process) shutDown() {
	p.t.Helper()
	if err := p.stop(); err != nil {
		p.t.Fatal(err)
	}
	if err := p.role.Close(); err != nil {
		p.t.Fatal(err)
	}
}

// gateway receives wake-ups.
type gateway struct {
	p  *process
	id string
}

func (g *gateway) Wake(_ context.Context, req *gatewayapi.WakeRequest) error {
	g.p.mu.Lock()
	defer g.p.mu.Unlock()
	if g.p.deaf[g.id] {
		return fmt.Errorf("%s does not answer", g.id)
	}
	g.p.woken[g.id] = append(g.p.woken[g.id], req.Ready...)
	g.p.wakes <- g.id
	return nil
}

func (p *process) target(name string, part int32) nodeapi.Target {
	t := p.topics[name]
	return nodeapi.Target{
		Ref:    topic.Ref{Topic: name, Incarnation: t.Incarnation, Partition: part},
		DiskID: diskID, Epoch: p.epoch,
	}
}

func stream(id int) record.Stream {
	return record.Stream{Kind: record.StreamWAL, ID: topic.ID64(id)}
}

// batch makes a batch of one stream with these numbers; each payload says which.
func batch(id int, seqs ...uint64) []byte {
	var b record.Builder
	b.Reset(stream(id), 0, record.Oldest{})
	for _, s := range seqs {
		m := record.Message{Payload: fmt.Appendf(nil, "%d-%d", id, s)}
		if err := b.Add(s, record.AppendBody(nil, &m)); err != nil {
			panic(err)
		}
	}
	return append([]byte(nil), b.Finish(record.CodecZstd)...)
}

func seqs(from, n uint64) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = from + uint64(i)
	}
	return out
}

func (p *process) commit(name string, part int32, b []byte) (*nodeapi.CommitResult, error) {
	return p.node.Commit(context.Background(), &nodeapi.CommitRequest{Target: p.target(name, part), Batch: b})
}

func (p *process) mustCommit(name string, part int32, b []byte) *nodeapi.CommitResult {
	p.t.Helper()
	res, err := p.commit(name, part, b)
	if err != nil {
		p.t.Fatal(err)
	}
	return res
}

// claimed asks for up to n records as one taker.
func (p *process) claimed(name string, n int, arm bool) nodeapi.ClaimAnswer {
	p.t.Helper()
	t := p.topics[name]
	c := nodeapi.Claim{Topic: name, Incarnation: t.Incarnation, Takers: []nodeapi.Taker{{Max: n, MaxBytes: 8 << 20}}, Arm: arm}
	for i := range t.Partitions {
		c.Partitions = append(c.Partitions, nodeapi.ClaimPartition{Partition: int32(i), DiskID: diskID, Epoch: p.epoch})
	}
	res, err := p.node.Claim(context.Background(), &nodeapi.ClaimRequest{Gateway: "gateway-1", Claims: []nodeapi.Claim{c}})
	if err != nil {
		p.t.Fatal(err)
	}
	return res.Claims[0]
}

// take asks as claimed does. A claim waits 300 ms for a partition that is being opened and
// takes nothing half a second after it began: on a busy machine it is asked again.
func (p *process) take(name string, n int) []nodeapi.Delivery {
	p.t.Helper()
	a := p.claimed(name, n, false)
	for range 100 {
		late := func(s nodeapi.ClaimStatus) bool { return s == nodeapi.ClaimMore || s == nodeapi.ClaimUnavailable }
		if len(a.Deliveries[0]) > 0 || !slices.ContainsFunc(a.Partitions, late) {
			break
		}
		a = p.claimed(name, n, false)
	}
	return a.Deliveries[0]
}

func payload(d nodeapi.Delivery) string {
	v, err := record.ParseBody(d.Body)
	if err != nil {
		return err.Error()
	}
	return string(v.Payload)
}

func (p *process) settle(name string, kind nodeapi.SettleKind, arg int64, ds ...nodeapi.Delivery) []nodeapi.SettleStatus {
	p.t.Helper()
	req := &nodeapi.SettleRequest{}
	for _, d := range ds {
		req.Ops = append(req.Ops, nodeapi.SettleOp{
			Ref:  topic.Ref{Topic: name, Incarnation: p.topics[name].Incarnation, Partition: d.Partition},
			Kind: kind, Offset: d.Offset, Epoch: d.Epoch, Nonce: d.Nonce, ArgMS: arg,
		})
	}
	res, err := p.node.Settle(context.Background(), req)
	if err != nil {
		p.t.Fatal(err)
	}
	return res.Statuses
}

func (p *process) ack(name string, ds ...nodeapi.Delivery) {
	p.t.Helper()
	for i, st := range p.settle(name, nodeapi.SettleAck, 0, ds...) {
		if st != nodeapi.SettleOK {
			p.t.Fatalf("ack of offset %d: %d", ds[i].Offset, st)
		}
	}
}

func (p *process) details(name string, part int32) nodeapi.PartitionDetails {
	p.t.Helper()
	res, err := p.node.Details(context.Background(), &nodeapi.DetailsRequest{
		Topic: name, Incarnation: p.topics[name].Incarnation, Partitions: []int32{part},
	})
	if err != nil || len(res.Partitions) != 1 {
		p.t.Fatalf("details: %+v, %v", res, err)
	}
	return res.Partitions[0]
}

// replay reads everything of a partition.
func (p *process) replay(name string, part int32) []string {
	p.t.Helper()
	var out []string
	req := &nodeapi.ReadRequest{Target: p.target(name, part), Offset: -1, Limit: 1000, MaxBytes: 8 << 20}
	for {
		res, err := p.node.Read(context.Background(), req)
		if err != nil {
			p.t.Fatal(err)
		}
		for _, r := range res.Records {
			out = append(out, payload(nodeapi.Delivery{Body: r.Body}))
		}
		if res.NextOffset >= res.HighWatermark {
			return out
		}
		req.Offset = res.NextOffset
	}
}

// awaitWake waits for one wake-up of a gateway.
func (p *process) awaitWake(id string) {
	p.t.Helper()
	limit := time.NewTimer(5 * time.Second)
	defer limit.Stop()
	for {
		select {
		case got := <-p.wakes:
			if got == id {
				return
			}
		case <-limit.C:
			p.t.Fatalf("%s was not woken", id)
		}
	}
}

func onePartition() topic.Config {
	c := topic.DefaultConfig()
	c.Partitions = 1
	return c
}

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

// pass lets time go by in a bubble of fake time.
func pass(d time.Duration) { <-time.After(d) }

// confirm answers as the leader would: what lives there lives, and the rest is what
// the test says.
func (c *oracle) confirm(_ context.Context, ids []topic.Incarnation) (map[topic.Incarnation]metaapi.Verdict, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	c.questions += len(ids)
	if c.silent != nil {
		return nil, c.silent
	}
	out := map[topic.Incarnation]metaapi.Verdict{}
	for _, id := range ids {
		out[id] = c.verdict
		if c.living[id] {
			out[id] = metaapi.VerdictLive
		}
	}
	return out, nil
}

// leads changes what the leader of the metastore knows.
func (c *oracle) leads(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

func (c *oracle) timesAsked() (calls, questions int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked, c.questions
}
