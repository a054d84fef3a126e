package partlog

import (
	"cmp"
	"slices"

	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// EpochStart tells where the batches of an epoch begin. What follows from a
// history (divergence, where to truncate) is package quorum's.
type EpochStart = quorum.EpochStart

// maxEpochs bounds the history; beyond it the oldest are forgotten, and a copy
// that diverged that long ago is compared at the oldest one known.
const maxEpochs = 4096

type epochs []EpochStart // ascending by both fields

func (e epochs) last() topic.Epoch {
	if len(e) == 0 {
		return 0
	}
	return e[len(e)-1].Epoch
}

// add records that a batch of epoch stands at base.
func (e epochs) add(epoch topic.Epoch, base int64) epochs {
	if epoch <= e.last() {
		return e
	}
	e = append(e, EpochStart{Epoch: epoch, Start: base})
	if len(e) > maxEpochs {
		e = append(epochs(nil), e[len(e)-maxEpochs:]...)
	}
	return e
}

// truncate drops the epochs that begin at or above to.
func (e epochs) truncate(to int64) epochs {
	for len(e) > 0 && e[len(e)-1].Start >= to {
		e = e[:len(e)-1]
	}
	return e
}

// merge adds what batches in a gap tell: epochs that were not known, and earlier
// starts of those that were.
func (e epochs) merge(found epochs) epochs {
	out := append(epochs(nil), e...)
	for _, f := range found {
		i, known := slices.BinarySearchFunc(out, f, func(a, b EpochStart) int { return cmp.Compare(a.Epoch, b.Epoch) })
		if known {
			out[i].Start = min(out[i].Start, f.Start)
		} else {
			out = slices.Insert(out, i, f)
		}
	}
	return out
}

// trim drops the epochs that end below the log start. The one of the last batch
// below it stays: a copy that ends there has no other.
func (e epochs) trim(start int64) epochs {
	for len(e) > 1 && e[1].Start < start {
		e = e[1:]
	}
	return e
}
