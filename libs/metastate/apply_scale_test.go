package metastate

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// drawScaleEntry makes an entry about moves, growth or decommission that is
// mostly what the state has.
func drawScaleEntry(t *rapid.T, m *memTx, name string, inc topic.Incarnation, version uint64, node string) Entry {
	ref := topic.Ref{Topic: name, Incarnation: inc, Partition: int32(rapid.IntRange(0, 2).Draw(t, "moving partition"))}
	a, err := partition(m, ref)
	if err != nil {
		t.Fatalf("partition: %v", err)
	}
	if a == nil {
		a = &topic.Assignment{Ref: ref, Replicas: []topic.Replica{{Node: "s1", DiskID: 1}}, LeaderEpoch: 1, ConfigVersion: 1}
	}
	disk := topic.ID64(1)
	if mem, err := MemberByID(m, node); err == nil && mem != nil {
		disk = mem.DiskID
	}
	switch rapid.IntRange(0, 7).Draw(t, "of scale") {
	case 0, 1:
		return &Moves{Start: []MoveStart{{Move: topic.Move{Ref: ref, From: a.Replicas[0].Node, To: node, ToDisk: disk}, ConfigVersion: a.ConfigVersion}}}
	case 2:
		return &Moves{Abort: []topic.MoveID{underWay(t, m, ref)}}
	case 3:
		return &Moves{End: []topic.MoveID{underWay(t, m, ref)}}
	case 4:
		return &SetDraining{ID: node, On: rapid.Bool().Draw(t, "on"), LossAcceptedBy: rapid.SampledFrom([]string{"", "ann"}).Draw(t, "word")}
	case 5:
		return &RemoveMember{ID: node, DiskID: disk, AcceptLoss: rapid.Bool().Draw(t, "loss")}
	case 6:
		return &ResetPartition{Ref: ref, Epoch: a.LeaderEpoch, Replica: topic.Replica{Node: node, DiskID: disk}}
	}
	grown := createMany(name, inc, rapid.IntRange(1, 4).Draw(t, "grown"), len(a.Replicas))
	e := &GrowTopic{Name: name, Incarnation: inc, Version: version, Config: grown.Topic.Config}
	if have, err := TopicByName(m, name); err == nil && have != nil && have.Partitions < len(grown.Assignments) {
		e.Config.ReplicationFactor = have.ReplicationFactor
		e.Added = grown.Assignments[have.Partitions:]
	}
	return e
}

// underWay is the id of a partition's move, or of one that it has not.
func underWay(t *rapid.T, m *memTx, ref topic.Ref) topic.MoveID {
	mv, err := moveOf(m, ref)
	if err != nil {
		t.Fatalf("move: %v", err)
	}
	if mv == nil {
		return topic.MoveID{Ref: ref, To: "s1"}
	}
	return mv.ID()
}

// movable has a topic of one partition on s1 and members s1, s2, s3 on disk 1.
func movable(t *testing.T) (*memTx, topic.Ref) {
	t.Helper()
	m := newMemTx()
	for _, id := range []string{"s1", "s2", "s3"} {
		wantOK(t, m.do(t, &RegisterMember{Member: member(id, 1, 1)}))
	}
	wantOK(t, m.do(t, createOne("orders", 7, "s1")))
	return m, topic.Ref{Topic: "orders", Incarnation: 7}
}

func start(ref topic.Ref, from, to string, disk topic.ID64, version uint64) *Moves {
	return &Moves{Start: []MoveStart{{Move: topic.Move{Ref: ref, From: from, To: to, ToDisk: disk, StartedMS: 9}, ConfigVersion: version}}}
}

// id is that of a move that start begins.
func id(ref topic.Ref, to string) topic.MoveID { return topic.MoveID{Ref: ref, To: to, StartedMS: 9} }

func TestMoveOfALoneCopy(t *testing.T) {
	m, ref := movable(t)
	wantDone(t, m, "to a disk that the node has not", false, start(ref, "s1", "s2", 9, 1))
	wantDone(t, m, "from a node without a replica", false, start(ref, "s2", "s3", 1, 1))
	wantDone(t, m, "to where it is", false, start(ref, "s1", "s1", 1, 1))
	wantDone(t, m, "of another configuration", false, start(ref, "s1", "s2", 1, 2))
	wantDone(t, m, "to no member", false, start(ref, "s1", "s9", 1, 1))
	wantDone(t, m, "start", true, start(ref, "s1", "s2", 1, 1))
	wantDone(t, m, "start a second one", false, start(ref, "s1", "s3", 1, 2))
	if got := TopicsOnNode(m, "s2"); len(got) != 1 {
		t.Fatal("the destination does not know of its copy")
	}
	s1, s2 := topic.Replica{Node: "s1", DiskID: 1}, topic.Replica{Node: "s2", DiskID: 1, CopyID: 5}
	wantOK(t, m.do(t, &ChangeReplicas{Ref: ref, ConfigVersion: 2, Epoch: 1, Replicas: []topic.Replica{s1, s2}}))
	a, _ := partition(m, ref)
	if len(a.Observers) != 0 || len(a.Before) != 1 || a.Since != 1 {
		t.Fatalf("joined as %+v", a)
	}
	wantOK(t, m.do(t, &BeginElections{Items: []ElectionStart{{Ref: ref, Epoch: 1, ConfigVersion: 3}}}))
	wantOK(t, m.do(t, &ElectLeaders{Items: []Elected{{Ref: ref, Epoch: 2, ConfigVersion: 3, Leader: s2}}}))
	wantOK(t, m.do(t, &ChangeReplicas{Ref: ref, ConfigVersion: 3, Epoch: 2, Replicas: []topic.Replica{s2}}))
	wantDone(t, m, "end", true, &Moves{End: []topic.MoveID{id(ref, "s2")}})
	wantDone(t, m, "end again", false, &Moves{End: []topic.MoveID{id(ref, "s2")}})
	if len(TopicsOnNode(m, "s1")) != 0 {
		t.Fatal("the source still counts as having it")
	}
}

// A pair that nobody leads, because the one that led has restarted, is taken back
// to one copy: an election of one does not exist, so the entry names the leader.
func TestTheLastCopyOfALeaderlessPairLeads(t *testing.T) {
	m, ref := movable(t)
	wantDone(t, m, "start", true, start(ref, "s1", "s2", 1, 1))
	s1, s2 := topic.Replica{Node: "s1", DiskID: 1}, topic.Replica{Node: "s2", DiskID: 1, CopyID: 5}
	wantOK(t, m.do(t, &ChangeReplicas{Ref: ref, ConfigVersion: 2, Epoch: 1, Replicas: []topic.Replica{s1, s2}}))
	wantOK(t, m.do(t, &RegisterMember{Member: member("s1", 1, 2)})) // gives the pair up
	wantOK(t, m.do(t, &ChangeReplicas{Ref: ref, ConfigVersion: 3, Epoch: 2, Replicas: []topic.Replica{s1}}))
	if a, _ := partition(m, ref); a.Leader != "s1" || a.LeaderEpoch != 3 {
		t.Fatalf("led by %q under %d", a.Leader, a.LeaderEpoch)
	}
	checkInvariants(t, m)
}

func TestAbortedMoveLeavesNothing(t *testing.T) {
	m, ref := movable(t)
	wantDone(t, m, "abort without a move", false, &Moves{Abort: []topic.MoveID{id(ref, "s2")}})
	wantDone(t, m, "start", true, start(ref, "s1", "s2", 1, 1))
	wantDone(t, m, "abort", true, &Moves{Abort: []topic.MoveID{id(ref, "s2")}})
	wantDone(t, m, "abort again", false, &Moves{Abort: []topic.MoveID{id(ref, "s2")}})
	wantDone(t, m, "end", true, &Moves{End: []topic.MoveID{id(ref, "s2")}})
	if a, _ := partition(m, ref); len(a.Observers) != 0 || len(TopicsOnNode(m, "s2")) != 0 {
		t.Fatal("something of the destination is left")
	}
	wantDone(t, m, "start", true, start(ref, "s1", "s2", 1, 3))
	wantOK(t, m.do(t, &DeleteTopic{Name: "orders", Incarnation: 7}))
	checkInvariants(t, m)
}

// An abort or an end of one move that comes again, or late, leaves the next move of that
// partition alone, whether that goes elsewhere or to the same node.
func TestAMoveIsTakenBackByItsID(t *testing.T) {
	m, ref := movable(t)
	wantDone(t, m, "start", true, start(ref, "s1", "s2", 1, 1))
	wantDone(t, m, "end", true, &Moves{End: []topic.MoveID{id(ref, "s2")}})
	next := start(ref, "s1", "s2", 1, 3)
	next.Start[0].StartedMS = 10
	wantDone(t, m, "start the next one", true, next)
	for what, other := range map[string]topic.MoveID{"the one before": id(ref, "s2"), "one elsewhere": {Ref: ref, To: "s3", StartedMS: 10}} {
		wantDone(t, m, "abort "+what, false, &Moves{Abort: []topic.MoveID{other}})
		wantDone(t, m, "end "+what, false, &Moves{End: []topic.MoveID{other}})
	}
	if got, err := moveOf(m, ref); err != nil || got == nil || got.Aborted {
		t.Fatalf("%+v, %v", got, err)
	}
	wantDone(t, m, "abort it", true, &Moves{Abort: []topic.MoveID{next.Start[0].ID()}})
}

func TestDecommission(t *testing.T) {
	m, _ := movable(t)
	wantCode(t, m.do(t, &SetDraining{ID: "s9", On: true}), problem.MemberNotFound)
	remove := func(id string, disk topic.ID64) Result { return m.do(t, &RemoveMember{ID: id, DiskID: disk, NowMS: 5}) }
	wantCode(t, remove("s2", 1), problem.PreconditionFailed) // not draining
	res := m.do(t, &SetDraining{ID: "s2", On: true, NowMS: 4})
	if wantOK(t, res); !res.Member.Draining || res.Member.DrainingMS != 4 {
		t.Fatalf("%+v", res.Member)
	}
	// A restart does not end it.
	wantOK(t, m.do(t, &RegisterMember{Member: member("s2", 1, 2)}))
	if mem, _ := MemberByID(m, "s2"); !mem.Draining || mem.DrainingMS != 4 {
		t.Fatalf("after a restart %+v", mem)
	}
	wantCode(t, remove("s2", 9), problem.PreconditionFailed) // another disk
	wantOK(t, m.do(t, &SetDraining{ID: "s1", On: true}))
	wantCode(t, remove("s1", 1), problem.HasAssignments)
	wantOK(t, remove("s2", 1))
	wantCode(t, remove("s2", 1), problem.MemberNotFound)
	// The buried disk stays out, another one is a new member; both stay named.
	wantCode(t, m.do(t, &RegisterMember{Member: member("s2", 1, 3)}), problem.Decommissioned)
	wantOK(t, m.do(t, &RegisterMember{Member: member("s2", 2, 3)}))
	if mem, _ := MemberByID(m, "s2"); mem.Draining {
		t.Fatal("the new member drains")
	}
	wantOK(t, m.do(t, &SetDraining{ID: "s2", On: true}))
	wantOK(t, remove("s2", 2))
	for disk := topic.ID64(1); disk <= 2; disk++ {
		wantCode(t, m.do(t, &RegisterMember{Member: member("s2", disk, 4)}), problem.Decommissioned)
	}
	wantOK(t, m.do(t, &SetDraining{ID: "s1"}))
	if mem, _ := MemberByID(m, "s1"); mem.Draining || mem.DrainingMS != 0 {
		t.Fatal("cancelled, and still draining")
	}
}

// dies marks a member dead.
func (m *memTx) dies(t *testing.T, id string) {
	t.Helper()
	mem, err := MemberByID(m, id)
	if err != nil || mem == nil {
		t.Fatal(mem, err)
	}
	res := m.do(t, &MarkDead{Items: []DeadMark{{ID: id, HeartbeatMS: mem.HeartbeatMS}}})
	wantOK(t, res)
	if !res.Marked[0] {
		t.Fatalf("%s is not marked dead", id)
	}
}

// What somebody gave up with a dead node is not lost when that has come back, in whatever
// way, and not when it dies again: the word has to be given again.
func TestAcceptedLossEndsWhenTheMemberComesBack(t *testing.T) {
	for how, back := range map[string]Entry{
		"a heartbeat":               &Heartbeats{NowMS: 9, Items: []Heartbeat{{ID: "s1", BootNonce: 1}}},
		"a restart":                 &RegisterMember{Member: member("s1", 1, 2)},
		"a start with another disk": &RegisterMember{Member: member("s1", 2, 2)},
	} {
		t.Run(how, func(t *testing.T) {
			m, _ := movable(t)
			word := &SetDraining{ID: "s1", On: true, NowMS: 4, LossAcceptedBy: "ann"}
			wantCode(t, m.do(t, word), problem.NotReady) // it lives
			wantOK(t, m.do(t, &SetDraining{ID: "s1", On: true}))
			wantCode(t, m.do(t, word), problem.NotReady)
			m.dies(t, "s1")
			bury := func() Result {
				mem, err := MemberByID(m, "s1")
				if err != nil || mem == nil {
					t.Fatal(mem, err)
				}
				return m.do(t, &RemoveMember{ID: "s1", DiskID: mem.DiskID, AcceptLoss: true})
			}
			wantCode(t, bury(), problem.HasAssignments) // nobody's word
			wantOK(t, m.do(t, word))
			wantOK(t, m.do(t, back))
			wantCode(t, bury(), problem.HasAssignments)
			if mem, err := MemberByID(m, "s1"); err != nil || mem.LossAcceptedBy != "" || !mem.Draining {
				t.Fatalf("back again: %+v, %v", mem, err)
			}
			m.dies(t, "s1")
			wantCode(t, bury(), problem.HasAssignments)
			wantOK(t, m.do(t, word))
			wantOK(t, bury())
		})
	}
}

// One that lives with another disk has lost what was on the one that its copies are on,
// and nothing else: not what it gets on the new one, whether it lives or dies.
func TestAcceptedLossOfADisk(t *testing.T) {
	m, _ := movable(t)
	m.dies(t, "s1")
	wantOK(t, m.do(t, &RegisterMember{Member: member("s1", 2, 5)}))
	word := &SetDraining{ID: "s1", On: true, LossAcceptedBy: "ann"}
	wantOK(t, m.do(t, word))
	wantCode(t, m.do(t, &RemoveMember{ID: "s1", DiskID: 2}), problem.HasAssignments)
	bury := &RemoveMember{ID: "s1", DiskID: 2, AcceptLoss: true}
	more := createOne("more", 8, "s1")
	more.Assignments[0].Replicas[0].DiskID = 2
	wantOK(t, m.do(t, more))
	wantCode(t, m.do(t, bury), problem.HasAssignments) // it has that
	m.dies(t, "s1")
	wantCode(t, m.do(t, bury), problem.HasAssignments) // nobody has given that up
	wantOK(t, m.do(t, &Heartbeats{NowMS: 9, Items: []Heartbeat{{ID: "s1", BootNonce: 5}}}))
	wantOK(t, m.do(t, &DeleteTopic{Name: "more", Incarnation: 8}))
	wantOK(t, m.do(t, word))
	wantOK(t, m.do(t, bury))
}

func TestAcceptedLossIsKeptUntilACancel(t *testing.T) {
	m, _ := movable(t)
	m.dies(t, "s1")
	set := func(on bool, by string) *topic.Member {
		res := m.do(t, &SetDraining{ID: "s1", On: on, NowMS: 4, LossAcceptedBy: by})
		wantOK(t, res)
		return res.Member
	}
	set(true, "")
	if got := set(true, "ann"); got.LossAcceptedBy != "ann" || got.DrainingMS != 4 {
		t.Fatalf("accepted later: %+v", got)
	}
	if got := set(true, ""); got.LossAcceptedBy != "ann" {
		t.Fatal("forgotten by who asks again without it")
	}
	if got := set(false, "bob"); got.LossAcceptedBy != "" || got.Draining {
		t.Fatalf("cancelled: %+v", got)
	}
	if got := set(true, ""); got.LossAcceptedBy != "" {
		t.Fatal("an old word counts again")
	}
}

func TestGrow(t *testing.T) {
	m, _ := movable(t)
	grow := func(version uint64, partitions int, added []topic.Assignment) Result {
		cfg := topic.DefaultConfig()
		cfg.Partitions = partitions
		return m.do(t, &GrowTopic{Name: "orders", Incarnation: 7, Version: version, Config: cfg, Added: added})
	}
	more := createMany("orders", 7, 3, 1).Assignments
	wantCode(t, grow(2, 3, more[1:]), problem.PreconditionFailed)
	wantCode(t, grow(1, 1, nil), problem.InvalidRequest)
	wantCode(t, grow(1, 3, more[2:]), problem.InvalidRequest)
	wantCode(t, grow(1, 3, more[:2]), problem.InvalidRequest)
	res := grow(1, 3, more[1:])
	if wantOK(t, res); res.Topic.Version != 2 || res.Topic.Partitions != 3 {
		t.Fatalf("grown to %+v", res.Topic)
	}
	if list, _ := AssignmentsByName(m, "orders"); len(list) != 3 {
		t.Fatalf("%d partitions", len(list))
	}
	checkInvariants(t, m)
}

func TestReset(t *testing.T) {
	m, ref := movable(t)
	wantOK(t, m.do(t, &MarkDead{Items: []DeadMark{{ID: "s1"}}}))
	wantOK(t, m.do(t, &RegisterMember{Member: member("s1", 2, 2)})) // it comes back on another disk
	if got := leadership(t, m, "orders"); got != "@2" {
		t.Fatalf("led by %q", got)
	}
	reset := func(epoch topic.Epoch, node string, disk topic.ID64) Result {
		return m.do(t, &ResetPartition{Ref: ref, Epoch: epoch, Replica: topic.Replica{Node: node, DiskID: disk}})
	}
	wantCode(t, reset(1, "s1", 2), problem.PreconditionFailed)
	wantCode(t, reset(2, "s1", 1), problem.NotReady)
	wantOK(t, reset(2, "s1", 2))
	if got := leadership(t, m, "orders"); got != "s1@3" {
		t.Fatalf("after the reset led by %q", got)
	}
	if a, _ := partition(m, ref); a.Reset != 3 {
		t.Fatalf("nobody can tell the new log from an old one: %+v", a)
	}
	checkInvariants(t, m)
}

func TestResetToTheCopyThatIsLeft(t *testing.T) {
	m, _ := movable(t)
	e := createMany("pay", 8, 1, 3)
	wantOK(t, m.do(t, e))
	ref := topic.Ref{Topic: "pay", Incarnation: 8}
	a, err := partition(m, ref)
	if err != nil || len(a.Replicas) != 3 {
		t.Fatalf("%+v, %v", a, err)
	}
	left := a.Replicas[1]
	wantDone(t, m, "its copy is recorded", true, &RecordCopies{Items: []CopyRecord{{Ref: ref, Node: left.Node, WasDisk: left.DiskID, DiskID: left.DiskID, CopyID: 5}}})
	reset := func(copyID topic.ID64) Result {
		return m.do(t, &ResetPartition{Ref: ref, Epoch: a.LeaderEpoch, Replica: topic.Replica{Node: left.Node, DiskID: left.DiskID, CopyID: copyID}})
	}
	wantCode(t, reset(6), problem.PreconditionFailed)
	wantOK(t, reset(5))
	got, err := partition(m, ref)
	if err != nil || len(got.Replicas) != 1 || got.Replicas[0].CopyID != 5 || got.Leader != left.Node || got.Reset != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
}

// Without a source a move gives a partition one replica more, as long as it has fewer
// than its topic is to have.
func TestMoveWithoutASource(t *testing.T) {
	m, ref := movable(t)
	wantDone(t, m, "of one that has all", false, start(ref, "", "s2", 1, 1))
	top, err := TopicByName(m, "orders")
	if err != nil || top == nil {
		t.Fatal(top, err)
	}
	top.ReplicationFactor = 3
	if err := put(m, BucketTopics, []byte("orders"), top); err != nil { // as after a reset to a survivor
		t.Fatal(err)
	}
	wantDone(t, m, "to where it is", false, start(ref, "", "s1", 1, 1))
	wantDone(t, m, "of one that lacks two", true, start(ref, "", "s2", 1, 1))
	wantDone(t, m, "another one at once", false, start(ref, "", "s3", 1, 2))
	a, err := PartitionOf(m, ref)
	if err != nil || len(a.Replicas) != 1 || len(a.Observers) != 1 || a.Observers[0].Node != "s2" {
		t.Fatalf("%+v, %v", a, err)
	}
	wantDone(t, m, "it ends", true, &Moves{End: []topic.MoveID{id(ref, "s2")}})
}
