package sweeper

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// TestPassOverTheWire: a voter that follows, its leader, two nodes and their
// members of other roles; everything is decided.
func TestPassOverTheWire(t *testing.T) {
	s1 := serveStore(t, "storage-1", &store{entries: []nodeapi.InventoryEntry{
		{Kind: nodeapi.InventoryForeign, Name: "topics/lost+\x1bfound", Bytes: -1}, serving("orders", liveID), stale("orders", goneID),
	}})
	s2 := serveStore(t, "storage-2", &store{entries: []nodeapi.InventoryEntry{serving("old", goneID)}})
	g1 := serveGateway(t, "gateway-1", &gateway{lives: []gatewayapi.UndispatchedLife{{Topic: "orders", Incarnation: liveID, Bytes: 1}}})
	v := &voter{members: []topic.Member{s2, s1, g1, {ID: "voter-1", Role: topic.RoleVoter, RPCAddr: closedAddr(t)}}}
	follower := serveVoter(t, "voter-2", &voter{follows: serveVoter(t, "voter-1", v)})
	for _, asJSON := range []bool{true, false} {
		var out bytes.Buffer
		r, err := New(Config{Join: []string{closedAddr(t), follower}, DryRun: true, JSON: asJSON, Timeout: testkit.Patience}, Deps{Out: &out})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !asJSON {
			for _, want := range []string{
				"storage-1     orders  0000000000000022  quarantine  topics/orders.stale-0000000000000022", "gone", "reclaim",
				`"topics/lost+\x1bfound"`, "storage-2 storage-node " + s2.RPCAddr, "gateway-1 ingress-gateway " + g1.RPCAddr, "1 live, 2 gone, 1 unknown; 0 entries and 0 nodes undecided",
				"nothing was changed", "would free 14 bytes", "WOULD",
			} {
				if !strings.Contains(squeeze(out.String()), squeeze(want)) {
					t.Errorf("no %q in\n%s", want, out.String())
				}
			}
			continue
		}
		var report Report
		if err := json.Unmarshal(out.Bytes(), &report); err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, e := range report.Entries {
			got = append(got, fmt.Sprintf("%s %s %s %s", e.Node, e.Name, e.Verdict, e.Action))
		}
		want := []string{
			"storage-1 topics/lost+\x1bfound unknown keep", "storage-1 topics/orders live keep",
			"storage-1 topics/orders.stale-0000000000000022 gone reclaim", "storage-2 topics/old gone reclaim",
		}
		if !slices.Equal(got, want) || report.ClusterID != "c1" || report.LeaderID != "voter-1" || !report.DryRun ||
			report.Summary != (Summary{Live: 1, Gone: 2, Unknown: 1, ReclaimableBytes: 14}) {
			t.Errorf("report %+v", report)
		}
	}
}

func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

// TestWhatIsNotSeenIsNotClean: each kind of node that was not read whole is in
// the report, makes the pass fail, and hides nothing of the others.
func TestWhatIsNotSeenIsNotClean(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	many := &store{}
	for i := range 7 {
		many.entries = append(many.entries, serving("t"+strconv.Itoa(i), liveID))
	}
	moved := serveStore(t, "other", &store{entries: []nodeapi.InventoryEntry{serving("x", goneID)}})
	moved.ID = "storage-1" // another node listens at that address now
	foreign := topic.Member{
		ID: "storage-1", Role: topic.RoleStorage,
		RPCAddr: serve(t, "storage-1", "c2", func(s *rpc.Server) { nodeapi.Serve(s, &store{entries: []nodeapi.InventoryEntry{serving("x", goneID)}}) }),
	}
	for name, c := range map[string]struct {
		member  topic.Member
		entries int
		reached bool
		err     string
	}{
		"dead":               {topic.Member{ID: "storage-1", Role: topic.RoleStorage, Status: topic.StatusDead, RPCAddr: closedAddr(t)}, 0, false, "refused"},
		"hangs":              {serveStore(t, "storage-1", &store{hang: hang}), 0, false, "deadline"},
		"another node":       {moved, 0, false, "wrong_node"},
		"of another cluster": {foreign, 0, false, "wrong_cluster"},
		"fails half way":     {serveStore(t, "storage-1", &store{entries: many.entries, fail: problem.New(problem.Internal, "disk")}), 2, true, "internal: disk"},
		"does not end":       {serveStore(t, "storage-1", &store{entries: many.entries, loops: true}), 2, true, "does not end"},
		"more than is kept":  {serveStore(t, "storage-1", many), 4, true, "more entries"},
		"without an address": {topic.Member{ID: "storage-1", Role: topic.RoleStorage}, 0, false, "missing address"},
	} {
		t.Run(name, func(t *testing.T) {
			good := serveStore(t, "storage-2", &store{entries: []nodeapi.InventoryEntry{stale("old", goneID)}})
			report, err := pass(t, &voter{members: []topic.Member{c.member, good}}, func(r *Role) {
				if r.page, r.most = 2, 5; name == "hangs" {
					r.budget = 3 * time.Second
				}
			})
			if !errors.Is(err, ErrUndecided) {
				t.Errorf("the pass: %v", err)
			}
			if len(report.Nodes) != 2 || len(report.Entries) != c.entries+1 || report.Entries[c.entries].Verdict != metaapi.VerdictGone {
				t.Fatalf("report %+v", report)
			}
			n := report.Nodes[0]
			if n.Complete || n.Reachable != c.reached || n.Entries != c.entries || !strings.Contains(n.Error, c.err) || !report.Nodes[1].Complete {
				t.Errorf("nodes %+v", report.Nodes)
			}
			if report.Summary.IncompleteNodes != 1 {
				t.Errorf("summary %+v", report.Summary)
			}
		})
	}
}

// TestPaging: pages of every size give the same report, and each page asks about
// its own incarnations, each once.
func TestPaging(t *testing.T) {
	n := &store{}
	for i := range 9 {
		n.entries = append(n.entries, serving("t"+strconv.Itoa(i), []topic.Incarnation{liveID, goneID, liveID}[i%3]))
	}
	var want string
	for size := 1; size <= 10; size++ {
		v := &voter{members: []topic.Member{serveStore(t, "storage-1", n)}}
		report, err := pass(t, v, func(r *Role) { r.page = size })
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprintf("%+v", report.Summary)
		if want == "" {
			want = got
		}
		if got != want || len(report.Entries) != 9 || report.Summary.Live != 6 || report.Summary.Gone != 3 {
			t.Errorf("pages of %d: %+v", size, report.Summary)
		}
		if pages := (9 + size - 1) / size; len(v.asked) != pages {
			t.Errorf("pages of %d: %d confirms", size, len(v.asked))
		}
		for _, q := range v.asked {
			if len(q) > 2 {
				t.Errorf("pages of %d: asked %v", size, q)
			}
		}
	}
}

// TestNoVerdictDecidesNothing: a leader that fails, or answers something else
// than was asked, leaves every entry undecided and kept.
func TestNoVerdictDecidesNothing(t *testing.T) {
	n := &store{entries: []nodeapi.InventoryEntry{serving("a", goneID), stale("b", goneID), serving("c", liveID)}}
	for name, confirm := range map[string]func(*metaapi.ConfirmRequest) (*metaapi.ConfirmResult, error){
		"refused": func(*metaapi.ConfirmRequest) (*metaapi.ConfirmResult, error) {
			return nil, problem.New(problem.NotReady, "elected just now")
		},
		"too few verdicts": func(*metaapi.ConfirmRequest) (*metaapi.ConfirmResult, error) {
			return &metaapi.ConfirmResult{Verdicts: []metaapi.Verdict{metaapi.VerdictGone}}, nil
		},
		"unknown": func(r *metaapi.ConfirmRequest) (*metaapi.ConfirmResult, error) {
			return &metaapi.ConfirmResult{Verdicts: slices.Repeat([]metaapi.Verdict{metaapi.VerdictUnknown}, len(r.Questions))}, nil
		},
		"a word that nobody knows": func(r *metaapi.ConfirmRequest) (*metaapi.ConfirmResult, error) {
			return &metaapi.ConfirmResult{Verdicts: slices.Repeat([]metaapi.Verdict{"removed"}, len(r.Questions))}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			report, err := pass(t, &voter{confirm: confirm, members: []topic.Member{serveStore(t, "storage-1", n)}}, nil)
			if !errors.Is(err, ErrUndecided) || report.Summary != (Summary{Unknown: 3, Undecided: 3}) {
				t.Errorf("%v, %+v", err, report.Summary)
			}
			for _, e := range report.Entries {
				if e.Action != ActionKeep || e.Decided || e.Verdict != metaapi.VerdictUnknown || e.Why == "" {
					t.Errorf("%+v", e)
				}
			}
		})
	}
}

func TestNoLeaderNoReport(t *testing.T) {
	var out bytes.Buffer
	r, err := New(Config{Join: []string{closedAddr(t)}, DryRun: true, Timeout: testkit.Patience}, Deps{Out: &out})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context()); !problem.HasCode(err, problem.NoMetastoreLeader) || out.Len() > 0 {
		t.Errorf("%v, %q", err, out.String())
	}
}

// TestTimeoutStillReports: what was not reached in time is listed.
func TestTimeoutStillReports(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	v := &voter{members: []topic.Member{serveStore(t, "storage-1", &store{hang: hang}), serveStore(t, "storage-2", &store{})}}
	for limit := time.Second; ; limit *= 2 { // storage-2 has to answer within it, on a busy machine too
		report, err := pass(t, v, func(r *Role) { r.cfg.Timeout = limit })
		if err != nil && len(report.Nodes) == 2 && !report.Nodes[0].Complete && report.Nodes[1].Complete {
			if !errors.Is(err, ErrUndecided) {
				t.Error(err)
			}
			return
		}
		if limit > 10*time.Second {
			t.Fatalf("%v, %+v", err, report.Nodes)
		}
	}
}

func TestSettings(t *testing.T) {
	ok := Config{Join: []string{"a:1"}, DryRun: true, Timeout: time.Second}
	for want, change := range map[string]func(*Config){
		"--join":     func(c *Config) { c.Join = nil },
		"--timeout":  func(c *Config) { c.Timeout = 0 },
		"--nats-url": func(c *Config) { c.Bus.CredsFile = "creds" },
	} {
		cfg := ok
		change(&cfg)
		if _, err := New(cfg, Deps{}); !errors.Is(err, proc.ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
