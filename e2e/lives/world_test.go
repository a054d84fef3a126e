package lives

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/apps/purge-sweeper/sweeper"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// totals count what runs have reached.
type totals struct {
	steps, lives, kills, restores, commits, deliveries, acks, audits, sweeps, clean, forgotten int

	parked, discarded, passed, volumes int // records parked and given up, gateways that dispatched behind what they held, volumes restored
}

func (t *totals) add(o totals) {
	t.steps += o.steps
	t.lives += o.lives
	t.kills += o.kills
	t.restores += o.restores
	t.commits += o.commits
	t.deliveries += o.deliveries
	t.acks += o.acks
	t.audits += o.audits
	t.sweeps += o.sweeps
	t.clean += o.clean
	t.forgotten += o.forgotten
	t.parked += o.parked
	t.discarded += o.discarded
	t.passed += o.passed
	t.volumes += o.volumes
}

// world is one run.
type world struct {
	cfg      config
	leader   *leader
	voter    *rpc.Server
	net      *network
	machines []*machine
	gateways []*gateway
	work     sync.WaitGroup // claims, acks and sweeps under way
	lastLife uint64
	// noConfirms: the leader answers no gateway.
	noConfirms atomic.Bool

	mu         sync.Mutex // guards all below
	procs      map[string]*process
	violations []string
	records    []*rec
	commits    map[topic.Ref]map[string]bool
	present    map[string]bool
	acks       map[topic.Ref]map[int64]bool
	handles    []handle
	ended      []life
	passes     []context.CancelFunc
	sum        totals
}

type life struct {
	name string
	id   topic.Incarnation
}

func nameOf(n int) string { return fmt.Sprintf("t%d", n) }

// run executes one run in a bubble of fake time.
func run(t *testing.T, cfg config) (sum totals, violations []string) {
	testkit.Bubble(t, func(*testing.T) {
		w := newWorld(cfg)
		for _, s := range cfg.steps {
			if w.violated() {
				break
			}
			w.do(s)
			w.settleDown(s)
			w.sum.steps++
		}
		if !w.violated() {
			w.finish()
		}
		w.shutDown()
		sum, violations = w.sum, w.violations
	})
	return sum, violations
}

func newWorld(cfg config) *world {
	w := &world{
		cfg: cfg, leader: newLeader(), net: &network{at: map[string]*listener{}}, procs: map[string]*process{},
		commits: map[topic.Ref]map[string]bool{}, present: map[string]bool{}, acks: map[topic.Ref]map[int64]bool{},
	}
	w.voter = rpc.NewServer(rpc.ServerConfig{NodeID: "leader", ClusterID: func() string { return clusterID }, Log: discard()})
	metaapi.Serve(w.voter, w.leader)
	metaapi.ServeEndings(w.voter, w.leader)
	ln := w.net.listen("leader:7944")
	w.work.Go(func() { _ = w.voter.Serve(ln) })
	for i := range cfg.nodes {
		w.machines = append(w.machines, newMachine(w, fmt.Sprintf("storage-%d", i), topic.ID64(0xd15c+i)))
	}
	for i := range 2 {
		w.gateways = append(w.gateways, newGateway(w, fmt.Sprintf("gateway-%d", i)))
	}
	for _, m := range w.machines {
		w.startMachine(m)
	}
	for _, g := range w.gateways {
		g.start(0)
	}
	for n := range cfg.names {
		w.create(nameOf(n), uint32(n))
	}
	w.settleDown(step{})
	return w
}

func (w *world) startMachine(m *machine) {
	m.start()
	w.setProc(m)
}

func (w *world) setProc(m *machine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.procs[m.id] = m.proc
}

func (w *world) process(id string) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.procs[id]; p != nil && !p.dead.Load() {
		return p
	}
	return nil
}

// create makes a life; its partitions lie on one or both nodes.
func (w *world) create(name string, pick uint32) {
	w.lastLife++
	t := topic.Topic{Name: name, Incarnation: topic.Incarnation(w.lastLife<<32 | uint64(pick|1)), CreatedAtMS: nowMS(), Config: topic.DefaultConfig()}
	t.Partitions = 1 + int(pick>>8)%2
	t.VisibilityTimeoutMS = 60_000
	var list []topic.Assignment
	for i := range t.Partitions {
		m := w.machines[(int(pick>>4)+i*int(pick>>12&1))%len(w.machines)]
		list = append(list, topic.Assignment{
			Ref:      topic.Ref{Topic: name, Incarnation: t.Incarnation, Partition: int32(i)},
			Replicas: []topic.Replica{{Node: m.id, DiskID: m.disk}}, Leader: m.id, LeaderEpoch: 1,
		})
	}
	if res := w.leader.propose(&metastate.CreateTopic{Topic: t, Assignments: list}); res.Refusal == nil {
		w.sum.lives++
	}
}

// remove ends the live life of a name and tells the nodes, as far as the bus does.
func (w *world) remove(name string, pick uint32) {
	t := w.leader.topic(name)
	if t == nil {
		return
	}
	w.leader.propose(&metastate.DeleteTopic{Name: name, Incarnation: t.Incarnation, NowMS: nowMS()})
	w.mu.Lock()
	w.ended = append(w.ended, life{name, t.Incarnation})
	w.mu.Unlock()
	for i, m := range w.machines {
		if m.proc == nil {
			continue
		}
		for range []int{1, 0, 2, 1}[pick>>(2*i)&3] { // in time, lost, twice
			m.proc.role.Purge(name, t.Incarnation)
		}
	}
}

// settleDown lets things happen, and time pass.
func (w *world) settleDown(s step) {
	synctest.Wait()
	for _, m := range w.machines {
		m.rep.catchUp(1000)
	}
	for _, g := range w.gateways {
		g.rep.catchUp(1000)
	}
	synctest.Wait()
	switch s.c >> 20 & 15 {
	case 0, 1, 2, 3:
	case 15:
		time.Sleep(6 * time.Second)
	default:
		time.Sleep(time.Duration(s.c>>23&63) * time.Millisecond)
	}
	w.buryDead()
}

// buryDead ends what is left of processes that were killed at a write.
func (w *world) buryDead() {
	synctest.Wait()
	for _, m := range w.machines {
		if m.proc != nil && m.proc.dead.Load() {
			m.bury()
			w.setProc(m)
			w.sum.kills++
		}
	}
}

// pass lets much time go by.
func (w *world) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		w.buryDead() // else it tries for all that time to write
		time.Sleep(min(5*time.Second, time.Until(end)))
	}
}

// do is one step.
func (w *world) do(s step) {
	name := nameOf(int(s.a) % w.cfg.names)
	m := w.machines[int(s.b)%len(w.machines)]
	g := w.gateways[int(s.b)%len(w.gateways)]
	switch s.kind {
	case create:
		w.create(name, s.c)
	case remove:
		w.remove(name, s.c)
	case recreate:
		w.remove(name, s.c)
		w.create(name, s.c>>3)
	case produce:
		for i := range 1 + s.c%4 {
			g.produce(name, s.c>>4+i)
		}
	case consume:
		w.claim(g, name, 1+int(s.c%5))
		if s.c>>8%4 == 0 {
			w.claimOld(name)
		}
	case ack, forgeAck:
		w.ack(s)
	case kill, stop, start, armKill:
		w.power(m, s)
	case holdBack, letGo, install:
		w.hold(s)
	case purge, forge:
		w.tell(m, name, s)
	case silence:
		w.leader.silence(s.a%3 == 0)
	case holdPoint:
		if m.proc != nil {
			m.proc.holdNext(points[int(s.a)%len(points)])
		}
	case release:
		for _, m := range w.machines {
			if m.proc != nil {
				m.proc.letGo()
			}
		}
	case killGateway:
		g.kill()
		if s.a%2 == 0 {
			w.goBack(g.rep, s)
		}
		g.start(int(s.c % 8))
	case restoreWAL:
		if g.copied == nil || s.a%3 == 0 {
			g.copyVolume()
			return
		}
		g.kill()
		if s.a%2 == 0 {
			w.goBack(g.rep, s)
		}
		g.restoreVolume()
		g.start(0)
	case behind:
		w.leaveBehind(g, name, s)
	case outage:
		w.outage(m, name, s)
	case sweep:
		for range 1 + s.a%2 {
			w.sweep(s.b%4 != 0)
		}
	case killSweep:
		for _, cancel := range w.passes {
			cancel()
		}
	case audit:
		if p := w.process(m.id); p != nil {
			w.work.Go(func() { w.audit(p, false) })
		}
	case wait:
		w.pass([]time.Duration{time.Second, 6 * time.Second, 20 * time.Second, 70 * time.Second}[s.a%4])
	case hour:
		w.hour()
	}
}

func (w *world) ack(s step) {
	w.mu.Lock()
	n := len(w.handles)
	var list []handle
	for i := range min(n, 1+int(s.c%3)) { // mostly young ones
		at := n - 1 - i
		if s.b%2 == 0 {
			at = int(s.a+uint32(i)) % n
		}
		list = append(list, w.handles[at])
	}
	w.mu.Unlock()
	for _, h := range list {
		forged := topic.Incarnation(0)
		if s.kind == forgeAck {
			t := w.leader.topic(h.ref.Topic)
			if t == nil {
				continue
			}
			if forged = t.Incarnation; forged == h.ref.Incarnation {
				forged = 0
			}
		}
		w.work.Go(func() { w.settle(h, forged) })
	}
}

// sweep runs the sweeper, beside whatever else happens.
func (w *world) sweep(yes bool) {
	ctx, cancel := context.WithCancel(context.Background())
	w.passes = append(w.passes, cancel)
	w.work.Go(func() {
		err := w.onePass(ctx, yes)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.sum.sweeps++; err == nil {
			w.sum.clean++
		}
	})
}

func (w *world) onePass(ctx context.Context, yes bool) error {
	var out bytes.Buffer
	r, err := sweeper.New(sweeper.Config{Join: []string{"leader:7944"}, Yes: yes, JSON: true, Timeout: time.Minute}, sweeper.Deps{Out: &out, Dial: w.net.dial})
	if err != nil {
		return err
	}
	if err := r.Run(ctx); err != nil {
		return fmt.Errorf("%w: %s", err, out.String())
	}
	return nil
}
