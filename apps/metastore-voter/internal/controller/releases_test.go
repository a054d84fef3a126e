package controller

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// ofFirst is what a node of the first release applies.
const ofFirst = uint8(metastate.TypeDeleteTopic)

func all() uint8 { return uint8(metastate.NewestType()) }

// reports registers a storage node that says that it applies types up to newest.
func (r *rig) reports(t *testing.T, id string, newest uint8) {
	t.Helper()
	_, err := r.Register(t.Context(), &metaapi.RegisterRequest{
		NodeID: id, DiskID: 7, BootNonce: 8, Role: topic.RoleStorage, RaftAddr: "a:1", RPCAddr: "a:2", Release: "r", NewestEntryType: newest,
	})
	if err != nil {
		t.Fatal(err)
	}
}

func joinOf(id, addr string, newest uint8) *metaapi.JoinRequest {
	return &metaapi.JoinRequest{
		NodeID: id, DiskID: 7, Role: topic.RoleStorage, RaftAddr: addr, RPCAddr: "127.0.0.1:2", Release: "r", NewestEntryType: newest,
	}
}

// proposes tries an entry of a type that the first release does not have, and
// tells who keeps it from being proposed.
func (r *rig) proposes(t *testing.T) (waitingFor []string) {
	t.Helper()
	_, _, err := r.propose(t.Context(), &metastate.ForgetEnded{})
	var p *problem.Problem
	if errors.As(err, &p) && p.Code == problem.NotReady {
		waitingFor, _ = p.Members["waiting_for"].([]string)
		if p.Status != 503 || p.Applied != problem.AppliedNo || len(waitingFor) == 0 {
			t.Errorf("refused with %+v", p)
		}
	}
	return waitingFor
}

// TestNewerEntriesWaitForEverybody: every Raft server and every member of record.
func TestNewerEntriesWaitForEverybody(t *testing.T) {
	r := newRig(t)
	check := func(when string, want ...string) {
		t.Helper()
		if got := r.proposes(t); !slices.Equal(got, want) {
			t.Errorf("%s: waiting for %v, want %v", when, got, want)
		}
	}
	r.reports(t, "s1", all())
	r.reports(t, "s2", ofFirst)
	r.reports(t, "s3", 0)
	check("two older members", "s2", "s3")
	if _, _, err := r.propose(t.Context(), &metastate.MarkDead{}); err != nil {
		t.Errorf("an entry of the first release: %v", err)
	}
	r.reports(t, "s2", all())
	check("one is upgraded", "s3")
	err := r.node.Read(func(tx metastate.Reader) error {
		if newest, err := metastate.NewestApplied(tx); err != nil || newest > metastate.TypeDeleteTopic {
			t.Errorf("type %d was applied: %v", newest, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.reports(t, "s3", uint8(metastate.TypeForgetEnded))
	check("everybody knows the type")
	if _, err := r.Join(t.Context(), joinOf("s4", "127.0.0.1:4", all())); err != nil {
		t.Fatal(err)
	}
	check("a server without a record", "s4")
	r.reports(t, "s4", all())
	check("it has registered")
}

// TestOlderJoinersStayOut: a node that applies less than everybody of record.
func TestOlderJoinersStayOut(t *testing.T) {
	r := newRig(t)
	r.reports(t, "s1", all())
	join := func(id, addr string, newest uint8) error {
		t.Helper()
		_, err := r.Join(t.Context(), joinOf(id, addr, newest))
		return err
	}
	for _, newest := range []uint8{0, ofFirst, all() - 1} {
		if err := join("s2", "127.0.0.1:2", newest); !problem.HasCode(err, problem.OlderRelease) {
			t.Errorf("types up to %d: %v", newest, err)
		}
	}
	r.reports(t, "s3", ofFirst)
	if err := join("s2", "127.0.0.1:2", 0); err != nil {
		t.Errorf("as old as one of record: %v", err)
	}
	r.reports(t, "s3", all())
	if err := join("s2", "127.0.0.1:2", ofFirst); err != nil {
		t.Errorf("a server of the configuration: %v", err)
	}
	r.reports(t, "s4", ofFirst)
	if _, _, err := r.node.Apply(t.Context(), &metastate.ForgetEnded{}); err != nil { // past the gate
		t.Fatal(err)
	}
	if err := join("s5", "127.0.0.1:5", ofFirst); !problem.HasCode(err, problem.OlderRelease) {
		t.Errorf("fewer than what was applied: %v", err)
	}
	if err := join("s5", "127.0.0.1:5", all()); err != nil {
		t.Errorf("after its upgrade: %v", err)
	}
}

// TestAdmissionAndProposalsExclude: an older node is admitted before the look at
// who knows a type, or after an entry of it was applied, and then it is refused.
func TestAdmissionAndProposalsExclude(t *testing.T) {
	r := newRig(t)
	r.reports(t, "s1", ofFirst) // by which an older node may join
	r.admission.RLock()         // as a proposal does
	joined := make(chan error, 1)
	go func() {
		_, err := r.Join(t.Context(), joinOf("s2", "127.0.0.1:2", ofFirst))
		joined <- err
	}()
	testkit.Poll(t, patience, "the join waits", func() bool {
		if r.admission.TryRLock() {
			r.admission.RUnlock()
			return false
		}
		return true
	})
	if _, _, err := r.node.Apply(t.Context(), &metastate.ForgetEnded{}); err != nil {
		t.Fatal(err)
	}
	r.admission.RUnlock()
	if err := <-joined; !problem.HasCode(err, problem.OlderRelease) {
		t.Errorf("joined while a newer entry was proposed: %v", err)
	}

	r.reports(t, "s1", all())
	r.admission.Lock() // as a join does
	began, refused := make(chan struct{}), make(chan []string, 1)
	go func() { close(began); refused <- r.proposes(t) }()
	<-began
	conf := r.node.Configuration()
	if _, err := r.node.AddNonvoter(t.Context(), "s3", "127.0.0.1:3", conf.Index); err != nil {
		t.Fatal(err)
	}
	r.admission.Unlock()
	if got := <-refused; !slices.Equal(got, []string{"s3"}) {
		t.Errorf("a newer entry was proposed while a node joined: waiting for %v", got)
	}
}

// TestAMemberSaysMoreThanItsRecord: it registered with an older leader, which
// refused a field; a later leader has it register again, and hears it meanwhile.
func TestAMemberSaysMoreThanItsRecord(t *testing.T) {
	r := newRig(t)
	r.reports(t, "s1", 0)
	r.later(time.Second)
	beat := &metaapi.HeartbeatRequest{NodeID: "s1", DiskID: 7, BootNonce: 8, Release: "r", NewestEntryType: all()}
	if err := r.Heartbeat(t.Context(), beat); !problem.HasCode(err, problem.MemberNotFound) {
		t.Errorf("a newer member: %v", err)
	}
	if ages, err := r.Members(t.Context()); err != nil || ages.AgesMS["s1"] != 0 {
		t.Errorf("it was not heard: %v, %v", ages, err)
	}
	r.reports(t, "s1", all())
	if err := r.Heartbeat(t.Context(), beat); err != nil {
		t.Errorf("after it registered again: %v", err)
	}
	beat.Release = "s"
	if err := r.Heartbeat(t.Context(), beat); !problem.HasCode(err, problem.MemberNotFound) {
		t.Errorf("another release: %v", err)
	}
	beat.Release, beat.NewestEntryType = "", 0 // an older member, or a field that was left out
	if err := r.Heartbeat(t.Context(), beat); err != nil {
		t.Errorf("a heartbeat that says nothing: %v", err)
	}
}

func TestRefusalsOfAJoinerAreLoggedOnceAMinute(t *testing.T) {
	var l refusalLog
	for _, c := range []struct {
		node string
		at   time.Duration
		want bool
	}{
		{"a", 0, true},
		{"a", 2 * time.Second, false},
		{"b", 2 * time.Second, true},
		{"a", 59 * time.Second, false},
		{"a", time.Minute, true},
		{"b", time.Minute, false},
	} {
		if got := l.due(c.node, c.at); got != c.want {
			t.Errorf("%s at %s: %t", c.node, c.at, got)
		}
	}
}
