package quorum

import (
	"fmt"
	"slices"

	"github.com/narad-mq/narad/libs/topic"
)

// Fence is the promise of one copy not to take part under any older leader
// epoch. Follower and Leader of the copy hold it, so that a promise stops both
// at the same moment. It lives as long as the process has the copy open.
type Fence struct {
	self     Replica
	counts   bool        // the set in the metastore names this very copy
	promised topic.Epoch // in memory, at once
	stored   topic.Epoch // on the disk; <= promised
	led      topic.Epoch // newest epoch that this process led
	settled  topic.Epoch // newest epoch that it led so far that the HWM covered everything committed (CanServe)
}

// NewFence opens the fence of a copy with what its fence file holds. A copy
// whose file is not valid is a lost one (JudgeCopy).
func NewFence(self Replica, stored topic.Epoch) *Fence {
	return &Fence{self: self, promised: stored, stored: stored}
}

// Self is the copy that promises.
func (f *Fence) Self() Replica { return f.self }

// Promised is the newest epoch promised, durable or not.
func (f *Fence) Promised() topic.Epoch { return f.promised }

// Counts tells whether this copy is one that counts, fences and leads.
func (f *Fence) Counts() bool { return f.counts }

// Recorded takes the replica set of the metastore. Safe because: only an entry
// of the metastore makes a copy count, by its disk and copy id, so a wiped one
// cannot take the place of what it lost by the node's name.
func (f *Fence) Recorded(set []Replica) { f.counts = slices.Contains(set, f.self) }

// Promise takes the fence call for an epoch; lead is what the own replica of the
// metastore knows. From its return on, nothing is fetched, taken or committed
// under an older epoch, and the caller writes the promise to the disk. A repeated
// call is fine. Errors: ErrNotReplica, ErrStaleEpoch (an older one than
// promised), ErrEpochHasLeader.
//
// Safe because: what an older leader commits needs a fetch from a majority, a
// new one the promises of a majority, and a copy in both fetched first, so that
// its answer shows what it has. An epoch whose leader is known is over: its log
// grew since, and an answer now must not be counted with earlier ones.
func (f *Fence) Promise(epoch topic.Epoch, lead Leadership) error {
	switch {
	case !f.counts:
		return fmt.Errorf("fence %d: %w: %s", epoch, ErrNotReplica, f.self)
	case epoch < f.promised || epoch < lead.Epoch:
		return fmt.Errorf("fence %d: %w: promised %d, known %d", epoch, ErrStaleEpoch, f.promised, lead.Epoch)
	case epoch <= f.led || (epoch == lead.Epoch && lead.Leader != ""):
		return fmt.Errorf("fence %d: %w", epoch, ErrEpochHasLeader)
	}
	f.promised = epoch
	return nil
}

// Stored reports that the promise of epoch is durable.
func (f *Fence) Stored(epoch topic.Epoch) { f.stored = max(f.stored, min(epoch, f.promised)) }

// FenceAnswer is what a fenced copy tells the controller.
type FenceAnswer struct {
	Replica    Replica
	Epoch      topic.Epoch // promised
	LastEpoch  topic.Epoch // of the last synced batch
	LEO        int64       // synced end
	Generation uint64      // of the consumer positions that the copy holds
	// Damaged: it cannot read some of what it has committed, so it must not be
	// chosen. What it says of its log still tells what others may have committed.
	Damaged bool
	// Settled is the newest epoch that this process has led and could serve under, 0:
	// none. Everything that was ever committed under it and before lies below HWM.
	Settled topic.Epoch
	HWM     int64
}

// Answer is the answer to the fence call for epoch: history, leo and hwm are those
// of the copy now, after Promise. The caller sets Damaged. Errors: ErrNotStored, before the promise is
// durable (it must survive a power cut, or the copy could count for the old
// leader again); ErrStaleEpoch when a newer one was promised meanwhile;
// ErrNotReplica; ErrNoEpoch: understating the log could elect one that lacks
// what is committed.
//
// Safe because: whatever this copy let an older leader count was synced before
// it was reported, hence below leo; and the last epoch is that of the synced
// part only. A leadership of this process has ended by the promise, so its HWM is
// final, and hwm is at least that.
func (f *Fence) Answer(epoch topic.Epoch, history []EpochStart, leo, hwm int64, generation uint64) (FenceAnswer, error) {
	switch {
	case !f.counts:
		return FenceAnswer{}, fmt.Errorf("answer fence %d: %w: %s", epoch, ErrNotReplica, f.self)
	case epoch < f.promised:
		return FenceAnswer{}, fmt.Errorf("answer fence %d: %w: promised %d", epoch, ErrStaleEpoch, f.promised)
	case epoch > f.stored:
		return FenceAnswer{}, fmt.Errorf("answer fence %d: %w: %d is", epoch, ErrNotStored, f.stored)
	}
	last := EpochAt(history, leo)
	if last == 0 && leo > 0 {
		return FenceAnswer{}, fmt.Errorf("answer fence %d: %w: log ends at %d", epoch, ErrNoEpoch, leo)
	}
	return FenceAnswer{
		Replica: f.self, Epoch: epoch, LastEpoch: last, LEO: leo, Generation: generation, Settled: f.settled, HWM: hwm,
	}, nil
}
