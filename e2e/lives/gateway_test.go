package lives

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/dispatchq"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

// gateway is a gateway over its process starts: it keeps the rules of
// apps/ingress-gateway/internal/dispatch around the real machine.
type gateway struct {
	w   *world
	id  string
	rep *replica
	net chan error // of its server

	mu     sync.Mutex // guards all below
	volume            // survives a kill
	copied *volume    // what a restore brings back
	life   uint64
	next   uint64
	run    *dispatchRun
	server *rpc.Server
}

// dispatchRun is one process start.
type dispatchRun struct {
	g      *gateway
	life   uint64
	m      *dispatchq.Machine
	began  time.Time
	stop   context.CancelFunc
	ended  chan struct{}
	kick   chan struct{}
	asking bool
	work   sync.WaitGroup
	routes map[string]cachedRoute
	loaded map[dispatchq.Key]int // records of a parked log that the machine knows
	given  map[int]bool          // up, by this process
	over   map[string]bool       // names that are taken for gone, by a bug
}

type cachedRoute struct {
	t     *topic.Topic
	parts *metastate.Partitions
	mem   *metastate.MemberTable
	route *dispatchq.Route
}

func newGateway(w *world, id string) *gateway {
	return &gateway{w: w, id: id, rep: newReplica(w.leader), net: make(chan error, 1), volume: volume{parked: map[dispatchq.Key][]int{}}}
}

func (g *gateway) addr() string { return g.id + ":7944" }

// start reads the WAL from a checkpoint that may be older than what was done.
func (g *gateway) start(back int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.life++
	g.next = 1
	g.w.leader.propose(&metastate.RegisterMember{NowMS: nowMS(), Member: topic.Member{
		ID: g.id, Role: topic.RoleGateway, DiskID: 0x9a7e, BootNonce: topic.ID64(g.life), RPCAddr: g.addr(), Release: "0.2.0",
	}})
	g.rep.begin(g.w.leader.applied(), g.rep.deceived)
	r := &dispatchRun{
		g: g, life: g.life, began: time.Now().Add(-time.Second), ended: make(chan struct{}), kick: make(chan struct{}, 1),
		routes: map[string]cachedRoute{}, loaded: map[dispatchq.Key]int{}, given: map[int]bool{},
	}
	r.m = dispatchq.New(g.w.cfg.dispatch(), r)
	r.recoverLocked(back)
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	g.run = r
	go r.loop(ctx)
	g.server = rpc.NewServer(rpc.ServerConfig{NodeID: g.id, ClusterID: func() string { return clusterID }, Log: slog.New(slog.DiscardHandler)})
	gatewayapi.ServeBacklog(g.server, g)
	server, ln := g.server, g.w.net.listen(g.addr())
	go func() { g.net <- server.Serve(ln) }()
}

// kill ends the process; what is in flight may arrive all the same.
func (g *gateway) kill() {
	g.mu.Lock()
	r, server := g.run, g.server
	g.run = nil
	g.mu.Unlock()
	r.stop()
	<-r.ended
	_ = server.Close()
	<-g.net
}

// produce accepts a record for the life that this gateway's replica shows.
func (g *gateway) produce(name string, pick uint32) {
	t, err := g.rep.Topic(name)
	if err != nil || !g.rep.Latched() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	rc := g.w.newRecord(t.Incarnation)
	key := dispatchq.Key{Topic: name, Incarnation: t.Incarnation, Partition: int32(int(pick) % t.Partitions), Pinned: pick&0x100 != 0}
	g.log = append(g.log, accepted{key: key, wal: topic.ID64(g.w.cfg.fate(g.life, uint64(len(g.id))+uint64(g.id[len(g.id)-1]))), seq: g.next, rec: rc})
	g.next++
	g.run.addLocked(len(g.log) - 1)
	g.run.wake()
}

func (r *dispatchRun) now() time.Duration { return time.Since(r.began) }

func (r *dispatchRun) wake() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// askEvery is how often a gateway looks for records to ask about.
const askEvery = 500 * time.Millisecond

func (r *dispatchRun) loop(ctx context.Context) {
	defer close(r.ended)
	defer r.work.Wait()
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := r.g.rep.Changed()
		r.g.mu.Lock()
		r.m.ViewChanged()
		orders, next := r.m.Step(r.now())
		r.g.mu.Unlock()
		for _, b := range orders.Send {
			r.work.Go(func() { r.send(ctx, b) })
		}
		for _, p := range orders.Probe {
			r.work.Go(func() { r.probe(ctx, p) })
		}
		for _, p := range orders.Park {
			r.work.Go(func() { r.park(ctx, p) })
		}
		for _, l := range orders.Load {
			r.work.Go(func() { r.load(ctx, l) })
		}
		timer.Stop()
		if next > 0 {
			timer.Reset(max(next-r.now(), 0))
		}
		select {
		case <-ctx.Done():
			return
		case <-r.kick:
		case <-changed:
		case <-timer.C:
		case <-tick.C:
			r.confirmHeld(ctx)
		}
	}
}

// Route implements dispatchq.World as the gateway's dispatch does.
func (r *dispatchRun) Route(name string, id topic.Incarnation) *dispatchq.Route {
	rep := r.g.rep
	if !rep.Latched() {
		return unavailable
	}
	if r.over[name] {
		return gone
	}
	parts, err := rep.Assignments(name)
	if errors.Is(err, metastate.ErrNoTopic) || err == nil && parts.Incarnation != id {
		return gone
	}
	t, terr := rep.Topic(name)
	if err != nil || terr != nil || t.Incarnation != id || r.g.w.cfg.bug == waitBehindHeld && r.heldLocked(name, id) {
		return unavailable
	}
	mem := rep.Members()
	if c := r.routes[name]; c.t == t && c.parts == parts && c.mem == mem {
		return c.route
	}
	route := &dispatchq.Route{State: dispatchq.Live, Reroute: t.Reroute}
	for i := range parts.List {
		a := &parts.List[i]
		m := mem.ByID[a.Leader]
		p := dispatchq.Place{Leader: a.Leader, Epoch: a.LeaderEpoch, Alive: m != nil && m.Status == topic.StatusAlive}
		if rp, ok := a.ReplicaOn(a.Leader); ok {
			p.DiskID = rp.DiskID
		}
		route.Places = append(route.Places, p)
	}
	r.routes[name] = cachedRoute{t, parts, mem, route}
	return route
}

var (
	unavailable = &dispatchq.Route{State: dispatchq.Unavailable}
	gone        = &dispatchq.Route{State: dispatchq.Gone}
)

// send puts one batch on the network.
func (r *dispatchRun) send(ctx context.Context, b dispatchq.Batch) {
	w := r.g.w
	f := w.cfg.fate(uint64(r.g.id[len(r.g.id)-1]), r.life, b.ID)
	var builder record.Builder
	kind := record.StreamWAL
	if b.Key.Pinned {
		kind = record.StreamWALPinned
	}
	builder.Reset(record.Stream{Kind: kind, ID: b.Items[0].WAL, A: uint32(b.Key.Partition)}, 0, record.Oldest{})
	r.g.mu.Lock()
	var recs []*rec
	for _, it := range b.Items {
		recs = append(recs, r.g.log[it.Pos.Segment].rec)
	}
	r.g.mu.Unlock()
	for i, it := range b.Items {
		if err := builder.Add(it.Seq, recs[i].body()); err != nil {
			panic(err)
		}
	}
	if f%8 == 0 { // a late batch
		pause(ctx, time.Duration(f>>8%2000)*time.Millisecond)
	}
	call, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ref := topic.Ref{Topic: b.Key.Topic, Incarnation: b.Key.Incarnation, Partition: b.Target.Partition}
	out := dispatchq.Refused
	if p := w.process(b.Target.Leader); p != nil {
		_, err := p.node.Commit(call, &nodeapi.CommitRequest{Target: nodeapi.Target{Ref: ref, DiskID: b.Target.DiskID, Epoch: b.Target.Epoch}, Batch: builder.Finish(record.CodecNone)})
		out = outcomeOf(p, err)
	}
	if out == dispatchq.Committed {
		for _, rc := range recs {
			w.committed(rc, ref)
		}
		if f%16 == 8 { // the answer is lost
			out = dispatchq.Unknown
		}
	}
	if ctx.Err() == nil {
		r.answered(b.ID, out)
	}
}

func outcomeOf(p *process, err error) dispatchq.Outcome {
	var refused *problem.Problem
	switch {
	case p.dead.Load():
		return dispatchq.Unknown
	case err == nil:
		return dispatchq.Committed
	case errors.As(err, &refused) && refused.Code == problem.IncarnationMismatch:
		return dispatchq.Mismatch
	case errors.As(err, &refused) && refused.Applied == problem.AppliedNo:
		return dispatchq.Refused
	}
	return dispatchq.Unknown
}

func (r *dispatchRun) answered(id uint64, out dispatchq.Outcome) {
	r.g.mu.Lock()
	if out == dispatchq.Mismatch && r.g.w.cfg.bug == dropRefused {
		out = dispatchq.Committed
	}
	for _, it := range r.m.Answer(r.now(), id, out) {
		r.doneLocked(it)
	}
	r.g.mu.Unlock()
	r.wake()
}

func (r *dispatchRun) probe(ctx context.Context, b dispatchq.Probe) {
	serves := false
	if p := r.g.w.process(b.Target.Leader); p != nil {
		call, cancel := context.WithTimeout(ctx, 2*time.Second)
		res, err := p.node.Details(call, &nodeapi.DetailsRequest{Topic: b.Key.Topic, Incarnation: b.Key.Incarnation, Partitions: []int32{b.Target.Partition}})
		cancel()
		serves = err == nil && len(res.Partitions) == 1 && res.Partitions[0].Problem == nil && res.Partitions[0].Epoch == b.Target.Epoch
	}
	r.g.mu.Lock()
	r.m.Probed(r.now(), b.Key, serves)
	r.g.mu.Unlock()
	r.wake()
}

// Undispatched implements gatewayapi.Backlog.
func (g *gateway) Undispatched(_ context.Context, req *gatewayapi.UndispatchedRequest) (*gatewayapi.UndispatchedResult, error) {
	res := &gatewayapi.UndispatchedResult{Lives: []gatewayapi.UndispatchedLife{}}
	seen := map[topic.Incarnation]bool{}
	for _, a := range g.pending() {
		if id := a.key.Incarnation; id > req.After && !seen[id] {
			seen[id] = true
			res.Lives = append(res.Lives, gatewayapi.UndispatchedLife{Topic: a.key.Topic, Incarnation: id, Bytes: 100})
		}
	}
	slices.SortFunc(res.Lives, func(a, b gatewayapi.UndispatchedLife) int {
		if a.Incarnation < b.Incarnation {
			return -1
		}
		return 1
	})
	return res, nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// rec is one accepted record.
type rec struct {
	n    int
	life topic.Incarnation

	// Guarded by world.mu.
	stored bool // some node has committed it
	lost   bool // with the volume that it was accepted on
}

func (r *rec) String() string { return fmt.Sprintf("%s-%d", r.life, r.n) }

func (r *rec) body() []byte {
	return record.AppendBody(nil, &record.Message{Payload: []byte(r.String())})
}
