package partition

import (
	"errors"
	"fmt"
	"math"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/partlog"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// neverFetched is longer ago than anybody asks for.
const neverFetched = math.MinInt64 / 2

// farPiece is what a copy that is behind writes before it syncs: a commit on the same
// disk waits for one piece. Batches of 1 MiB, 180 MiB/s of them, beside small syncs that
// took 0.4 ms (p99) alone: synced whole 1.2 ms, in pieces of 256 KiB 0.6 ms. Commits of
// three nodes on two cores beside 170 MiB/s: 6.1 ms and 4.7 ms; in pieces of 128 KiB 4.5 ms,
// and a copy writes 1 MiB in 3.6 ms then, not in 2.6.
const farPiece = 256 << 10

// spareMS after something was written here that a commit waits for, led here or followed,
// copies that are behind are written in pieces. Else a batch is synced as a whole: in
// pieces a disk whose sync takes 10 ms would write 25 MiB/s.
const spareMS = 1000

// ErrInstall: the leader's log begins above this copy's end. Its log has to be
// replaced by the leader's start, for which it must be closed.
var ErrInstall = errors.New("the log has to be replaced by the leader's start")

// Install is ErrInstall with what to install.
type Install struct {
	Exported []byte        // partlog.ExportStart of the leader
	State    partlog.State // of the copy, to go on with
}

// Error implements error.
func (i *Install) Error() string { return ErrInstall.Error() }

// Unwrap implements errors.
func (i *Install) Unwrap() error { return ErrInstall }

// Request is the next fetch of this copy, for the leader of epoch; false when
// there is nothing to ask now: it leads, or knows a newer epoch, or has stopped. A
// copy with damage asks from where that begins, and so counts for no more.
func (p *Partition) Request(epoch topic.Epoch) (nodeapi.FetchPartition, quorum.Fetch, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.follower == nil || p.closed || p.follower.Epoch() != epoch {
		return nodeapi.FetchPartition{}, quorum.Fetch{}, false
	}
	f, ok := p.follower.Request()
	p.posMu.Lock()
	seen := p.posVersion
	p.posMu.Unlock()
	most := 0
	if ok && len(p.damage) > 0 {
		f.Offset, f.LastEpoch = p.damage[0].From, quorum.EpochAt(p.historyLocked(), p.damage[0].From)
		most = repairBytes
	}
	return nodeapi.FetchPartition{
		Target: nodeapi.Target{Ref: p.ref, Epoch: epoch}, Copy: f.From.Copy, Offset: f.Offset, LastEpoch: f.LastEpoch,
		HWM: p.hwm.Load(), PositionSeen: seen, Observer: !p.fence.Counts(), Round: f.Round, MaxBytes: most,
	}, f, ok
}

// Answered takes over what the leader answered to asked, or that it had no news
// (a is nil). written tells that bytes were appended, which SyncFollowed makes
// durable before the next Request. Errors: *Install; others stop this copy until
// the assignment changes, or pass.
func (p *Partition) Answered(asked quorum.Fetch, a *nodeapi.FetchAnswer) (written bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.follower == nil || p.closed || p.follower.Epoch() != asked.Epoch {
		return false, nil // it leads or follows another one by now
	}
	p.lastFetch = p.s.Mono()
	p.used.Store(true)
	if a == nil {
		return false, nil
	}
	if len(p.damage) > 0 {
		return false, p.repairLocked(asked, a)
	}
	ans := quorum.Answer{
		Epoch: a.Epoch, Offset: asked.Offset, LastEpoch: asked.LastEpoch, HWM: a.HWM, LogStart: a.LogStart,
		ToEpoch: a.Diverge, ToEnd: a.DivergeEnd, Round: a.Round,
	}
	switch a.Status {
	case nodeapi.FetchDiverging:
		ans.Kind = quorum.Diverged
	case nodeapi.FetchBelowStart:
		ans.Kind = quorum.Snapshot
	default:
	}
	step, err := p.follower.Take(ans, p.historyLocked())
	if err != nil {
		return false, fmt.Errorf("follow %s: %w", p.ref, err)
	}
	switch step.Do {
	case quorum.Nothing:
		return false, nil
	case quorum.Truncate:
		return false, p.truncateLocked(step.To)
	case quorum.Install:
		if at, _, err := partlog.StartOf(a.Snapshot); err != nil || at != step.To {
			p.s.Metrics.BadFetches.Inc()
			return false, fmt.Errorf("replace the log of %s by a start at %d: it says %d: %w", p.ref, step.To, at, errors.Join(err, quorum.ErrInvalidFetch))
		}
		p.posMu.Lock()
		defer p.posMu.Unlock()
		st := p.state
		st.HWM = 0 // what was committed here lies below the leader's start, which is where it goes on
		return false, &Install{Exported: a.Snapshot, State: st}
	case quorum.Append:
	}
	p.takePositions(a)
	written, err = p.copyLocked(a)
	p.told = a.HWM
	p.followedLocked()
	return written, err
}

// copyLocked appends the batches of an answer.
func (p *Partition) copyLocked(a *nodeapi.FetchAnswer) (bool, error) {
	if len(a.Batches) == 0 {
		return false, nil
	}
	missing, from := int64(0), p.log.LEO()
	next := from
	for rest := a.Batches; len(rest) > 0; {
		h, err := record.ParseHeader(rest)
		if err == nil {
			err = p.follower.MayAppend(h.BaseOffset, h.LeaderEpoch)
		}
		if err != nil {
			p.s.Metrics.BadFetches.Inc()
			return false, fmt.Errorf("copy into %s: %w", p.ref, err)
		}
		missing, next = missing+max(h.BaseOffset-next, 0), h.EndOffset()
		if h.Size() >= len(rest) {
			break
		}
		rest = rest[h.Size():]
	}
	if missing > 0 { // noted before what lies behind it: a crash must not forget to ask
		if err := p.log.AwaitPieces(); err != nil {
			return false, fmt.Errorf("copy into %s: %w", p.ref, err)
		}
		p.gapsCopied++
	}
	piece := 0
	switch now := p.s.Mono(); {
	case next > a.HWM: // it is not committed yet, maybe for want of this copy
		p.s.live.Store(now)
	case now-p.s.live.Load() < spareMS:
		piece = farPiece
	}
	end, err := p.log.AppendCopied(a.Batches, a.HWM, piece)
	if end > p.log.LEO() {
		p.follower.Appended(end, p.log.LastEpoch())
	}
	switch {
	case errors.Is(err, partlog.ErrBadCopy):
		p.s.Metrics.BadFetches.Inc()
	case errors.Is(err, partlog.ErrFailed):
		_ = p.failLocked(err)
	}
	if err != nil {
		return false, fmt.Errorf("copy into %s: %w", p.ref, err)
	}
	if missing > 0 { // the leader is the only copy, or nobody had them
		p.s.Metrics.DamagedOffsets.Add(float64(missing))
		p.s.Log.Error("offsets are missing in the leader's log, and so they are in this copy", "partition", p.ref.String(),
			"missing", missing, "from", from, "to", end)
	}
	return true, nil
}

// truncateLocked cuts what no leader's log has any more.
func (p *Partition) truncateLocked(to int64) error {
	from := p.log.LEO()
	if err := p.log.Truncate(to); err != nil {
		return fmt.Errorf("truncate %s to %d: %w", p.ref, to, err)
	}
	p.s.Cache.Forget(p.id)
	p.follower.Truncated(p.log.LEO(), p.log.LastEpoch())
	p.s.Log.Info("an uncommitted tail was cut", "partition", p.ref.String(), "from", from, "to", to)
	return nil
}

// takePositions keeps what the leader says of positions, to be saved soon.
func (p *Partition) takePositions(a *nodeapi.FetchAnswer) {
	if a.Position == nil {
		return
	}
	p.posMu.Lock()
	defer p.posMu.Unlock()
	p.posVersion = a.PositionVersion
	if a.PositionGeneration < p.state.PositionGeneration || len(a.Position) == 0 {
		return
	}
	p.state.PositionGeneration = a.PositionGeneration
	p.state.Position = append([]byte(nil), a.Position...)
	p.unsaved = true
}

// followedLocked takes over the follower's high watermark.
func (p *Partition) followedLocked() {
	hwm := p.follower.HWM()
	// The high watermark that a leader inherits may lie below what is committed: it
	// counts once it has passed a record of its epoch.
	if !p.caughtUp && hwm >= p.told && quorum.EpochAt(p.historyLocked(), hwm) == p.follower.Epoch() {
		p.caughtUp = true
	}
	if hwm <= p.hwm.Load() {
		return
	}
	p.hwm.Store(hwm)
	p.log.Committed(hwm)
	p.posMu.Lock()
	p.unsaved = true
	p.posMu.Unlock()
}

// SyncFollowed makes what was copied durable, so that the next fetch says so.
func (p *Partition) SyncFollowed() error {
	_, err := p.log.Sync()
	if errors.Is(err, partlog.ErrClosed) {
		return nil // the topic went, or the node stops: no fault of the disk
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		_ = p.failLocked(err)
		return fmt.Errorf("sync %s: %w", p.ref, err)
	}
	if p.follower != nil {
		// The end as it is: where the sync had come to may be cut by then and written
		// anew, for another leader, and that is not synced.
		p.follower.Synced(p.log.LEO())
		p.followedLocked()
	}
	return nil
}

// SaveFollowed writes what changed of a follower's state, durably when sync is set.
func (p *Partition) SaveFollowed(sync bool) error {
	p.posMu.Lock()
	unsaved := p.unsaved
	p.posMu.Unlock()
	if !unsaved {
		return nil
	}
	return p.saveFollowed(sync)
}

func (p *Partition) saveFollowed(sync bool) error {
	p.saveMu.Lock()
	defer p.saveMu.Unlock()
	p.posMu.Lock()
	st := p.state
	p.unsaved = false
	p.posMu.Unlock()
	st.HWM = p.hwm.Load()
	if err := p.log.SaveState(st, sync); err != nil {
		p.posMu.Lock()
		p.unsaved = true
		p.posMu.Unlock()
		return fmt.Errorf("save the state of %s: %w", p.ref, err)
	}
	return nil
}

// CaughtUp tells whether the copy had everything committed once since it was
// opened, or leads.
func (p *Partition) CaughtUp() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.caughtUp || p.leader != nil
}

// Standing tells how this copy stands: whether it leads and a majority follows it,
// or may still begin to, and how many ms ago a fetch of it was answered, -1: never.
func (p *Partition) Standing() nodeapi.Standing {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := nodeapi.Standing{Leads: p.leader != nil && p.leader.Ended() == nil && !p.forsakenLocked(), FetchedAgoMS: -1}
	if p.lastFetch != neverFetched {
		s.FetchedAgoMS = max(p.s.Mono()-p.lastFetch, 0)
	}
	return s
}

// Replace puts the start of the leader's log in place of the log of this copy,
// which is closed. The next Open finds it.
func (p *Partition) Replace(with *Install) error {
	if err := partlog.Replace(p.s.FS, p.dir, with.State, with.Exported); err != nil {
		return fmt.Errorf("replace the log of %s: %w", p.ref, err)
	}
	return nil
}
