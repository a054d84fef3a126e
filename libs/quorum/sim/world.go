package sim

import (
	"fmt"
	"math/rand/v2"

	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// maxNodes is how many nodes there are: a set of five and one to move to.
const maxNodes = 6

// Options are what a run is told.
type Options struct {
	calm  int // turns without faults at the beginning, if the weather has more; 0: the weather's
	Steps int
	Bug   Bug
	Storm Storm
}

// Stats are what a run did.
type Stats struct {
	Steps, Committed, Elections, Changes, Lost, Damaged, Truncated int
}

// Add sums two.
func (s *Stats) Add(o Stats) {
	s.Steps += o.Steps
	s.Committed += o.Committed
	s.Elections += o.Elections
	s.Changes += o.Changes
	s.Lost += o.Lost
	s.Damaged += o.Damaged
	s.Truncated += o.Truncated
}

// world is one partition with everything around it.
type world struct {
	bug     Bug
	weather weather
	calm    int
	now     int64 // ms
	nodes   []*node
	meta    meta
	control controller
	clients [clients]client
	net     []message
	check   checker
	stats   Stats
	ids     topic.ID64
	trace   []string
	tracing bool
	draw    draw // of the step under way
}

// draw gives the random numbers of one step.
type draw uint64

func (d *draw) n(n int) int {
	*d = draw(mix(uint64(*d)))
	return int(uint64(*d) >> 1 % uint64(n))
}

func (d *draw) one(in int) bool { return d.n(in) == 0 }

func newWorld(seed uint64, opt Options) *world {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &world{bug: opt.Bug, calm: opt.calm, weather: newWeather(rng, opt.Storm)}
	w.meta.electedMS = map[topic.Epoch]int64{}
	w.check = newChecker()
	first := state{}
	for i := range maxNodes {
		n := &node{w: w, index: i, name: fmt.Sprintf("s%d", i+1)}
		n.disk = disk{id: w.id(), copy: w.id(), directory: true}
		w.nodes = append(w.nodes, n)
		if i < w.weather.replicas {
			first.set.Replicas = append(first.set.Replicas, n.self())
		}
	}
	for i := range w.clients {
		w.clients[i] = client{index: int8(i), goal: int32(w.weather.calm)}
	}
	w.meta.states = []state{first}
	for _, n := range w.nodes {
		n.start()
	}
	return w
}

func (w *world) id() topic.ID64 {
	w.ids++
	return w.ids
}

func (w *world) node(name string) *node {
	for _, n := range w.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// note adds a line to the trace; callers look at tracing first, because this is
// the hot path.
func (w *world) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

// violation is what a checker panics with; run catches it.
type violation struct{ what string }

func fail(format string, args ...any) { panic(violation{fmt.Sprintf(format, args...)}) }

// picks is how many actions a step tries until one has something to do.
const picks = 20

// step does one choice and looks at everything.
func (w *world) step(choice uint64) {
	w.draw = draw(choice)
	w.now += int64(w.draw.n(20))
	if do := w.weather.due[w.stats.Steps]; do != nil {
		delete(w.weather.due, w.stats.Steps)
		do()
	}
	from := &w.weather.usual
	if w.draw.one(w.weather.faultIn) {
		from = &w.weather.faults
	}
	for range picks {
		if from.pick(&w.draw)(w) {
			w.stats.Steps++
			w.check.all(w)
			return
		}
	}
}

// Failure is a run that broke an invariant.
type Failure struct {
	Seed    uint64
	What    string
	Step    int
	Trace   []string
	opt     Options
	choices []uint64
}

// Error describes it with its trace.
func (f *Failure) Error() string {
	s := fmt.Sprintf("seed %d, step %d: %s", f.Seed, f.Step, f.What)
	for _, line := range f.Trace {
		s += "\n\t" + line
	}
	return s
}

// Run plays one seed. A nil failure means that every invariant held.
func Run(seed uint64, opt Options) (Stats, *Failure) {
	rng := rand.New(rand.NewPCG(seed, 2))
	choices := make([]uint64, opt.Steps)
	for i := range choices {
		choices[i] = rng.Uint64()
	}
	return play(seed, opt, choices, false)
}

// play plays choices; a panic of the code under test is a failure too.
func play(seed uint64, opt Options, choices []uint64, tracing bool) (stats Stats, f *Failure) {
	w := newWorld(seed, opt)
	w.tracing = tracing
	at := 0
	defer func() {
		stats = w.stats
		if r := recover(); r != nil {
			what := fmt.Sprint(r)
			if v, ok := r.(violation); ok {
				what = v.what
			}
			f = &Failure{Seed: seed, What: what, Step: at, Trace: w.trace, opt: opt, choices: choices[:min(at+1, len(choices))]}
		}
	}()
	w.beginCalm()
	for at = range choices {
		w.step(choices[at])
	}
	at = len(choices)
	w.heal()
	return w.stats, nil
}

// beginCalm lets the partition come up first, in some runs.
func (w *world) beginCalm() {
	calm := w.weather.calm
	if w.calm > 0 {
		calm = min(calm, w.calm)
	}
	for range calm {
		w.turn()
	}
	leader := w.node(w.meta.now().lead.Leader)
	if w.weather.begin == nil || leader == nil {
		return
	}
	var followers []*node
	for _, r := range w.meta.now().set.Replicas {
		if n := w.node(r.Node); n != leader {
			followers = append(followers, n)
		}
	}
	w.weather.begin(w, leader, followers)
}

// turn has every node, and the controller, do what they do without faults.
func (w *world) turn() {
	for _, n := range w.nodes {
		w.now += 5
		n.settle()
	}
	for len(w.net) > 0 {
		w.deliver(0)
	}
	w.draw = draw(w.now)
	w.mend()
	for i := range w.clients {
		if c := &w.clients[i]; c.answered < c.goal {
			c.produce(w, w.node(w.meta.now().lead.Leader))
		}
	}
	w.check.all(w)
}

// heal ends all faults and waits, in turns, for everything to be well again.
func (w *world) heal() {
	const turns = 200
	for i := range w.clients {
		w.clients[i].goal = w.clients[i].seq + 1
	}
	for turn := range turns {
		w.tracing = w.tracing && turn < 3 // what follows repeats itself
		w.turn()
		if w.well() {
			return
		}
	}
	if w.bug == NoBug { // a planted one is to be found by what it breaks
		fail("it does not heal: %s", w.illness())
	}
}

// well tells whether the partition serves and every replica is whole.
func (w *world) well() bool { return w.illness() == "" }

func (w *world) illness() string {
	s := w.meta.now()
	l := w.node(s.lead.Leader)
	if l == nil || l.lead == nil || !l.lead.MayServe(w.now) {
		return fmt.Sprintf("leader %q of epoch %d does not serve", s.lead.Leader, s.lead.Epoch)
	}
	for _, r := range s.set.Replicas {
		if n := w.node(r.Node); n.self() != r || n.disk.damaged || n.hwm() < int64(len(w.check.ledger)) {
			return fmt.Sprintf("%s is not whole: HWM %d, committed %d", r, n.hwm(), len(w.check.ledger))
		}
	}
	for i, c := range w.clients {
		if c.answered < c.goal {
			return fmt.Sprintf("client %d has no answer for %d", i, c.seq)
		}
	}
	return ""
}

// survives tells whether a set could surely elect and commit once one more copy
// (nil: none) is gone.
func (w *world) survives(set []quorum.Replica, without *node) bool {
	alive := 0
	for _, r := range set {
		if n := w.node(r.Node); n.whole(r) && !n.disk.damaged && n != without {
			alive++
		}
	}
	return alive >= quorum.Majority(len(set))
}
