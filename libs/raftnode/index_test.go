package raftnode

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// scanned is the index that the state's own records give, one by one.
func scanned(t *testing.T, h *host) (x index, all []topic.Assignment) {
	t.Helper()
	x = newIndex()
	err := h.Read(func(r metastate.Reader) error {
		topics, err := metastate.AllTopics(r)
		if err != nil {
			return err
		}
		for _, live := range topics {
			list, err := metastate.AssignmentsByName(r, live.Name)
			if err != nil {
				return err
			}
			all = append(all, list...)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	put := func(set map[string]struct{}, name string) map[string]struct{} {
		if set == nil {
			set = map[string]struct{}{}
		}
		set[name] = struct{}{}
		return set
	}
	for _, a := range all {
		leader := topic.Replica{}
		for _, rep := range a.Replicas {
			x.onNode[rep.Node] = put(x.onNode[rep.Node], a.Topic)
			load := x.loads[rep.Node]
			load.Replicas++
			if rep.Node == a.Leader {
				load.Leads++
				leader = topic.Replica{Node: rep.Node, DiskID: rep.DiskID}
			}
			x.loads[rep.Node] = load
		}
		for _, rep := range a.Observers {
			x.onNode[rep.Node] = put(x.onNode[rep.Node], a.Topic)
		}
		if len(a.Replicas) > 1 {
			x.led[leader] = put(x.led[leader], a.Topic)
		}
	}
	return x, all
}

// checkIndex compares what the replica keeps, and what it answers, with a scan.
func checkIndex(t *testing.T, h *host, when string) {
	t.Helper()
	want, all := scanned(t, h)
	h.replica.setLatch()
	h.replica.mu.Lock()
	same := reflect.DeepEqual(h.replica.index, want)
	h.replica.mu.Unlock()
	if !same {
		t.Fatalf("%s: the index is\n%+v\na scan gives\n%+v", when, h.replica.index, want)
	}
	for leader := range want.led {
		got, err := h.replica.Led(func(r topic.Replica) bool { return r == leader })
		var led []topic.Assignment
		for _, a := range all {
			if len(a.Replicas) > 1 && ledBy(&a) == leader {
				led = append(led, a)
			}
		}
		if err != nil || !reflect.DeepEqual(got, led) {
			t.Fatalf("%s: led by %+v: %+v, %v; a scan gives %+v", when, leader, got, err, led)
		}
	}
}

// randomChange is an entry that changes who holds or leads what, as it may fit the state.
func randomChange(rng *rand.Rand, n int, have []topic.Assignment) metastate.Entry {
	node := func(i int) string { return fmt.Sprintf("s%d", i) }
	name := fmt.Sprintf("t%d", rng.IntN(12))
	if len(have) == 0 || rng.IntN(3) == 0 {
		e := createTopic(name, topic.Incarnation(n), "")
		e.Topic.Partitions, e.Topic.ReplicationFactor, e.Assignments = 1+rng.IntN(3), []int{1, 3}[rng.IntN(2)], nil
		for p := range e.Topic.Partitions {
			a := topic.Assignment{Ref: topic.Ref{Topic: name, Incarnation: topic.Incarnation(n), Partition: int32(p)}, LeaderEpoch: 1, ConfigVersion: 1}
			first := rng.IntN(5)
			for i := range e.Topic.ReplicationFactor {
				a.Replicas = append(a.Replicas, topic.Replica{Node: node((first + i) % 5), DiskID: 7, CopyID: topic.ID64(1 + i)})
			}
			if rng.IntN(3) > 0 {
				a.Leader = a.Replicas[0].Node
			}
			e.Assignments = append(e.Assignments, a)
		}
		return e
	}
	a := have[rng.IntN(len(have))]
	other := node(rng.IntN(5))
	switch rng.IntN(7) {
	case 0:
		return &metastate.DeleteTopic{Name: a.Topic, Incarnation: a.Incarnation, NowMS: int64(n)}
	case 1:
		return &metastate.BeginElections{Items: []metastate.ElectionStart{{Ref: a.Ref, Epoch: a.LeaderEpoch, ConfigVersion: a.ConfigVersion}}}
	case 2:
		to := a.Replicas[rng.IntN(len(a.Replicas))]
		return &metastate.ElectLeaders{Items: []metastate.Elected{{Ref: a.Ref, Epoch: a.LeaderEpoch, ConfigVersion: a.ConfigVersion, Leader: to}}}
	case 3:
		return &metastate.Moves{Start: []metastate.MoveStart{{ConfigVersion: a.ConfigVersion, Move: topic.Move{
			Ref: a.Ref, From: a.Replicas[0].Node, To: other, ToDisk: 7, StartedMS: 1, Reason: topic.MoveAsked,
		}}}}
	case 4:
		id := topic.MoveID{Ref: a.Ref, To: other, StartedMS: 1}
		if len(a.Observers) > 0 {
			id.To = a.Observers[0].Node
		}
		return &metastate.Moves{End: []topic.MoveID{id}}
	case 5: // the destination of a move joins
		next := slices.Clone(a.Replicas)
		for _, o := range a.Observers {
			next = append(next, topic.Replica{Node: o.Node, DiskID: o.DiskID, CopyID: 9})
		}
		return &metastate.ChangeReplicas{Ref: a.Ref, ConfigVersion: a.ConfigVersion, Epoch: a.LeaderEpoch, Replicas: next}
	}
	// A copy leaves that does not lead.
	next := slices.DeleteFunc(slices.Clone(a.Replicas), func(r topic.Replica) bool { return r.Node == other && other != a.Leader })
	return &metastate.ChangeReplicas{Ref: a.Ref, ConfigVersion: a.ConfigVersion, Epoch: a.LeaderEpoch, Replicas: next}
}

// TestIndexEqualsAScan: whatever happens, also a start and a restore, the index is
// what a look at every record gives.
func TestIndexEqualsAScan(t *testing.T) {
	h := single(t)
	for i := range 5 {
		apply(t, []*host{h}, registerAs(fmt.Sprintf("s%d", i), topic.RoleStorage, 1))
	}
	rng, n := rand.New(rand.NewPCG(1, 2)), 0
	done := map[string]int{}
	change := func() {
		n++
		_, have := scanned(t, h)
		e := randomChange(rng, n, have)
		_, res, err := h.Apply(within(t), e)
		if err != nil {
			t.Fatal(err)
		}
		if res.Effects.Any() {
			done[strings.TrimPrefix(fmt.Sprintf("%T", e), "*metastate.")]++
		}
		checkIndex(t, h, fmt.Sprintf("after change %d, %T", n, e))
	}
	for range 250 {
		change()
	}
	t.Log("changes made:", done)
	for _, kind := range []string{"CreateTopic", "DeleteTopic", "BeginElections", "ElectLeaders", "Moves", "ChangeReplicas"} {
		if done[kind] < 3 {
			t.Errorf("only %d of %s took effect", done[kind], kind)
		}
	}
	h.stop()
	h.start()
	leaderOf(t, h)
	checkIndex(t, h, "after a start")
	if err := h.Snapshot(); err != nil {
		t.Fatal(err)
	}
	_, before := scanned(t, h)
	for range 20 { // what the restore takes back
		change()
	}
	list, err := h.stores.snaps.List()
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	_, r, err := h.stores.snaps.Open(list[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := h.fsm.Restore(r); err != nil {
		t.Fatal(err)
	}
	checkIndex(t, h, "after a restore")
	if _, after := scanned(t, h); !reflect.DeepEqual(after, before) {
		t.Error("the restore took nothing back")
	}
}

// TestLoadsCountACreateOnce: a create under way counts beside what is applied, and
// not again once it is applied; another life of its name is another topic.
func TestLoadsCountACreateOnce(t *testing.T) {
	h := single(t)
	e := createTopic("a", 1, "s1")
	count := func(when string, beside []topic.Assignment, want topic.Loads) {
		t.Helper()
		if got, err := h.Index().Loads(beside); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", when, got, err, want)
		}
	}
	one := topic.Loads{"s1": {Replicas: 1, Leads: 1}}
	count("before", nil, topic.Loads{})
	count("under way", e.Assignments, one)
	apply(t, []*host{h}, e)
	if _, err := h.Index().Loads(nil); !errors.Is(err, metastate.ErrUnavailable) {
		t.Errorf("loads before the latch: %v", err)
	}
	if _, err := h.Index().Led(func(topic.Replica) bool { return true }); !errors.Is(err, metastate.ErrUnavailable) {
		t.Errorf("leaderships before the latch: %v", err)
	}
	h.replica.setLatch()
	count("applied, still in the books", e.Assignments, one)
	count("applied", nil, one)
	count("another life", createTopic("a", 2, "s2").Assignments, topic.Loads{"s1": {Replicas: 1, Leads: 1}, "s2": {Replicas: 1, Leads: 1}})
	apply(t, []*host{h}, &metastate.DeleteTopic{Name: "a", Incarnation: 1, NowMS: 1})
	count("deleted", nil, topic.Loads{})
}
