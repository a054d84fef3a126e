package metaapi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/rpc"
)

const (
	// askBudget ends one try of a call that may be repeated, so that a voter that
	// hangs leaves time for the next; it covers the 5 s barrier of a confirm.
	askBudget = 6 * time.Second
	// maxClients bounds the remembered handles of voter addresses.
	maxClients = 64
)

// LeaderConfig is what a Leader knows of the voters.
type LeaderConfig struct {
	RPC *rpc.Client
	// Hint is the RPC address of the leader as the node's own Raft sees it; "" unknown.
	Hint func() string
	// Voters are RPC addresses to ask when the hint is missing or wrong.
	Voters func() []string
}

// Leader is the Voter that leads, wherever it is: it asks whom Raft sees
// leading, follows the hints of those that do not lead, and then asks the other
// voters. A change whose outcome is unknown is never sent twice: it answers 504
// outcome_unknown. Reads, heartbeats, joins and registrations may be sent twice.
// With nobody leading it answers 503 no_metastore_leader at once; it does not
// wait for an election.
type Leader struct {
	cfg LeaderConfig

	mu      sync.Mutex // guards what follows
	clients map[string]*Client
	last    string // that answered as the leader last
}

var _ Voter = (*Leader)(nil)

// NewLeader returns a Leader that has asked nobody yet.
func NewLeader(cfg LeaderConfig) *Leader {
	return &Leader{cfg: cfg, clients: map[string]*Client{}}
}

// Join implements Voter.
func (l *Leader) Join(ctx context.Context, req *JoinRequest) (*JoinResult, error) {
	return ask(ctx, l, func(ctx context.Context, c *Client) (*JoinResult, error) { return c.Join(ctx, req) })
}

// Register implements Voter.
func (l *Leader) Register(ctx context.Context, req *RegisterRequest) (*ChangeResult, error) {
	return ask(ctx, l, func(ctx context.Context, c *Client) (*ChangeResult, error) { return c.Register(ctx, req) })
}

// Heartbeat implements Voter.
func (l *Leader) Heartbeat(ctx context.Context, req *HeartbeatRequest) error {
	_, err := ask(ctx, l, func(ctx context.Context, c *Client) (*empty, error) { return nil, c.Heartbeat(ctx, req) })
	return err
}

// CreateTopic implements Voter.
func (l *Leader) CreateTopic(ctx context.Context, req *CreateTopicRequest) (*TopicResult, error) {
	return change(ctx, l, func(ctx context.Context, c *Client) (*TopicResult, error) { return c.CreateTopic(ctx, req) })
}

// UpdateTopic implements Voter.
func (l *Leader) UpdateTopic(ctx context.Context, req *UpdateTopicRequest) (*TopicResult, error) {
	return change(ctx, l, func(ctx context.Context, c *Client) (*TopicResult, error) { return c.UpdateTopic(ctx, req) })
}

// DeleteTopic implements Voter.
func (l *Leader) DeleteTopic(ctx context.Context, req *DeleteTopicRequest) (*ChangeResult, error) {
	return change(ctx, l, func(ctx context.Context, c *Client) (*ChangeResult, error) { return c.DeleteTopic(ctx, req) })
}

// LookupTopic implements Voter.
func (l *Leader) LookupTopic(ctx context.Context, req *LookupTopicRequest) (*TopicResult, error) {
	return ask(ctx, l, func(ctx context.Context, c *Client) (*TopicResult, error) { return c.LookupTopic(ctx, req) })
}

// Confirm implements Voter.
func (l *Leader) Confirm(ctx context.Context, req *ConfirmRequest) (*ConfirmResult, error) {
	return ask(ctx, l, func(ctx context.Context, c *Client) (*ConfirmResult, error) { return c.Confirm(ctx, req) })
}

// Members implements Voter.
func (l *Leader) Members(ctx context.Context) (*MembersResult, error) {
	return ask(ctx, l, func(ctx context.Context, c *Client) (*MembersResult, error) { return c.Members(ctx) })
}

// Quorum implements Voter.
func (l *Leader) Quorum(ctx context.Context) (*QuorumResult, error) {
	return ask(ctx, l, func(ctx context.Context, c *Client) (*QuorumResult, error) { return c.Quorum(ctx) })
}

// Forget implements Voter.
func (l *Leader) Forget(ctx context.Context, req *ForgetRequest) (*ChangeResult, error) {
	return change(ctx, l, func(ctx context.Context, c *Client) (*ChangeResult, error) { return c.Forget(ctx, req) })
}

// verdict is what one answer means for the walk.
type verdict int

const (
	answered verdict = iota // the answer is final
	next                    // that node cannot say: ask another one
	unknown                 // it may have been done: a change stops here
)

func judge(err error) verdict {
	var p *problem.Problem
	var t *rpc.TransportError
	switch {
	case err == nil:
		return answered
	case errors.As(err, &p):
		if p.Code == problem.NotReady && p.Members[upgrading] != nil {
			return answered // no other voter can say more
		}
		switch p.Code {
		case problem.NotMetastoreLeader, problem.NoRaftConfiguration, problem.WrongNode,
			problem.NotReady, problem.NoMetastoreLeader, problem.Overloaded:
			return next // each of them says that nothing was done
		}
		return answered
	case errors.As(err, &t) && !t.Sent:
		return next
	default:
		return unknown
	}
}

// ask walks with a call that may be repeated.
func ask[Res any](ctx context.Context, l *Leader, call func(context.Context, *Client) (*Res, error)) (*Res, error) {
	return walk(ctx, l, func(c *Client) (verdict, *Res, error) {
		ctx, cancel := context.WithTimeout(ctx, askBudget)
		defer cancel()
		res, err := call(ctx, c)
		v := judge(err)
		if v == unknown {
			v = next
		}
		return v, res, err
	})
}

// change walks with a call that must not be repeated once it may have been done.
func change[Res any](ctx context.Context, l *Leader, call func(context.Context, *Client) (*Res, error)) (*Res, error) {
	return walk(ctx, l, func(c *Client) (verdict, *Res, error) {
		res, err := call(ctx, c)
		v := judge(err)
		if v == unknown {
			return answered, nil, problem.New(problem.OutcomeUnknown, "the metastore leader did not answer in time; the change may have been made")
		}
		return v, res, err
	})
}

func walk[Res any](ctx context.Context, l *Leader, try func(*Client) (verdict, *Res, error)) (*Res, error) {
	w := NewWalk(l.candidates()...)
	for addr := w.Next(); addr != "" && ctx.Err() == nil; addr = w.Next() {
		v, res, err := try(l.client(addr))
		if v == answered {
			l.remember(addr)
			return res, err
		}
		w.Hint(HintOf(err))
	}
	return nil, problem.New(problem.NoMetastoreLeader, "no metastore leader answers")
}

// HintOf returns the leader's RPC address that a 421 names, unchecked, or "".
func HintOf(err error) string {
	var p *problem.Problem
	if !errors.As(err, &p) || p.Code != problem.NotMetastoreLeader {
		return ""
	}
	addr, ok := p.Members["leader_addr"].(string)
	if !ok {
		return ""
	}
	return addr
}

// NotLeader is the 421 of a voter that does not lead; what it does not know of
// the leader is "".
func NotLeader(leaderID, leaderAddr string) *problem.Problem {
	return problem.New(problem.NotMetastoreLeader, "this node does not lead the metastore").
		With("leader_id", leaderID).With("leader_addr", leaderAddr)
}

// upgrading is the member of a refusal by which it is the leader's last word.
const upgrading = "waiting_for"

// Upgrading is the leader's refusal of a change that some nodes could not follow
// yet, for what they are by their ids. Nothing was done; it passes when they run
// this release, or have left the cluster.
func Upgrading(what string, ids []string) *problem.Problem {
	who := ids[0]
	if n := len(ids) - 1; n > 0 {
		who = fmt.Sprintf("%s and %d more", who, n)
	}
	return problem.New(problem.NotReady, "the cluster is being upgraded: %s has not said that its release knows %s", who, what).
		With(upgrading, ids)
}

func (l *Leader) candidates() []string {
	l.mu.Lock()
	last := l.last
	l.mu.Unlock()
	return append([]string{l.cfg.Hint(), last}, l.cfg.Voters()...)
}

func (l *Leader) remember(addr string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = addr
}

func (l *Leader) client(addr string) *Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.clients[addr]
	if c == nil {
		if len(l.clients) >= maxClients { // addresses that changed; the few live ones come back at once
			clear(l.clients)
		}
		c = NewClient(l.cfg.RPC.Peer("", addr))
		l.clients[addr] = c
	}
	return c
}
