package moves

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// lookEvery is between passes while something moves: the leader's word changes
	// without a change of the metastore.
	lookEvery = 200 * time.Millisecond
	// idleEvery is between passes while nothing moves.
	idleEvery = time.Second
	// settleTime lets a burst of changes cost one pass.
	settleTime = 20 * time.Millisecond
	// vouchTime bounds the question to one leader.
	vouchTime = time.Second
	// maxSteps bounds the passes without a pause in between: a move has few steps, and
	// one that goes in circles must not take a processor.
	maxSteps = 8
)

// Nodes is how the leaders of partitions are asked. Safe for concurrent use.
type Nodes interface {
	// Vouch asks a node what it says as a leader: one answer per partition, in order.
	Vouch(ctx context.Context, node string, refs []topic.Ref) ([]nodeapi.Vouch, error)
}

// Elections hands leaderships over; a *election.Runner.
type Elections interface {
	// Give makes a replica the leader, if it has what the leader has; false: not now.
	Give(ctx context.Context, a topic.Assignment, to string) bool
}

// Config is what a runner needs; all fields but Registry are required.
type Config struct {
	View    metastate.View
	Read    func(func(metastate.Reader) error) error // the voter's own state
	Sure    func(context.Context) error              // a barrier: this voter leads, and what Read shows is all
	Propose func(context.Context, metastate.Entry) (*metastate.Result, error)
	// Assigned lists every partition, those of creates under way included. The slice is the
	// caller's; nobody leads what is known to be lost.
	Assigned  func() ([]topic.Assignment, error)
	Members   func() []topic.Member // everybody, by id, with the use of their disks as it was heard last
	Nodes     Nodes
	Elections Elections
	Log       *slog.Logger
	Registry  prometheus.Registerer
	Mono      func() time.Duration
	WallMS    func() int64
}

// Runner makes the moves of one voter's terms. Safe for concurrent use.
type Runner struct {
	cfg  Config
	kick chan struct{}

	// plan makes decisions to begin moves take turns, and is held across their entry:
	// two at once would both see room for one. It guards rebalance and completeAt.
	plan       sync.Mutex
	rebalance  rebalancing
	completeAt time.Duration // when to look next for partitions that lack replicas

	placed atomic.Bool // since the last look: see Placed

	mu      sync.Mutex // guards what follows
	running bool       // a term goes on
	seen    map[topic.Ref]*watched
	waiting map[string]int // moves that are planned and have no room, by their reason
}

// watched is what this term has seen of a move.
type watched struct {
	row       metaapi.MoveRow
	deadSince time.Duration // of the destination; negative: it is not dead
	muteSince time.Duration // of the partition's leader; negative: it has answered
	silent    bool          // the destination fetches nothing
	// silentSince is since when; it may lie before the term, and before the process.
	silentSince time.Duration
	at          time.Duration // when CopiedBytes was measured
}

// New returns a runner that does nothing before Run.
func New(cfg Config) (*Runner, error) {
	r := &Runner{cfg: cfg, kick: make(chan struct{}, 1), seen: map[topic.Ref]*watched{}, waiting: map[string]int{}}
	if cfg.Registry == nil {
		return r, nil
	}
	if err := cfg.Registry.Register(newGauges(r)); err != nil {
		return nil, fmt.Errorf("register metrics of moves: %w", err)
	}
	return r, nil
}

// Run moves until ctx ends, which is when this voter leads no longer.
func (r *Runner) Run(ctx context.Context) {
	r.begin()
	defer r.finish()
	tick := time.NewTimer(0)
	defer tick.Stop()
	for ctx.Err() == nil {
		changed := r.cfg.View.Changed() // before the look, so that no change falls between
		busy := false
		for range maxSteps {
			var again bool
			if busy, again = r.pass(ctx); !again {
				break
			}
		}
		r.balance(ctx)
		r.complete(ctx)
		every := idleEvery
		if busy {
			every = lookEvery
		}
		tick.Reset(every)
		select {
		case <-changed:
			pause(ctx, settleTime)
		case <-r.kick:
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (r *Runner) begin() {
	r.plan.Lock()
	defer r.plan.Unlock()
	r.rebalance = newRebalancing(r.cfg.Mono())
	r.completeAt = r.cfg.Mono() + completeEvery // nodes may be about to come
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running, r.seen, r.waiting = true, map[topic.Ref]*watched{}, map[string]int{}
}

func (r *Runner) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running, r.seen, r.waiting = false, map[topic.Ref]*watched{}, map[string]int{}
}

// state is what a pass reads at one moment.
type state struct {
	moves   []topic.Move
	members map[string]*topic.Member
	parts   map[topic.Ref]*topic.Assignment // of the moves
}

func (r *Runner) read() (*state, error) {
	s := &state{members: map[string]*topic.Member{}, parts: map[topic.Ref]*topic.Assignment{}}
	err := r.cfg.Read(func(tx metastate.Reader) (err error) {
		if s.moves, err = metastate.AllMoves(tx); err != nil || len(s.moves) == 0 {
			return err
		}
		members, err := metastate.AllMembers(tx)
		if err != nil {
			return err
		}
		for i := range members {
			s.members[members[i].ID] = &members[i]
		}
		for i := range s.moves {
			a, err := metastate.PartitionOf(tx, s.moves[i].Ref)
			if err != nil {
				return err
			}
			s.parts[s.moves[i].Ref] = a
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the moves: %w", err)
	}
	slices.SortFunc(s.moves, func(a, b topic.Move) int {
		if a.StartedMS != b.StartedMS {
			return int(min(max(a.StartedMS-b.StartedMS, -1), 1))
		}
		return strings.Compare(a.Ref.String(), b.Ref.String())
	})
	return s, nil
}

// pass looks at every move and makes the steps that follow; busy: something moves,
// again: a step was made, so that the next one may follow at once.
func (r *Runner) pass(ctx context.Context) (busy, again bool) {
	s, err := r.read()
	if err != nil {
		r.cfg.Log.Warn("moves cannot be looked at", "err", err)
		return true, false
	}
	vouched := r.vouches(ctx, s)
	running := 0
	for i := range s.moves {
		m := &s.moves[i]
		sc := &scene{move: *m, part: s.parts[m.Ref], members: s.members, vouch: vouched[m.Ref], deadFor: r.deadFor(m, s.members)}
		sc.silentFor, sc.muteFor = r.silentFor(sc), r.muteFor(sc)
		st := next(sc)
		if st.blocked == "" {
			if running++; running > metaapi.MaxRunningMoves && !joinedAlready(sc) && st.do != end {
				st = step{phase: metaapi.MovePending, why: "other moves run"}
			}
		}
		r.note(m, st, &sc.vouch)
		if st.do != wait && ctx.Err() == nil {
			again = r.act(ctx, sc, st) || again
		}
	}
	r.forget(s.moves)
	return len(s.moves) > 0, again
}

func joinedAlready(s *scene) bool {
	if s.part == nil {
		return false
	}
	_, in := s.part.ReplicaOn(s.move.To)
	return in
}

// vouches asks the leaders of all moving partitions, each node once.
func (r *Runner) vouches(ctx context.Context, s *state) map[topic.Ref]nodeapi.Vouch {
	byLeader := map[string][]topic.Ref{}
	for ref, a := range s.parts {
		if a != nil && a.Leader != "" {
			byLeader[a.Leader] = append(byLeader[a.Leader], ref)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, vouchTime)
	defer cancel()
	var mu sync.Mutex // guards out
	out := map[topic.Ref]nodeapi.Vouch{}
	var calls sync.WaitGroup
	for node, refs := range byLeader {
		calls.Go(func() {
			for part := range slices.Chunk(refs, nodeapi.MaxVouchPartitions) {
				got, err := r.cfg.Nodes.Vouch(ctx, node, part)
				if err != nil || len(got) != len(part) {
					r.cfg.Log.Debug("the leader of moving partitions did not answer", "node", node, "partitions", len(part), "err", err)
					return
				}
				mu.Lock()
				for i, ref := range part {
					out[ref] = got[i]
				}
				mu.Unlock()
			}
		})
	}
	calls.Wait()
	return out
}

// act makes one step, and tells whether it was made. What was not is decided anew
// in a later pass: the outcome of an entry may be unknown.
func (r *Runner) act(ctx context.Context, s *scene, st step) bool {
	var err error
	done := false
	switch st.do {
	case change:
		_, err = r.cfg.Propose(ctx, &metastate.ChangeReplicas{
			Ref: s.move.Ref, ConfigVersion: s.part.ConfigVersion, Epoch: s.part.LeaderEpoch, Replicas: st.replicas,
		})
		done = err == nil
	case elect:
		done = r.cfg.Elections.Give(ctx, *s.part, st.to)
	case depose:
		done, err = r.propose(ctx, &metastate.BeginElections{Items: []metastate.ElectionStart{
			{Ref: s.move.Ref, Epoch: s.part.LeaderEpoch, ConfigVersion: s.part.ConfigVersion},
		}})
	case end:
		done, err = r.propose(ctx, &metastate.Moves{End: []topic.MoveID{s.move.ID()}})
	case wait:
	}
	if done && st.do == end && s.move.Reason == topic.MoveComplete {
		r.Placed()
	}
	switch {
	case err != nil:
		r.failed(s.move.Ref, err)
	case done && st.do == end && st.phase == metaapi.MoveReclaiming && s.move.From == "":
		r.cfg.Log.Info("a partition has one replica more", "partition", s.move.Ref.String(), "on", s.move.To, "took_ms", r.cfg.WallMS()-s.move.StartedMS)
	case done && st.do == end && st.phase == metaapi.MoveReclaiming:
		r.cfg.Log.Info("a partition was moved", "partition", s.move.Ref.String(), "from", s.move.From, "to", s.move.To,
			"reason", s.move.Reason, "took_ms", r.cfg.WallMS()-s.move.StartedMS)
	case done && st.do == end:
		r.cfg.Log.Warn("a move was taken back", "partition", s.move.Ref.String(), "from", s.move.From, "to", s.move.To, "why", st.why)
	case done:
		r.cfg.Log.Debug("a step of a move", "partition", s.move.Ref.String(), "phase", string(st.phase))
	}
	return done
}

// propose proposes an entry of one item and tells whether that was done.
func (r *Runner) propose(ctx context.Context, e metastate.Entry) (bool, error) {
	res, err := r.cfg.Propose(ctx, e)
	return err == nil && len(res.Done) == 1 && res.Done[0], err
}

// Kick makes a look happen soon.
func (r *Runner) Kick() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// forget drops what is known of moves that are over.
func (r *Runner) forget(list []topic.Move) {
	live := map[topic.Ref]bool{}
	for i := range list {
		live[list[i].Ref] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.seen, func(ref topic.Ref, _ *watched) bool { return !live[ref] })
}
