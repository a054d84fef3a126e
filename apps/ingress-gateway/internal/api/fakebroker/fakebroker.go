// Package fakebroker is a broker in memory behind the seam of package api: one
// partition log per partition, leases without time, and refusals on demand. Only
// tests import it. It promises nothing about durability, order between
// partitions or expiry.
package fakebroker

import (
	"context"
	"fmt"
	"io"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/diagnosis"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// CommitMS is the commit time of every record: 2026-11-29T20:04:05.123Z.
const CommitMS = 1_795_982_645_123

// Broker implements Topics, Producer, Committer, Consumer and Cluster of package api.
type Broker struct {
	// Released gets every delivery that was given back; it must have room.
	Released chan nodeapi.Delivery
	// Parked gets a value whenever a consume begins to wait, if it has room.
	Parked chan struct{}

	mu      sync.Mutex // guards all below
	fail    map[string]error
	topics  map[string]*topic.Topic
	logs    map[topic.Ref]*log
	serial  uint64
	wake    chan struct{} // closed at every accept
	settled []nodeapi.SettleOp
	members api.MembersView
	move    *metaapi.MoveRow
	numbers map[string]number
	Timeout time.Duration // of the last Commit
}

type log struct {
	records []nodeapi.ReadRecord
	next    int64 // first offset that was never leased
	leases  map[int64]nodeapi.Nonce
	again   []int64 // released offsets
}

// New returns an empty broker.
func New() *Broker {
	return &Broker{
		Released: make(chan nodeapi.Delivery, 10_000), Parked: make(chan struct{}, 10_000),
		fail: map[string]error{}, topics: map[string]*topic.Topic{}, logs: map[topic.Ref]*log{}, wake: make(chan struct{}), numbers: map[string]number{},
	}
}

// Deps gives the broker in all its roles.
func (b *Broker) Deps() api.Deps {
	return api.Deps{Topics: b, Children: b, Producer: b, Committer: b, Consumer: b, Cluster: b, ClusterID: func() string { return "5d1c9a70e2f84b36a1c0d4e8f7b6a592" }}
}

// Fail lets every later call of a method fail; nil ends that.
func (b *Broker) Fail(method string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail[method] = err
}

// Put adds a topic with these partitions, incarnation 3f9a17c4e2b08d51, version 1.
func (b *Broker) Put(name string, partitions int) *topic.Topic {
	cfg := topic.DefaultConfig()
	cfg.Partitions = partitions
	t := &topic.Topic{Name: name, Incarnation: 0x3f9a17c4e2b08d51, Version: 1, CreatedAtMS: CommitMS, Config: cfg}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.topics[name] = t
	return t
}

// SetMembers is what Members answers.
func (b *Broker) SetMembers(v api.MembersView) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.members = v
}

// Settled returns the operations so far.
func (b *Broker) Settled() []nodeapi.SettleOp {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]nodeapi.SettleOp(nil), b.settled...)
}

// Messages returns copies of what a partition of the live topic holds.
func (b *Broker) Messages(name string, partition int32) []*record.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.topics[name]
	if t == nil {
		return nil
	}
	var out []*record.Message
	for _, r := range b.logLocked(t, partition).records {
		v, err := record.ParseBody(r.Body)
		if err != nil {
			panic("BUG: the fake stored what it cannot read: " + err.Error())
		}
		out = append(out, v.Message())
	}
	return out
}

func (b *Broker) logLocked(t *topic.Topic, partition int32) *log {
	ref := topic.Ref{Topic: t.Name, Incarnation: t.Incarnation, Partition: partition}
	l := b.logs[ref]
	if l == nil {
		l = &log{leases: map[int64]nodeapi.Nonce{}}
		b.logs[ref] = l
	}
	return l
}

// Resolve implements api.Topics.
func (b *Broker) Resolve(_ context.Context, name string) (*topic.Topic, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail["Resolve"]; err != nil {
		return nil, err
	}
	if t := b.topics[name]; t != nil {
		return t, nil
	}
	return nil, problem.New(problem.TopicNotFound, "no topic %q", name)
}

// List implements api.Topics.
func (b *Broker) List(prefix, after string, limit int) ([]*topic.Topic, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail["List"]; err != nil {
		return nil, err
	}
	var out []*topic.Topic
	for name, t := range b.topics {
		if strings.HasPrefix(name, prefix) && name > after {
			out = append(out, t)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out[:min(limit, len(out))], nil
}

// Create implements api.Topics.
func (b *Broker) Create(_ context.Context, name string, c topic.Config) (*topic.Topic, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail["Create"]; err != nil {
		return nil, err
	}
	if old := b.topics[name]; old != nil {
		return nil, problem.New(problem.TopicExists, "%q exists", name).With("topic", old)
	}
	b.serial++
	t := &topic.Topic{Name: name, Incarnation: topic.Incarnation(0x3f9a17c4e2b08d50 + b.serial), Version: 1, CreatedAtMS: CommitMS, Config: c}
	b.topics[name] = t
	return t, nil
}

// Update implements api.Topics.
func (b *Broker) Update(_ context.Context, t *topic.Topic, c topic.Config) (*topic.Topic, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail["Update"]; err != nil {
		return nil, err
	}
	if live := b.topics[t.Name]; live == nil || live.Version != t.Version {
		return nil, problem.New(problem.PreconditionFailed, "%q has changed", t.Name)
	}
	changed := *t
	changed.Version++
	changed.Config = c
	b.topics[t.Name] = &changed
	return &changed, nil
}

// Delete implements api.Topics.
func (b *Broker) Delete(_ context.Context, t *topic.Topic, version uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail["Delete"]; err != nil {
		return err
	}
	if version != 0 && b.topics[t.Name].Version != version {
		return problem.New(problem.PreconditionFailed, "%q has changed", t.Name)
	}
	delete(b.topics, t.Name)
	return nil
}

// CanAccept implements api.Producer.
func (b *Broker) CanAccept() error { return nil }

// Accept implements api.Producer. Unpinned messages go to partition 0.
func (b *Broker) Accept(_ context.Context, t *topic.Topic, msgs []api.Produced) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail["Accept"]; err != nil {
		return "", err
	}
	first := ""
	for i := range msgs {
		m := &msgs[i]
		if err := record.CheckMessage(&m.Message); err != nil {
			return "", err
		}
		b.serial++
		id := fmt.Sprintf("9c0f3b7a11d2e4f5-%d", b.serial)
		if first == "" {
			first = id
		}
		l := b.logLocked(t, max(0, m.Pin))
		l.records = append(l.records, nodeapi.ReadRecord{
			Offset: int64(len(l.records)), CommitMS: CommitMS, ID: id, Body: record.AppendBody(nil, &m.Message),
		})
	}
	close(b.wake)
	b.wake = make(chan struct{})
	return first, nil
}

// Consume implements api.Consumer.
func (b *Broker) Consume(ctx context.Context, req *api.ConsumeRequest) (*api.ConsumeResult, error) {
	ctx, cancel := context.WithTimeout(ctx, req.Wait)
	defer cancel()
	for {
		b.mu.Lock()
		err, wake := b.fail["Consume"], b.wake
		ds := b.claimLocked(req)
		b.mu.Unlock()
		if err != nil || len(ds) > 0 || req.Wait == 0 {
			return &api.ConsumeResult{Deliveries: ds}, err
		}
		select {
		case b.Parked <- struct{}{}:
		default:
		}
		select {
		case <-ctx.Done():
			return &api.ConsumeResult{}, nil
		case <-wake:
		}
	}
}

func (b *Broker) claimLocked(req *api.ConsumeRequest) (out []nodeapi.Delivery) {
	sum := 0
	for p := range int32(req.Topic.Partitions) {
		if req.Partition >= 0 && req.Partition != p {
			continue
		}
		l := b.logLocked(req.Topic, p)
		for len(out) < req.Max {
			var at int64
			switch {
			case len(l.again) > 0:
				at = l.again[0]
			case l.next < int64(len(l.records)):
				at = l.next
			default:
				at = -1
			}
			if at < 0 {
				break
			}
			r := l.records[at]
			if sum += len(r.Body); sum > req.MaxBytes && len(out) > 0 {
				return out
			}
			if len(l.again) > 0 {
				l.again = l.again[1:]
			} else {
				l.next++
			}
			out = append(out, b.leaseLocked(l, p, &r, req))
		}
	}
	return out
}

func (b *Broker) leaseLocked(l *log, p int32, r *nodeapi.ReadRecord, req *api.ConsumeRequest) nodeapi.Delivery {
	b.serial++
	nonce := nodeapi.Nonce{11: byte(b.serial), 10: byte(b.serial >> 8)}
	l.leases[r.Offset] = nonce
	leaseMS := req.VisibilityMS
	if leaseMS == 0 {
		leaseMS = req.Topic.VisibilityTimeoutMS
	}
	return nodeapi.Delivery{
		Partition: p, Offset: r.Offset, Epoch: 7, Nonce: nonce, CommitMS: r.CommitMS,
		DeliveryCount: 1, LeaseMS: leaseMS, ID: r.ID, Body: r.Body,
	}
}

// Release implements api.Consumer.
func (b *Broker) Release(t *topic.Topic, ds []nodeapi.Delivery) {
	b.mu.Lock()
	for _, d := range ds {
		l := b.logLocked(t, d.Partition)
		delete(l.leases, d.Offset)
		l.again = append(l.again, d.Offset)
	}
	close(b.wake)
	b.wake = make(chan struct{})
	b.mu.Unlock()
	for _, d := range ds {
		b.Released <- d
	}
}

// Settle implements api.Consumer.
func (b *Broker) Settle(_ context.Context, t *topic.Topic, ops []nodeapi.SettleOp) ([]nodeapi.SettleStatus, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail["Settle"]; err != nil {
		return nil, err
	}
	out := make([]nodeapi.SettleStatus, len(ops))
	for i, op := range ops {
		b.settled = append(b.settled, op)
		l := b.logLocked(t, op.Partition)
		switch nonce, ok := l.leases[op.Offset]; {
		case b.fail["SettleOne"] != nil:
			out[i] = nodeapi.SettleUnavailable
		case !ok || nonce != op.Nonce:
			out[i] = nodeapi.SettleLost
		case op.Kind != nodeapi.SettleExtend:
			delete(l.leases, op.Offset)
		}
	}
	return out, nil
}

// Read implements api.Consumer.
func (b *Broker) Read(_ context.Context, t *topic.Topic, partition int32, req nodeapi.ReadRequest) (*nodeapi.ReadResult, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail["Read"]; err != nil {
		return nil, err
	}
	l := b.logLocked(t, partition)
	end := int64(len(l.records))
	from := max(0, req.Offset)
	if req.Offset < 0 && req.SinceMS > CommitMS {
		from = end
	}
	if from > end {
		return nil, problem.New(problem.OffsetOutOfRange, "beyond the end").With("high_watermark", end)
	}
	to := min(end, from+int64(req.Limit))
	return &nodeapi.ReadResult{NextOffset: to, HighWatermark: end, Records: l.records[from:to]}, nil
}

// Details implements api.Consumer: partition 1 has no leader.
func (b *Broker) Details(_ context.Context, t *topic.Topic) ([]api.PartitionRow, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail["Details"]; err != nil {
		return nil, err
	}
	var rows []api.PartitionRow
	for p := range int32(t.Partitions) {
		row := api.PartitionRow{Index: p, Status: "ok", Leader: "storage-1", Epoch: 7, ConfigVersion: 3}
		if p == 1 {
			rows = append(rows, api.PartitionRow{Index: p, Status: "no_leader", Epoch: 7, ConfigVersion: 3})
			continue
		}
		end := int64(len(b.logLocked(t, p).records))
		row.Details = &nodeapi.PartitionDetails{
			Partition: p, HighWatermark: end, LogEnd: end, InFlight: 2, OldestUnsettledMS: 81234, Bytes: 100,
			Replicas: []nodeapi.ReplicaDetails{{ID: "storage-1", LogEnd: end, InSync: true}},
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// Members implements api.Cluster.
func (b *Broker) Members(context.Context) (*api.MembersView, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.members
	if v.AsOf.IsZero() {
		v.AsOf = time.UnixMilli(CommitMS)
	}
	return &v, b.fail["Members"]
}

// Forget implements api.Cluster: "ghost" may go.
func (b *Broker) Forget(_ context.Context, id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch id {
	case "ghost":
		return b.fail["Forget"]
	case "storage-1":
		return problem.New(problem.HasMemberRecord, "a member")
	}
	return problem.New(problem.MemberNotFound, "none")
}

// Status implements api.Cluster.
func (b *Broker) Status(context.Context) (*diagnosis.Report, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := time.UnixMilli(CommitMS)
	return &diagnosis.Report{Status: diagnosis.Degraded, AsOf: at, Problems: []diagnosis.Problem{
		{Code: diagnosis.MemberDead, Severity: diagnosis.Page, Subject: "storage-1", Since: at, Detail: "silent", Do: "start it"},
		{Code: diagnosis.QuorumAtRisk, Severity: diagnosis.Page, Subject: "metastore", Detail: "one more", Do: "start one"},
	}}, b.fail["Status"]
}

// Backup implements api.Cluster: some bytes.
func (b *Broker) Backup(context.Context) (*api.BackupStream, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail["Backup"]; err != nil {
		return nil, err
	}
	return &api.BackupStream{ReadCloser: io.NopCloser(strings.NewReader("a backup")), Size: 8}, nil
}

// Quorum implements api.Cluster.
func (b *Broker) Quorum(context.Context) (*metaapi.QuorumResult, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &metaapi.QuorumResult{AnsweredBy: "gateway-1", Majority: 2}, b.fail["Quorum"]
}
