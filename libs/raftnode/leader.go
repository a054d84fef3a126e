package raftnode

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/narad-mq/narad/libs/metastate"
)

// Apply puts an entry on the Raft log and waits until this node, the leader, has
// applied it. It answers the entry's index, for WaitApplied elsewhere, and the
// result, which may be a refusal (Result.Err). Errors: ErrNotLeader and ErrBusy
// mean that nothing happened and nothing will; ErrOutcomeUnknown means that the
// entry may be applied, now or later. An entry that cannot be encoded is neither.
func (n *Node) Apply(ctx context.Context, e metastate.Entry) (uint64, *metastate.Result, error) {
	raw, err := metastate.Encode(e)
	if err != nil {
		return 0, nil, err
	}
	if err := n.usable(ctx); err != nil {
		return 0, nil, fmt.Errorf("apply entry of type %d: %w", e.EntryType(), err)
	}
	if !n.calls.begin() {
		return 0, nil, fmt.Errorf("apply entry of type %d: %w", e.EntryType(), ErrBusy)
	}
	f := n.raft().Apply(raw, queueTime(ctx))
	err = n.wait(ctx, f)
	if err != nil {
		return 0, nil, fmt.Errorf("apply entry of type %d: %w", e.EntryType(), classify(err))
	}
	switch r := f.Response().(type) {
	case *metastate.Result:
		if r.Effects.Any() {
			n.unspread.Store(true)
		}
		n.spreadCommit()
		return f.Index(), r, nil
	case error:
		return f.Index(), nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, r)
	}
	return f.Index(), nil, fmt.Errorf("%w: raft answered nothing at index %d", ErrOutcomeUnknown, f.Index())
}

// usable refuses before anything was sent.
func (n *Node) usable(ctx context.Context) error {
	if err := n.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	if !n.IsLeader() {
		return ErrNotLeader
	}
	return nil
}

// queueTime is how long an entry may wait to be queued: Raft's own bound ends there.
func queueTime(ctx context.Context) time.Duration {
	if at, ok := ctx.Deadline(); ok {
		return max(time.Until(at), time.Millisecond)
	}
	return BarrierTimeout
}

// wait waits for the future of a call that has begun, no longer than ctx. The
// call ends when Raft has answered, however late.
func (n *Node) wait(ctx context.Context, f raft.Future) error {
	answer := make(chan error, 1)
	go func() {
		err := f.Error()
		n.calls.end()
		answer <- err
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-n.closed:
		return ErrClosed
	}
}

// Barrier returns nil when everything that was committed before the call has
// taken effect here and this node led all the while. Bounded by ctx and by
// BarrierTimeout. Any error means that nothing is known.
func (n *Node) Barrier(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, BarrierTimeout)
	defer cancel()
	if err := n.usable(ctx); err != nil {
		return fmt.Errorf("barrier: %w", err)
	}
	if !n.calls.begin() {
		return fmt.Errorf("barrier: %w", ErrBusy)
	}
	if err := n.wait(ctx, n.raft().Barrier(queueTime(ctx))); err != nil {
		return fmt.Errorf("barrier: %w", classify(err))
	}
	n.spreadCommit()
	return nil
}

// TransferLeadership hands leadership to the most up-to-date other voter, and
// returns when this node has stepped down. ErrNotLeader when it does not lead.
func (n *Node) TransferLeadership(ctx context.Context) error {
	if err := n.usable(ctx); err != nil {
		return fmt.Errorf("transfer leadership: %w", err)
	}
	if !n.calls.begin() {
		return fmt.Errorf("transfer leadership: %w", ErrBusy)
	}
	if err := n.wait(ctx, n.raft().LeadershipTransfer()); err != nil {
		return fmt.Errorf("transfer leadership: %w", classify(err))
	}
	return nil
}

// IsLeader tells whether this node leads, as far as it knows.
func (n *Node) IsLeader() bool {
	r := n.raft()
	return r != nil && r.State() == raft.Leader
}

// Leader returns the node id and Raft address of the leader that this node
// follows (or is), or two empty strings.
func (n *Node) Leader() (nodeID, addr string) {
	r := n.raft()
	if r == nil {
		return "", ""
	}
	a, id := r.LeaderWithID()
	return NodeOf(string(id)), string(a)
}

// LeaderContact tells how long ago the leader was heard: 0 while leading; ok is
// false when none was heard since the start.
func (n *Node) LeaderContact() (age time.Duration, ok bool) {
	if n.IsLeader() {
		return 0, true
	}
	r := n.raft()
	if r == nil {
		return 0, false
	}
	at := r.LastContact()
	if at.IsZero() {
		return 0, false
	}
	return time.Since(at), true
}
