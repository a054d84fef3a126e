package metastate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

func seal(typ Type, body string) []byte {
	b := append([]byte{byte(typ)}, body...)
	return binary.LittleEndian.AppendUint32(b, checksum(b))
}

func createOne(name string, inc topic.Incarnation, node string) *CreateTopic {
	e := createMany(name, inc, 1, 1)
	e.Assignments[0].Replicas[0] = topic.Replica{Node: node, DiskID: 1}
	e.Assignments[0].Leader = node
	return e
}

// createMany places replica r of every partition on node "s<r>", disk 1.
func createMany(name string, inc topic.Incarnation, partitions, factor int) *CreateTopic {
	cfg := topic.DefaultConfig()
	cfg.Partitions, cfg.ReplicationFactor = partitions, factor
	e := &CreateTopic{Topic: topic.Topic{Name: name, Incarnation: inc, Config: cfg}}
	for p := range partitions {
		a := topic.Assignment{Ref: topic.Ref{Topic: name, Incarnation: inc, Partition: int32(p)}, Leader: "s1", LeaderEpoch: 1, ConfigVersion: 1}
		for r := range factor {
			a.Replicas = append(a.Replicas, topic.Replica{Node: fmt.Sprintf("s%d", r+1), DiskID: 1})
		}
		e.Assignments = append(e.Assignments, a)
	}
	return e
}

func member(id string, disk, nonce topic.ID64) topic.Member {
	return topic.Member{ID: id, Role: topic.RoleStorage, DiskID: disk, BootNonce: nonce}
}

func wantCode(t *testing.T, r Result, code problem.Code) {
	t.Helper()
	if !problem.HasCode(r.Err(), code) {
		t.Fatalf("got %v, want %s", r.Err(), code)
	}
}

func wantOK(t *testing.T, r Result) {
	t.Helper()
	if err := r.Err(); err != nil {
		t.Fatalf("refused: %v", err)
	}
}

func leadership(t *testing.T, m *memTx, name string) string {
	t.Helper()
	list, err := AssignmentsByName(m, name)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, a := range list {
		fmt.Fprintf(&b, "%s@%d ", a.Leader, a.LeaderEpoch)
	}
	return strings.TrimSpace(b.String())
}

func TestTopicLife(t *testing.T) {
	m := newMemTx()
	res := m.do(t, createOne("Orders", 1, "s1"))
	wantOK(t, res)
	if res.Topic.Version != 1 || len(res.Effects.Topics) != 1 {
		t.Fatalf("created as %+v", res)
	}
	res = m.do(t, createOne("oRDERS", 2, "s1"))
	wantCode(t, res, problem.TopicExists)
	if res.Refusal.Members["topic"].(*topic.Topic).Incarnation != 1 {
		t.Fatal("the refusal does not show the existing topic")
	}
	for _, name := range []string{"", "..", "a/b", "x.stale-3f9a17c4e2b08d51", "x.quarantine"} {
		wantCode(t, m.do(t, createOne(name, 3, "s1")), problem.InvalidTopicName)
	}

	cfg := topic.DefaultConfig()
	cfg.Partitions, cfg.MaxInFlight = 1, 5
	update := &UpdateTopic{Name: "Orders", Incarnation: 1, Version: 1, Config: cfg}
	if res = m.do(t, update); res.Topic == nil || res.Topic.Version != 2 || res.Topic.MaxInFlight != 5 {
		t.Fatalf("updated to %+v (%v)", res.Topic, res.Err())
	}
	res = m.do(t, update)
	wantCode(t, res, problem.PreconditionFailed)
	if res.Refusal.Members["version"] != uint64(2) {
		t.Fatalf("members %v", res.Refusal.Members)
	}
	wantCode(t, m.do(t, &UpdateTopic{Name: "Orders", Incarnation: 9, Version: 2, Config: cfg}), problem.TopicChanged)
	wantCode(t, m.do(t, &UpdateTopic{Name: "orders", Incarnation: 1, Version: 2, Config: cfg}), problem.TopicNotFound)
	cfg.Partitions = 2
	wantCode(t, m.do(t, &UpdateTopic{Name: "Orders", Incarnation: 1, Version: 2, Config: cfg}), problem.ImmutableField)

	wantCode(t, m.do(t, &DeleteTopic{Name: "Orders", Incarnation: 9}), problem.TopicChanged)
	wantCode(t, m.do(t, &DeleteTopic{Name: "Orders", Incarnation: 1, Version: 1}), problem.PreconditionFailed)
	wantOK(t, m.do(t, &DeleteTopic{Name: "Orders", Incarnation: 1, NowMS: 4}))
	wantCode(t, m.do(t, &DeleteTopic{Name: "Orders", Incarnation: 1}), problem.TopicNotFound)
	if !IsEnded(m, 1) || IsEnded(m, 2) {
		t.Fatal("the end of the life is not remembered, or one that never was is")
	}
	wantCode(t, m.do(t, createOne("other", 1, "s1")), problem.TopicChanged)

	// The name comes again: its version is above all that the former life had.
	res = m.do(t, createOne("orders", 5, "s1"))
	if wantOK(t, res); res.Topic.Version != 3 {
		t.Fatalf("the second life begins at version %d", res.Topic.Version)
	}
	checkInvariants(t, m)
}

func TestCreateRefusesAssignmentsThatDoNotFit(t *testing.T) {
	for name, breakIt := range map[string]func(*CreateTopic){
		"none":               func(e *CreateTopic) { e.Assignments = nil },
		"too few":            func(e *CreateTopic) { e.Assignments = e.Assignments[:1] },
		"other topic":        func(e *CreateTopic) { e.Assignments[1].Topic = "x" },
		"other incarnation":  func(e *CreateTopic) { e.Assignments[1].Incarnation++ },
		"out of order":       func(e *CreateTopic) { e.Assignments[1].Partition = 0 },
		"too few replicas":   func(e *CreateTopic) { e.Assignments[1].Replicas = e.Assignments[1].Replicas[:2] },
		"one node twice":     func(e *CreateTopic) { e.Assignments[1].Replicas[1].Node = "s1" },
		"no disk":            func(e *CreateTopic) { e.Assignments[1].Replicas[1].DiskID = 0 },
		"leader elsewhere":   func(e *CreateTopic) { e.Assignments[1].Leader = "s9" },
		"no incarnation":     func(e *CreateTopic) { e.Topic.Incarnation = 0 },
		"endless node id":    func(e *CreateTopic) { e.Assignments[1].Replicas[1].Node = strings.Repeat("s", 40_000) },
		"node with NUL byte": func(e *CreateTopic) { e.Assignments[1].Replicas[1].Node = "s\x00" },
	} {
		m := newMemTx()
		e := createMany("t", 1, 2, 3)
		breakIt(e)
		if r := m.do(t, e); !problem.HasCode(r.Err(), problem.InvalidRequest) || len(m.data[BucketTopics]) != 0 {
			t.Errorf("%s: %v", name, r.Err())
		}
		checkInvariants(t, m)
	}
}

func TestRegistrationRaisesEpochs(t *testing.T) {
	m := newMemTx()
	for _, id := range []string{"s1", "s2", "s3"} {
		wantOK(t, m.do(t, &RegisterMember{Member: member(id, 1, 1), NowMS: 100}))
	}
	wantOK(t, m.do(t, createMany("single", 1, 2, 1)))
	wantOK(t, m.do(t, createMany("triple", 2, 1, 3)))
	wantOK(t, m.do(t, createOne("elsewhere", 3, "s2")))

	res := m.do(t, &RegisterMember{Member: member("s1", 1, 2), NowMS: 101})
	wantOK(t, res)
	for name, want := range map[string]string{"single": "s1@2 s1@2", "triple": "@2", "elsewhere": "s2@1"} {
		if got := leadership(t, m, name); got != want {
			t.Errorf("%s is led by %q, want %q", name, got, want)
		}
	}
	if got := fmt.Sprint(res.Effects.Topics); got != "[single triple]" {
		t.Errorf("effects %s", got)
	}
	// The same start again (an answer that was lost): nothing more.
	wantOK(t, m.do(t, &RegisterMember{Member: member("s1", 1, 2), NowMS: 102}))
	if got := leadership(t, m, "single"); got != "s1@2 s1@2" {
		t.Errorf("after a repeat: %s", got)
	}
	// A follower that starts anew changes nothing.
	wantOK(t, m.do(t, &RegisterMember{Member: member("s3", 1, 2), NowMS: 102}))
	if got := leadership(t, m, "triple"); got != "@2" {
		t.Errorf("after a follower's start: %s", got)
	}
	checkInvariants(t, m)
}

func TestANewDiskLeadsNothing(t *testing.T) {
	m := newMemTx()
	first := m.do(t, &RegisterMember{Member: member("s1", 1, 1), NowMS: 100})
	wantOK(t, m.do(t, createMany("single", 1, 1, 1)))
	wantCode(t, m.do(t, &RegisterMember{Member: member("s1", 2, 2), NowMS: 101}), problem.IDInUse)
	other := member("s1", 1, 2)
	other.Role = topic.RoleGateway
	wantCode(t, m.do(t, &RegisterMember{Member: other, NowMS: 101}), problem.IDInUse)
	m.do(t, &MarkDead{Items: []DeadMark{{ID: "s1", HeartbeatMS: first.Member.HeartbeatMS}}})
	wantOK(t, m.do(t, &RegisterMember{Member: member("s1", 2, 2), NowMS: 102}))
	if got := leadership(t, m, "single"); got != "@2" {
		t.Fatalf("on another disk: %q", got)
	}
	// The old disk comes back: the only copy is there again, and leads.
	back, err := MemberByID(m, "s1")
	if err != nil {
		t.Fatal(err)
	}
	m.do(t, &MarkDead{Items: []DeadMark{{ID: "s1", HeartbeatMS: back.HeartbeatMS}}})
	wantOK(t, m.do(t, &RegisterMember{Member: member("s1", 1, 3), NowMS: 103}))
	if got := leadership(t, m, "single"); got != "s1@3" {
		t.Fatalf("with the old disk again: %q", got)
	}
}

// TestCreateIsRefusedOnADiskThatWentMeanwhile: between the look that placed it
// and the entry a node came back on another disk, where the new topic would be
// taken at the next start for one that was lost with the old disk.
func TestCreateIsRefusedOnADiskThatWentMeanwhile(t *testing.T) {
	m := newMemTx()
	wantOK(t, m.do(t, &RegisterMember{Member: member("s1", 2, 1), NowMS: 100}))
	wantCode(t, m.do(t, createOne("orders", 1, "s1")), problem.NotReady)
	if len(m.data[BucketTopics]) != 0 || IsLive(m, 1) {
		t.Error("a refused create left something")
	}
	placed := createOne("orders", 2, "s1")
	placed.Assignments[0].Replicas[0].DiskID = 2
	wantOK(t, m.do(t, placed))
	checkInvariants(t, m)
}

func TestTombstonesRefuseTheDisksThatTheyBuried(t *testing.T) {
	m := newMemTx()
	if err := put(m, BucketTombstones, []byte("s1"), &Tombstone{ID: "s1", DiskIDs: []topic.ID64{1, 2}}); err != nil {
		t.Fatal(err)
	}
	wantCode(t, m.do(t, &RegisterMember{Member: member("s1", 2, 1)}), problem.Decommissioned)
	wantOK(t, m.do(t, &RegisterMember{Member: member("s1", 3, 1)}))
}

func TestHeartbeatsAndDeathAreConditional(t *testing.T) {
	m := newMemTx()
	for _, id := range []string{"a", "b"} {
		wantOK(t, m.do(t, &RegisterMember{Member: member(id, 1, 1), NowMS: 100}))
	}
	beat := func(now int64, nonce topic.ID64) []StampOutcome {
		return m.do(t, &Heartbeats{NowMS: now, Items: []Heartbeat{{ID: "a", BootNonce: nonce}, {ID: "b", BootNonce: 1}, {ID: "c", BootNonce: 1}}}).Stamps
	}
	if got := fmt.Sprint(beat(200, 9)); got != fmt.Sprint([]StampOutcome{StampStale, Stamped, StampUnknown}) {
		t.Fatalf("stamps %s", got)
	}
	mark := func(id string, seen int64) bool {
		return m.do(t, &MarkDead{Items: []DeadMark{{ID: id, HeartbeatMS: seen}}}).Marked[0]
	}
	if mark("b", 100) {
		t.Fatal("marked dead on a stamp that is not the last")
	}
	if !mark("b", 200) || mark("b", 200) || mark("nobody", 1) {
		t.Fatal("not marked on its last stamp, or marked twice")
	}
	if got := beat(50, 1); got[0] != Stamped || got[1] != Revived {
		t.Fatalf("stamps %v", got)
	}
	// The wall clock went back: the stamp still is a new one.
	b, err := MemberByID(m, "b")
	if err != nil || b.HeartbeatMS != 201 || b.Status != topic.StatusAlive {
		t.Fatalf("member %+v, %v", b, err)
	}
	if mark("b", 200) {
		t.Fatal("marked dead after it was heard again")
	}
}

func TestClusterIDIsSetOnce(t *testing.T) {
	m := newMemTx()
	wantCode(t, m.do(t, &ClusterID{}), problem.InvalidRequest)
	wantOK(t, m.do(t, &ClusterID{ID: "x"}))
	wantOK(t, m.do(t, &ClusterID{ID: "x"}))
	wantCode(t, m.do(t, &ClusterID{ID: "y"}), problem.WrongCluster)
	if id, err := ReadClusterID(m); id != "x" || err != nil {
		t.Fatalf("%q, %v", id, err)
	}
}

// failingTx fails the n-th write.
type failingTx struct {
	*memTx
	left int
}

var errDisk = errors.New("disk")

func (f *failingTx) Put(b Bucket, k, v []byte) error {
	if f.left--; f.left < 0 {
		return errDisk
	}
	return f.memTx.Put(b, k, v)
}

func (f *failingTx) Delete(b Bucket, k []byte) error {
	if f.left--; f.left < 0 {
		return errDisk
	}
	return f.memTx.Delete(b, k)
}

// A write that fails is an error, never a refusal and never success.
func TestEveryFailedWriteIsAnError(t *testing.T) {
	entries := []Entry{
		&ClusterID{ID: "x"},
		&RegisterMember{Member: member("s1", 1, 2)},
		&Heartbeats{NowMS: 1, Items: []Heartbeat{{ID: "s1", BootNonce: 1}}},
		&MarkDead{Items: []DeadMark{{ID: "s1", HeartbeatMS: 0}}},
		createMany("new", 2, 2, 3),
		&UpdateTopic{Name: "t", Incarnation: 1, Version: 1, Config: createMany("t", 1, 2, 1).Topic.Config},
		&DeleteTopic{Name: "t", Incarnation: 1},
		&ForgetEnded{IDs: []topic.Incarnation{7}},
	}
	for _, e := range entries {
		for n := 0; ; n++ {
			m := newMemTx()
			wantOK(t, m.do(t, &RegisterMember{Member: member("s1", 1, 1)}))
			wantOK(t, m.do(t, createMany("t", 1, 2, 1)))
			f := &failingTx{m, n}
			if _, err := ApplyEntry(f, e); err == nil {
				if f.left > 0 || n == 0 {
					t.Errorf("type %d: wrote %d times", e.EntryType(), n)
				}
				break
			} else if !errors.Is(err, errDisk) {
				t.Fatalf("type %d: %v", e.EntryType(), err)
			}
		}
	}
}

func TestRandomHistoryKeepsInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one, two := newMemTx(), newMemTx()
		next := topic.Incarnation(1)
		versions := map[string]uint64{} // highest version seen by folded name
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			e := drawEntry(t, one, &next)
			raw, err := Encode(e)
			if err != nil {
				t.Fatalf("encode: %v", err)
			}
			before := one.dump()
			resOne, err := Apply(one, raw)
			if err != nil {
				t.Fatalf("apply: %v", err)
			}
			resTwo, err := Apply(two, raw)
			if err != nil || fmt.Sprint(resOne.Err()) != fmt.Sprint(resTwo.Err()) {
				t.Fatalf("two nodes differ: %v, %v, %v", resOne.Err(), resTwo.Err(), err)
			}
			if resOne.Refusal != nil && withoutNewest(before) != withoutNewest(one.dump()) {
				t.Fatalf("a refused entry changed the state: %v", resOne.Err())
			}
			if c, ok := e.(*CreateTopic); ok && resOne.Refusal == nil {
				name := topic.FoldName(c.Topic.Name)
				if resOne.Topic.Version <= versions[name] {
					t.Fatalf("%s shows version %d again", name, resOne.Topic.Version)
				}
			}
			if resOne.Topic != nil {
				versions[topic.FoldName(resOne.Topic.Name)] = resOne.Topic.Version
			}
			checkInvariants(t, one)
		}
		if one.dump() != two.dump() {
			t.Fatalf("states differ:\n%s\n%s", one.dump(), two.dump())
		}
	})
}

// withoutNewest drops the note of the newest entry type, which refused entries move as well.
func withoutNewest(dump string) string {
	var kept []string
	for _, line := range strings.Split(dump, "\n") {
		if !strings.Contains(line, keyNewestType) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}

func drawEntry(t *rapid.T, m *memTx, next *topic.Incarnation) Entry {
	name := rapid.SampledFrom([]string{"a", "A", "b", "..", "c-1"}).Draw(t, "name")
	node := rapid.SampledFrom([]string{"s1", "s2", "s3"}).Draw(t, "node")
	small := topic.ID64(rapid.IntRange(1, 2).Draw(t, "small"))
	inc, version := topic.Incarnation(1), uint64(1)
	if have, err := TopicByFolded(m, name); err == nil && have != nil && rapid.Bool().Draw(t, "current") {
		inc, version = have.Incarnation, have.Version
	}
	switch rapid.IntRange(0, 17).Draw(t, "kind") {
	case 0:
		return &RegisterMember{Member: member(node, small, topic.ID64(rapid.IntRange(1, 5).Draw(t, "nonce"))), NowMS: 5}
	case 1:
		return &Heartbeats{NowMS: int64(small), Items: []Heartbeat{{ID: node, BootNonce: small}}}
	case 2:
		seen := int64(0)
		if mem, err := MemberByID(m, node); err == nil && mem != nil {
			seen = mem.HeartbeatMS
		}
		return &MarkDead{Items: []DeadMark{{ID: node, HeartbeatMS: seen}}}
	case 3:
		cfg := topic.DefaultConfig()
		cfg.Partitions = rapid.IntRange(1, 3).Draw(t, "partitions")
		return &UpdateTopic{Name: name, Incarnation: inc, Version: version, Config: cfg}
	case 4:
		return &DeleteTopic{Name: name, Incarnation: inc, Version: version * uint64(rapid.IntRange(0, 1).Draw(t, "cas"))}
	case 5, 6, 7, 8:
		return drawPartitionEntry(t, m, name, inc)
	case 12, 13, 14:
		return drawLink(t, m, name, inc, next)
	case 9, 10, 11:
		return drawScaleEntry(t, m, name, inc, version, node)
	default:
		use := *next
		if rapid.IntRange(0, 9).Draw(t, "reuse") == 0 {
			use = 1
		} else {
			*next++
		}
		return createMany(name, use, rapid.IntRange(1, 3).Draw(t, "partitions"), rapid.SampledFrom([]int{1, 3}).Draw(t, "factor"))
	}
}
