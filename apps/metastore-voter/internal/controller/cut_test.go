package controller

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// wire is how one node is connected; it can be cut off from all others.
type wire struct {
	mu    sync.Mutex // guards what follows
	off   bool
	conns []net.Conn // all that were ever open
}

func (w *wire) plane() raftnode.Plane {
	return raftnode.Plane{
		Listen: func(l net.Listener) net.Listener { return wireListener{l, w} },
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if err == nil && !w.carries(c) {
				return nil, errors.New("cut off")
			}
			return c, err
		},
	}
}

// carries takes a new connection on, or closes it.
func (w *wire) carries(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.off {
		_ = c.Close()
		return false
	}
	w.conns = append(w.conns, c)
	return true
}

// cut ends every connection and lets none begin.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.off = true
	for _, c := range w.conns {
		_ = c.Close() // again, for most
	}
}

func (w *wire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.off = false
}

type wireListener struct {
	net.Listener
	wire *wire
}

func (l wireListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.wire.carries(c) {
			return c, err
		}
	}
}

// Timing of nodes of which one may be cut off. Whoever is steady takes silence for no
// news: as a follower it begins no election and helps in none, as a leader it goes on
// when nobody answers it, as one does that stood still and has not looked yet.
var (
	steady = raftnode.Timing{Heartbeat: time.Hour, Election: time.Hour, LeaderLease: time.Hour, Commit: 5 * time.Millisecond}
	quick  = raftnode.Timing{Heartbeat: 250 * time.Millisecond, Election: 250 * time.Millisecond, LeaderLease: 200 * time.Millisecond, Commit: 5 * time.Millisecond}
)

// steadyLeader makes two voters of which v1 leads, whatever happens to its wire; v2
// elects whenever it hears nothing, which needs v1 or a third one that is not steady.
func steadyLeader(t *testing.T) (v1, v2 *raftnode.Node, w *wire) {
	t.Helper()
	w = &wire{}
	v1 = openNode(t, raftnode.Config{NodeID: "v1", Dir: t.TempDir(), Bind: "127.0.0.1:0", Timing: steady, Plane: w.plane()})
	v2 = openNode(t, raftnode.Config{NodeID: "v2", Dir: t.TempDir(), Bind: "127.0.0.1:0", Timing: quick})
	bootstrap(t, v1, v1, v2)
	bootstrap(t, v2, v1, v2)
	testkit.Poll(t, patience, "v2 was elected and has handed leadership to v1", func() bool {
		if v2.IsLeader() {
			_ = v2.TransferLeadership(t.Context()) // tried until it is done
		}
		return v1.IsLeader()
	})
	applied(t, v1, &metastate.ClusterID{ID: "00000000000000000000000000000001"})
	return v1, v2, w
}

// applied puts an entry on the log through the node that leads.
func applied(t *testing.T, leader *raftnode.Node, e metastate.Entry) {
	t.Helper()
	_, res, err := leader.Apply(t.Context(), e)
	if err == nil {
		err = res.Err()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func lifeOf(name string, id topic.Incarnation) *metastate.CreateTopic {
	cfg := topic.DefaultConfig()
	cfg.Partitions = 1
	return &metastate.CreateTopic{Topic: topic.Topic{Name: name, Incarnation: id, Config: cfg}, Assignments: []topic.Assignment{{
		Ref: topic.Ref{Topic: name, Incarnation: id}, Replicas: []topic.Replica{{Node: "s1", DiskID: 7}}, Leader: "s1", LeaderEpoch: 1, ConfigVersion: 1,
	}}}
}

func registrationOf(id string, role topic.MemberRole) *metastate.RegisterMember {
	return &metastate.RegisterMember{NowMS: 1, Member: topic.Member{
		ID: id, Role: role, DiskID: 7, BootNonce: 8, RPCAddr: "a:2", RaftAddr: "a:1", NewestEntryType: all(),
	}}
}

// TestACutOffLeaderConfirmsNothing: a topic is deleted and made anew through another
// leader. The old one, which cannot know and still takes itself for the leader, says
// nothing of either life; once it is reached again it says who leads.
func TestACutOffLeaderConfirmsNothing(t *testing.T) {
	v1, v2, w := steadyLeader(t)
	third := raftnode.Config{NodeID: "v3", Dir: t.TempDir(), Bind: testkit.FreeAddr(t), Timing: steady}
	v3 := openNode(t, third)
	if _, err := v1.AddVoter(t.Context(), "v3", v3.Addr(), v1.Configuration().Index); err != nil {
		t.Fatal(err)
	}
	r := rigOver(t, v1)
	r.run(t)
	testkit.Poll(t, patience, "v1 has a term", func() bool { return r.term.Load() != nil })
	const was, is = 1, 2
	applied(t, v1, registrationOf("s1", topic.RoleStorage))
	applied(t, v1, lifeOf("orders", was))
	ask := func(bound time.Duration) (*metaapi.ConfirmResult, error) {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		return r.Confirm(ctx, &metaapi.ConfirmRequest{Questions: []metaapi.Question{
			{Kind: metaapi.KindIncarnation, ID: was}, {Kind: metaapi.KindIncarnation, ID: is},
		}})
	}
	if res, err := ask(patience); err != nil || res.Verdicts[0] != metaapi.VerdictLive || res.Verdicts[1] != metaapi.VerdictUnknown {
		t.Fatalf("a leader says %+v, %v", res, err)
	}
	testkit.Poll(t, patience, "v3 has what was committed", func() bool { return v3.Applied() >= v1.Applied() })

	w.cut()
	if err := v3.Close(); err != nil { // its vote is free after a restart
		t.Fatal(err)
	}
	third.Timing = quick
	v3 = openNode(t, third)
	testkit.Poll(t, patience, "another one led, and the name has its next life", func() bool {
		for _, n := range []*raftnode.Node{v2, v3} {
			if n.Barrier(t.Context()) != nil {
				continue
			}
			switch have, err := n.View().Topic("orders"); { // what fails is done again by whoever leads then
			case err != nil:
				_, _, _ = n.Apply(t.Context(), lifeOf("orders", is))
			case have.Incarnation == was:
				_, _, _ = n.Apply(t.Context(), &metastate.DeleteTopic{Name: "orders", Incarnation: was})
			default:
				return true
			}
		}
		return false
	})

	if !v1.IsLeader() || r.term.Load() == nil {
		t.Fatal("v1 knows of its end: nothing is shown")
	}
	if res, err := ask(200 * time.Millisecond); res != nil || !problem.HasCode(err, problem.NotReady) {
		t.Errorf("cut off, it says %+v, %v", res, err)
	}
	w.heal()
	testkit.Poll(t, patience, "v1 says that another one leads", func() bool {
		res, err := ask(time.Second)
		if res != nil {
			t.Fatalf("it still says %+v", res)
		}
		return problem.HasCode(err, problem.NotMetastoreLeader)
	})
}

// TestALeaderIsNoneBeforeItsBarrier: a node that was elected and cannot pass the barrier
// of its term answers nobody and judges nobody; the silence until then is nobody's fault.
func TestALeaderIsNoneBeforeItsBarrier(t *testing.T) {
	v1, _, w := steadyLeader(t)
	applied(t, v1, registrationOf("v2", topic.RoleVoter))
	applied(t, v1, registrationOf("s1", topic.RoleStorage))
	r := rigOver(t, v1)
	w.cut()
	before := v1.Stats().LastLog
	r.run(t)
	testkit.Poll(t, patience, "its barrier is on the log", func() bool { return v1.Stats().LastLog > before || r.term.Load() != nil })
	for what, ask := range map[string]func() error{
		"heartbeat": func() error {
			return r.Heartbeat(t.Context(), &metaapi.HeartbeatRequest{NodeID: "v2", DiskID: 7, BootNonce: 8})
		},
		"confirm": func() error { _, err := r.Confirm(t.Context(), &metaapi.ConfirmRequest{}); return err },
		"members": func() error { _, err := r.Members(t.Context()); return err },
		"lookup": func() error {
			_, err := r.LookupTopic(t.Context(), &metaapi.LookupTopicRequest{Name: "orders"})
			return err
		},
		"register":    func() error { _, err := r.Register(t.Context(), &metaapi.RegisterRequest{NodeID: "s3"}); return err },
		"join":        func() error { _, err := r.Join(t.Context(), joinOf("s3", "127.0.0.1:1", all())); return err },
		"lost copies": func() error { _, err := r.LostCopies(t.Context()); return err },
	} {
		if err := ask(); !problem.HasCode(err, problem.NotReady) {
			t.Errorf("%s, before the barrier: %v", what, err)
		}
	}
	r.later(r.timing.DeadAfter) // of silence, before which the term has not begun
	r.idle(t)
	if r.term.Load() != nil {
		t.Fatal("the term began without its barrier")
	}
	w.heal()
	testkit.Poll(t, patience, "the term begins", func() bool { return r.term.Load() != nil })
	r.idle(t)
	if r.status("v2") != topic.StatusAlive || r.status("s1") != topic.StatusAlive || r.refused.Load() {
		t.Fatalf("v2 is %s, s1 %s, for a silence before the term; the breaker: %t", r.status("v2"), r.status("s1"), r.refused.Load())
	}
	for range 8 { // 32 s in which v2 is heard, and s1 is not
		r.later(4 * time.Second)
		r.beat(t, "v2")
	}
	testkit.Poll(t, patience, "s1 is dead", func() bool { return r.status("s1") == topic.StatusDead })
	if r.status("v2") != topic.StatusAlive {
		t.Error("v2 was heard and is dead")
	}
}
