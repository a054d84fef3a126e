// Package sweeper is the purge-sweeper role: one pass that looks for what missed
// purges left on storage nodes.
//
//	Run   1 members, from the metastore leader
//	      2 each storage node, side by side: inventory, page by page
//	      3 each page: the leader confirms its incarnations, judge decides  (decide.go)
//	      4 report                                                          (report.go)
//
// Invariants: it destroys nothing, and asks nobody to. A verdict serves the page
// that it was asked for, and was given after that page was read. What it could
// not see, ask or decide is in the report and makes Run fail; it is never left
// out and never taken for clean. It is no member, keeps nothing on disk, and two
// at once do not disturb each other. TestPassOverTheWire explains it.
package sweeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// DefaultTimeout ends a pass: a node with 10,000 topics takes a few seconds.
	DefaultTimeout = time.Minute
	// atOnce is how many nodes are asked side by side: enough that a few dead
	// ones hold nobody up, and little beside the work of the cluster.
	atOnce = 8
	// maxEntries bounds what is kept of one node: ten times the topics that a
	// cluster is built for. A node with more is reported as not seen whole.
	maxEntries = 100_000
)

// ErrUndecided ends a pass that left something undecided.
var ErrUndecided = errors.New("could not be decided")

// Config says what to do.
type Config struct {
	Join    []string      // RPC addresses of voters; at least one
	DryRun  bool          // has to be set: this release reclaims nothing
	JSON    bool          // the report as JSON
	Timeout time.Duration // of the whole pass
}

// Deps is what the role stands on.
type Deps struct {
	Out  io.Writer                                                            // gets the report
	Log  *slog.Logger                                                         // nil: discards
	Dial func(ctx context.Context, network, address string) (net.Conn, error) // nil: plain TCP
}

// Role is one pass.
type Role struct {
	cfg Config
	out io.Writer
	log *slog.Logger

	rpc     *rpc.Client
	voter   metaapi.Voter
	cluster string        // id, once the leader has told; set before a storage node is called
	page    int           // entries of one inventory call
	most    int           // entries kept of one node
	budget  time.Duration // of one inventory call
}

// New checks the settings; errors are proc.ErrUsage. It calls nobody.
func New(cfg Config, deps Deps) (*Role, error) {
	switch {
	case len(cfg.Join) == 0:
		return nil, proc.Usagef("--join is required: the RPC addresses of voters")
	case cfg.Timeout <= 0:
		return nil, proc.Usagef("--timeout %s: must be above zero", cfg.Timeout)
	case !cfg.DryRun:
		return nil, proc.Usagef("this release reclaims nothing: give --dry-run to list what a later one would reclaim")
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	r := &Role{cfg: cfg, out: deps.Out, log: deps.Log, page: nodeapi.MaxInventoryEntries, most: maxEntries, budget: rpc.DefaultBudget}
	r.rpc = rpc.NewClient(rpc.ClientConfig{ClusterID: func() string { return r.cluster }, Dial: deps.Dial})
	r.voter = metaapi.NewLeader(metaapi.LeaderConfig{
		RPC: r.rpc, Hint: func() string { return "" }, Voters: func() []string { return cfg.Join },
	})
	return r, nil
}

// Run does the pass and writes the report. It returns nil when everything was
// seen and decided, an ErrUndecided when something was not, and another error
// when there is no report: no leader answered, or it cannot be written. Call it once.
func (r *Role) Run(ctx context.Context) error {
	defer r.rpc.Close()
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	members, err := r.voter.Members(ctx)
	if err != nil {
		return fmt.Errorf("ask %s for the members of the cluster: %w", strings.Join(r.cfg.Join, ", "), err)
	}
	r.cluster = members.ClusterID
	report := &Report{ClusterID: members.ClusterID, LeaderID: members.LeaderID, Release: proc.Release, DryRun: true}
	report.add(r.sweep(ctx, members.Members))
	if err := report.write(r.out, r.cfg.JSON); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return report.verdict()
}

// sweep asks every storage node, dead ones too: a verdict of the controller is
// no reason not to look.
func (r *Role) sweep(ctx context.Context, members []topic.Member) []*node {
	var nodes []*node
	for i := range members {
		if m := &members[i]; m.Role == topic.RoleStorage {
			nodes = append(nodes, &node{NodeRow: NodeRow{ID: m.ID, RPCAddr: m.RPCAddr, Status: m.Status}})
		}
	}
	slices.SortFunc(nodes, func(a, b *node) int { return strings.Compare(a.ID, b.ID) })
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for _, n := range nodes {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := r.list(ctx, n); err != nil {
				r.log.Warn("a storage node was not seen whole", "storage_node", n.ID, "addr", n.RPCAddr, "error", err)
				n.Error = failure(err)
			}
		})
	}
	wg.Wait()
	return nodes
}

// node is what was learned of one storage node.
type node struct {
	NodeRow
	entries []Entry
}

// list reads and judges one node's inventory. After an error it holds what was
// read up to it.
func (r *Role) list(ctx context.Context, n *node) error {
	client := nodeapi.NewClient(r.rpc.Peer(n.ID, n.RPCAddr))
	inventory := func(after string) (*nodeapi.InventoryResult, error) {
		ctx, cancel := context.WithTimeout(ctx, r.budget) // one hung node leaves time for the others
		defer cancel()
		return client.Inventory(ctx, &nodeapi.InventoryRequest{After: after, Limit: r.page})
	}
	for after := ""; ; {
		page, err := inventory(after)
		if err != nil {
			return err
		}
		n.Reachable = true
		if len(page.Entries) == 0 && page.Next != "" || page.Next != "" && page.Next == after {
			return errNoProgress
		}
		if len(n.entries)+len(page.Entries) > r.most {
			return errTooMany
		}
		n.entries = append(n.entries, r.judgePage(ctx, n.ID, page.Entries)...)
		if after = page.Next; after == "" {
			n.Complete = true
			return nil
		}
	}
}

var (
	errNoProgress = errors.New("its inventory does not end")
	errTooMany    = errors.New("it has more entries than a pass keeps")
)

// judgePage has the leader confirm every incarnation of a page and decides about
// each entry. Without an answer nothing of the page is decided.
func (r *Role) judgePage(ctx context.Context, node string, page []nodeapi.InventoryEntry) []Entry {
	ids := make([]topic.Incarnation, len(page))
	for i := range page {
		ids[i] = page[i].Incarnation
	}
	verdicts, err := metaapi.ConfirmIncarnations(ctx, r.voter, ids)
	if err != nil {
		r.log.Warn("the metastore leader did not confirm", "storage_node", node, "error", err)
	}
	out := make([]Entry, 0, len(page))
	for i := range page {
		e := &page[i]
		v, asked := verdicts[e.Incarnation]
		out = append(out, newEntry(node, e, judge(e, v, asked)))
	}
	return out
}
