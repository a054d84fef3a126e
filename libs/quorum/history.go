package quorum

import "github.com/narad-mq/narad/libs/topic"

// EpochStart tells where the batches of an epoch begin. A history is ascending
// and names every epoch of the log, and below a log start above 0 at least the
// one of the last batch there: copies that end at the log start have no other.
type EpochStart struct {
	Epoch topic.Epoch
	Start int64
}

// EpochAt is the epoch of the last batch below end, or 0 when there is none. The
// history is ascending; batches above end (written and not yet synced) are not
// looked at, so that a fence answer never names an epoch whose records a power
// cut may take.
func EpochAt(history []EpochStart, end int64) topic.Epoch {
	for i := len(history) - 1; i >= 0; i-- {
		if history[i].Start < end {
			return history[i].Epoch
		}
	}
	return 0
}

// endOf returns the newest epoch of the history that is not above epoch, and
// where its batches end in a log that ends at end. Below everything known it is
// epoch 0, which ends where the history begins.
func endOf(history []EpochStart, end int64, epoch topic.Epoch) (topic.Epoch, int64) {
	for i := len(history) - 1; i >= 0; i-- {
		if history[i].Epoch <= epoch {
			return history[i].Epoch, end
		}
		end = min(end, history[i].Start)
	}
	return 0, end
}

// Diverging tells whether a copy whose log ends at offset, with a last batch of
// epoch last, has left the history of the leader's log, which ends at end
// (written). If so it returns the newest epoch that both may share and where the
// leader's batches of it end.
//
// Safe because: an epoch has one leader, so logs that both hold (epoch, offset)
// agree on everything below. The fetcher's log is a prefix of the leader's when
// its last epoch is in the history and does not reach beyond that epoch's end.
func Diverging(history []EpochStart, end int64, last topic.Epoch, offset int64) (topic.Epoch, int64, bool) {
	epoch, epochEnd := endOf(history, end, last)
	return epoch, epochEnd, epoch != last || epochEnd < offset
}

// TruncateTo is where a copy cuts its log, which ends at end, when the leader
// answered that the newest epoch shared is epoch and ends there at epochEnd: the
// lower one of both logs' ends of that epoch. Below it both have the batches of
// the same leader from the same start. The copy asks again from there; each turn
// takes at least one epoch or the rest of one away, so the turns end.
func TruncateTo(history []EpochStart, end int64, epoch topic.Epoch, epochEnd int64) int64 {
	_, own := endOf(history, end, epoch)
	return min(own, epochEnd)
}
