package moves

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// rebalanceAfter is how long no storage node has come or gone before a rebalance is
	// planned: nodes that start one after the other cause one, not several.
	rebalanceAfter = 5 * time.Second
	// planEvery is between plans of a rebalance that goes on.
	planEvery = time.Second
	// unledEvery is between looks whether one has a leader again that a rebalance left out.
	unledEvery = 10 * time.Second
)

// rebalancing is whether a rebalance goes on. It begins when a storage node comes,
// returns or has room on its disk again; when something ended that placed copies one by
// one, as they fitted then: a decommission, a growth, a reset, a completion; when a
// partition has a leader again that the last one left out for want of one; and with each
// term, because the voter that led before may have been in the middle of one. It ends when
// the plan is empty. What an administrator moves by name, and what a delete leaves, is no
// reason: it would be undone at once.
type rebalancing struct {
	nodes map[string]topic.ID64 // that could receive at the last look, and their disks
	had   map[string]bool       // storage nodes of record at the last look
	armed bool
	since time.Duration // of the last reason
	next  time.Duration // when to plan next
	// unled are the partitions that nobody led at the last plan, and look when to look at
	// them next.
	unled map[topic.Ref]bool
	look  time.Duration
}

func newRebalancing(now time.Duration) rebalancing { return rebalancing{since: now} }

// due looks who is there and tells whether to plan now.
func (b *rebalancing) due(members []topic.Member, now time.Duration) bool {
	nodes, has := map[string]topic.ID64{}, map[string]bool{}
	for i := range members {
		m := &members[i]
		if m.Role == topic.RoleStorage {
			has[m.ID] = true
		}
		if m.Role == topic.RoleStorage && m.Status == topic.StatusAlive && !m.Draining && !placement.Full(m) {
			nodes[m.ID] = m.DiskID
		}
	}
	for id, disk := range nodes {
		if b.nodes[id] != disk {
			b.arm(now)
		}
	}
	for id := range b.had {
		if !has[id] { // its decommission has ended
			b.arm(now)
		}
	}
	b.nodes, b.had = nodes, has
	if !b.armed || now-b.since < rebalanceAfter || now < b.next {
		return false
	}
	b.next = now + planEvery
	return true
}

func (b *rebalancing) arm(now time.Duration) { b.armed, b.since = true, now }

// ends is that the plan for these was empty.
func (b *rebalancing) ends(assigned []topic.Assignment, now time.Duration) {
	b.armed, b.unled, b.look = false, map[topic.Ref]bool{}, now+unledEvery
	for i := range assigned {
		if a := &assigned[i]; a.Leader == "" {
			b.unled[a.Ref] = true
		}
	}
}

// led looks whether somebody leads one again that was left out.
func (b *rebalancing) led(assigned []topic.Assignment, now time.Duration) {
	b.look = now + unledEvery
	for i := range assigned {
		if a := &assigned[i]; a.Leader != "" && b.unled[a.Ref] {
			b.unled = nil
			b.arm(now)
			return
		}
	}
}

// Placed tells that copies were placed one by one: they may stand better.
func (r *Runner) Placed() { r.placed.Store(true) }

// balance goes on with a rebalance, if there is one.
func (r *Runner) balance(ctx context.Context) {
	r.plan.Lock()
	defer r.plan.Unlock()
	if r.placed.Swap(false) {
		r.rebalance.arm(r.cfg.Mono())
	}
	if now := r.cfg.Mono(); len(r.rebalance.unled) > 0 && now >= r.rebalance.look {
		if assigned, err := r.cfg.Assigned(); err == nil { // else it is tried again
			r.rebalance.led(assigned, now)
		}
	}
	if !r.rebalance.due(r.cfg.Members(), r.cfg.Mono()) {
		return
	}
	waiting, err := r.rebalanceLocked(ctx)
	if err != nil {
		r.cfg.Log.Debug("a rebalance was not planned; it is tried again", "err", err)
		return
	}
	r.waits(topic.MoveRebalance, waiting)
}

// waits notes how many moves of a reason are planned and have no room.
func (r *Runner) waits(reason string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[reason] = n
}

// rebalanceLocked plans from what is there now and begins as many moves as there is
// room for; it answers how many wait.
func (r *Runner) rebalanceLocked(ctx context.Context) (waiting int, err error) {
	if err := r.cfg.Sure(ctx); err != nil {
		return 0, err
	}
	s, err := r.read()
	if err != nil {
		return 0, err
	}
	assigned, err := r.cfg.Assigned()
	if err != nil {
		return 0, fmt.Errorf("read the assignments: %w", err)
	}
	plan := placement.Rebalance(placement.Candidates(r.cfg.Members(), assigned), assigned, s.moves, Away(r.cfg.View))
	if len(plan) == 0 {
		r.rebalance.ends(assigned, r.cfg.Mono())
		return 0, nil
	}
	begun, err := r.beginLocked(ctx, s, topic.MoveRebalance, plan)
	if begun > 0 {
		r.cfg.Log.Info("rebalancing", "moves_begun", begun, "moves_planned", len(plan))
	}
	return len(plan) - begun, err
}

// Begin begins moves for a reason, as many as there is room for and the metastore
// allows, in order; it answers how many. A move that names a partition which is
// moving, or nodes that are not what they were, is passed over.
func (r *Runner) Begin(ctx context.Context, reason string, list []placement.Move) (int, error) {
	r.plan.Lock()
	defer r.plan.Unlock()
	if err := r.cfg.Sure(ctx); err != nil {
		return 0, err
	}
	s, err := r.read()
	if err != nil {
		return 0, err
	}
	return r.beginLocked(ctx, s, reason, list)
}

func (r *Runner) beginLocked(ctx context.Context, s *state, reason string, list []placement.Move) (int, error) {
	room := metaapi.MaxRunningMoves - r.runningOf(s.moves)
	e := &metastate.Moves{}
	err := r.cfg.Read(func(tx metastate.Reader) error {
		for _, m := range list {
			if len(e.Start) >= room {
				break
			}
			a, err := metastate.PartitionOf(tx, m.Ref)
			if err != nil {
				return err
			}
			to, err := metastate.MemberByID(tx, m.To)
			if err != nil {
				return err
			}
			if a == nil || to == nil {
				continue
			}
			e.Start = append(e.Start, metastate.MoveStart{ConfigVersion: a.ConfigVersion, Move: topic.Move{
				Ref: m.Ref, From: m.From, To: m.To, ToDisk: to.DiskID, StartedMS: r.cfg.WallMS(), Reason: reason,
			}})
		}
		return nil
	})
	if err != nil || len(e.Start) == 0 {
		return 0, err
	}
	res, err := r.cfg.Propose(ctx, e)
	if err != nil {
		return 0, fmt.Errorf("begin %d moves: %w", len(e.Start), err)
	}
	r.Kick()
	begun := 0
	for _, done := range res.Done {
		if done {
			begun++
		}
	}
	return begun, nil
}

// runningOf counts the moves that are not blocked, by the last pass.
func (r *Runner) runningOf(list []topic.Move) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for i := range list {
		if r.watchLocked(&list[i]).row.Blocked == "" {
			n++
		}
	}
	return n
}

// Start begins the move that an administrator asks for by name.
func (r *Runner) Start(ctx context.Context, req *metaapi.StartMoveRequest) (*metaapi.MoveRow, error) {
	r.plan.Lock()
	defer r.plan.Unlock()
	if err := r.cfg.Sure(ctx); err != nil {
		return nil, err
	}
	s, err := r.read()
	if err != nil {
		return nil, err
	}
	ref, err := r.check(req, s)
	if err != nil {
		return nil, err
	}
	begun, err := r.beginLocked(ctx, s, topic.MoveAsked, []placement.Move{{Ref: ref, From: req.From, To: req.To}})
	switch {
	case err != nil:
		return nil, err
	case begun == 0:
		return nil, problem.New(problem.NotReady, "the partition or its nodes changed meanwhile")
	}
	return r.row(ref)
}

// check refuses a move that makes no sense.
func (r *Runner) check(req *metaapi.StartMoveRequest, s *state) (ref topic.Ref, err error) {
	p, err := r.cfg.View.Assignments(req.Topic)
	switch {
	case errors.Is(err, metastate.ErrNoTopic):
		return ref, problem.New(problem.TopicNotFound, "there is no topic %q", req.Topic)
	case err != nil:
		return ref, problem.New(problem.NotReady, "the leader has not registered itself yet")
	case req.Incarnation != 0 && req.Incarnation != p.Incarnation:
		return ref, problem.New(problem.TopicChanged, "%q is another topic now", req.Topic).With("incarnation", p.Incarnation.String())
	case req.Partition < 0 || int(req.Partition) >= len(p.List):
		return ref, problem.New(problem.PartitionOutOfRange, "%q has %d partitions", req.Topic, len(p.List)).With("partitions", len(p.List))
	}
	a := &p.List[req.Partition]
	if slices.ContainsFunc(s.moves, func(m topic.Move) bool { return m.Ref == a.Ref }) {
		return ref, problem.New(problem.MoveInProgress, "%s is moving already", a.Ref)
	}
	if err := checkNodes(req, a, r.cfg.View.Members().ByID); err != nil {
		return ref, err
	}
	if running := r.runningOf(s.moves); running >= metaapi.MaxRunningMoves {
		return ref, problem.New(problem.TooManyRequests, "%d moves run, which is the most at once", running)
	}
	return a.Ref, nil
}

func checkNodes(req *metaapi.StartMoveRequest, a *topic.Assignment, members map[string]*topic.Member) error {
	bad := func(parameter, format string, args ...any) error {
		return problem.New(problem.InvalidRequest, format, args...).With("parameter", parameter)
	}
	for _, id := range []string{req.From, req.To} {
		if members[id] == nil {
			return problem.New(problem.MemberNotFound, "there is no member %q", id)
		}
	}
	_, has := a.ReplicaOn(req.From)
	_, already := a.ReplicaOn(req.To)
	to := members[req.To]
	switch {
	case req.From == req.To:
		return bad("to", "the move begins and ends on %q", req.To)
	case members[req.From].Role != topic.RoleStorage:
		return bad("from", "%q is no storage node", req.From)
	case to.Role != topic.RoleStorage:
		return bad("to", "%q is no storage node", req.To)
	case !has:
		return bad("from", "%q has no replica of %s", req.From, a.Ref)
	case already:
		return bad("to", "%q has a replica of %s already", req.To, a.Ref)
	case to.Draining:
		return bad("to", "%q is draining", req.To)
	case to.Status != topic.StatusAlive:
		return problem.New(problem.NotReady, "%q is dead", req.To)
	}
	return nil
}

// Abort begins to take a move back. A rebalance that an administrator interferes
// with ends, so that it does not do it again at once.
func (r *Runner) Abort(ctx context.Context, req *metaapi.AbortMoveRequest) (*metaapi.MoveRow, error) {
	r.plan.Lock()
	defer r.plan.Unlock()
	if err := r.cfg.Sure(ctx); err != nil {
		return nil, err
	}
	s, err := r.read()
	if err != nil {
		return nil, err
	}
	none := problem.New(problem.MoveNotInFlight, "partition %d of %q is not moving", req.Partition, req.Topic)
	at := slices.IndexFunc(s.moves, func(m topic.Move) bool { return m.Topic == req.Topic && m.Partition == req.Partition })
	if at < 0 {
		return nil, none
	}
	m := s.moves[at]
	if req.StartedMS != 0 && req.StartedMS != m.StartedMS {
		return nil, problem.New(problem.MoveNotInFlight, "the move of partition %d of %q that was named has ended; the one to %q is another", m.Partition, m.Topic, m.To)
	}
	if !m.Aborted {
		res, err := r.cfg.Propose(ctx, &metastate.Moves{Abort: []topic.MoveID{m.ID()}})
		if err != nil {
			return nil, fmt.Errorf("abort the move of %s: %w", m.Ref, err)
		}
		if !res.Done[0] {
			return nil, none
		}
	}
	r.rebalance.armed, r.rebalance.unled = false, nil
	r.waits(topic.MoveRebalance, 0) // what it had planned is not to come
	if m.Reason == topic.MoveComplete {
		r.completeAt = r.cfg.Mono() + abortRest
		r.waits(topic.MoveComplete, 0)
	}
	r.mu.Lock()
	row := r.watchLocked(&m).row
	r.mu.Unlock()
	row.Aborted = true
	r.Kick()
	return &row, nil
}

func (r *Runner) row(ref topic.Ref) (*metaapi.MoveRow, error) {
	res, err := r.List()
	if err != nil {
		return nil, err
	}
	for i := range res.Moves {
		if res.Moves[i].Ref == ref {
			return &res.Moves[i], nil
		}
	}
	return nil, problem.New(problem.OutcomeUnknown, "the move of %s was begun and is over already", ref)
}
