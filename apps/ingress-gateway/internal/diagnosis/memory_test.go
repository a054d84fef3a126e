package diagnosis

import (
	"testing"
	"time"
)

// TestMemory: a problem that nothing dates is as old as the looks that have found it
// without a break, and one that is dated keeps its time.
func TestMemory(t *testing.T) {
	var m Memory
	look := func(after time.Duration, found ...Problem) []Problem {
		r := &Report{AsOf: now.Add(after), Problems: found}
		m.Complete(r)
		return r.Problems
	}
	full, dead := Problem{Code: DiskNearlyFull, Subject: "s1"}, Problem{Code: MemberDead, Subject: "s1", Since: now.Add(-time.Hour)}
	look(0, full, dead)
	got := look(time.Minute, full, dead, Problem{Code: DiskNearlyFull, Subject: "s2"})
	for i, want := range []time.Time{now, now.Add(-time.Hour), now.Add(time.Minute)} {
		if !got[i].Since.Equal(want) {
			t.Errorf("%s of %s since %v, want %v", got[i].Code, got[i].Subject, got[i].Since, want)
		}
	}
	look(2*time.Minute, dead)
	if again := look(3*time.Minute, full)[0]; !again.Since.Equal(now.Add(3 * time.Minute)) {
		t.Errorf("it was gone, and is there again since %v", again.Since)
	}
}
