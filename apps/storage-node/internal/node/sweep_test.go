package node

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/topicdir"
)

// Of any inventory and any answers: what is taken carries a valid marker that the
// leader calls gone, nothing else does; taken and kept are the inventory; and too
// much is never taken.
func TestSweepTakesOnlyTheGone(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	answers := []metaapi.Verdict{metaapi.VerdictGone, metaapi.VerdictGone, metaapi.VerdictLive, metaapi.VerdictUnknown, "odd"}
	large, small := 0, 0
	for range 400 {
		var inventory []topicdir.Entry
		verdicts := map[topic.Incarnation]metaapi.Verdict{}
		for id := range topic.Incarnation(6) {
			if rng.IntN(4) > 0 {
				verdicts[id] = answers[rng.IntN(len(answers))]
			}
		}
		for range rng.IntN(400) {
			inventory = append(inventory, topicdir.Entry{
				Name: fmt.Sprint(len(inventory)), Topic: fmt.Sprint("t", rng.IntN(2000)),
				Kind: topicdir.Kind(rng.IntN(5)), Marker: topic.Incarnation(rng.IntN(6)),
			})
		}
		p := planSweep(inventory, verdicts)
		checkPlan(t, inventory, verdicts, p)
		if p.large {
			large++
		} else if len(p.take) > 0 {
			small++
		}
	}
	if large < 5 || small < 5 {
		t.Errorf("%d plans too large, %d not: the draws prove nothing", large, small)
	}
}

func checkPlan(t *testing.T, inventory []topicdir.Entry, verdicts map[topic.Incarnation]metaapi.Verdict, p sweepPlan) {
	t.Helper()
	taken := map[string]bool{}
	for _, e := range p.take {
		taken[e.Name] = true
		if e.Marker == 0 || e.Kind == topicdir.Foreign || verdicts[e.Marker] != metaapi.VerdictGone {
			t.Fatalf("takes %+v", e)
		}
	}
	topics, kept := map[string]bool{}, 0
	for _, e := range inventory {
		if e.Kind != topicdir.Foreign {
			topics[e.Topic] = true
		}
		if e.Kind != topicdir.Foreign && e.Marker != 0 && verdicts[e.Marker] == metaapi.VerdictGone && !taken[e.Name] {
			t.Fatalf("leaves %+v", e)
		}
		if !taken[e.Name] && (e.Kind == topicdir.SetAside || e.Kind == topicdir.Superseded) {
			kept++
		}
	}
	if p.kept != kept || p.large != (len(p.take) > 100 && 10*len(p.take) > len(topics)) {
		t.Fatalf("of %d topics: takes %d, keeps %d (%d), large %t", len(topics), len(p.take), p.kept, kept, p.large)
	}
}

// Only what the replica shows alive, under its own name, is not asked about.
func TestSuspects(t *testing.T) {
	lives := func(name string, id topic.Incarnation) bool { return name == "a" && id == 1 }
	for _, c := range []struct {
		e    topicdir.Entry
		asks bool
	}{
		{topicdir.Entry{Topic: "a", Marker: 1}, false},
		{topicdir.Entry{Topic: "a", Marker: 2}, true},
		{topicdir.Entry{Topic: "b", Marker: 1}, true},
		{topicdir.Entry{Topic: "a", Marker: 1, Kind: topicdir.SetAside}, true},
		{topicdir.Entry{Topic: "a", Kind: topicdir.SetAside}, false},
		{topicdir.Entry{Marker: 2, Kind: topicdir.Foreign}, false},
	} {
		if got := len(suspects([]topicdir.Entry{c.e}, lives)) == 1; got != c.asks {
			t.Errorf("%+v: asked about %t", c.e, got)
		}
	}
}

// However many purges come: one question per topic and askEvery, at most a thousand
// at once, none is lost, and what waits is bounded.
func TestReaperIsBounded(t *testing.T) {
	r, now := newReaper(), time.Unix(1000, 0)
	for i := range maxWanted {
		if !r.want(life{fmt.Sprint("t", i), 1}) {
			t.Fatal("refused too early")
		}
	}
	if r.want(life{"one more", 1}) || !r.want(life{"t0", 1}) {
		t.Error("the bound")
	}
	seen := 0
	for {
		list, more := r.due(now)
		if len(list) > metaapi.MaxQuestions {
			t.Fatalf("%d at once", len(list))
		}
		seen += len(list)
		r.askedAbout(list, now)
		if more == 0 {
			break
		}
	}
	if seen != maxWanted {
		t.Errorf("%d of %d came", seen, maxWanted)
	}
	r.want(life{"t0", 2})
	if list, more := r.due(now.Add(askEvery - time.Second)); len(list) != 0 || more != time.Second {
		t.Errorf("asked again after less than %s: %v, %s", askEvery, list, more)
	}
	if list, _ := r.due(now.Add(askEvery)); len(list) != 1 || len(r.asked) != 0 {
		t.Errorf("%v, %d remembered", list, len(r.asked))
	}
}
