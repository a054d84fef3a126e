//go:build e2e

package scenarios

import (
	"slices"
	"sync"
	"time"
)

// latencies is how long each message of a benchmark's client took, from when it was
// due: one that had to wait for others waited. Safe for concurrent use.
type latencies struct {
	mu   sync.Mutex // guards took
	took []time.Duration
}

func (l *latencies) note(due time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took = append(l.took, time.Since(due))
}

// mark is where since begins.
func (l *latencies) mark() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.took)
}

func (l *latencies) since(mark int) []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.took[mark:])
}

// during is what took place within d from now.
func (l *latencies) during(d time.Duration) []time.Duration {
	mark := l.mark()
	<-time.After(d)
	return l.since(mark)
}

func percentile(list []time.Duration, p int) time.Duration {
	if len(list) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(list))[(len(list)-1)*p/100]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
