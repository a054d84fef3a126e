package raftnode

import (
	"errors"
	"sync"
	"testing"
	"time"
)

// TestLeaderWithAStuckDiskIsReplaced: its heartbeats must not keep the others
// from electing while it stands in a write.
func TestLeaderWithAStuckDiskIsReplaced(t *testing.T) {
	disks := map[*host]*stuckDisk{}
	hosts := trioWith(t, func(h *host) { disks[h] = hang(h) })
	old := leaderOf(t, hosts...)
	disks[old].stick(stallHandOff)
	go func() { _, _, _ = old.Apply(t.Context(), register(old)) }() // the write that never returns
	var others []*host
	for _, h := range hosts {
		if h != old {
			others = append(others, h)
		}
	}
	leaderOf(t, others...)
}

// TestVoterWithAStuckDiskEnds: after a while it gives up, with a reason.
func TestVoterWithAStuckDiskEnds(t *testing.T) {
	h := newHost(t, "v1", true)
	h.tune = alone
	disk := hang(h)
	bootstrapped(t, h)
	disk.stick(stallExit)
	go func() { _, _, _ = h.Apply(t.Context(), register(h)) }()
	select {
	case <-h.Done():
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	if !errors.Is(h.Err(), errStalled) {
		t.Error(h.Err())
	}
}

// stuckDisk lets log writes of a host stand until the test ends.
type stuckDisk struct {
	h    *host
	free chan struct{}

	mu  sync.Mutex
	ago time.Duration // how long a standing write says that it has taken; 0: writes pass
}

// hang must be called before the host starts.
func hang(h *host) *stuckDisk {
	d := &stuckDisk{h: h, free: make(chan struct{})}
	h.hooks.logFault = d.write
	h.t.Cleanup(func() { close(d.free) }) // before the host stops: cleanups run backwards
	return d
}

func (d *stuckDisk) stick(ago time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ago = ago
}

func (d *stuckDisk) write() error {
	d.mu.Lock()
	ago := d.ago
	d.mu.Unlock()
	if ago == 0 {
		return nil
	}
	began := time.Now().Add(-ago)
	d.h.logs.busy.Store(&began)
	<-d.free
	return nil
}
