package daemon

import (
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/topic"
)

// TestLostCopiesAreTold: all are counted, some are named, each since it was missed first,
// and one that was put back is forgotten.
func TestLostCopiesAreTold(t *testing.T) {
	var l lostNotes
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	some := func(n int) (out []topic.Ref) {
		for p := range n {
			out = append(out, topic.Ref{Topic: "orders", Partition: int32(p)})
		}
		return out
	}
	if got := l.tell(nil, at(1)); got == nil || got.Count != 0 || got.Named != nil {
		t.Errorf("nothing is lost, and that is told: %+v", got)
	}
	if got := l.tell(some(1), at(2)); got.Count != 1 || len(got.Named) != 1 || got.Named[0].SinceMS != 2000 {
		t.Errorf("one is lost: %+v", got)
	}
	if got := l.tell(some(2), at(3)); got.Count != 2 || got.Named[0].SinceMS != 2000 || got.Named[1].SinceMS != 3000 {
		t.Errorf("another one is: %+v", got)
	}
	l.tell(nil, at(4))
	if got := l.tell(some(1), at(5)); got.Named[0].SinceMS != 5000 {
		t.Errorf("put back, and lost again: %+v", got)
	}
	if got := l.tell(some(1000), at(6)); got.Count != 1000 || len(got.Named) != metaapi.MaxLostNamed {
		t.Errorf("many are lost: %d, %d named", got.Count, len(got.Named))
	}
}
