package partition

import (
	"errors"

	"github.com/narad-mq/narad/libs/topic"
)

// ErrBeforeReset: the log in the directory is of before the partition was begun anew.
var ErrBeforeReset = errors.New("the log here is of before the partition was reset: move its directory away, and the partition begins empty")

// Predates tells whether the log holds anything of before the epoch with which the
// partition was begun anew; 0: it never was. Such a log must not be served: its loss
// was accepted, and what it has would come back as new.
func (p *Partition) Predates(reset topic.Epoch) bool {
	epochs := p.log.Epochs()
	return reset > 0 && len(epochs) > 0 && epochs[0].Epoch < reset
}
