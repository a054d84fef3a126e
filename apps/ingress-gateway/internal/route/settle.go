package route

import (
	"context"
	"errors"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// settleBudget is how long a settlement may take.
	settleBudget = 5 * time.Second
	// settleTry ends one call, so that a lost answer leaves time to ask again:
	// settling twice is settling once.
	settleTry = 2 * time.Second
	// settlesPerNode: one call under way while the next one gathers.
	settlesPerNode = 2
	// maxReleases bounds the leases that wait to be given back to one node; beyond
	// it they return when they run out.
	maxReleases = 100_000
)

// settleQueue is what waits to be settled at one node; its node's mutex guards it.
type settleQueue struct {
	jobs     []*settleJob
	calls    inFlight
	releases int // operations of jobs that nobody waits for
}

// settleJob is the operations of one request for one node.
type settleJob struct {
	ops      []nodeapi.SettleOp
	statuses []nodeapi.SettleStatus
	err      error
	done     chan struct{} // nil: nobody waits
}

// Settle implements api.Consumer.
func (r *Router) Settle(ctx context.Context, t *topic.Topic, ops []nodeapi.SettleOp) ([]nodeapi.SettleStatus, error) {
	begin := time.Now()
	statuses, err := r.settleAll(ctx, t, ops)
	r.measures.wasSettled(begin, len(ops), statuses, err)
	return statuses, err
}

// settleAll repeats what has an unknown outcome, at its leader, until the budget ends.
func (r *Router) settleAll(ctx context.Context, t *topic.Topic, ops []nodeapi.SettleOp) ([]nodeapi.SettleStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, settleBudget)
	defer cancel()
	statuses := make([]nodeapi.SettleStatus, len(ops))
	open := make([]int, len(ops))
	for i := range open {
		open[i] = i
	}
	for {
		unknown, err := r.settleOnce(ctx, t, ops, open, statuses)
		if err != nil {
			return nil, err
		}
		if len(unknown) == 0 {
			return statuses, nil
		}
		open = unknown
		if !sleep(ctx, 50*time.Millisecond) {
			return nil, problem.New(problem.OutcomeUnknown, "the leader of a partition did not answer in time; the settlement may have been made")
		}
	}
}

// settleOnce settles the open operations at their leaders and returns those whose
// outcome is unknown.
func (r *Router) settleOnce(ctx context.Context, t *topic.Topic, ops []nodeapi.SettleOp, open []int, statuses []nodeapi.SettleStatus) (unknown []int, err error) {
	if len(ops) == 1 {
		return r.settleSingle(ctx, t, ops, statuses)
	}
	changed := r.deps.View.Changed()
	jobs, at := map[string]*settleJob{}, map[string][]int{}
	for _, i := range open {
		_, leader, err := r.leader(t, ops[i].Partition)
		if problem.HasCode(err, problem.TopicNotFound) || problem.HasCode(err, problem.NotReady) {
			return nil, err
		}
		if err != nil {
			statuses[i] = nodeapi.SettleUnavailable
			continue
		}
		j := jobs[leader]
		if j == nil {
			j = &settleJob{done: make(chan struct{})}
			jobs[leader] = j
		}
		j.ops = append(j.ops, ops[i])
		at[leader] = append(at[leader], i)
	}
	for leader, j := range jobs {
		r.node(leader).enqueue(j)
	}
	for leader, j := range jobs {
		done, err := r.settled(ctx, t, j, changed)
		if err != nil {
			return nil, err
		}
		if done {
			unknown = collect(j, at[leader], statuses, unknown)
		} else {
			unknown = append(unknown, at[leader]...)
		}
	}
	return unknown, nil
}

// settleSingle is settleOnce for one operation, which is what most requests have.
func (r *Router) settleSingle(ctx context.Context, t *topic.Topic, ops []nodeapi.SettleOp, statuses []nodeapi.SettleStatus) (unknown []int, err error) {
	changed := r.deps.View.Changed()
	_, leader, err := r.leader(t, ops[0].Partition)
	if problem.HasCode(err, problem.TopicNotFound) || problem.HasCode(err, problem.NotReady) {
		return nil, err
	}
	if err != nil {
		statuses[0] = nodeapi.SettleUnavailable
		return nil, nil
	}
	// A copy: the job may outlive the caller, who uses ops again.
	j := &settleJob{ops: []nodeapi.SettleOp{ops[0]}, done: make(chan struct{})}
	r.node(leader).enqueue(j)
	done, err := r.settled(ctx, t, j, changed)
	if err != nil || !done {
		return []int{0}, err
	}
	return collect(j, []int{0}, statuses, nil), nil
}

func collect(j *settleJob, at []int, statuses []nodeapi.SettleStatus, unknown []int) []int {
	for k, i := range at {
		switch {
		case j.err == nil:
			statuses[i] = j.statuses[k]
		case surelyNothing(j.err):
			statuses[i] = nodeapi.SettleUnavailable
		default:
			unknown = append(unknown, i)
		}
	}
	return unknown
}

// surelyNothing tells whether an error says that the call did nothing.
func surelyNothing(err error) bool {
	var refused *problem.Problem
	var transport *rpc.TransportError
	if errors.As(err, &refused) {
		return refused.Applied == problem.AppliedNo
	}
	return errors.As(err, &transport) && !transport.Sent
}

// Release implements api.Consumer. A partition without a leader has no lease to
// give back: they end with its leadership.
func (r *Router) Release(t *topic.Topic, ds []nodeapi.Delivery) {
	jobs := map[string]*settleJob{}
	for i := range ds {
		target, leader, err := r.leader(t, ds[i].Partition)
		if err != nil {
			continue
		}
		j := jobs[leader]
		if j == nil {
			j = &settleJob{}
			jobs[leader] = j
		}
		j.ops = append(j.ops, nodeapi.SettleOp{
			Ref: target.Ref, Kind: nodeapi.SettleRelease, Offset: ds[i].Offset, Epoch: ds[i].Epoch, Nonce: ds[i].Nonce,
		})
	}
	for leader, j := range jobs {
		r.node(leader).enqueue(j)
	}
}

// enqueue adds a job to what the next call carries.
func (n *node) enqueue(j *settleJob) {
	if n.r.ctx.Err() != nil {
		if j.err = (&rpc.TransportError{Op: "settle", Node: n.id, Err: context.Canceled}); j.done != nil {
			close(j.done)
		}
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	q := &n.settle
	if j.done == nil {
		if q.releases+len(j.ops) > maxReleases {
			return
		}
		q.releases += len(j.ops)
	}
	q.jobs = append(q.jobs, j)
	if begins, _ := q.calls.begin(settlesPerNode, len(q.jobs), n.settleMore); begins {
		n.r.work.Add(1)
		go n.settleAll()
	}
}

// settleMore begins the next call when the ones under way have not returned soon.
func (n *node) settleMore() {
	n.mu.Lock()
	defer n.mu.Unlock()
	q := &n.settle
	q.calls.armed = false
	if len(q.jobs) == 0 {
		return
	}
	if begins, _ := q.calls.begin(settlesPerNode, enough, n.settleMore); begins {
		n.r.work.Add(1)
		go n.settleAll()
	}
}

// settleAll makes calls as long as something waits; each carries all that does.
func (n *node) settleAll() {
	defer n.r.work.Done()
	for jobs := n.takeJobs(); jobs != nil; jobs = n.takeJobs() {
		n.settleJobs(jobs)
	}
}

func (n *node) takeJobs() []*settleJob {
	n.mu.Lock()
	defer n.mu.Unlock()
	q := &n.settle
	ops, take := 0, 0
	for take < len(q.jobs) && (take == 0 || ops+len(q.jobs[take].ops) <= nodeapi.MaxSettleOps) {
		ops += len(q.jobs[take].ops)
		if q.jobs[take].done == nil {
			q.releases -= len(q.jobs[take].ops)
		}
		take++
	}
	if take == 0 {
		q.calls.n--
		return nil
	}
	q.calls.last = time.Now()
	jobs := append([]*settleJob(nil), q.jobs[:take]...)
	q.jobs = append(q.jobs[:0], q.jobs[take:]...)
	return jobs
}

func (n *node) settleJobs(jobs []*settleJob) {
	req := &nodeapi.SettleRequest{Ops: jobs[0].ops}
	if len(jobs) > 1 {
		req.Ops = nil
		for _, j := range jobs {
			req.Ops = append(req.Ops, j.ops...)
		}
	}
	ctx, cancel := context.WithTimeout(n.r.ctx, settleTry)
	defer cancel()
	var res *nodeapi.SettleResult
	var err error = &rpc.TransportError{Op: "settle", Node: n.id, Err: errNoNode}
	if wire := n.r.deps.Node(n.id); wire != nil {
		res, err = wire.Settle(ctx, req)
	}
	if err == nil && len(res.Statuses) != len(req.Ops) {
		err = &rpc.TransportError{Op: "settle", Node: n.id, Sent: true, Err: errors.New("another number of statuses than operations")}
	}
	at := 0
	for _, j := range jobs {
		if j.err = err; err == nil {
			j.statuses = res.Statuses[at : at+len(j.ops)]
		}
		at += len(j.ops)
		if j.done != nil {
			close(j.done)
		}
	}
}

var errNoNode = errors.New("not in the member table")

// sleep waits; false when ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
