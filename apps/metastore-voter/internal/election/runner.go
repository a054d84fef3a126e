package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// maxTogether bounds the partitions that share entries and calls: an entry of
	// some 100 KiB, a fence answer below the bound of its reply.
	maxTogether = 256
	// maxSuspects bounds the hints that wait for a look; a hint more is forgotten,
	// it comes again.
	maxSuspects = 64
	// settleTime lets a burst of changes cost one look over all partitions.
	settleTime = 20 * time.Millisecond
	// maxBalanced bounds the leaderships that one pass hands over for balance: each is
	// a short pause of its partition.
	maxBalanced = 16
)

// Timing holds the runner's constants, for tests to shorten. A zero field means
// its default.
type Timing struct {
	Call    time.Duration // budget of one call to a node; 2 s
	Probe   time.Duration // a leader that does not answer within it is suspect; 1 s
	Silence time.Duration // a leader whose followers all got no answer for so long is not alive; 600 ms
	Grace   time.Duration // how long replicas beyond the majority are waited for; 50 ms
	Retry   time.Duration // between passes while a partition has no leader; 1 s
	Balance time.Duration // between passes that even leaderships out; 10 s
}

func (t Timing) withDefaults() Timing {
	for _, f := range []struct {
		have      *time.Duration
		otherwise time.Duration
	}{
		{&t.Call, 2 * time.Second},
		{&t.Probe, time.Second},
		{&t.Silence, nodeapi.MaxFetchWaitMS*time.Millisecond + 100*time.Millisecond},
		{&t.Grace, 50 * time.Millisecond},
		{&t.Retry, time.Second},
		{&t.Balance, 10 * time.Second},
	} {
		if *f.have == 0 {
			*f.have = f.otherwise
		}
	}
	return t
}

// Config is what a runner needs; all fields but Registry and Timing are required.
type Config struct {
	View     metastate.View
	Index    metastate.Index
	Members  func() []topic.Member // by id, with the use of their disks as last heard
	Nodes    Nodes
	Propose  func(context.Context, metastate.Entry) (*metastate.Result, error)
	Log      *slog.Logger
	Registry prometheus.Registerer
	Mono     func() time.Duration
	Timing   Timing
}

// Runner runs the elections of one voter, while it leads. Safe for concurrent use.
type Runner struct {
	cfg     Config
	timing  Timing
	metrics metrics
	hints   chan string // nodes that somebody suspects

	// turn makes elections take turns, and is held across them: two at once of one
	// partition would only spoil each other.
	turn sync.Mutex
	told map[topic.Ref]topic.Epoch // for which was said that only a damaged copy may have everything; guarded by turn
}

// term is one Run: what it remembers ends with it, so that one that still ends and
// the next one that begins when leaderships flap share nothing.
type term struct {
	*Runner
	early    early
	notGiven map[topic.Ref]time.Duration // when a hand-over for balance was refused
	notTaken map[string]time.Duration    // when a node was behind in one
	balanced time.Duration               // when leaderships were evened out last
}

func (r *Runner) newTerm() *term {
	return &term{Runner: r, early: early{}, notGiven: map[topic.Ref]time.Duration{}, notTaken: map[string]time.Duration{}, balanced: r.cfg.Mono()}
}

type metrics struct{ elections *prometheus.CounterVec }

// New returns a runner that does nothing before Run.
func New(cfg Config) (*Runner, error) {
	r := &Runner{cfg: cfg, timing: cfg.Timing.withDefaults(), hints: make(chan string, maxSuspects), told: map[topic.Ref]topic.Epoch{}}
	r.metrics.elections = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "narad_elections_total", Help: "Elections of partition leaders run by this voter, by what started them and how they ended.",
	}, []string{"reason", "outcome"})
	if cfg.Registry == nil {
		return r, nil
	}
	if err := cfg.Registry.Register(r.metrics.elections); err != nil {
		return nil, fmt.Errorf("register metrics of elections: %w", err)
	}
	return r, nil
}

// Run elects until ctx ends, which is when this voter leads no longer.
func (r *Runner) Run(ctx context.Context) { r.newTerm().run(ctx) }

func (r *term) run(ctx context.Context) {
	retry := time.NewTicker(r.timing.Retry)
	defer retry.Stop()
	for ctx.Err() == nil {
		changed := r.cfg.View.Changed() // before the look, so that no change falls between
		r.pass(ctx)
		select {
		case <-changed:
			wait(ctx, settleTime)
		case <-retry.C:
		case node := <-r.hints:
			r.check(ctx, node)
		case <-ctx.Done():
		}
	}
}

// wait returns true after d, false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Suspect asks for a look at a node that somebody could not reach.
func (r *Runner) Suspect(node string) {
	select {
	case r.hints <- node:
	default:
	}
}

// pass elects for every partition that has no leader and can have one, and evens
// leaderships out when it is time.
func (r *term) pass(ctx context.Context) {
	m := members(r.cfg.View.Members().ByID)
	// They have no leader, or one that the metastore calls dead or knows on another disk.
	leaderless, err := r.cfg.Index.Led(func(leader topic.Replica) bool { return !m.usable(leader) })
	var led map[string]int
	if err == nil && len(leaderless) > 0 {
		led, err = r.leads()
	}
	if err != nil {
		r.cfg.Log.Debug("partitions cannot be looked at", "err", err)
		return
	}
	var list []*contest
	for _, a := range leaderless {
		if electable(&a, m) {
			list = append(list, &contest{a: a, wanted: successor(&a, m, led)})
		}
	}
	if len(list) > 0 {
		r.turn.Lock()
		defer r.turn.Unlock()
		r.elect(ctx, slices.DeleteFunc(list, r.overtaken), "no_leader")
		return
	}
	if now := r.cfg.Mono(); now-r.balanced >= r.timing.Balance {
		r.balanced = now
		r.balance(ctx, m)
	}
}

// overtaken tells whether a partition is not as it was read any more: the election
// whose turn it was may have given it a leader.
func (r *term) overtaken(c *contest) bool {
	p, err := r.cfg.View.Assignments(c.a.Topic)
	if err != nil || p.Incarnation != c.a.Incarnation || int(c.a.Partition) >= len(p.List) {
		return true
	}
	now := &p.List[c.a.Partition]
	return now.Leader != c.a.Leader || now.LeaderEpoch != c.a.LeaderEpoch
}

// each calls fn for every partition that has several replicas, with the factor of its
// topic: those of replicated topics, and a single copy on its way to another node.
func (r *Runner) each(fn func(a *topic.Assignment, factor int)) error {
	topics, err := r.cfg.View.Topics("", "", math.MaxInt)
	if err != nil {
		return err
	}
	for _, t := range topics {
		p, err := r.cfg.View.Assignments(t.Name)
		if errors.Is(err, metastate.ErrNoTopic) {
			continue
		}
		if err != nil {
			return err
		}
		for i := range p.List {
			if len(p.List[i].Replicas) > 1 {
				fn(&p.List[i], t.ReplicationFactor)
			}
		}
	}
	return nil
}
