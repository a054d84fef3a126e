// Package sweeper is the purge-sweeper role: one pass that finds what missed purges
// left on storage nodes and gateways, and has it reclaimed.
//
//	Run   1 members, and the ends of topics, from the metastore leader
//	      2 each storage node and gateway, side by side: inventory, page by page  (look.go)
//	      3 each page: the leader confirms its incarnations, judge decides        (decide.go)
//	      4 each storage node: told to reclaim what is confirmed gone             (reclaim.go)
//	      5 the ends found are told on the bus again
//	      6 ends of which all was seen and nothing found are forgotten            (forget.go)
//	      7 report                                                                (report.go)
//
// Invariants: it touches no directory itself. What it asks a node to reclaim was
// confirmed gone by id, after the page that it stands on was read; the node asks
// again, and reads the marker again under the open guard, so that nothing here has
// to be believed. What it could not see, ask or decide is in the report and makes
// Run fail; it is never left out and never taken for clean. An end is forgotten only
// when every member of record answered wholly, dead ones included. It is no member,
// keeps nothing on disk, and two at once do not disturb each other.
// TestPassOverTheWire explains it.
package sweeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/narad-mq/narad/libs/bus"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/rpc"
)

const (
	// DefaultTimeout ends a pass: a node removes some seven directories a second, and
	// a hundredth of what maxEntries allows is to have its time.
	DefaultTimeout = 5 * time.Minute
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
	DryRun  bool          // look and judge only
	Yes     bool          // let a pass take unusually much of a node
	JSON    bool          // the report as JSON
	Timeout time.Duration // of the whole pass
	Bus     bus.Settings  // where ends are told again; off: nowhere
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

	rpc         *rpc.Client
	leader      leader
	cluster     string        // id, once the leader has told; set before another node is called
	page        int           // entries of one inventory call
	most        int           // entries kept of one node
	budget      time.Duration // of one inventory call
	forgetAfter time.Duration // how old an end is before it may be forgotten
}

// leader is what a pass asks the metastore leader.
type leader interface {
	metaapi.Confirmer
	metaapi.Endings
	Members(ctx context.Context) (*metaapi.MembersResult, error)
}

// New checks the settings; errors are proc.ErrUsage. It calls nobody.
func New(cfg Config, deps Deps) (*Role, error) {
	switch {
	case len(cfg.Join) == 0:
		return nil, proc.Usagef("--join is required: the RPC addresses of voters")
	case cfg.Timeout <= 0:
		return nil, proc.Usagef("--timeout %s: must be above zero", cfg.Timeout)
	}
	if err := cfg.Bus.Check(); err != nil {
		return nil, proc.Usagef("%v", err)
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	r := &Role{cfg: cfg, out: deps.Out, log: deps.Log, page: inventoryPage, most: maxEntries, budget: rpc.DefaultBudget, forgetAfter: forgetAfter}
	r.rpc = rpc.NewClient(rpc.ClientConfig{ClusterID: func() string { return r.cluster }, Dial: deps.Dial})
	r.leader = metaapi.NewLeader(metaapi.LeaderConfig{
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
	members, err := r.leader.Members(ctx)
	if err != nil {
		return fmt.Errorf("ask %s for the members of the cluster: %w", strings.Join(r.cfg.Join, ", "), err)
	}
	r.cluster = members.ClusterID
	report := &Report{ClusterID: members.ClusterID, LeaderID: members.LeaderID, Release: proc.Release, DryRun: r.cfg.DryRun}
	if r.cfg.DryRun {
		report.add(r.sweep(ctx, members.Members))
	} else if err := r.clean(ctx, members, report); err != nil {
		return err
	}
	if err := report.write(r.out, r.cfg.JSON); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return report.verdict()
}

// clean is a pass that reclaims, tells and forgets.
func (r *Role) clean(ctx context.Context, members *metaapi.MembersResult, report *Report) error {
	told, err := r.openBus(ctx)
	if err != nil {
		return err
	}
	ends, err := r.endings(ctx) // first: what ends during the pass is not judged by it
	if err != nil {
		r.log.Warn("the ends of topics could not be listed; none is forgotten", "error", err)
		report.Forgetting = failure(err)
	}
	nodes := r.sweep(ctx, members.Members)
	report.add(nodes)
	report.Summary.Broadcast = told.again(members.Members, nodes)
	told.close()
	if report.Forgetting == "" {
		report.Summary.Forgotten, report.Forgetting = r.forget(ctx, members.Members, nodes, ends)
	}
	return nil
}
