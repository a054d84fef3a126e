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
// What a commit meets on the disk of a copy is bounded already: one piece of one partition
// at a time (replication, partition.farPiece). This is for what that does not bound: a
// slower disk, network or processor, and a leader that has to read what it sends.
// Measured with BenchmarkCatchUp, all nodes and the client on two cores and one disk that
// writes 360 MiB/s in sequence, 200 commits/s: 267 to 275 MiB/s in five runs, p99 1.2 to
// 1.6 times that without it, 2.4 to 3.1 ms; two runs between those with a law that took a third
// away for every second slow commit: 133 and 66 MiB/s, 1.2 times. Without a bound 333 MiB/s
// and 1.6 times. Every partition written at once when a copy returns, not one at a time, was
// a stall of 20 ms, and alone made it 1.4 to 2.1 times.
// A GiB takes 0.6 to 0.8 s of a processor from two leaders together, who make no garbage for
// it, and 1.7 s from the copy, nearly all of it in write and fdatasync.
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
	// slowShare: one commit in so many may be slow, which leaves the 99th percentile of
	// all below what slow is. Slow ones beyond that are a debt, fewer are credit.
	slowShare = 140
	// mostDebt and mostCredit bound what is remembered, in slow commits, of many commits in
	// what a window may have of them: a machine that stood still once does not stop the
	// catch-up for long, and an hour without a slow one allows a dozen at once, or a twelfth of
	// a window of many.
	// A catch-up begins with all the credit, and without any when others begin to commit
	// beside one that had no bound: a disk has stalls that no rate is the reason of, and to
	// slow down for each only makes the catch-up meet more of them.
	mostDebt, mostCredit = 8, 12
	// crowdPart: when one commit in so many of a window is slow, crowdLeast at least, that
	// is no stall, and no credit counts.
	crowdPart, crowdLeast = 4, 3
	// growPart of the rate is added in each window without debt: it is doubled in 1.2 s.
	growPart = 16
	// cutPart of it is taken away when a slow commit makes more debt than one such unit or
	// a window is crowded, and not again for holdWindows: until then what was sent before
	// may still be written. It begins so too: the return of a node slows commits by itself.
	cutPart     = 3
	holdWindows = 3
)

// pace is how fast copies that are far behind are served.
type pace struct {
	rate  int64 // bytes/s
	debt  int   // slow commits beyond their share so far, times slowShare; credit below 0
	hold  int   // windows in which it is not cut again
	quiet int   // windows without a commit
}

// newPace is where it begins.
func newPace() pace {
	return pace{rate: catchUpStart, debt: -mostCredit * slowShare, hold: holdWindows}
}

// felt is what happened in one window of feelMS.
type felt struct {
	commits, slow int
	stuck         bool  // commits wait for longer than usual, and none ended
	appended      int64 // bytes/s of commits
	sent          int64 // bytes/s of catch-up
}

// next decides what the next window may have.
func (p pace) next(f felt) pace {
	unit := slowShare + f.commits // a slow commit, or the share of many
	p.debt = min(max(p.debt+f.slow*slowShare-f.commits, -mostCredit*unit), mostDebt*unit)
	if p.quiet++; f.commits > 0 || f.stuck {
		p.quiet = 0
	}
	switch {
	case p.quiet >= quietWindows:
		p.rate, p.debt, p.hold = catchUpMost, 0, 0
	case p.hold > 0:
		p.hold--
	case f.stuck, f.slow > 0 && p.debt > unit, f.slow >= crowdLeast && f.slow*crowdPart >= f.commits:
		p.rate = min(p.rate, max(f.sent, 1)) // what it may send and does not send slows nobody down
		p.rate -= p.rate / cutPart
		p.hold = holdWindows
	case p.debt <= 0:
		p.rate += p.rate / growPart
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
	last int64 // bytes/s in the one before
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
	f, sent := b.pulse.take(passed), b.sent*1000/passed
	f.sent = max(sent, b.last) // one window may have ended just before much was sent
	if passed < quietWindows*feelMS {
		b.pace = b.pace.next(f)
	} else {
		b.pace = newPace()
	}
	b.from, b.sent, b.last = nowMS, 0, sent
}

// spent takes what was really sent.
func (b *bucket) spent(n int, nowMS int64) {
	b.pulse.sending.Store(nowMS)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left -= int64(n)
	b.sent += int64(n)
}
