package voter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// caller sends bodies to one voter as a process of its choice.
type caller struct {
	t       *testing.T
	cluster string // that it says it belongs to
	to      string // that it says it means
	addr    string
}

func (c caller) call(operation string, body []byte) error {
	client := rpc.NewClient(rpc.ClientConfig{NodeID: "stranger", ClusterID: func() string { return c.cluster }})
	defer client.Close()
	_, err := client.Peer(c.to, c.addr).Call(within(c.t), rpc.Method{Name: operation, MaxRequest: 16 << 20, MaxReply: 1 << 20}, body)
	return err
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// dump is what a voter knows: the replicated state and the Raft servers. The
// stamps of heartbeats are left out.
func dump(t *testing.T, m *machine) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintln(&b, m.member.Raft().Configuration().Servers)
	err := m.member.Raft().Read(func(r metastate.Reader) error {
		for _, bucket := range metastate.Buckets() {
			if bucket == metastate.BucketMembers {
				continue
			}
			r.Scan(bucket, nil, func(k, v []byte) bool { fmt.Fprintf(&b, "%s %q %s\n", bucket, k, v); return true })
		}
		all, err := metastate.AllMembers(r)
		for _, rec := range all {
			rec.HeartbeatMS, rec.WALBacklog, rec.DiskUsedPercent = 0, 0, 0
			fmt.Fprintf(&b, "%+v\n", rec)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// settled is a dump without the newest type of entry: what the state machine refuses
// stands on the log all the same, and whoever joins has to know its type.
func settled(dump string) string {
	var kept []string
	for line := range strings.Lines(dump) {
		if !strings.HasPrefix(line, `meta "newest_type" `) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// TestBadInput sends what nobody should to every operation of a voter, three
// times each: it is refused with the right status, logged once a minute, and changes nothing.
func TestBadInput(t *testing.T) {
	v := newMachine(t, "v1", topic.RoleVoter)
	v.cfg.FormAlone, v.journal = true, &testkit.Journal{}
	v.start()
	s1 := cluster{v}.joiner(t, "s1", topic.RoleStorage)
	s1.start()
	cluster{v, s1}.waitReady(t)
	kept := create(t, s1, "kept").Topic
	own := v.member.ClusterID()
	refusedAt := func(addr, name string, c caller, operation string, body []byte, code problem.Code, status int) *problem.Problem {
		t.Helper()
		c.t, c.addr = t, addr
		var p *problem.Problem
		for range 3 {
			if err := c.call(operation, body); !errors.As(err, &p) || p.Code != code || p.Status != status || p.Applied != problem.AppliedNo {
				t.Errorf("%s, %s: %v, want %d %s", name, operation, err, status, code)
			}
		}
		return p
	}
	refused := func(name string, c caller, operation string, body []byte, code problem.Code, status int) *problem.Problem {
		t.Helper()
		return refusedAt(v.cfg.RPCBind, name, c, operation, body, code, status)
	}
	began := time.Now()
	unasked := settled(dump(t, v))
	for _, q := range nonsense(kept) {
		refused(q.name, caller{cluster: own}, q.operation, encoded(t, q.body), q.code, q.status)
	}
	if after := settled(dump(t, v)); after != unasked {
		t.Errorf("nonsense changed something:\n%s\nwas\n%s", after, unasked)
	}
	before := dump(t, v)
	rows := operations()
	everywhere := s1.served()
	for operation, method := range v.served() {
		row, ok := rows[operation]
		if !ok {
			t.Errorf("operations() has no row of %q, which a voter serves", operation)
			continue
		}
		delete(rows, operation)
		good := encoded(t, row)
		oversized := append(bytes.Repeat([]byte(" "), method.MaxRequest+1-len(good)), good...)
		refused("another cluster", caller{cluster: "0123"}, operation, good, problem.WrongCluster, 409)
		refused("another node", caller{cluster: own, to: "v7"}, operation, good, problem.WrongNode, 421)
		refused("oversized", caller{cluster: own}, operation, oversized, problem.BodyTooLarge, 413)
		refused("malformed", caller{cluster: own}, operation, good[:len(good)-1], problem.InvalidRequest, 400)
		refused("no JSON", caller{cluster: own}, operation, []byte("\x00\xff"), problem.InvalidRequest, 400)
		refused("two bodies", caller{cluster: own}, operation, append(good, good...), problem.InvalidRequest, 400)
		field := refused("unknown field", caller{cluster: own}, operation, []byte(`{"colour":"red"}`), problem.InvalidRequest, 400)
		if field != nil && field.Members["parameter"] != "colour" {
			t.Errorf("unknown field, %s: it names %v", operation, field.Members["parameter"])
		}
		if _, both := everywhere[operation]; !both {
			refusedAt(s1.cfg.RPCBind, "another role", caller{cluster: own}, operation, good, problem.RouteNotFound, 404)
		}
	}
	for operation := range rows {
		t.Errorf("operations() has %q, which no voter serves", operation)
	}
	badMembers(t, v, s1, own, refused)
	if after := dump(t, v); after != before {
		t.Errorf("something changed:\n%s\nwas\n%s", after, before)
	}
	// A busy machine may have kept the leader from being heard for a moment.
	testkit.Poll(t, patience, "the member whose id was tried is ready", s1.ready)
	v.kill()
	said := v.journal.String()
	most := 1 + int(time.Since(began)/time.Minute) // a busy machine takes longer
	for _, line := range []string{
		`msg="refused a call from another cluster" from=stranger`, `msg="refused a call that was meant for another node"`,
		`msg="refused a joining node" node=s1 `, `msg="refused a joining node" node=v9 `, `msg="refused a registration" node=s1 `,
		`msg="refused a heartbeat" node=s1 `, `msg="refused a joining node" node=king `, `msg="refused a registration" node=king `,
	} {
		if n := strings.Count(said, line); n < 1 || n > most {
			t.Errorf("%s: logged %d times in %s", line, n, time.Since(began))
		}
	}
	if n := strings.Count(said, `msg="refused a malformed call"`) + strings.Count(said, `msg="refused a call with too large a body"`); n < 1 || n > most {
		t.Errorf("bodies that are none: logged %d times", n)
	}
}

// badMembers are requests that are well formed and name what is another's.
func badMembers(t *testing.T, v, s1 *machine, own string, refused func(string, caller, string, []byte, problem.Code, int) *problem.Problem) {
	t.Helper()
	c := caller{cluster: own}
	join := operations()["join"].(metaapi.JoinRequest)
	register := operations()["register"].(metaapi.RegisterRequest)
	for _, tc := range []struct {
		name   string
		change func(*metaapi.JoinRequest, *metaapi.RegisterRequest)
		code   problem.Code
		status int
		only   string // operation; "": both
	}{
		{"another disk of a live member", func(j *metaapi.JoinRequest, r *metaapi.RegisterRequest) { j.NodeID, r.NodeID = "s1", "s1" }, problem.IDInUse, 409, ""},
		{"another role of a live member", func(j *metaapi.JoinRequest, r *metaapi.RegisterRequest) {
			j.NodeID, r.NodeID, j.Role, r.Role = "s1", "s1", topic.RoleGateway, topic.RoleGateway
			j.DiskID, r.DiskID = s1.member.DiskID(), s1.member.DiskID()
		}, problem.IDInUse, 409, ""},
		{"the leader's own id", func(j *metaapi.JoinRequest, r *metaapi.RegisterRequest) {
			j.NodeID, r.NodeID, j.Role, r.Role = "v1", "v1", topic.RoleVoter, topic.RoleVoter
		}, problem.IDInUse, 409, ""},
		{"the leader's address", func(j *metaapi.JoinRequest, _ *metaapi.RegisterRequest) {
			j.NodeID, j.Role, j.RaftAddr = "v9", topic.RoleVoter, v.cfg.RaftBind
		}, problem.IDInUse, 409, "join"},
		{"another cluster in the body", func(j *metaapi.JoinRequest, _ *metaapi.RegisterRequest) { j.NodeID, j.ClusterID = "v9", "0123" }, problem.WrongCluster, 409, "join"},
		{"another's Raft server", func(j *metaapi.JoinRequest, _ *metaapi.RegisterRequest) { j.NodeID, j.RaftID = "v9", "v1" }, problem.InvalidRequest, 400, "join"},
		{"an unknown role", func(j *metaapi.JoinRequest, r *metaapi.RegisterRequest) {
			j.NodeID, r.NodeID, j.Role, r.Role = "king", "king", "king", "king"
		}, problem.InvalidRequest, 400, ""},
		{"no node id", func(j *metaapi.JoinRequest, r *metaapi.RegisterRequest) {
			j.NodeID, r.NodeID = "s1#0000000000000009", "s1#0000000000000009"
		}, problem.InvalidRequest, 400, ""},
		{"an address that is none", func(j *metaapi.JoinRequest, r *metaapi.RegisterRequest) { j.RPCAddr, r.RPCAddr = "nowhere", "nowhere" }, problem.InvalidRequest, 400, ""},
	} {
		j, r := join, register
		tc.change(&j, &r)
		refused(tc.name, c, "join", encoded(t, j), tc.code, tc.status)
		if tc.only == "" {
			refused(tc.name, c, "register", encoded(t, r), tc.code, tc.status)
		}
	}
	refused("a heartbeat of another process", c, "heartbeat", encoded(t, operations()["heartbeat"]), problem.IDInUse, 409)
}

// TestLyingLeadersAreSurvived: a real voter joins among peers that name it, each
// other and nobody as the leader.
func TestLyingLeadersAreSurvived(t *testing.T) {
	v := newMachine(t, "v1", topic.RoleVoter)
	v.cfg.FormAlone = true
	v.start()
	cluster{v}.waitReady(t)
	joiner := newMachine(t, "v2", topic.RoleVoter)
	a, b := testkit.FreeAddr(t), testkit.FreeAddr(t)
	liar(t, a, b)
	liar(t, b, a)
	joiner.cfg.Join = []string{
		a, b, liar(t, testkit.FreeAddr(t), joiner.cfg.RPCBind), liar(t, testkit.FreeAddr(t), "127.0.0.1:0"),
		liar(t, testkit.FreeAddr(t), strings.Repeat("x", 300)+":1"), liar(t, testkit.FreeAddr(t), "127.0.0.1:1"), v.cfg.RPCBind,
	}
	joiner.journal = &testkit.Journal{}
	joiner.start()
	testkit.Poll(t, patience, "it votes", func() bool { return voting(v, joiner) })
	joiner.kill()
	if n := joiner.journal.Count("that nobody can dial"); n == 0 || n > 4 {
		t.Errorf("forged hints were logged %d times", n)
	}
}

// liar answers every call at addr as a follower that follows hint.
func liar(t *testing.T, addr, hint string) string {
	t.Helper()
	s := rpc.NewServer(rpc.ServerConfig{NodeID: "liar", ClusterID: func() string { return "" }, Log: slog.New(slog.DiscardHandler)})
	s.Handle(rpc.Method{Name: "join", MaxRequest: 1 << 20, MaxReply: 1 << 20}, func(context.Context, *rpc.Request, []byte) ([]byte, error) {
		return nil, metaapi.NotLeader("liar", hint)
	})
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return addr
}
