package node

import (
	"testing"
	"time"
)

func TestPaceOfCatchUp(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		at   pace
		felt felt
		want pace
	}{
		"nothing was slow yet": {pace{rate: 64 * mib, probing: true}, felt{commits: 20}, pace{rate: 128 * mib, probing: true}},
		"the first slow one ends that, from what was sent": {
			pace{rate: 512 * mib, probing: true}, felt{commits: 8, slow: 1, sent: 160 * mib}, pace{rate: 144 * mib},
		},
		"nothing is slow":           {pace{rate: 64 * mib}, felt{commits: 16, sent: 64 * mib}, pace{rate: 65 * mib}},
		"many commits":              {pace{rate: 64 * mib}, felt{commits: 5000, sent: 64 * mib}, pace{rate: 72 * mib}},
		"too many are slow":         {pace{rate: 64 * mib}, felt{commits: 128, slow: 2, sent: 200 * mib}, pace{rate: 56 * mib}},
		"as many as may be":         {pace{rate: 64 * mib}, felt{commits: 128, slow: 1, sent: 64 * mib}, pace{rate: 64 * mib}},
		"all are slow":              {pace{rate: 128 * mib}, felt{commits: 16, slow: 16, sent: 128 * mib}, pace{rate: 66 * mib}},
		"none ends":                 {pace{rate: 128 * mib}, felt{stuck: true, sent: 128 * mib}, pace{rate: 64 * mib}},
		"never less than the least": {pace{rate: 18 * mib}, felt{commits: 1, slow: 1, sent: 0}, pace{rate: catchUpLeast}},
		"nor than what comes":       {pace{rate: 18 * mib}, felt{commits: 1, slow: 1, appended: 9 * mib}, pace{rate: catchUpLeast + 9*mib}},
		"a second without commits": {
			pace{rate: 18 * mib, quiet: quietWindows - 1}, felt{}, pace{rate: catchUpMost, quiet: quietWindows},
		},
		"less than that":         {pace{rate: 64 * mib, quiet: quietWindows - 2}, felt{sent: 64 * mib}, pace{rate: 64 * mib, quiet: quietWindows - 1}},
		"somebody commits again": {pace{rate: catchUpMost, quiet: 50}, felt{commits: 1, slow: 4, sent: 400 * mib}, pace{rate: 204 * mib}},
		"no more than anything":  {pace{rate: catchUpMost, quiet: 50}, felt{commits: 1}, pace{rate: catchUpMost}},
	} {
		if got := c.at.next(c.felt); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
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
	if b.pace.probing || b.pace.rate >= catchUpStart {
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
