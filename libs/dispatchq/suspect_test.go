package dispatchq

import (
	"fmt"
	"testing"
	"time"
)

// TestSuspectedNodeIsAvoided: nothing is sent to it that may go elsewhere, before
// a single refusal; what may not go elsewhere is sent as ever.
func TestSuspectedNodeIsAvoided(t *testing.T) {
	b := newBench(t, DefaultConfig())
	b.w["a"] = live(true, "n1", "n2", "n3")
	b.w["kept"] = live(false, "n1", "n2", "n3")
	b.m.Suspect(b.now, "n1", true)
	b.m.Suspect(b.now, "n2", true)
	b.add(key("a", 0), 2)
	got := b.one()
	b.expect(got, 2, 1, 2)
	b.m.Answer(b.now, got.ID, Committed)
	for _, k := range []Key{key("kept", 0), {Topic: "a", Incarnation: 7, Partition: 0, Pinned: true}} {
		b.add(k, 1)
		got := b.one()
		if got.Target.Partition != 0 {
			t.Fatalf("%+v was sent to %+v", k, got.Target)
		}
		b.m.Answer(b.now, got.ID, Refused)
	}
}

// TestSuspicionEndsThePauseOfARefusedQueue: it does not wait for the next try nor
// for 3 s of them.
func TestSuspicionEndsThePauseOfARefusedQueue(t *testing.T) {
	b := newBench(t, DefaultConfig())
	b.w["a"] = live(true, "n1", "n2")
	b.add(key("a", 0), 1)
	b.m.Answer(b.now, b.one().ID, Refused)
	b.none()
	b.m.Suspect(b.now, "n1", true)
	b.expect(b.one(), 1, 1, 1)
}

// TestSuspicionReleasesNothing: a batch of unknown outcome stays with its
// partition, whatever gossip says, until the view has the verdict.
func TestSuspicionReleasesNothing(t *testing.T) {
	b := newBench(t, DefaultConfig())
	b.w["a"] = live(true, "n1", "n2")
	b.add(key("a", 0), 3)
	first := b.one()
	b.m.Suspect(b.now, "n1", true)
	b.none() // in flight
	b.m.Answer(b.now, first.ID, Unknown)
	last := b.fail(Batch{}, Refused, 10*time.Second)
	b.expect(last, 0, 1, 3)
	b.m.Suspect(b.now, "n1", false)
	b.m.Suspect(b.now, "n1", true)
	b.m.Answer(b.now, last.ID, Unknown)
	last = b.fail(Batch{}, Unknown, 10*time.Second)
	b.expect(last, 0, 1, 3)
	b.m.Answer(b.now, last.ID, Refused)
	b.w["a"] = live(true, "!n1", "n2")
	b.m.ViewChanged()
	b.expect(b.one(), 1, 1, 3)
}

// TestEverybodySuspectedIsNobody: a gateway that is itself cut off from gossip
// sends as if there were none.
func TestEverybodySuspectedIsNobody(t *testing.T) {
	b := newBench(t, DefaultConfig())
	b.w["a"] = live(true, "n1", "n2")
	b.m.Suspect(b.now, "n1", true)
	b.m.Suspect(b.now, "n2", true)
	b.add(key("a", 0), 1)
	last := b.one()
	b.expect(last, 0, 1, 1)
	// Suspected or not, 3 s of refusals lead elsewhere.
	b.expect(b.fail(last, Refused, 3500*time.Millisecond), 1, 1, 1)
}

// TestEvidenceBeatsHearsay: a node that serves after it was suspected gets its
// records back, until a batch to it fails.
func TestEvidenceBeatsHearsay(t *testing.T) {
	b := newBench(t, DefaultConfig())
	b.w["a"] = live(true, "n1", "n2")
	b.m.Suspect(b.now, "n1", true)
	b.add(key("a", 0), 1)
	last := b.one()
	b.expect(last, 1, 1, 1)
	b.m.Answer(b.now, last.ID, Committed)
	b.now += 1100 * time.Millisecond
	if o := b.step(); len(o.Probe) != 1 || o.Probe[0].Target.Partition != 0 {
		t.Fatalf("the own partition is not probed: %+v", o)
	}
	b.m.Probed(b.now, key("a", 0), true)
	b.add(key("a", 0), 1)
	last = b.one()
	b.expect(last, 0, 2, 2)
	b.m.Answer(b.now, last.ID, Committed)
	b.add(key("a", 0), 1) // a new queue: the node is trusted, not the queue
	last = b.one()
	b.expect(last, 0, 3, 3)
	b.m.Answer(b.now, last.ID, Refused)
	b.now += 50 * time.Millisecond
	b.expect(b.one(), 1, 3, 3)
}

// TestRefutedSuspicionLeadsBack: the own partition is asked at once.
func TestRefutedSuspicionLeadsBack(t *testing.T) {
	b := newBench(t, DefaultConfig())
	b.w["a"] = live(true, "n1", "n2")
	b.m.Suspect(b.now, "n1", true)
	b.add(key("a", 0), 1)
	b.m.Answer(b.now, b.one().ID, Committed)
	b.step()
	b.m.Suspect(b.now, "n1", false)
	if o := b.step(); len(o.Probe) != 1 {
		t.Fatalf("not probed: %+v", o)
	}
	b.m.Probed(b.now, key("a", 0), true)
	b.add(key("a", 0), 1)
	b.expect(b.one(), 0, 2, 2)
}

// TestSuspicionEmptiesTheLineBeforeABlackHole: queues that wait for a node that
// does not answer others go elsewhere when it is suspected.
func TestSuspicionEmptiesTheLineBeforeABlackHole(t *testing.T) {
	b := newBench(t, DefaultConfig())
	for i := range 40 {
		name := fmt.Sprintf("t%d", i)
		b.w[name] = live(true, "hole", "ok")
		b.add(key(name, 0), 1)
	}
	sent := 0
	for range 3 {
		sent += len(b.step().Send)
		b.now += time.Second
	}
	b.m.Suspect(b.now, "hole", true)
	for _, s := range b.step().Send {
		if s.Target.Leader != "ok" {
			t.Fatalf("to %s", s.Target.Leader)
		}
		sent++
	}
	if sent < 32 {
		t.Fatalf("%d of 40 batches sent", sent)
	}
}
