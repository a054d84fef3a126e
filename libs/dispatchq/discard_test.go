package dispatchq

import (
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/topic"
)

var lifeA = Life{"a", 7}

// TestOnlyHeldLivesAreAskedAbout: not what the view shows, not what it cannot tell,
// not what carries no incarnation, and each once in ConfirmAgain.
func TestOnlyHeldLivesAreAskedAbout(t *testing.T) {
	b := newBench(t, DefaultConfig())
	b.w["live"] = live(true, "")
	b.w["unsure"] = &Route{State: Unavailable}
	for _, name := range []string{"a", "b", "live", "unsure"} {
		b.add(key(name, 0), 1)
	}
	b.m.Add(b.now, Key{Topic: "nameless"}, Item{})
	b.step()
	ask := func(most int) (out []string) {
		for _, l := range b.m.Held(b.now, most) {
			out = append(out, l.Topic)
		}
		return out
	}
	if got := ask(1); len(got) != 1 || got[0] != "a" {
		t.Fatalf("first %v", got)
	}
	if got := ask(9); len(got) != 1 || got[0] != "b" {
		t.Fatalf("then %v", got)
	}
	b.now += DefaultConfig().ConfirmAgain - 1
	if got := ask(9); len(got) != 0 {
		t.Fatalf("again too early: %v", got)
	}
	b.now++
	if got := ask(9); len(got) != 2 {
		t.Fatalf("again: %v", got)
	}
}

// TestDiscardTakesOneLifeAndNothingInUse: a queue with a batch in flight, one that
// is being parked and one whose parked log is read are left; the others go, and the
// next life of the name is not touched.
func TestDiscardTakesOneLifeAndNothingInUse(t *testing.T) {
	cfg := DefaultConfig()
	cfg.ParkAfter = time.Second
	b := newBench(t, cfg)
	b.w["a"] = live(false, "n1", "n1", "", "")
	b.add(key("a", 0), 3)
	b.step() // 0 is in flight
	b.add(key("a", 2), 2)
	b.step()
	b.now += 2 * time.Second
	if o := b.step(); len(o.Park) != 1 { // 2 is being parked
		t.Fatalf("orders %+v", o)
	}
	b.add(Key{Topic: "a", Incarnation: 7, Partition: 3, Pinned: true}, 4)
	b.add(Key{Topic: "a", Incarnation: 8, Partition: 3}, 5)
	if got := b.m.Discard(lifeA); got != nil {
		t.Fatalf("a life that the view shows: %+v", got)
	}
	b.w["a"] = gone
	b.m.ViewChanged()
	got := b.m.Discard(lifeA)
	if len(got) != 1 || got[0].Key.Partition != 3 || got[0].Key.Incarnation != 7 || len(got[0].Items) != 4 || got[0].Parked {
		t.Fatalf("discarded %+v", got)
	}
	b.m.Parked(b.now, key("a", 2), 2)
	b.m.Answer(b.now, 1, Unknown)
	got = b.m.Discard(lifeA)
	if len(got) != 2 || len(got[0].Items)+len(got[1].Items) != 3 || got[0].Parked == got[1].Parked {
		t.Fatalf("then discarded %+v", got)
	}
	b.step()
	if s := b.m.Stats(); s.Items != 5 || s.Held != 5 || s.Unloaded != 0 {
		t.Fatalf("left %+v", s)
	}
	if b.m.lives[lifeKey{"a", 7}] == nil {
		t.Fatal("a queue whose log is being removed was forgotten")
	}
	b.m.Removed(key("a", 2))
	b.step()
	if b.m.lives[lifeKey{"a", 7}] != nil {
		t.Fatal("an empty life is remembered")
	}
	if b.m.Discard(lifeA) != nil {
		t.Fatal("discarded twice")
	}
}

// TestLogThatIsRemovedIsNotWritten: what is read of the life meanwhile waits for it.
func TestLogThatIsRemovedIsNotWritten(t *testing.T) {
	cfg := DefaultConfig()
	cfg.ParkAfter, cfg.ReparkAfter = time.Second, time.Second
	b := newBench(t, cfg)
	b.m.AddParked(b.now, key("a", 0), 9, map[topic.ID64]uint64{1: 9})
	if got := b.m.Discard(lifeA); len(got) != 1 || !got[0].Parked || len(got[0].Items) != 0 {
		t.Fatalf("discarded %+v", got)
	}
	b.seq = 100
	b.add(key("a", 0), 1)
	for range 5 {
		b.now += time.Second
		if o := b.step(); len(o.Park) != 0 {
			t.Fatal("parked into a log that is being removed")
		}
	}
	b.m.Removed(key("a", 0))
	if o := b.step(); len(o.Park) != 1 {
		t.Fatalf("orders %+v", o)
	}
}

// TestDiscardedQueueThatWaitsForASlot: it is forgotten once, when its turn comes.
func TestDiscardedQueueThatWaitsForASlot(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Slots = 1
	b := newBench(t, cfg)
	b.w["a"], b.w["z"] = live(true, "n1"), live(true, "n1")
	b.add(key("z", 0), 1)
	first := b.one()
	b.add(key("a", 0), 1)
	b.none()
	b.w["a"] = gone
	b.m.ViewChanged()
	b.step()
	if got := b.m.Discard(lifeA); len(got) != 1 {
		t.Fatalf("discarded %+v", got)
	}
	b.step()
	b.m.Answer(b.now, first.ID, Committed)
	b.none()
	b.none()
	if len(b.m.lives) != 0 || len(b.m.all.list) != 0 {
		t.Fatalf("%d lives, %d listed", len(b.m.lives), len(b.m.all.list))
	}
}
