package node

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestPaceOfCatchUp(t *testing.T) {
	const mib, one = 1 << 20, slowShare // one slow commit of debt
	for name, c := range map[string]struct {
		at   pace
		felt felt
		want pace
	}{
		"nothing is slow": {pace{rate: 64 * mib}, felt{commits: 16, sent: 64 * mib}, pace{rate: 68 * mib, debt: -16}},
		"credit is bounded": {
			pace{rate: 64 * mib, debt: -mostCredit * (one + 16)}, felt{commits: 16, sent: 64 * mib}, pace{rate: 68 * mib, debt: -mostCredit * (one + 16)},
		},
		"there was credit for it": {pace{rate: 64 * mib, debt: -one}, felt{commits: 10, slow: 1, sent: 64 * mib}, pace{rate: 68 * mib, debt: -10}},
		"one more than its share": {pace{rate: 64 * mib}, felt{commits: 10, slow: 1, sent: 64 * mib}, pace{rate: 64 * mib, debt: one - 10}},
		"too many are slow, from what was sent": {
			pace{rate: 512 * mib}, felt{commits: 28, slow: 2, sent: 96 * mib}, pace{rate: 64 * mib, debt: 2*one - 28, hold: holdWindows},
		},
		"debt is bounded": {
			pace{rate: 96 * mib}, felt{commits: 100, slow: 100, sent: 96 * mib}, pace{rate: 64 * mib, debt: mostDebt * (one + 100), hold: holdWindows},
		},
		"what was sent before may be slow yet": {
			pace{rate: 64 * mib, debt: one, hold: 2}, felt{commits: 28, slow: 2, sent: 64 * mib}, pace{rate: 64 * mib, debt: 3*one - 28, hold: 1},
		},
		"of many the share of one window more is no reason": {
			pace{rate: 64 * mib}, felt{commits: 10 * one, slow: 20, sent: 64 * mib}, pace{rate: 64 * mib, debt: 10 * one},
		},
		"debt alone is no reason": {pace{rate: 64 * mib, debt: 3 * one}, felt{commits: 28, sent: 64 * mib}, pace{rate: 64 * mib, debt: 3*one - 28}},
		"none ends":               {pace{rate: 96 * mib}, felt{stuck: true, sent: 96 * mib}, pace{rate: 64 * mib, hold: holdWindows}},
		"never less than the least": {
			pace{rate: 18 * mib, debt: one}, felt{commits: 1, slow: 1}, pace{rate: catchUpLeast, debt: 2*one - 1, hold: holdWindows},
		},
		"nor than what comes": {
			pace{rate: 18 * mib, debt: one}, felt{commits: 1, slow: 1, appended: 9 * mib}, pace{rate: catchUpLeast + 9*mib, debt: 2*one - 1, hold: holdWindows},
		},
		"a second without commits": {
			pace{rate: 18 * mib, debt: one, hold: 1, quiet: quietWindows - 1}, felt{}, pace{rate: catchUpMost, quiet: quietWindows},
		},
		"less than that": {
			pace{rate: 64 * mib, debt: 1, quiet: quietWindows - 2}, felt{sent: 64 * mib}, pace{rate: 64 * mib, debt: 1, quiet: quietWindows - 1},
		},
		"somebody commits again": {
			pace{rate: catchUpMost, quiet: 50}, felt{commits: 1, slow: 2, sent: 300 * mib}, pace{rate: 200 * mib, debt: 2*one - 1, hold: holdWindows},
		},
		"a quarter of a window is slow, whatever the credit": {
			pace{rate: 96 * mib, debt: -9 * one}, felt{commits: 12, slow: 3, sent: 96 * mib}, pace{rate: 64 * mib, debt: -6*one - 12, hold: holdWindows},
		},
		"nearly":                    {pace{rate: 64 * mib, debt: -9 * one}, felt{commits: 13, slow: 3, sent: 64 * mib}, pace{rate: 68 * mib, debt: -6*one - 13}},
		"two of two may be a stall": {pace{rate: 64 * mib, debt: -9 * one}, felt{commits: 2, slow: 2, sent: 64 * mib}, pace{rate: 68 * mib, debt: -7*one - 2}},
		"no more than anything":     {pace{rate: catchUpMost, quiet: 50}, felt{commits: 1}, pace{rate: catchUpMost, debt: -1}},
	} {
		if got := c.at.next(c.felt); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// machine is one on which a part of the commits is slow anyway, and soon most of them
// when copies get more than it bears; a stall meets several at once. What was sent in one
// window is felt in the next one too.
type machine struct {
	bears   int64 // bytes/s
	commits int   // in a window
	rnd     *rand.Rand
	before  int64
}

func (m *machine) window(rate int64) felt {
	const anyway, stall = 0.004, 3
	share := anyway + 0.5*max(float64(max(rate, m.before))/float64(m.bears)-1, 0)
	m.before = rate
	f := felt{commits: m.commits, sent: rate}
	for i := 0; i < m.commits; i++ {
		if m.rnd.Float64() < share/stall {
			f.slow, i = f.slow+stall, i+stall-1
		}
	}
	f.slow = min(f.slow, f.commits)
	return f
}

// Whatever a machine bears is found, and so many commits at most are slow meanwhile that
// the 99th percentile of all is not. One that bears everything is used to the full.
func TestPaceFindsWhatAMachineBears(t *testing.T) {
	const mib, windows, settled = 1 << 20, 3000, 100
	for _, bears := range []int64{30 * mib, 90 * mib, 250 * mib, 1000 * mib} {
		for _, commits := range []int{5, 10, 100, 1000} {
			slow, all, rates := 0, 0, int64(0)
			m := &machine{bears: bears, commits: commits, rnd: rand.New(rand.NewPCG(1, uint64(commits)))}
			p := newPace()
			for i := range windows {
				f := m.window(p.rate)
				p = p.next(f)
				slow, all = slow+f.slow, all+f.commits
				if i >= settled {
					rates += p.rate / (windows - settled)
				}
			}
			if slow*100 > all {
				t.Errorf("of a machine that bears %d MiB/s: %d of %d commits were slow", bears/mib, slow, all)
			}
			if rates < bears/3 || rates > bears*4/3 {
				t.Errorf("a machine that bears %d MiB/s, with %d commits a window, was given %d MiB/s", bears/mib, commits, rates/mib)
			}
		}
	}
	p := newPace()
	for range 10_000 / feelMS * 3 / 2 { // 15 s
		p = p.next(felt{commits: 20, sent: p.rate})
	}
	if p.rate != catchUpMost {
		t.Errorf("nobody suffered, and it was %d MiB/s", p.rate/mib)
	}
}

// Commits that are always slow leave the least, and it never ends.
func TestPaceHasAFloor(t *testing.T) {
	p := newPace()
	for range 1000 {
		p = p.next(felt{commits: 10, slow: 10, sent: p.rate})
	}
	if p.rate != catchUpLeast {
		t.Fatalf("%d bytes/s", p.rate)
	}
}

// Over any time no more than the rate and one burst goes to copies that catch up, with
// what a batch went past it made up for; and all of that when it is asked for as told.
func TestCatchUpIsBounded(t *testing.T) {
	p := &pulse{}
	b := newBucket(p)
	sent, again := 0, int64(0)
	const ms, over = 5000, 100 << 10
	most := int64(catchUpBurst + catchUpPiece + over)
	for now := int64(1); now <= ms; now++ {
		p.began()
		p.ended(time.Second, 1, now) // commits are slow all the time
		for range 10 {
			if now < again {
				break
			}
			got, wait := b.take(1<<20, now)
			if wait > 0 {
				again = now + wait.Milliseconds()
				break
			}
			got += over // the batch that always fits
			b.spent(got, now)
			sent += got
		}
		most += b.pace.rate / 1000
	}
	if int64(sent) > most || int64(sent) < most*8/10 {
		t.Fatalf("%d bytes in %d ms, at most %d", sent, ms, most)
	}
	if b.pace.rate > 2*catchUpLeast {
		t.Fatalf("slow commits leave %d bytes/s", b.pace.rate)
	}
	if got, _ := b.take(1<<20, 2*ms); got != catchUpPiece {
		t.Fatalf("%d bytes given beside commits", got)
	}
	now, got := int64(2*ms), 0
	for range quietWindows + 2 {
		now += feelMS
		got, _ = b.take(1<<20, now)
	}
	if got != 1<<20 {
		t.Fatalf("%d bytes given when nobody commits", got)
	}
}

// A pause begins anew: what was slow then says nothing of now.
func TestCatchUpBeginsAnew(t *testing.T) {
	p := &pulse{}
	b := newBucket(p)
	for now := int64(1); now < 3000; now += 10 {
		p.began()
		p.ended(time.Second, 1, now)
		b.take(1<<20, now)
	}
	if b.pace.rate >= catchUpStart {
		t.Fatalf("slow commits left %+v", b.pace)
	}
	b.take(1<<20, 3000+quietWindows*feelMS)
	if b.pace != newPace() {
		t.Fatalf("after a pause %+v", b.pace)
	}
}

// What is usual is learned without catch-up only, and what is slow follows from it.
func TestPulseLearnsWhatIsUsual(t *testing.T) {
	p := &pulse{}
	commit := func(took time.Duration, now int64) {
		p.began()
		p.ended(took, 10, now)
	}
	commit(slowUnknown+time.Millisecond, 0)
	if f := p.take(feelMS); f.slow != 1 || f.commits != 1 || f.appended != 100 {
		t.Fatalf("before anything is known: %+v", f)
	}
	now := int64(0)
	learn := func(took time.Duration) {
		for range 2 * usualCommits {
			now += usualMS / usualCommits
			commit(took, now)
		}
		p.take(feelMS)
	}
	learn(10 * time.Millisecond)
	learn(10 * time.Millisecond)
	if l := p.limit(); l < 20*time.Millisecond || l > 25*time.Millisecond {
		t.Fatalf("slow above %s", l)
	}
	p.sending.Store(now + 1<<40) // something catches up all the time
	learn(time.Second)
	if l := p.limit(); l > 25*time.Millisecond {
		t.Fatalf("commits beside catch-up made it %s", l)
	}
	commit(19*time.Millisecond, now)
	commit(26*time.Millisecond, now)
	if f := p.take(feelMS); f.slow != 1 {
		t.Fatalf("%+v", f)
	}
	p.began()
	if f := p.take(feelMS); !f.stuck {
		t.Fatalf("one that waits longer than usual: %+v", f)
	}
	p.ended(0, 0, now)
	if f := p.take(feelMS); f.stuck || f.commits != 0 {
		t.Fatalf("one that failed: %+v", f)
	}
	p.sending.Store(0)
	learn(time.Microsecond)
	learn(time.Microsecond)
	if l := p.limit(); l != slowLeast {
		t.Fatalf("nobody feels %s", l)
	}
}

func TestPercentile99(t *testing.T) {
	for _, d := range []time.Duration{0, time.Microsecond, 7 * time.Microsecond, 999 * time.Microsecond, 10 * time.Millisecond, time.Second, time.Hour} {
		i := bucketOf(d)
		if top := ceiling(i); top <= d || i > 0 && top > d*5/4+time.Microsecond {
			t.Errorf("%s is in the bucket that ends at %s", d, top)
		}
	}
	counts := make([]int64, buckets)
	if got := percentile99(counts); got != 0 {
		t.Errorf("of nothing %s", got)
	}
	fast, slow := bucketOf(time.Millisecond), bucketOf(time.Second)
	counts[fast], counts[slow] = 990, 10
	if got := percentile99(counts); got != ceiling(fast) {
		t.Errorf("one in a hundred is above it: %s", got)
	}
	counts[slow]++
	if got := percentile99(counts); got != ceiling(slow) {
		t.Errorf("%s", got)
	}
}
