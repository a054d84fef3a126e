package raftnode

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// stallHandOff is how long a write of the Raft log may take before a leader
	// stops its calls, so that the others elect: its main loop stands in the write,
	// but its heartbeats would go on and keep everybody waiting.
	stallHandOff = 5 * time.Second
	// stallExit is how long it may take before a voter gives up: after a restart it
	// is seen whether the disk can be written.
	stallExit = 30 * time.Second
	// stallPoll is between two looks.
	stallPoll = time.Second
)

// errStalled answers Raft's calls to others while the log cannot be written.
var errStalled = errors.New("the raft log has not been written for too long")

// stalledFor tells for how long the write that is under way has not returned.
func (s *logStore) stalledFor() time.Duration {
	if began := s.busy.Load(); began != nil {
		return time.Since(*began)
	}
	return 0
}

// watchStall ends a voter whose log write never returns.
func (n *Node) watchStall(ctx context.Context) {
	tick := time.NewTicker(stallPoll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if d := n.logs.stalledFor(); d >= stallExit {
				n.fail(fmt.Errorf("%w: %v", errStalled, d.Round(time.Second)))
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// AppendEntriesPipeline implements raft.Transport.
func (t *transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	if t.stalled() {
		return nil, errStalled
	}
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return newPipeline(p, t.stalled), nil
}

// pipeline falls silent with the leader, and closes at the first answer that is
// no success: Raft stops reading answers then, while its sender may stand in
// AppendEntries behind a full queue, for ever. A follower without room on its disk
// answers so.
type pipeline struct {
	raft.AppendPipeline
	stalled func() bool
	answers chan raft.AppendFuture
	stop    chan struct{}
	once    sync.Once
}

func newPipeline(inner raft.AppendPipeline, stalled func() bool) *pipeline {
	p := &pipeline{AppendPipeline: inner, stalled: stalled, answers: make(chan raft.AppendFuture), stop: make(chan struct{})}
	go p.pass()
	return p
}

// pass hands the answers on until Raft closes the pipeline, which it always does.
func (p *pipeline) pass() {
	for {
		select {
		case f := <-p.AppendPipeline.Consumer():
			if f.Error() != nil || !f.Response().Success {
				_ = p.AppendPipeline.Close() // frees a sender; Raft asks again without a pipeline
			}
			select {
			case p.answers <- f:
			case <-p.stop:
				return
			}
		case <-p.stop:
			return
		}
	}
}

// Consumer implements raft.AppendPipeline.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

// Close implements raft.AppendPipeline. It may be called again.
func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.stop) })
	return p.AppendPipeline.Close()
}

// AppendEntries implements raft.AppendPipeline.
func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if p.stalled() {
		return nil, errStalled
	}
	return p.AppendPipeline.AppendEntries(args, resp)
}
