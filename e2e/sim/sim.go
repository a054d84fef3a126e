package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/narad-mq/narad/libs/dispatchq"
	"github.com/narad-mq/narad/libs/topic"
)

// Bug is a mistake that a run makes on purpose, to see whether it is noticed.
type Bug uint8

// The planted bugs.
const (
	NoBug                   Bug = iota
	EarlyDuplicateAnswer        // a leader answers a duplicate before the first copy is committed
	NumberReuse                 // a WAL goes on with its old identity after a restart
	Overtake                    // a record is sent before an earlier one of its queue
	CopyBehind                  // a stuck queue is copied to the tail of the WAL instead of parked
	LostAnswerCalledRefused     // an unknown outcome is taken for "nothing was done"
	SuspicionTakenForDeath      // gossip's suspicion is shown as the view's verdict
)

// Config of a run.
type Config struct {
	Seed       uint64
	Bug        Bug
	Partitions int32
	Nodes      int
	Chaos      time.Duration // virtual time with load and faults
	Machine    dispatchq.Config
}

// DefaultConfig is a run of three minutes on three nodes; small limits, so that
// parking and full memory happen in it.
func DefaultConfig(seed uint64) Config {
	m := dispatchq.DefaultConfig()
	m.ParkAfter, m.ReparkAfter = 15*time.Second, 5*time.Second
	m.MaxItems, m.LoadItems, m.BatchItems = 400, 20, 50
	return Config{Seed: seed, Partitions: 4, Nodes: 3, Chaos: 3 * time.Minute, Machine: m}
}

// settle is the virtual time that a run may take to end once faults stopped.
const settle = 2 * time.Hour

// Sim is one run.
type Sim struct {
	cfg      Config
	clock    clock
	nodes    map[string]*node
	names    []string
	view     *view
	vol      volume
	copy     *volume // a copy of the volume, taken at some time
	copyAt   int     // ledger size then
	gw       *gateway
	lives    int
	nextWAL  topic.ID64
	ledger   ledger
	Parkings int
	Restores int

	Suspicions int
}

// Result is what a run showed.
type Result struct {
	Steps, Records, Restarts, Restores, Parkings, Suspicions int
	Rerouted                                                 uint64
	Violations                                               []string
}

// Run executes one run.
func Run(cfg Config) Result {
	s := &Sim{cfg: cfg, nodes: map[string]*node{}}
	s.clock.rng = rand.New(rand.NewPCG(cfg.Seed, 0x5eed))
	s.clock.now = time.Second
	s.ledger.s = s
	s.vol.parked = map[dispatchq.Key][]walRecord{}
	for i := range cfg.Nodes {
		n := &node{s: s, id: fmt.Sprintf("storage-%d", i), up: true, epoch: 1, parts: map[int32]*partition{}}
		for p := int32(i); p < cfg.Partitions; p += int32(cfg.Nodes) {
			n.parts[p] = &partition{known: map[stream]uint64{}}
		}
		s.nodes[n.id] = n
		s.names = append(s.names, n.id)
	}
	s.view = newView(s)
	s.startGateway(0)
	s.load()
	s.faults()
	s.clock.run(s.end(), func() bool { return false })
	for _, name := range s.names {
		if n := s.nodes[name]; !n.up {
			n.start()
		} else {
			n.hanging, n.refuses = false, false
		}
		s.view.seen(s.nodes[name])
	}
	empty := func() bool { return s.idle() || len(s.ledger.violations) > 0 }
	s.clock.run(s.end()+settle, empty)
	if !s.idle() && len(s.ledger.violations) == 0 {
		s.ledger.violate("the gateway is stuck: %+v, read %d of %d", s.gw.m.Stats(), s.gw.read, len(s.vol.log))
	}
	return Result{
		Steps: s.clock.steps, Records: len(s.ledger.rows), Restarts: s.lives - 1, Restores: s.Restores,
		Parkings: s.Parkings, Suspicions: s.Suspicions, Rerouted: s.gw.m.Stats().Rerouted, Violations: s.ledger.verdict(),
	}
}

func (s *Sim) end() time.Duration { return time.Second + s.cfg.Chaos }
func (s *Sim) faulty() bool       { return s.clock.now < s.end() }

func (s *Sim) idle() bool {
	st := s.gw.m.Stats()
	return s.clock.now >= s.end() && !s.gw.dead && s.gw.read == len(s.vol.log) && st.Items == 0 && st.Unloaded == 0
}

// load accepts records, in bursts.
func (s *Sim) load() {
	if !s.faulty() {
		return
	}
	if !s.gw.dead {
		for range 1 + s.clock.rng.IntN(10) {
			key := dispatchq.Key{
				Topic: "t", Incarnation: 7,
				Partition: s.clock.rng.Int32N(s.cfg.Partitions), Pinned: s.clock.chance(4),
			}
			s.gw.accept(key, !s.clock.chance(50))
		}
	}
	s.clock.after(s.clock.between(0, 200*time.Millisecond), s.load)
}

// faults draws the next mishap.
func (s *Sim) faults() {
	if !s.faulty() {
		return
	}
	n := s.nodes[s.names[s.clock.rng.IntN(len(s.names))]]
	switch s.clock.rng.IntN(10) {
	case 0, 1:
		s.crashNode(n)
	case 2:
		if n.up {
			n.hanging = true
			s.clock.after(s.clock.between(0, 40*time.Second), func() { n.hanging = false })
		}
	case 3:
		if n.up {
			n.refuses = true
			s.clock.after(s.clock.between(0, 20*time.Second), func() { n.refuses = false })
		}
	case 4, 5:
		s.crashGateway()
	case 6:
		c := s.vol.clone()
		s.copy, s.copyAt = &c, len(s.ledger.rows)
	case 7:
		if s.copy != nil && s.clock.chance(3) {
			s.restore()
		}
	case 8, 9:
		s.suspect(n)
	}
	s.clock.after(s.clock.between(0, 8*time.Second), s.faults)
}

func (s *Sim) crashNode(n *node) {
	if !n.up {
		return
	}
	n.crash()
	s.view.lost(n)
	s.clock.after(s.clock.between(time.Second, 2*time.Second), func() {
		if !n.up {
			s.suspect(n)
		}
	})
	s.clock.after(s.clock.between(0, 60*time.Second), func() {
		if !n.up {
			n.start()
			s.view.seen(n)
		}
	})
}

// suspect lets gossip hold a node for dead for a while, whatever it really is.
func (s *Sim) suspect(n *node) {
	s.Suspicions++
	s.view.gossip(n.id, true)
	s.clock.after(s.clock.between(0, 30*time.Second), func() { s.view.gossip(n.id, false) })
}

func (s *Sim) crashGateway() {
	if s.gw.dead {
		return
	}
	s.gw.dead = true
	from := s.vol.checkpoint
	if s.clock.chance(3) {
		from = s.clock.rng.IntN(from + 1) // an older checkpoint
	}
	s.clock.after(s.clock.between(0, 10*time.Second), func() { s.startGateway(from) })
}

// restore puts an older copy of the volume in place.
func (s *Sim) restore() {
	if s.gw.dead {
		return
	}
	s.Restores++
	s.gw.dead = true
	s.vol = s.copy.clone()
	for i := s.copyAt; i < len(s.ledger.rows); i++ {
		s.ledger.rows[i].excusedLoss = true
	}
	for i := range s.ledger.rows[:s.copyAt] {
		s.ledger.rows[i].excusedTwice = true
	}
	s.startGateway(s.vol.checkpoint)
}
