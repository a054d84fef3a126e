package raftnode

import (
	"sync"

	"github.com/hashicorp/raft"
)

// Followers learn of a commit with the next entry, or else after Timing.Commit,
// which is long because it costs a call to every server each time. Somebody waits
// for a change to reach another node, so after one the leader tells its followers
// at once: each gets a request without entries that goes on where the last one
// ended, as Raft itself sends after Timing.Commit. No disk has to do with it.
//
// It is Raft's rule that makes that right: a follower takes a commit index up to
// the entry that it was just proved to share with the leader. So no peer is told
// of more than what it was sent before on the same connection (TestSpreadTells).

// spreadCommit tells followers of what was committed, if a change was. While other
// calls are under way the last of them does it: the entries of the others tell it.
func (n *Node) spreadCommit() {
	if n.calls.pending() == 0 && n.unspread.CompareAndSwap(true, false) {
		n.trans.spread(n.raft().CommitIndex())
	}
}

// spread tells every peer that a pipeline goes to, now or as soon as it was sent
// the entry. The others are sent entries one call after the other, and get a
// pipeline after the first success.
func (t *transport) spread(commit uint64) {
	grow(&t.committed, commit)
	t.mu.Lock()
	defer t.mu.Unlock()
	for p := range t.pipelines {
		p.poke()
	}
}

// inTerm tells whether this node still is in the term, as far as it knows.
func (t *transport) inTerm(term uint64) bool {
	r := t.running.Load()
	return r != nil && r.CurrentTerm() == term
}

// following is the request without entries that goes on where a request ends; it
// says of commits what that one said.
func following(a *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	next := *a
	next.Entries = nil
	if n := len(a.Entries); n > 0 {
		next.PrevLogEntry, next.PrevLogTerm = a.Entries[n-1].Index, a.Entries[n-1].Term
	}
	return &next
}

// telling is the request that tells a peer of a commit index, or nil when there is
// nothing to tell: sent is what follows what it was sent.
func telling(sent *raft.AppendEntriesRequest, committed uint64) *raft.AppendEntriesRequest {
	if sent == nil || sent.LeaderCommitIndex >= committed || sent.PrevLogEntry < committed {
		return nil
	}
	next := *sent
	next.LeaderCommitIndex = committed
	return &next
}

// pipeline falls silent with the leader, and closes at the first answer that is
// no success: Raft stops reading answers then, while its sender may stand in
// AppendEntries behind a full queue, for ever. A follower without room on its disk
// answers so. Beside what Raft sends it tells of commits.
type pipeline struct {
	raft.AppendPipeline
	trans   *transport
	answers chan raft.AppendFuture
	poked   chan struct{} // there may be something to tell
	stop    chan struct{}
	once    sync.Once

	mu   sync.Mutex                 // guards sent, and the order of requests; held over a send
	sent *raft.AppendEntriesRequest // what follows the last request; never changed; nil: not known
}

// newPipeline wraps a pipeline of Raft's; sent is what follows what the peer has
// answered to in this term.
func newPipeline(inner raft.AppendPipeline, t *transport, sent *raft.AppendEntriesRequest) *pipeline {
	p := &pipeline{
		AppendPipeline: inner, trans: t, sent: sent,
		answers: make(chan raft.AppendFuture), poked: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	go p.pass()
	go p.tell()
	p.poke()
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

// tell tells of commits until Raft closes the pipeline.
func (p *pipeline) tell() {
	for {
		select {
		case <-p.poked:
			if p.tellNow() != nil {
				_ = p.AppendPipeline.Close() // half a request may have been sent
			}
		case <-p.stop:
			return
		}
	}
}

func (p *pipeline) tellNow() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := telling(p.sent, p.trans.committed.Load())
	if next == nil || p.trans.stalled() || !p.trans.inTerm(next.Term) {
		return nil
	}
	p.sent = next
	_, err := p.AppendPipeline.AppendEntries(next, new(raft.AppendEntriesResponse)) // the answer goes to Raft
	return err
}

func (p *pipeline) poke() {
	select {
	case p.poked <- struct{}{}:
	default:
	}
}

// Consumer implements raft.AppendPipeline.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

// Close implements raft.AppendPipeline. It may be called again.
func (p *pipeline) Close() error {
	p.once.Do(func() {
		close(p.stop)
		p.trans.mu.Lock()
		defer p.trans.mu.Unlock()
		delete(p.trans.pipelines, p)
	})
	return p.AppendPipeline.Close()
}

// AppendEntries implements raft.AppendPipeline.
func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if p.trans.stalled() {
		return nil, errStalled
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	f, err := p.AppendPipeline.AppendEntries(args, resp)
	if err == nil {
		p.sent = following(args)
		p.poke() // what was committed while Raft made this request
	}
	return f, err
}
