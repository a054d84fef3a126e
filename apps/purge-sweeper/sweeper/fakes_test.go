package sweeper

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/testkit/leak"
	"github.com/narad-mq/narad/libs/topic"
)

func TestMain(m *testing.M) { leak.Main(m) }

const (
	liveID topic.Incarnation = 0x11
	goneID topic.Incarnation = 0x22
	lostID topic.Incarnation = 0x33 // the metastore never heard of it
)

// voter is a metastore leader, or with follows set one that names the leader.
type voter struct {
	metaapi.Voter // what a sweeper must not call
	members       []topic.Member
	follows       string

	mu      sync.Mutex // guards below
	asked   [][]metaapi.Question
	ends    []metaapi.Ending
	endless bool
	forgot  []topic.Incarnation
	forget  error
	after   []topic.Member // what it says from the second time on; nil: members
	told    int
	confirm func(*metaapi.ConfirmRequest) (*metaapi.ConfirmResult, error) // nil: by the ids above
}

func (v *voter) Members(context.Context) (*metaapi.MembersResult, error) {
	if v.follows != "" {
		return nil, metaapi.NotLeader("voter-1", v.follows)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	members := v.members
	if v.told++; v.told > 1 && v.after != nil {
		members = v.after
	}
	return &metaapi.MembersResult{LeaderID: "voter-1", ClusterID: "c1", Members: members}, nil
}

func (v *voter) Endings(_ context.Context, req *metaapi.EndingsRequest) (*metaapi.EndingsResult, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.follows != "" {
		return nil, metaapi.NotLeader("voter-1", v.follows)
	}
	res := &metaapi.EndingsResult{More: v.endless}
	for _, e := range v.ends {
		if e.Incarnation > req.After {
			res.Endings = append(res.Endings, e)
		}
	}
	return res, nil
}

func (v *voter) ForgetEnded(_ context.Context, req *metaapi.ForgetEndedRequest) (*metaapi.ChangeResult, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.forget != nil {
		return nil, v.forget
	}
	v.forgot = append(v.forgot, req.IDs...)
	return &metaapi.ChangeResult{}, nil
}

func (v *voter) Confirm(_ context.Context, req *metaapi.ConfirmRequest) (*metaapi.ConfirmResult, error) {
	if v.follows != "" {
		return nil, metaapi.NotLeader("voter-1", v.follows)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked = append(v.asked, req.Questions)
	if v.confirm != nil {
		return v.confirm(req)
	}
	res := &metaapi.ConfirmResult{}
	for _, q := range req.Questions {
		verdict := metaapi.VerdictUnknown
		switch {
		case q.Kind != "incarnation":
		case q.ID == liveID:
			verdict = metaapi.VerdictLive
		case q.ID == goneID:
			verdict = metaapi.VerdictGone
		}
		res.Verdicts = append(res.Verdicts, verdict)
	}
	return res, nil
}

// store is a storage node that has only an inventory, and removes of it what carries
// the incarnation of the request and goneID.
type store struct {
	nodeapi.Node
	mu      sync.Mutex // guards what follows
	entries []nodeapi.InventoryEntry
	asked   []nodeapi.ReclaimRequest
	refuse  error
	listed  func() // called after a page of the inventory
	most    int    // of one call; what comes beyond it is kept, as if time was short
	fail    error
	loops   bool          // it always says that more follows
	hang    chan struct{} // not nil: it does not answer before that is closed
}

func (s *store) Inventory(ctx context.Context, req *nodeapi.InventoryRequest) (*nodeapi.InventoryResult, error) {
	if s.hang != nil {
		select {
		case <-s.hang:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	from, _ := strconv.Atoi(req.After)
	from = min(from, len(s.entries)) // it shrinks meanwhile
	to := min(from+req.Limit, len(s.entries))
	res := &nodeapi.InventoryResult{Entries: slices.Clone(s.entries[from:to])}
	switch {
	case s.fail != nil && from > 0:
		return nil, s.fail
	case s.loops:
		res.Next = "0"
	case to < len(s.entries):
		res.Next = strconv.Itoa(to)
	}
	if s.listed != nil {
		s.listed()
	}
	return res, nil
}

func (s *store) Reclaim(_ context.Context, req *nodeapi.ReclaimRequest) (*nodeapi.ReclaimResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, *req)
	if s.refuse != nil {
		return nil, s.refuse
	}
	res := &nodeapi.ReclaimResult{}
	for n, item := range req.Items {
		at := slices.IndexFunc(s.entries, func(e nodeapi.InventoryEntry) bool { return e.Name == item.Name })
		out := nodeapi.ReclaimOutcome{Status: nodeapi.Kept, Reason: "not confirmed"}
		switch {
		case s.most > 0 && n >= s.most:
			out.Reason = "no time left"
		case at < 0:
			out = nodeapi.ReclaimOutcome{Status: nodeapi.Absent}
		case s.entries[at].Incarnation == item.Incarnation && item.Incarnation == goneID:
			out = nodeapi.ReclaimOutcome{Status: nodeapi.Reclaimed, Bytes: s.entries[at].Bytes}
			s.entries = slices.Delete(s.entries, at, at+1)
		}
		res.Outcomes = append(res.Outcomes, out)
	}
	return res, nil
}

// gateway has only a backlog.
type gateway struct {
	lives   []gatewayapi.UndispatchedLife
	partial bool
	loops   bool
}

func (g *gateway) Undispatched(_ context.Context, req *gatewayapi.UndispatchedRequest) (*gatewayapi.UndispatchedResult, error) {
	res := &gatewayapi.UndispatchedResult{Partial: g.partial, Lives: []gatewayapi.UndispatchedLife{}, More: g.loops}
	for _, l := range g.lives {
		if l.Incarnation > req.After {
			if len(res.Lives) == req.Limit {
				res.More = true
				break
			}
			res.Lives = append(res.Lives, l)
		}
	}
	return res, nil
}

func serveGateway(t *testing.T, id string, g *gateway) topic.Member {
	addr := serve(t, id, "c1", func(s *rpc.Server) { gatewayapi.ServeBacklog(s, g) })
	return topic.Member{ID: id, Role: topic.RoleGateway, Status: topic.StatusAlive, RPCAddr: addr}
}

// serve puts a node on the wire and returns its address.
func serve(t *testing.T, id, cluster string, register func(*rpc.Server)) string {
	t.Helper()
	s := rpc.NewServer(rpc.ServerConfig{NodeID: id, ClusterID: func() string { return cluster }, Log: slog.New(slog.DiscardHandler)})
	register(s)
	return testkit.Serve(t, s)
}

func serveVoter(t *testing.T, id string, v *voter) string {
	return serve(t, id, "c1", func(s *rpc.Server) {
		metaapi.Serve(s, v)
		metaapi.ServeEndings(s, v)
	})
}

func serveStore(t *testing.T, id string, n *store) topic.Member {
	addr := serve(t, id, "c1", func(s *rpc.Server) { nodeapi.Serve(s, n) })
	return topic.Member{ID: id, Role: topic.RoleStorage, Status: topic.StatusAlive, RPCAddr: addr}
}

// closedAddr is an address where nobody listens.
func closedAddr(t *testing.T) string {
	t.Helper()
	return testkit.FreeAddr(t)
}

// pass runs one pass that changes nothing, unless it is tuned, and reads its JSON report.
func pass(t *testing.T, v *voter, tune func(*Role)) (Report, error) {
	t.Helper()
	return passIn(t.Context(), t, v, tune)
}

// passIn is pass that is over with ctx.
func passIn(ctx context.Context, t *testing.T, v *voter, tune func(*Role)) (Report, error) {
	t.Helper()
	var out bytes.Buffer
	r, err := New(Config{Join: []string{serveVoter(t, "voter-1", v)}, DryRun: true, JSON: true, Timeout: testkit.Patience}, Deps{Out: &out})
	if err != nil {
		t.Fatal(err)
	}
	if tune != nil {
		tune(r)
	}
	runErr := r.Run(ctx)
	var report Report
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &report); err != nil {
			t.Fatal(err)
		}
	}
	return report, runErr
}

// clean is pass that reclaims.
func clean(t *testing.T, v *voter, tune func(*Role)) (Report, error) {
	t.Helper()
	return pass(t, v, func(r *Role) {
		r.cfg.DryRun = false
		if tune != nil {
			tune(r)
		}
	})
}

func serving(name string, id topic.Incarnation) nodeapi.InventoryEntry {
	return nodeapi.InventoryEntry{Kind: nodeapi.InventoryServing, Name: "topics/" + name, Topic: name, Incarnation: id, Partitions: []int32{0}, Bytes: 7}
}

func stale(name string, id topic.Incarnation) nodeapi.InventoryEntry {
	e := serving(name, id)
	e.Kind, e.Name = nodeapi.InventoryQuarantine, e.Name+".stale-"+id.String()
	return e
}
