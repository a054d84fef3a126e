package controller

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// placing is a rig that can place topics on one storage node.
func placing(t *testing.T) (r *rig, create func(name string) error) {
	t.Helper()
	r = newRig(t)
	r.register(t, "v1", topic.RoleVoter)
	r.latch(t)
	r.register(t, "s1", topic.RoleStorage)
	cfg := topic.DefaultConfig()
	cfg.Partitions = 1
	return r, func(name string) error {
		_, err := r.CreateTopic(t.Context(), &metaapi.CreateTopicRequest{Name: name, Config: cfg})
		return err
	}
}

// latch waits until this start's registration lets the view answer.
func (r *rig) latch(t *testing.T) {
	t.Helper()
	_, _, err := r.propose(t.Context(), &metastate.RegisterMember{NowMS: 1, Member: topic.Member{
		ID: "v1", Role: topic.RoleVoter, DiskID: 7, BootNonce: 1, RPCAddr: "a:2", RaftAddr: "a:1",
	}})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "the latch", r.node.View().Latched)
}

// TestRefusalsFromOwnStateAreTrue: a leader that may have been replaced says
// nothing of names, nodes and joiners from its own state; one that passes a
// barrier says it after another look.
func TestRefusalsFromOwnStateAreTrue(t *testing.T) {
	r, create := placing(t)
	if err := create("orders"); err != nil {
		t.Fatal(err)
	}
	few := topic.DefaultConfig()
	few.Partitions, few.ReplicationFactor = 1, 3
	taken := metaapi.JoinRequest{NodeID: "s1", DiskID: 9, Role: topic.RoleStorage, RaftAddr: "127.0.0.1:1", RPCAddr: "127.0.0.1:2"}
	asks := map[problem.Code]func() error{
		problem.TopicExists: func() error { return create("Orders") },
		problem.NotEnoughStorage: func() error {
			_, err := r.CreateTopic(t.Context(), &metaapi.CreateTopicRequest{Name: "wide", Config: few})
			return err
		},
		problem.IDInUse: func() error { _, err := r.Join(t.Context(), &taken); return err },
	}
	for code, ask := range asks {
		if err := ask(); !problem.HasCode(err, code) {
			t.Errorf("a leader: %v, want %s", err, code)
		}
	}
	pass := r.barriers.pass
	r.barriers.pass = func(context.Context) error { return raftnode.ErrOutcomeUnknown }
	for code, ask := range asks {
		if err := ask(); !problem.HasCode(err, problem.NotReady) {
			t.Errorf("a leader that may be none said %v instead of %s", err, code)
		}
	}
	r.barriers.pass = func(ctx context.Context) error { // what the barrier brings is seen
		have, err := r.node.View().Topic("orders")
		if err != nil {
			return nil
		}
		_, _, err = r.propose(ctx, &metastate.DeleteTopic{Name: "orders", Incarnation: have.Incarnation})
		return err
	}
	if err := create("orders"); err != nil {
		t.Errorf("a name that was free behind the barrier: %v", err)
	}
	r.barriers.pass = pass
}

// TestATermThatEndedDecidesNothing: who looked for places in one term does not
// propose them in the next.
func TestATermThatEndedDecidesNothing(t *testing.T) {
	r, create := placing(t)
	if err := create("orders"); err != nil {
		t.Fatal(err)
	}
	before := r.node.Applied()
	old := r.term.Load()
	next := &term{placing: map[topic.Incarnation][]topic.Assignment{}, heard: map[string]time.Duration{}, pending: map[string]metastate.Heartbeat{}}
	t.Cleanup(func() { r.term.Store(old) })
	have, err := r.node.View().Topic("orders")
	if err != nil {
		t.Fatal(err)
	}
	r.barriers.pass = func(ctx context.Context) error {
		r.term.Store(next)
		_, _, err := r.propose(ctx, &metastate.DeleteTopic{Name: "orders", Incarnation: have.Incarnation})
		return err
	}
	cfg := topic.DefaultConfig()
	cfg.Partitions = 1
	entry := func(e metastate.CreateTopic) metastate.Entry { return &e }
	if _, err := r.create(t.Context(), "orders", cfg, nil, entry); !problem.HasCode(err, problem.NotReady) {
		t.Errorf("in the next term: %v", err)
	}
	if _, err := r.node.View().Topic("orders"); err == nil || before == r.node.Applied() || len(old.placing) != 0 {
		t.Errorf("it was created in a term that had ended, or stays in its books: %v, %v", err, old.placing)
	}
	if err := create("orders"); err != nil { // through the front door: the new term is asked
		t.Error(err)
	}
}

// TestWallClockJumps: the wall clock goes back and forth by up to a day while
// the monotonic clock runs. Nobody who is heard is marked, whoever is silent is
// marked in time, and stamps grow.
func TestWallClockJumps(t *testing.T) {
	r := newRig(t)
	loud := []string{"s1", "g1", "v2"}
	for i, role := range []topic.MemberRole{topic.RoleStorage, topic.RoleGateway, topic.RoleVoter} {
		r.register(t, loud[i], role)
	}
	r.register(t, "s9", topic.RoleStorage) // is never heard again
	stamps := map[string]int64{}
	random := rand.New(rand.NewPCG(1, 2))
	const step = 4 * time.Second
	for silent := time.Duration(0); silent < 15*step; silent += step {
		before := r.stamps(t)
		r.wall.Add(random.Int64N(2*86_400_000) - 86_400_000)
		for _, id := range loud {
			r.beat(t, id)
		}
		testkit.Poll(t, patience, "the beats are stamped", func() bool {
			now := r.stamps(t)
			for _, id := range loud {
				if now[id] == before[id] {
					return false
				}
			}
			return true
		})
		for id, at := range r.stamps(t) {
			if at < stamps[id] {
				t.Errorf("the stamp of %s went back from %d to %d", id, stamps[id], at)
			}
			stamps[id] = at
		}
		r.idle(t)
		for _, id := range loud {
			if r.status(id) != topic.StatusAlive {
				t.Fatalf("%s was heard, and is dead", id)
			}
		}
		if silent >= r.timing.DeadAfter {
			testkit.Poll(t, patience, "s9 is dead", func() bool { return r.status("s9") == topic.StatusDead })
		} else if r.status("s9") != topic.StatusAlive {
			t.Fatalf("s9 is dead after %s", silent)
		}
		r.later(step)
	}
}

// stamps are the heartbeats of all members as they are applied.
func (r *rig) stamps(t *testing.T) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	err := r.node.Read(func(tx metastate.Reader) error {
		all, err := metastate.AllMembers(tx)
		for _, m := range all {
			out[m.ID] = m.HeartbeatMS
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestServerCount: who has no vote, and who of them waits for one.
func TestServerCount(t *testing.T) {
	got := countServers(confOf("v1 v2 v3#7- s1#7- s2#8- g1#9- ghost-").Servers, map[string]*topic.Member{
		"v1": {Role: topic.RoleVoter}, "v2": {Role: topic.RoleVoter}, "v3": {Role: topic.RoleVoter},
		"s1": {Role: topic.RoleStorage}, "s2": {Role: topic.RoleStorage}, "g1": {Role: topic.RoleGateway},
	})
	want := map[string]int{string(topic.RoleVoter): 1, string(topic.RoleStorage): 2, string(topic.RoleGateway): 1, roleUnknown: 1}
	for role, n := range want {
		if got.nonvoters[role] != n {
			t.Errorf("%s: %d, want %d", role, got.nonvoters[role], n)
		}
	}
	if len(got.nonvoters) != len(want) || got.pending != 1 {
		t.Errorf("got %+v", got)
	}
}
