package metaapi

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/release"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// requests are the operations of this contract with a request that has
// everything set, and what their objects had in the first release. A line of the
// latter is never edited: a field that is added to a request stands in the table
// of package release, when a sender can do without it, or in needed.
func requests() map[string]struct {
	req   any
	call  func(context.Context, *Client) error
	first string
} {
	join := JoinRequest{NodeID: "s1", DiskID: 7, Role: topic.RoleStorage, ClusterID: "c", RaftAddr: "a:1", RPCAddr: "a:2", Zone: "z", Release: "r", NewestEntryType: 9, Empty: true}
	register := RegisterRequest{NodeID: "s1", DiskID: 7, BootNonce: 8, Role: topic.RoleGateway, RaftAddr: "a:1", RPCAddr: "a:2", GossipAddr: "a:3", Zone: "z", Release: "r", NewestEntryType: 9}
	beat := HeartbeatRequest{NodeID: "s1", DiskID: 7, BootNonce: 8, WALBacklog: 3, DiskUsedPercent: 41, Release: "r", NewestEntryType: 9, Lost: &LostCopies{Count: 2, Named: []LostCopy{{Ref: topic.Ref{Topic: "orders", Incarnation: 5, Partition: 3}, SinceMS: 17}}}}
	create := CreateTopicRequest{Name: "orders", Config: topic.DefaultConfig()}
	update := UpdateTopicRequest{Name: "orders", Incarnation: 5, Version: 6, Config: topic.DefaultConfig()}
	remove := DeleteTopicRequest{Name: "orders", Incarnation: 5, Version: 6}
	lookup := LookupTopicRequest{Name: "orders"}
	confirm := ConfirmRequest{Questions: []Question{{Kind: KindIncarnation, ID: 5}}}
	forget := ForgetRequest{NodeID: "v9"}
	abort := AbortMoveRequest{Topic: "orders", Partition: 3, StartedMS: 17}
	return map[string]struct {
		req   any
		call  func(context.Context, *Client) error
		first string
	}{
		"join": {join, func(ctx context.Context, c *Client) error { _, err := c.Join(ctx, &join); return err }, "node_id disk_id role cluster_id raft_addr raft_id rpc_addr zone release empty"},
		"register": {
			register, func(ctx context.Context, c *Client) error { _, err := c.Register(ctx, &register); return err },
			"node_id disk_id boot_nonce role raft_addr rpc_addr gossip_addr zone release",
		},
		"heartbeat":    {beat, func(ctx context.Context, c *Client) error { return c.Heartbeat(ctx, &beat) }, "node_id disk_id boot_nonce wal_backlog disk_used_percent"},
		"create_topic": {create, func(ctx context.Context, c *Client) error { _, err := c.CreateTopic(ctx, &create); return err }, "name config"},
		"update_topic": {update, func(ctx context.Context, c *Client) error { _, err := c.UpdateTopic(ctx, &update); return err }, "name incarnation version config"},
		"delete_topic": {remove, func(ctx context.Context, c *Client) error { _, err := c.DeleteTopic(ctx, &remove); return err }, "name incarnation version"},
		"lookup_topic": {lookup, func(ctx context.Context, c *Client) error { _, err := c.LookupTopic(ctx, &lookup); return err }, "name"},
		"confirm":      {confirm, func(ctx context.Context, c *Client) error { _, err := c.Confirm(ctx, &confirm); return err }, "questions"},
		"forget":       {forget, func(ctx context.Context, c *Client) error { _, err := c.Forget(ctx, &forget); return err }, "node_id"},
		"abort_move":   {abort, func(ctx context.Context, c *Client) error { _, err := c.AbortMove(ctx, &abort); return err }, "topic partition"},
	}
}

// needed lists "operation field" of fields without which a request must not be
// carried out: an older peer's refusal is what the caller gets.
var needed = []string{
	"abort_move started_ms", // without it, another move than the named one would be taken back
}

// TestEveryFieldOfARequestIsAccountedFor: one that was forgotten would cut a new
// node off from an older leader.
func TestEveryFieldOfARequestIsAccountedFor(t *testing.T) {
	for op, r := range requests() {
		known := append(strings.Fields(r.first), release.Droppable(op)...)
		for i := range reflect.TypeOf(r.req).NumField() {
			name, _, _ := strings.Cut(reflect.TypeOf(r.req).Field(i).Tag.Get("json"), ",")
			if !slices.Contains(known, name) && !slices.Contains(needed, op+" "+name) {
				t.Errorf("%s has %s since the first release: add a row to release.Fields, or a line to needed here (CONTRIBUTING.md)", op, name)
			}
		}
	}
}

// older puts a voter of the first release on the wire.
func older(t *testing.T, v Voter) string {
	t.Helper()
	s := rpc.NewServer(rpc.ServerConfig{
		NodeID: "v1", ClusterID: func() string { return "" }, Log: slog.New(slog.DiscardHandler), Release: release.First,
	})
	Serve(s, v)
	return testkit.Serve(t, s)
}

// fieldOf is a request's field by its JSON name; the request must have it.
func fieldOf(t *testing.T, req reflect.Value, name string) reflect.Value {
	t.Helper()
	for i := range req.NumField() {
		if got, _, _ := strings.Cut(req.Type().Field(i).Tag.Get("json"), ","); got == name {
			return req.Field(i)
		}
	}
	t.Fatalf("%s has no field %s", req.Type(), name)
	return reflect.Value{}
}

// TestAnOlderLeaderIsAskedWithoutTheField, one test per droppable field of this
// contract: the call succeeds, the field did not arrive, and all others did.
func TestAnOlderLeaderIsAskedWithoutTheField(t *testing.T) {
	for op, r := range requests() {
		fields := release.Droppable(op)
		for _, field := range fields {
			t.Run(op+"/"+field, func(t *testing.T) {
				f := &fake{}
				if err := r.call(t.Context(), NewClient(client(t).Peer("", older(t, f)))); err != nil {
					t.Fatal(err)
				}
				want := reflect.New(reflect.TypeOf(r.req)).Elem()
				want.Set(reflect.ValueOf(r.req))
				for _, dropped := range fields { // the older leader knows none of them
					fieldOf(t, want, dropped).SetZero()
				}
				if fieldOf(t, reflect.ValueOf(r.req), field).IsZero() || !reflect.DeepEqual(f.got, want.Interface()) {
					t.Errorf("sent %+v, the older leader got %+v", r.req, f.got)
				}
				if err := r.call(t.Context(), NewClient(client(t).Peer("", serve(t, f)))); err != nil || !reflect.DeepEqual(f.got, r.req) {
					t.Errorf("a leader of this release got %+v: %v", f.got, err)
				}
			})
		}
	}
}

// TestEveryDroppableFieldIsTested, here or where its operation is.
func TestEveryDroppableFieldIsTested(t *testing.T) {
	elsewhere := []string{"inventory", "vouch"} // package nodeapi: TestAnOlderNodeIsAskedWithoutTheField, TestAnOlderLeaderVouchesWithoutPieces
	for _, f := range release.Fields() {
		if slices.Contains(elsewhere, f.Operation) {
			continue
		}
		r, ok := requests()[f.Operation]
		if !ok {
			t.Errorf("%s is an operation without a test of its field %s", f.Operation, f.Name)
			continue
		}
		fieldOf(t, reflect.ValueOf(r.req), f.Name)
	}
}

// TestTheWalkDropsFields: joins and promotions are asked of a leader that hints
// lead to; heartbeats go the same way.
func TestTheWalkDropsFields(t *testing.T) {
	f := &fake{}
	follower := &fake{err: NotLeader("v1", older(t, f))}
	l := leaderOf(t, "", older(t, follower))
	if res, err := l.Join(t.Context(), &JoinRequest{NodeID: "s1", NewestEntryType: 9}); err != nil || res.Status != results.join.Status {
		t.Errorf("join: %+v, %v", res, err)
	}
	if err := l.Heartbeat(t.Context(), &HeartbeatRequest{NodeID: "s1", Release: "r", NewestEntryType: 9}); err != nil {
		t.Errorf("heartbeat: %v", err)
	}
}

// TestUpgradingIsTheLeadersWord: the caller hears what is waited for, and not
// that nobody leads.
func TestUpgradingIsTheLeadersWord(t *testing.T) {
	f, other := &fake{err: Upgrading("moves", []string{"g1", "v2"})}, &fake{}
	_, err := leaderOf(t, serve(t, f), serve(t, other)).CreateTopic(t.Context(), &CreateTopicRequest{Name: "x"})
	if !problem.HasCode(err, problem.NotReady) || other.calls != 0 || !strings.Contains(err.Error(), "g1 and 1 more") {
		t.Errorf("%v; another voter was asked %d times", err, other.calls)
	}
}
