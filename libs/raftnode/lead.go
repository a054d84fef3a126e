package raftnode

import (
	"context"
	"sync"
)

// leadership turns Raft's notifications into paired calls. Raft blocks until a
// notification is taken, so none is lost; LeaderCh would merge them.
type leadership struct {
	mu      sync.Mutex // guards the fields below
	term    context.Context
	end     context.CancelFunc // of term; nil while not leading
	changed chan struct{}      // closed and replaced at every notification
}

func newLeadership() *leadership { return &leadership{changed: make(chan struct{})} }

// watch takes every notification until the node closes.
func (l *leadership) watch(ctx context.Context, notify <-chan bool) {
	defer l.set(ctx, false)
	for {
		select {
		case leading := <-notify:
			l.set(ctx, leading)
		case <-ctx.Done():
			return
		}
	}
}

// set ends the former leadership, if any, and begins a new one if leading.
func (l *leadership) set(ctx context.Context, leading bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end != nil {
		l.end()
		l.term, l.end = nil, nil
	}
	if leading {
		l.term, l.end = context.WithCancel(ctx)
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *leadership) current() (term context.Context, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term, l.changed
}

// Lead calls fn each time that this node has become the Raft leader, with a
// context that ends as soon as it no longer leads, or ctx ends. Two calls never
// overlap: a leadership that begins while fn still runs for the former one waits
// for it, and one that ended meanwhile gets no call. When fn returns early it is
// not called again before the next election. Lead returns when ctx ends or the
// node closes. It is for one caller.
//
// fn must pass Barrier before it reads the state for a decision.
func (n *Node) Lead(ctx context.Context, fn func(ctx context.Context)) {
	var served context.Context
	for {
		term, changed := n.lead.current()
		if term != nil && term != served && term.Err() == nil {
			served = term
			both, cancel := context.WithCancel(term)
			stop := context.AfterFunc(ctx, cancel)
			fn(both)
			stop()
			cancel()
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		case <-n.closed:
			return
		}
	}
}
