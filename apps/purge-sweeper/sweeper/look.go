package sweeper

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

// node is what was learned of one storage node or gateway.
type node struct {
	NodeRow
	entries []Entry
	found   map[topic.Incarnation]bool // every incarnation seen, whatever its verdict
	unsure  map[string]bool            // topics of what could not be told apart
}

// Looking into a thousand directories keeps a processor busy, and what follows of it
// too, for as long as some requests of clients take. So a page is small, and after each
// the node has several times as long for its clients as the page took.
const (
	inventoryPage = 200
	restFor       = 10
	maxRest       = 500 * time.Millisecond
)

var (
	errNoProgress = errors.New("its inventory does not end")
	errTooMany    = errors.New("it has more entries than a pass keeps")
	errPartial    = errors.New("it still reads what it accepted before it started")
)

// sweep asks everybody who may hold something of a topic, dead ones too: a verdict
// of the controller is no reason not to look.
func (r *Role) sweep(ctx context.Context, members []topic.Member) []*node {
	var nodes []*node
	for i := range members {
		if m := &members[i]; holdsData(m) {
			nodes = append(nodes, &node{
				NodeRow: NodeRow{ID: m.ID, Role: m.Role, RPCAddr: m.RPCAddr, Status: m.Status},
				found:   map[topic.Incarnation]bool{}, unsure: map[string]bool{},
			})
		}
	}
	slices.SortFunc(nodes, func(a, b *node) int { return strings.Compare(a.ID, b.ID) })
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for _, n := range nodes {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			r.visit(ctx, n)
		})
	}
	wg.Wait()
	return nodes
}

// holdsData tells whether a member may hold something of a topic.
func holdsData(m *topic.Member) bool {
	return m.Role == topic.RoleStorage || m.Role == topic.RoleGateway
}

// visit looks at one node and has it reclaim what is gone.
func (r *Role) visit(ctx context.Context, n *node) {
	list := r.listStorage
	if n.Role == topic.RoleGateway {
		list = r.listGateway
	}
	if err := list(ctx, n); err != nil {
		r.log.Warn("a node was not seen whole", "seen", n.ID, "addr", n.RPCAddr, "error", err)
		n.Complete, n.Error = false, failure(err)
	}
	if !r.cfg.DryRun {
		r.reclaim(ctx, n)
	}
}

// listStorage reads and judges a storage node's inventory. After an error the node
// holds what was read up to it.
func (r *Role) listStorage(ctx context.Context, n *node) error {
	client := nodeapi.NewClient(r.rpc.Peer(n.ID, n.RPCAddr))
	inventory := func(after string) (*nodeapi.InventoryResult, error) {
		ctx, cancel := context.WithTimeout(ctx, r.budget) // one hung node leaves time for the others
		defer cancel()
		return client.Inventory(ctx, &nodeapi.InventoryRequest{After: after, Limit: r.page, Copies: true})
	}
	for after := ""; ; {
		begin := time.Now()
		page, err := inventory(after)
		took := time.Since(begin)
		if err != nil {
			return err
		}
		n.Reachable = true
		if len(page.Entries) == 0 && page.Next != "" || page.Next != "" && page.Next == after {
			return errNoProgress
		}
		if n.Entries += len(page.Entries); n.Entries > r.most {
			n.Entries -= len(page.Entries)
			return errTooMany
		}
		r.judgePage(ctx, n, page.Entries)
		if after = page.Next; after == "" {
			n.Complete = true
			return nil
		}
		rest(ctx, min(restFor*took, maxRest))
	}
}

// judgePage has the leader confirm every incarnation of a page and decides about
// each entry. Without an answer nothing of the page is decided.
func (r *Role) judgePage(ctx context.Context, n *node, page []nodeapi.InventoryEntry) {
	ids := make([]topic.Incarnation, len(page))
	for i := range page {
		ids[i] = page[i].Incarnation
	}
	verdicts := r.confirm(ctx, n, ids)
	for i := range page {
		e := &page[i]
		v, asked := verdicts[e.Incarnation]
		d := judge(e, v, asked)
		n.entries = append(n.entries, newEntry(n.ID, e, d))
		for k := range e.Copies {
			n.entries = append(n.entries, newCopy(n.ID, e, &e.Copies[k], d.verdict))
		}
		n.found[e.Incarnation] = true
		if e.Kind != nodeapi.InventoryForeign && (e.Incarnation == 0 || e.Unreadable || !known(e.Kind)) {
			n.unsure[e.Topic] = true
		}
	}
}

// listGateway reads and judges the records that a gateway has accepted and not
// dispatched. Those of live topics are on their way, and not reported.
func (r *Role) listGateway(ctx context.Context, n *node) error {
	client := gatewayapi.NewClient(r.rpc.Peer(n.ID, n.RPCAddr))
	ask := func(after topic.Incarnation) (*gatewayapi.UndispatchedResult, error) {
		ctx, cancel := context.WithTimeout(ctx, r.budget)
		defer cancel()
		return client.Undispatched(ctx, &gatewayapi.UndispatchedRequest{After: after, Limit: r.page})
	}
	partial := false
	for after := topic.Incarnation(0); ; {
		page, err := ask(after)
		if err != nil {
			return err
		}
		n.Reachable = true
		partial = partial || page.Partial
		last := after
		ids := make([]topic.Incarnation, len(page.Lives))
		for i, l := range page.Lives {
			last, ids[i] = max(last, l.Incarnation), l.Incarnation
		}
		if page.More && last == after {
			return errNoProgress
		}
		if n.Entries += len(page.Lives); n.Entries > r.most {
			n.Entries -= len(page.Lives)
			return errTooMany
		}
		verdicts := r.confirm(ctx, n, ids)
		for i := range page.Lives {
			l := &page.Lives[i]
			n.found[l.Incarnation] = true
			v, asked := verdicts[l.Incarnation]
			if d, shown := judgeAccepted(v, asked); shown {
				n.entries = append(n.entries, newAccepted(n.ID, l, d))
			}
		}
		if after = last; !page.More {
			break
		}
	}
	if partial {
		return errPartial
	}
	n.Complete = true
	return nil
}

// confirm asks the leader about what was seen on a node; what it did not answer is
// missing.
func (r *Role) confirm(ctx context.Context, n *node, ids []topic.Incarnation) map[topic.Incarnation]metaapi.Verdict {
	verdicts, err := metaapi.ConfirmIncarnations(ctx, r.leader, ids)
	if err != nil {
		r.log.Warn("the metastore leader did not confirm", "seen", n.ID, "error", err)
	}
	return verdicts
}

// rest waits, unless ctx ends.
func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
