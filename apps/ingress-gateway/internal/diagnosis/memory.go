package diagnosis

import (
	"sync"
	"time"
)

// Memory is since when a gateway has found problems of which nothing else tells when
// they began, look after look. It begins anew with the process. The zero value is ready;
// it is safe for concurrent use.
type Memory struct {
	mu   sync.Mutex
	seen map[seenKey]time.Time // of the last look: no more than that found
}

type seenKey struct{ code, subject string }

// Complete gives each problem without one the time of the first of the looks that have
// found it, one after the other: it is not younger than that.
func (m *Memory) Complete(r *Report) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := map[seenKey]time.Time{}
	for i := range r.Problems {
		p := &r.Problems[i]
		if !p.Since.IsZero() {
			continue
		}
		key := seenKey{p.Code, p.Subject}
		p.Since = r.AsOf
		if before, ok := m.seen[key]; ok && before.Before(r.AsOf) {
			p.Since = before
		}
		now[key] = p.Since
	}
	m.seen = now
}
