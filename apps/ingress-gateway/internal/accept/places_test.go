package accept

import (
	"fmt"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/topic"
)

// suspicion is a Suspects that a test sets.
type suspicion struct {
	all     map[string]bool
	changed chan struct{}
}

func (s *suspicion) All() map[string]bool     { return s.all }
func (s *suspicion) Changed() <-chan struct{} { return s.changed }
func (s *suspicion) set(ids ...string) {
	s.all, s.changed = map[string]bool{}, make(chan struct{})
	for _, id := range ids {
		s.all[id] = true
	}
}

// TestMessagesOfNoPartitionGoWhereTheyAreServed: not to a leader that is suspected,
// dead or missing while another one is fine; a key and a pin decide all the same.
func TestMessagesOfNoPartitionGoWhereTheyAreServed(t *testing.T) {
	f := open(t)
	s := &suspicion{}
	s.set()
	f.p.deps.Suspects = s
	for i := range 3 {
		f.meta.PutMember(topic.Member{ID: fmt.Sprintf("n%d", i), Role: topic.RoleStorage, Status: topic.StatusAlive})
	}
	put := func(id topic.Incarnation, leaders ...string) {
		var list []topic.Assignment
		for p, l := range leaders {
			list = append(list, topic.Assignment{Ref: topic.Ref{Topic: "orders", Incarnation: id, Partition: int32(p)}, Leader: l, LeaderEpoch: 1})
		}
		next := *f.t
		next.Incarnation = id
		f.meta.PutTopic(next, list)
	}
	r := f.log.Reader()
	expect := func(what string, want [3]int, msgs ...api.Produced) {
		t.Helper()
		for range 12 {
			if _, err := f.accept(msgs...); err != nil {
				t.Fatal(err)
			}
		}
		var got [3]int
		for range 12 * len(msgs) {
			rec, ok, err := r.TryNext()
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			got[rec.Partition]++
		}
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	free := message("", "x", api.AnyPartition)
	put(7, "n0", "n1", "n2")
	expect("all are fine", [3]int{4, 4, 4}, free)
	s.set("n1")
	expect("one is suspected", [3]int{12, 0, 12}, free, free)
	expect("pinned", [3]int{0, 12, 0}, message("", "x", 1))
	keyed := [3]int{}
	keyed[xxhash.Sum64String("k")%3] = 12
	s.set("n0", "n1", "n2")
	expect("all are suspected", [3]int{4, 4, 4}, free)
	s.set(fmt.Sprintf("n%d", xxhash.Sum64String("k")%3))
	expect("keyed", keyed, message("k", "x", api.AnyPartition))
	s.set()
	expect("nobody is suspected any more", [3]int{4, 4, 4}, free)
	f.meta.PutMember(topic.Member{ID: "n2", Role: topic.RoleStorage, Status: topic.StatusDead})
	expect("one is dead", [3]int{6, 6, 0}, free)
	put(7, "", "n1", "gone")
	expect("one has no leader, one a leader of no record", [3]int{0, 12, 0}, free)
	put(8, "", "n1", "")
	expect("the view shows another life", [3]int{4, 4, 4}, free)
	f.meta.SetState(true, false)
	expect("the view cannot tell", [3]int{4, 4, 4}, free)
}
