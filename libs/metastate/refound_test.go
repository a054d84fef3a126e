package metastate

import (
	"testing"

	"github.com/narad-mq/narad/libs/topic"
)

// TestAhead: above the number, above the seconds of the clock, and above what an
// earlier attempt gave from the same number.
func TestAhead(t *testing.T) {
	const now = 1_795_982_645_123
	for _, c := range []struct {
		n     uint64
		nowMS int64
		want  uint64
	}{
		{0, now, now / 1000},
		{41, now, now / 1000},
		{now / 1000, now, now/1000 + RefoundStep}, // refounded in the same second
		{41, 0, 41 + RefoundStep},                 // a clock that was never set
		{41, -5000, 41 + RefoundStep},
	} {
		if got := Ahead(c.n, c.nowMS); got != c.want {
			t.Errorf("Ahead(%d, %d) = %d, want %d", c.n, c.nowMS, got, c.want)
		}
	}
	if Ahead(7, now+60_000) <= Ahead(7, now) {
		t.Error("a second attempt is not ahead of the first")
	}
}

// TestRefound: afterwards a process that the lost cluster knew registers as if it
// had never been here, leads under an epoch above every earlier one, and nothing
// that was not known has become live or ended.
func TestRefound(t *testing.T) {
	const now = 1_795_982_645_123
	m := newMemTx()
	for _, e := range []Entry{
		&ClusterID{ID: "c"},
		&RegisterMember{Member: member("s1", 1, 5), NowMS: 1},
		&RegisterMember{Member: topic.Member{ID: "v1", Role: topic.RoleVoter, DiskID: 9, BootNonce: 6}, NowMS: 1},
		createMany("kept", 1, 3, 1),
		createOne("gone", 2, "s1"),
		&DeleteTopic{Name: "gone", Incarnation: 2},
		&MarkDead{Items: []DeadMark{{ID: "s1", HeartbeatMS: 1}}},
		&SetDraining{ID: "s1", On: true, LossAcceptedBy: "ann"},
	} {
		res, err := ApplyEntry(m, e)
		if err != nil {
			t.Fatal(err)
		}
		wantOK(t, res)
	}
	before := Count(m)
	done, err := Refound(m, now)
	if err != nil || done != (Refounded{Members: 2, Topics: 1, Partitions: 3}) {
		t.Fatalf("%+v, %v", done, err)
	}
	if after := Count(m); after != before || before != (Counts{Topics: 1, Assignments: 3, Members: 2, Ended: 1}) {
		t.Errorf("records before %+v, after %+v", before, after)
	}
	id, err := ReadClusterID(m)
	if err != nil || id != "c" || !IsEnded(m, 2) || !IsLive(m, 1) || IsEnded(m, 3) {
		t.Errorf("cluster %q, %v; ends and lives changed", id, err)
	}
	kept, err := TopicByName(m, "kept")
	if err != nil || kept.Version != now/1000 {
		t.Errorf("version %d, %v", kept.Version, err)
	}
	for _, id := range []string{"s1", "v1"} {
		rec, err := MemberByID(m, id)
		if err != nil || rec.Status != topic.StatusDead || rec.BootNonce != 0 || rec.LossAcceptedBy != "" {
			t.Errorf("%s: %+v, %v", id, rec, err)
		}
	}
	// The same process start registers, and raises the epochs once more.
	res, err := ApplyEntry(m, &RegisterMember{Member: member("s1", 1, 5), NowMS: 1})
	if err != nil {
		t.Fatal(err)
	}
	wantOK(t, res)
	if got := leadership(t, m, "kept"); got != "s1@1795982646 s1@1795982646 s1@1795982646" {
		t.Errorf("leaderships %s", got)
	}
	// The voter comes back with an empty disk.
	res, err = ApplyEntry(m, &RegisterMember{Member: topic.Member{ID: "v1", Role: topic.RoleVoter, DiskID: 10, BootNonce: 7}, NowMS: 1})
	if err != nil {
		t.Fatal(err)
	}
	wantOK(t, res)
	// A topic that is made now begins above every version that was ever given.
	res, err = ApplyEntry(m, createOne("next", 4, "s1"))
	if err != nil {
		t.Fatal(err)
	}
	wantOK(t, res)
	if res.Topic.Version <= now/1000 {
		t.Errorf("a new topic begins at version %d", res.Topic.Version)
	}
}

// TestRefoundFindsNoEpochLeft: an epoch is 32 bits wide, and is not wrapped around.
func TestRefoundFindsNoEpochLeft(t *testing.T) {
	m := newMemTx()
	e := createOne("t", 1, "s1")
	e.Assignments[0].LeaderEpoch = ^topic.Epoch(0)
	if _, err := ApplyEntry(m, e); err != nil {
		t.Fatal(err)
	}
	if _, err := Refound(m, 0); err == nil {
		t.Error("no error")
	}
}

// TestRefoundFailsAsAWhole: a failed write is an error.
func TestRefoundFailsAsAWhole(t *testing.T) {
	m := newMemTx()
	for _, e := range []Entry{&RegisterMember{Member: member("s1", 1, 5), NowMS: 1}, createOne("t", 1, "s1")} {
		if _, err := ApplyEntry(m, e); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 4 {
		if _, err := Refound(&failingTx{memTx: m, left: n}, 1); err == nil {
			t.Errorf("the write after %d failed and nobody noticed", n)
		}
	}
}
