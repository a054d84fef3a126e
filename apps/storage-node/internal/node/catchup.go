package node

import (
	"sync"
	"time"
)

// What a node sends to copies that are far behind and to destinations of moves shares
// processor, disk and network with live commits. How much of them it may take depends
// on the machine and on the load, so it is found out: as long as commits take what
// they take without it, it goes faster; when they take longer, slower. Nobody commits:
// there is nobody to spare.
// Measured with BenchmarkCatchUp, all nodes and the client on two cores and one disk that
// writes 340 MiB/s in sequence: without a bound 285 MiB/s, and a p99 of 190 ms for commits
// that take 3.5 ms alone; at the least of two leaders together 31 MiB/s, and 5.7 ms.
// At 160 MiB/s without this rule 7.0 ms beside 2.8 to 3.4 ms alone, batches of 1 MiB synced
// whole: the longest sync that a commit meets decides, and the rate only how many meet it.
const (
	// catchUpStart is what it begins with, in bytes/s: a quarter of what a common disk
	// writes in sequence, half of a network of 1 Gbit/s.
	catchUpStart = 64 << 20
	// catchUpLeast is what it may always send, beside as much as is appended meanwhile:
	// so it always ends, 1 TiB in 18 hours.
	catchUpLeast = 16 << 20
	// catchUpMost is no bound: more than a disk or a network carries.
	catchUpMost = 4 << 30
	// catchUpPiece is what one answer carries of one partition while others commit, a
	// batch at least, which the copy writes in pieces (partition.farPiece): the sync of a
	// commit that meets that of a piece waits for all of it. Beside 160 MiB/s in pieces of
	// 256 KiB, one after the other, three small syncs took 1.8 ms (p99) where they took
	// 1.4 ms alone, in pieces of 8 MiB 24 ms.
	catchUpPiece = 256 << 10
	// catchUpBurst is how much may go at once: what was not taken while a processor was
	// waited for, and little, because the copy writes it without a pause.
	catchUpBurst = 4 * catchUpPiece
	// feelMS is between two decisions: some commits have ended by then, and no more
	// than a tenth of a second is as slow as the first one that was.
	feelMS = 100
	// quietWindows without a commit: nobody commits.
	quietWindows = 10
	// cutPart of the rate is taken away for each commit that was slow, half of it at
	// most in one window, and given back for slowShare commits: they are in balance
	// when one in so many is slow, which leaves the 99th percentile of all below what
	// slow is.
	cutPart   = 8
	slowShare = 128
)

// pace is how fast copies that are far behind are served.
type pace struct {
	rate    int64 // bytes/s
	probing bool  // nothing was slow yet since it began: the rate is doubled
	quiet   int   // windows without a commit
}

// newPace is where it begins.
func newPace() pace { return pace{rate: catchUpStart, probing: true} }

// felt is what happened in one window of feelMS.
type felt struct {
	commits, slow int
	stuck         bool  // commits wait for longer than usual, and none ended
	appended      int64 // bytes/s of commits
	sent          int64 // bytes/s of catch-up
}

// next decides what the next window may have.
func (p pace) next(f felt) pace {
	if f.commits > 0 || f.stuck {
		p.quiet = 0
	} else {
		p.quiet++
	}
	switch {
	case p.quiet >= quietWindows:
		p.rate = catchUpMost
	case p.probing && f.slow == 0 && !f.stuck:
		p.rate *= 2
	default:
		grow := p.rate / cutPart * int64(min(f.commits, slowShare)) / slowShare
		slow := f.slow
		if f.stuck {
			slow = cutPart
		}
		if slow > 0 { // what it may send and does not send slows nobody down
			p.rate, p.probing = min(p.rate, max(f.sent, 1)), false
		}
		p.rate += grow - p.rate/cutPart*int64(min(slow, cutPart/2))
	}
	p.rate = min(max(p.rate, catchUpLeast+f.appended), catchUpMost)
	return p
}

// bucket is a token bucket of bytes whose rate follows pace. Safe for concurrent use; a leaf.
type bucket struct {
	pulse *pulse

	mu   sync.Mutex // guards what follows
	pace pace
	left int64
	at   int64 // monotonic ms of the last refill
	from int64 // when the window began
	sent int64 // in it
}

func newBucket(p *pulse) *bucket { return &bucket{pulse: p, pace: newPace()} }

// take gives at most want bytes, a piece while others commit, or nothing and when to come again. What an answer
// goes past it, by a batch that always fits, is owed.
func (b *bucket) take(want int, nowMS int64) (room int, again time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.feelLocked(nowMS)
	if passed := nowMS - b.at; passed > 0 {
		b.left = min(b.left+passed*b.pace.rate/1000, catchUpBurst)
		b.at = nowMS
	}
	if b.pace.quiet < quietWindows {
		want = min(want, catchUpPiece)
	}
	if least := min(int64(want), catchUpPiece); b.left < least {
		return 0, time.Duration((least-b.left)*1000/b.pace.rate+1) * time.Millisecond
	}
	return int(min(int64(want), b.left)), 0
}

// feelLocked decides anew when a window has passed. After a pause it begins again.
func (b *bucket) feelLocked(nowMS int64) {
	passed := nowMS - b.from
	if passed < feelMS {
		return
	}
	f := b.pulse.take(passed)
	f.sent = b.sent * 1000 / passed
	if passed < quietWindows*feelMS {
		b.pace = b.pace.next(f)
	} else {
		b.pace = newPace()
	}
	b.from, b.sent = nowMS, 0
}

// spent takes what was really sent.
func (b *bucket) spent(n int, nowMS int64) {
	b.pulse.sending.Store(nowMS)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left -= int64(n)
	b.sent += int64(n)
}
