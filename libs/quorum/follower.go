package quorum

import (
	"fmt"

	"github.com/narad-mq/narad/libs/topic"
)

// Fetch is what a copy asks the leader. The offset says that everything below it
// is synced.
type Fetch struct {
	From      Replica
	Epoch     topic.Epoch // leader epoch that the copy believes in
	Offset    int64       // its synced end
	LastEpoch topic.Epoch // of its last batch; 0: none
	Round     uint64      // newest confirm round seen from this leader
	// More: the copy has more than that, and asks from where damage begins.
	More bool
}

// Reply is the kind of an answer.
type Reply uint8

// The kinds.
const (
	Records  Reply = iota // batches from the fetch offset on, or none
	Diverged              // the fetcher's log has left the leader's
	Snapshot              // where the logs agree lies below the leader's log start
)

// Answer is what a leader answers, apart from the bytes. Offset and LastEpoch
// are those of the fetch: an answer speaks about that position only.
type Answer struct {
	Kind      Reply
	Epoch     topic.Epoch // of the leader
	Offset    int64
	LastEpoch topic.Epoch
	HWM       int64
	LogStart  int64
	Round     uint64      // newest confirm round asked for
	ToEpoch   topic.Epoch // Diverged: the newest epoch that both may share
	ToEnd     int64       // Diverged: where it ends in the leader's log
}

// Do is what a follower has to do next.
type Do uint8

// What there is to do.
const (
	Nothing  Do = iota // the answer came late or twice
	Append             // write the batches that came with it, if any, and sync
	Truncate           // cut the log at To
	Install            // replace the log by the leader's snapshot at To
)

// Step is what Take decided.
type Step struct {
	Do Do
	To int64
}

// Local is what a follower finds when it is opened, everything synced.
type Local struct {
	LEO, HWM  int64
	LastEpoch topic.Epoch
}

// Follower is a copy that fetches: a replica, an observer, or one that waits to
// be re-admitted; they differ only in whether others count them.
type Follower struct {
	fence     *Fence
	epoch     topic.Epoch // followed; 0: none yet
	written   int64
	leo       int64 // synced; <= written
	lastEpoch topic.Epoch
	hwm       int64 // <= leo
	told      int64 // highest HWM that a leader told about this log
	round     uint64
	stopped   error
}

// NewFollower opens a copy as a follower. Error: ErrBelowHWM when the log ends
// below its HWM: it must start over as another copy (JudgeCopy).
func NewFollower(fence *Fence, at Local) (*Follower, error) {
	if at.LEO < at.HWM {
		return nil, fmt.Errorf("follow with %s: %w: end %d, high watermark %d", fence.self, ErrBelowHWM, at.LEO, at.HWM)
	}
	return &Follower{
		fence: fence, written: at.LEO, leo: at.LEO, lastEpoch: at.LastEpoch, hwm: at.HWM, told: at.HWM,
	}, nil
}

// Epoch is the leader epoch that is followed; 0: none.
func (f *Follower) Epoch() topic.Epoch { return f.epoch }

// HWM is min(told, own LEO): nothing above it is exposed. It never moves back.
func (f *Follower) HWM() int64 { return f.hwm }

// LEO is the synced end.
func (f *Follower) LEO() int64 { return f.leo }

// Follow begins to follow the leader of an epoch, as the metastore names it.
// Error: ErrStaleEpoch when a newer one was followed or promised, or stands in
// the log.
//
// Safe because: what an older leader would have this copy cut may be what a
// newer one committed with it.
func (f *Follower) Follow(epoch topic.Epoch) error {
	if newest := max(f.epoch, f.fence.promised, f.lastEpoch); epoch < newest {
		return fmt.Errorf("follow %d: %w: %d is known", epoch, ErrStaleEpoch, newest)
	}
	if epoch > f.epoch {
		f.epoch, f.round = epoch, 0
	}
	return nil
}

// Request is the next fetch; false when there is nobody to ask: no leader is
// known or a newer epoch is promised, when written bytes are not synced yet (the
// offset speaks of synced ones), or when this copy has stopped.
func (f *Follower) Request() (Fetch, bool) {
	if f.epoch == 0 || f.epoch < f.fence.promised || f.written != f.leo || f.stopped != nil {
		return Fetch{}, false
	}
	return Fetch{From: f.fence.self, Epoch: f.epoch, Offset: f.leo, LastEpoch: f.lastEpoch, Round: f.round}, true
}

// Take judges an answer; history is that of the own log. Errors: ErrNewerEpoch
// (the metastore knows who leads), ErrStaleEpoch (dropped), ErrBelowHWM: the
// answer asks to cut what is committed; the copy has stopped, which is to be
// reported.
//
// Safe because: an answer counts only for the position that it was asked about.
// Whether a position is on the leader's history never changes within an epoch,
// so one that comes late or twice is either still true or does not match.
func (f *Follower) Take(a Answer, history []EpochStart) (Step, error) {
	switch {
	case f.stopped != nil:
		return Step{}, f.stopped
	case a.Epoch > f.epoch:
		return Step{}, fmt.Errorf("answer under %d, following %d: %w", a.Epoch, f.epoch, ErrNewerEpoch)
	case a.Epoch < f.epoch || a.Epoch < f.fence.promised:
		return Step{}, fmt.Errorf("answer under %d, following %d, promised %d: %w", a.Epoch, f.epoch, f.fence.promised, ErrStaleEpoch)
	case a.Offset != f.written || a.LastEpoch != f.lastEpoch || f.written != f.leo:
		return Step{}, nil
	}
	switch a.Kind {
	case Diverged:
		to := TruncateTo(history, f.written, a.ToEpoch, a.ToEnd)
		if to < f.hwm || to >= f.written {
			return Step{}, f.stop("truncate from %d to %d under %d", f.written, to, a.Epoch)
		}
		return Step{Truncate, to}, nil
	case Snapshot:
		if a.LogStart < f.hwm || a.LogStart > a.HWM {
			return Step{}, f.stop("replace a log that ends at %d by a snapshot at %d under %d", f.written, a.LogStart, a.Epoch)
		}
		return Step{Install, a.LogStart}, nil
	}
	// The leader has found this log to be a prefix of its own, so what it says
	// is committed is so here as far as this log goes, now and as it grows.
	f.told = max(f.told, a.HWM)
	f.round = max(f.round, a.Round)
	f.advance()
	return Step{Do: Append}, nil
}

func (f *Follower) stop(format string, args ...any) error {
	f.stopped = fmt.Errorf(format+": %w (%d)", append(args, ErrBelowHWM, f.hwm)...)
	return f.stopped
}

func (f *Follower) advance() { f.hwm = max(f.hwm, min(f.told, f.leo)) }

// MayAppend checks a batch that came with an answer for Append, before it is
// written: it goes to base (offsets between may be a gap of the leader's) and is
// of an epoch. Error: ErrInvalidFetch.
func (f *Follower) MayAppend(base int64, epoch topic.Epoch) error {
	if base < f.written || epoch < f.lastEpoch || epoch > f.epoch || epoch == 0 {
		return fmt.Errorf("append at %d of epoch %d: %w: end is %d, epochs %d to %d",
			base, epoch, ErrInvalidFetch, f.written, f.lastEpoch, f.epoch)
	}
	return nil
}

// Appended reports that the log is written up to end, with a last batch of epoch.
func (f *Follower) Appended(end int64, epoch topic.Epoch) {
	f.written, f.lastEpoch = max(f.written, end), max(f.lastEpoch, epoch)
}

// Synced reports that the log is synced up to leo. Safe because: only fsynced
// bytes count, and a lower value is the late answer of an earlier sync.
func (f *Follower) Synced(leo int64) {
	f.leo = max(f.leo, min(leo, f.written))
	f.advance()
}

// Truncated reports that the log is cut, durably, so that it ends at to with a
// last batch of epoch: after a Truncate step, or at the synced end after a
// failed write or sync. Safe because: what was cut was above the HWM, and either
// no leader's any more or never synced, hence never reported.
func (f *Follower) Truncated(to int64, epoch topic.Epoch) {
	f.written, f.leo, f.lastEpoch = to, to, epoch
	f.told = min(f.told, max(to, f.hwm))
}

// Installed reports that the leader's snapshot at its log start has replaced the
// log; epoch is that of the last batch below it. Safe because: a log start is
// never above the HWM of its leader, so everything below is committed, and not
// below the own HWM: start <= HWM <= LEO holds at once.
func (f *Follower) Installed(start int64, epoch topic.Epoch) {
	f.written, f.leo, f.lastEpoch = start, start, epoch
	f.told = max(f.told, start)
	f.advance()
}
