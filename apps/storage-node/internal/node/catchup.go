package node

import "sync"

const (
	// catchUpRate bounds what this node sends in a second, together, to copies that
	// are far behind and to destinations of moves: a disk and a network carry several
	// times as much, so that live traffic is not starved by a rebalance.
	catchUpRate = 64 << 20
	// catchUpBurst is how much of it may go at once: what one fetch may ask for.
	catchUpBurst = 8 << 20
)

// bucket is a token bucket of bytes. Safe for concurrent use; a leaf.
type bucket struct {
	mu   sync.Mutex // guards what follows
	left int64
	at   int64 // monotonic ms of the last refill
}

// take gives at most want bytes, 0 when nothing is left now. What an answer goes past
// it, by a batch that always fits, is owed.
func (b *bucket) take(want int, nowMS int64) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if passed := nowMS - b.at; passed > 0 {
		b.left = min(b.left+passed*catchUpRate/1000, catchUpBurst)
		b.at = nowMS
	}
	return int(max(min(int64(want), b.left), 0))
}

// spent takes what was really sent.
func (b *bucket) spent(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left -= int64(n)
}
