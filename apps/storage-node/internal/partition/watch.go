package partition

import "sync"

// Watcher is a fetch that waits for news of many partitions. Safe for concurrent use.
type Watcher struct {
	wake chan struct{}

	mu   sync.Mutex // guards news
	news []int
}

// NewWatcher returns a watcher that has heard nothing.
func NewWatcher() *Watcher { return &Watcher{wake: make(chan struct{}, 1)} }

// Wake is signalled when there is news.
func (w *Watcher) Wake() <-chan struct{} { return w.wake }

// Take returns the marks of the partitions that had news since the last Take, a
// mark perhaps more than once.
func (w *Watcher) Take() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.news
	w.news = nil
	return out
}

// Tell signals news under a mark.
func (w *Watcher) Tell(mark int) {
	w.mu.Lock()
	w.news = append(w.news, mark)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// watchers are the fetches that wait for one partition: one per follower, and
// for a moment two.
type watchers struct {
	mu   sync.Mutex // guards list; a leaf
	list []watching
}

type watching struct {
	w    *Watcher
	mark int
}

// Watch makes w hear of the partition's next news under mark, once: of bytes to
// fetch, positions, or the end of the leadership.
func (p *Partition) Watch(w *Watcher, mark int) {
	p.watch.mu.Lock()
	defer p.watch.mu.Unlock()
	p.watch.list = append(p.watch.list, watching{w, mark})
}

// Unwatch ends what Watch began, if nothing was heard.
func (p *Partition) Unwatch(w *Watcher) {
	p.watch.mu.Lock()
	defer p.watch.mu.Unlock()
	for i, at := range p.watch.list {
		if at.w == w {
			p.watch.list = append(p.watch.list[:i], p.watch.list[i+1:]...)
			return
		}
	}
}

// tell tells everybody who watches.
func (ws *watchers) tell() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, at := range ws.list {
		at.w.Tell(at.mark)
	}
	clear(ws.list)
	ws.list = ws.list[:0]
}
