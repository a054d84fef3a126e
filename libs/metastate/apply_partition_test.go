package metastate

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// drawPartitionEntry makes an entry about a partition that is mostly what the state has.
func drawPartitionEntry(t *rapid.T, m *memTx, name string, inc topic.Incarnation) Entry {
	ref := topic.Ref{Topic: name, Incarnation: inc, Partition: int32(rapid.IntRange(0, 2).Draw(t, "partition"))}
	a, err := partition(m, ref)
	if err != nil {
		t.Fatalf("partition: %v", err)
	}
	if a == nil {
		a = &topic.Assignment{Ref: ref, Replicas: []topic.Replica{{Node: "s1", DiskID: 1}}, LeaderEpoch: 1, ConfigVersion: 1}
	}
	epoch := a.LeaderEpoch + topic.Epoch(rapid.IntRange(0, 1).Draw(t, "ahead"))
	r := rapid.SampledFrom(a.Replicas).Draw(t, "replica")
	switch rapid.IntRange(0, 3).Draw(t, "of partitions") {
	case 0:
		return &BeginElections{Items: []ElectionStart{{Ref: ref, Epoch: epoch, ConfigVersion: a.ConfigVersion}}}
	case 1:
		return &ElectLeaders{Items: []Elected{{Ref: ref, Epoch: epoch, ConfigVersion: a.ConfigVersion, Leader: r}}}
	case 2:
		return &RecordCopies{Items: []CopyRecord{{
			Ref: ref, Node: r.Node, WasDisk: r.DiskID, Was: r.CopyID,
			DiskID: topic.ID64(rapid.IntRange(0, 2).Draw(t, "disk")), CopyID: topic.ID64(rapid.IntRange(0, 3).Draw(t, "copy")),
			Epoch: epoch, ConfigVersion: a.ConfigVersion,
		}}}
	}
	next := append([]topic.Replica(nil), a.Replicas...)
	if rapid.Bool().Draw(t, "add") {
		next = append(next, topic.Replica{Node: rapid.SampledFrom([]string{"s3", "s4"}).Draw(t, "new"), DiskID: 1})
	} else {
		next = next[1:]
	}
	return &ChangeReplicas{Ref: ref, ConfigVersion: a.ConfigVersion, Epoch: a.LeaderEpoch, Replicas: next}
}

// replicated makes a topic of one partition on s1 (leads, epoch 1), s2 and s3.
func replicated(t *testing.T) (*memTx, topic.Ref) {
	t.Helper()
	m := newMemTx()
	wantOK(t, m.do(t, createMany("orders", 7, 1, 3)))
	return m, topic.Ref{Topic: "orders", Incarnation: 7}
}

func wantDone(t *testing.T, m *memTx, what string, want bool, e Entry) {
	t.Helper()
	res := m.do(t, e)
	wantOK(t, res)
	if len(res.Done) != 1 || res.Done[0] != want {
		t.Fatalf("%s: done %v, want %t", what, res.Done, want)
	}
	if got := len(res.Effects.Topics) == 1; got != want {
		t.Fatalf("%s: effects %v", what, res.Effects.Topics)
	}
	checkInvariants(t, m)
}

func TestElection(t *testing.T) {
	m, ref := replicated(t)
	start := func(epoch topic.Epoch, version uint64) Entry {
		return &BeginElections{Items: []ElectionStart{{Ref: ref, Epoch: epoch, ConfigVersion: version}}}
	}
	elect := func(epoch topic.Epoch, version uint64, r topic.Replica) Entry {
		return &ElectLeaders{Items: []Elected{{Ref: ref, Epoch: epoch, ConfigVersion: version, Leader: r}}}
	}
	s2 := topic.Replica{Node: "s2", DiskID: 1}
	wantDone(t, m, "a leader in the place of another one", false, elect(1, 1, s2))
	wantDone(t, m, "an epoch that is not the current one", false, start(2, 1))
	wantDone(t, m, "another configuration", false, start(1, 2))
	wantDone(t, m, "begin", true, start(1, 1))
	wantDone(t, m, "begin a second time from the same look", false, start(1, 1))
	if got := leadership(t, m, "orders"); got != "@2" {
		t.Fatalf("after the begin %q", got)
	}
	wantDone(t, m, "an older epoch's choice", false, elect(1, 1, s2))
	wantDone(t, m, "a choice from another configuration", false, elect(2, 2, s2))
	wantDone(t, m, "a copy that is not the recorded one", false, elect(2, 1, topic.Replica{Node: "s2", DiskID: 1, CopyID: 5}))
	wantDone(t, m, "a node without a replica", false, elect(2, 1, topic.Replica{Node: "s9", DiskID: 1}))
	wantDone(t, m, "elect", true, elect(2, 1, s2))
	wantDone(t, m, "a second leader of one epoch", false, elect(2, 1, topic.Replica{Node: "s3", DiskID: 1}))
	if got := leadership(t, m, "orders"); got != "s2@2" {
		t.Fatalf("after the election %q", got)
	}
	other := ref
	other.Incarnation++
	wantDone(t, m, "another life", false, &BeginElections{Items: []ElectionStart{{Ref: other, Epoch: 2, ConfigVersion: 1}}})
}

func TestSingleCopiesHaveNoElection(t *testing.T) {
	m := newMemTx()
	wantOK(t, m.do(t, createOne("one", 7, "s1")))
	wantDone(t, m, "begin", false, &BeginElections{Items: []ElectionStart{{Ref: topic.Ref{Topic: "one", Incarnation: 7}, Epoch: 1, ConfigVersion: 1}}})
}

func TestRecordCopies(t *testing.T) {
	m, ref := replicated(t)
	version := uint64(1)
	rec := func(node string, wasDisk, was, disk, id topic.ID64, epoch topic.Epoch) Entry {
		return &RecordCopies{Items: []CopyRecord{{
			Ref: ref, Node: node, WasDisk: wasDisk, Was: was, DiskID: disk, CopyID: id, Epoch: epoch, ConfigVersion: version,
		}}}
	}
	wantDone(t, m, "no copy id", false, rec("s2", 1, 0, 1, 0, 0))
	wantDone(t, m, "first, on another disk", false, rec("s2", 1, 0, 2, 5, 0))
	wantDone(t, m, "first", true, rec("s2", 1, 0, 1, 5, 0))
	version = 2
	wantDone(t, m, "first again", false, rec("s2", 1, 0, 1, 6, 0))
	wantDone(t, m, "another copy without a vouching leader", false, rec("s2", 1, 5, 2, 6, 0))
	wantDone(t, m, "another copy, vouched for in an older epoch", false, rec("s2", 1, 5, 2, 6, 9))
	wantDone(t, m, "another copy, but another one was read", false, rec("s2", 1, 4, 2, 6, 1))
	wantDone(t, m, "another copy, but another disk was read", false, rec("s2", 2, 5, 2, 6, 1))
	wantDone(t, m, "the leader vouching for itself", false, rec("s1", 1, 0, 2, 6, 1))
	version = 1
	wantDone(t, m, "another copy, counted by an older set", false, rec("s2", 1, 5, 2, 6, 1))
	version = 2
	wantDone(t, m, "another copy, vouched for", true, rec("s2", 1, 5, 2, 6, 1))
	wantDone(t, m, "no replica there", false, rec("s9", 1, 0, 1, 6, 1))
	version = 3
	wantOK(t, m.do(t, &BeginElections{Items: []ElectionStart{{Ref: ref, Epoch: 1, ConfigVersion: 3}}}))
	wantDone(t, m, "vouched for, but nobody leads", false, rec("s2", 2, 6, 3, 7, 2))
}

// Recording a lone copy is no other configuration: who leads it counts by that copy
// already. One that is being moved has a second configuration under way, and is one.
func TestRecordLoneCopy(t *testing.T) {
	for _, moving := range []bool{false, true} {
		m, ref := movable(t)
		part := func() *topic.Assignment {
			a, err := PartitionOf(m, ref)
			if err != nil || a == nil {
				t.Fatal(a, err)
			}
			return a
		}
		if moving {
			wantDone(t, m, "it begins to move", true, start(ref, "s1", "s2", 1, 1))
		}
		before := part()
		disk := before.Replicas[0].DiskID
		rec := &RecordCopies{Items: []CopyRecord{{Ref: ref, Node: "s1", WasDisk: disk, DiskID: disk, CopyID: 5}}}
		wantDone(t, m, "first", true, rec)
		after := part()
		if after.Replicas[0].CopyID != 5 || (after.ConfigVersion != before.ConfigVersion) != moving {
			t.Errorf("moving %v: %+v, then %+v", moving, before, after)
		}
		wantDone(t, m, "again", false, rec)
	}
}

func TestChangeReplicas(t *testing.T) {
	m, ref := replicated(t)
	s := func(n ...int) (set []topic.Replica) {
		for _, i := range n {
			set = append(set, topic.Replica{Node: fmt.Sprintf("s%d", i), DiskID: 1})
		}
		return set
	}
	change := func(version uint64, set []topic.Replica) Result {
		defer checkInvariants(t, m)
		return m.do(t, &ChangeReplicas{Ref: ref, ConfigVersion: version, Epoch: 1, Replicas: set})
	}
	wantCode(t, change(2, s(1, 2, 3, 4)), problem.PreconditionFailed)
	for what, set := range map[string][]topic.Replica{
		"two more": s(1, 2, 3, 4, 5), "two less": s(1), "one for another": s(1, 2, 4), "without the leader": s(2, 3),
		"twice": s(1, 2, 3, 3), "nothing": s(1, 2, 3), "another disk": append(s(1, 2), topic.Replica{Node: "s3", DiskID: 2}),
	} {
		if res := change(1, set); !problem.HasCode(res.Err(), problem.InvalidRequest) {
			t.Fatalf("%s: %v", what, res.Err())
		}
	}
	// An election that began meanwhile: who vouched for the change leads no longer.
	wantCode(t, m.do(t, &ChangeReplicas{Ref: ref, ConfigVersion: 1, Epoch: 2, Replicas: s(1, 2, 3, 4)}), problem.PreconditionFailed)
	wantOK(t, change(1, s(1, 2, 3, 4)))
	wantOK(t, change(2, s(1, 2, 4)))
	if got := TopicsOnNode(m, "s3"); len(got) != 0 {
		t.Fatalf("s3 still has %v", got)
	}
	if got := TopicsOnNode(m, "s4"); len(got) != 1 {
		t.Fatalf("s4 has %v", got)
	}
	other := ref
	other.Incarnation++
	wantCode(t, m.do(t, &ChangeReplicas{Ref: other, ConfigVersion: 3, Replicas: s(1, 2)}), problem.TopicChanged)
}

// The last copy of a partition that nobody leads leads it, under a new epoch, where it is:
// a node that is no member, or has another disk by now, has nothing to lead with.
func TestTheLastCopyLeadsOnlyOnItsDisk(t *testing.T) {
	for name, c := range map[string]struct {
		disk topic.ID64 // of its node; 0: that is no member
		want string
	}{
		"on its disk":     {1, "s2@3"},
		"on another disk": {2, "@2"},
		"on no member":    {0, "@2"},
	} {
		m, ref := replicated(t)
		if c.disk != 0 {
			wantOK(t, m.do(t, &RegisterMember{Member: member("s2", c.disk, 1)}))
		}
		shrink := func(version uint64, epoch topic.Epoch, nodes ...string) {
			e := &ChangeReplicas{Ref: ref, ConfigVersion: version, Epoch: epoch}
			for _, n := range nodes {
				e.Replicas = append(e.Replicas, topic.Replica{Node: n, DiskID: 1})
			}
			wantOK(t, m.do(t, e))
		}
		shrink(1, 1, "s1", "s2")
		wantOK(t, m.do(t, &BeginElections{Items: []ElectionStart{{Ref: ref, Epoch: 1, ConfigVersion: 2}}}))
		shrink(2, 2, "s2")
		if got := leadership(t, m, "orders"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestTooManyItemsAreRefused(t *testing.T) {
	m := newMemTx()
	wantCode(t, m.do(t, &BeginElections{Items: make([]ElectionStart, MaxItems+1)}), problem.InvalidRequest)
}

// A storage node that starts anew gives up what it leads of replicated
// partitions, and only that.
func TestRestartGivesReplicatedLeadershipsUp(t *testing.T) {
	m, _ := replicated(t)
	wantOK(t, m.do(t, &RegisterMember{Member: member("s2", 1, 1)}))
	if got := leadership(t, m, "orders"); got != "s1@1" {
		t.Fatalf("a follower started: %q", got)
	}
	wantOK(t, m.do(t, &RegisterMember{Member: member("s1", 1, 1)}))
	if got := leadership(t, m, "orders"); got != "@2" {
		t.Fatalf("the leader started: %q", got)
	}
}
