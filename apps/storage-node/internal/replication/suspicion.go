package replication

import (
	"context"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
)

// refusal notes that the node does not lead, or cannot read, what the metastore says
// that it leads. One that goes on so is reported: it may never be able to. It
// returns the pause before the next try.
func (f *fetcher) refusal(ctx context.Context, at *part) time.Duration {
	at.pause = min(max(2*at.pause, retryFirst), retryAfter)
	f.mu.Lock()
	now := time.Now()
	if at.refusing.IsZero() {
		at.refusing = now
	}
	report := now.Sub(at.refusing) >= refusedFor && f.reportLocked(now)
	f.mu.Unlock()
	if report {
		f.report(ctx)
	}
	return at.pause
}

// heard notes whether the node answers, and reports one that does not.
func (f *fetcher) heard(ctx context.Context, err error) {
	f.mu.Lock()
	now := time.Now()
	if err == nil || ctx.Err() != nil {
		f.failing = time.Time{}
		f.mu.Unlock()
		return
	}
	if f.failing.IsZero() {
		f.failing = now
	}
	report := now.Sub(f.failing) >= suspectAfter && f.reportLocked(now)
	f.mu.Unlock()
	f.m.cfg.Log.Debug("a fetch failed", "leader", f.node, "err", err)
	if report {
		f.report(ctx)
	}
}

// silent reports a node that has not answered a fetch in time.
func (f *fetcher) silent(ctx context.Context) {
	f.mu.Lock()
	report := ctx.Err() == nil && f.reportLocked(time.Now())
	f.mu.Unlock()
	if report {
		f.report(ctx)
	}
}

// reportLocked tells whether the node may be reported again, and notes it.
func (f *fetcher) reportLocked(now time.Time) bool {
	if now.Sub(f.suspected) < suspectEvery {
		return false
	}
	f.suspected = now
	return true
}

func (f *fetcher) report(ctx context.Context) {
	if err := f.m.cfg.Elections.Suspect(ctx, &metaapi.SuspectRequest{From: f.m.cfg.Self, NodeID: f.node}); err != nil {
		f.m.cfg.Log.Debug("a silent leader could not be reported", "leader", f.node, "err", err)
	}
}
