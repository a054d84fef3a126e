package node

import (
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	// usualMS is for how long, at least, commits are looked at to know what they take
	// when nothing catches up, and usualCommits how many: a percentile of 99 has at
	// least two above it then.
	usualMS      = 10_000
	usualCommits = 200
	// afterMS after catch-up has sent something a commit counts as one beside it: what
	// was sent is being written meanwhile.
	afterMS = 1000
	// A commit is slow that takes longer than slowTimes its usual 99th percentile, and
	// never one within slowLeast, which nobody feels. Before that is known it is
	// slowUnknown: several syncs of a slow disk.
	slowTimes   = 2
	slowLeast   = 2 * time.Millisecond
	slowUnknown = 50 * time.Millisecond
)

// pulse feels how long commits take. It is on the path of all of them, and has no lock.
// Counts that race with the change of a window fall into the one or the other.
type pulse struct {
	slowNS atomic.Int64 // a commit that takes longer is slow; 0: not known
	// sending is the monotonic ms at which something was sent last to copies that are far behind.
	sending atomic.Int64

	under          atomic.Int64 // commits under way
	commits, slow  atomic.Int64 // of this window
	appended       atomic.Int64
	since, settled atomic.Int64 // when the look at usual commits began, and how many there were
	usual          [buckets]atomic.Int64
}

// began is told of a commit that begins; ended has to follow.
func (p *pulse) began() { p.under.Add(1) }

// ended is told how long a commit took, and of how many bytes; 0: it failed.
func (p *pulse) ended(took time.Duration, bytes int, nowMS int64) {
	p.under.Add(-1)
	if bytes == 0 {
		return
	}
	p.commits.Add(1)
	p.appended.Add(int64(bytes))
	if took > p.limit() {
		p.slow.Add(1)
	}
	if at := p.sending.Load(); at == 0 || nowMS-at > afterMS {
		p.learn(took, nowMS)
	}
}

// limit is what a commit may take that is not slow.
func (p *pulse) limit() time.Duration {
	if ns := p.slowNS.Load(); ns > 0 {
		return time.Duration(ns)
	}
	return slowUnknown
}

// learn adds a commit to the usual ones; at the end of each look the last one counts.
func (p *pulse) learn(took time.Duration, nowMS int64) {
	p.usual[bucketOf(took)].Add(1)
	n, since := p.settled.Add(1), p.since.Load()
	if n < usualCommits || nowMS-since < usualMS || !p.since.CompareAndSwap(since, nowMS) {
		return
	}
	p.settled.Store(0)
	var counts [buckets]int64
	for i := range p.usual {
		counts[i] = p.usual[i].Swap(0)
	}
	p.slowNS.Store(int64(max(slowTimes*percentile99(counts[:]), slowLeast)))
}

// take ends a window of so many ms.
func (p *pulse) take(ms int64) felt {
	f := felt{commits: int(p.commits.Swap(0)), slow: int(p.slow.Swap(0)), appended: p.appended.Swap(0) * 1000 / ms}
	f.stuck = f.commits == 0 && p.under.Load() > 0 && p.limit() < time.Duration(ms)*time.Millisecond
	return f
}

// buckets of times, four for each power of two of microseconds: up to an hour.
const buckets = 128

// bucketOf is the bucket of a time.
func bucketOf(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 4))
	n := bits.Len64(us)
	return min(4*(n-3)+int(us>>(n-3)&3), buckets-1)
}

// ceiling is the time above all in a bucket.
func ceiling(bucket int) time.Duration {
	return time.Duration(5+bucket%4) << (bucket / 4) * time.Microsecond
}

// percentile99 is the time that at most one in a hundred took longer, rounded up to
// its bucket; 0 without any.
func percentile99(counts []int64) time.Duration {
	all := int64(0)
	for _, n := range counts {
		all += n
	}
	above := int64(0)
	for i := len(counts) - 1; i >= 0; i-- {
		if above += counts[i]; above*100 > all {
			return ceiling(i)
		}
	}
	return 0
}
