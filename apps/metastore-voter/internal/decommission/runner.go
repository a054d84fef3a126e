package decommission

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// passEvery is between two looks at a member that drains while nothing changes in
// the metastore: a gateway's log gets empty without a change there.
const passEvery = 500 * time.Millisecond

// Metastore is what a runner does with the metastore, on the voter that leads.
// Safe for concurrent use. Errors mean that the next pass looks again.
type Metastore interface {
	// State looks at one member, asking it where it has to be asked; nil: there is
	// no such member.
	State(ctx context.Context, id string) (*State, error)
	// Evacuate begins to move partitions away from the member, as many as there is
	// room for.
	Evacuate(ctx context.Context, member string, partitions []topic.Assignment) error
	// Transfer hands leadership off.
	Transfer(ctx context.Context) error
	// RemoveServer takes the member's server out of the Raft configuration, if the member
	// still drains since the same moment; judged is what was looked at.
	RemoveServer(ctx context.Context, judged *State) error
	// Bury deletes the record and leaves the tombstone; loss: copies go with it.
	Bury(ctx context.Context, member *topic.Member, loss bool) error
}

// Config of a Runner; all fields are required.
type Config struct {
	View  metastate.View
	Meta  Metastore
	Log   *slog.Logger
	Every time.Duration // 0: passEvery
}

// Runner drives decommissions while its voter leads. Safe for concurrent use.
type Runner struct {
	cfg Config

	mu   sync.Mutex // guards said
	said map[string]string
}

// New returns a runner that does nothing before Run.
func New(cfg Config) *Runner {
	if cfg.Every == 0 {
		cfg.Every = passEvery
	}
	return &Runner{cfg: cfg, said: map[string]string{}}
}

// Run works until ctx ends, which is when this voter leads no longer.
func (r *Runner) Run(ctx context.Context) {
	tick := time.NewTicker(r.cfg.Every)
	defer tick.Stop()
	for ctx.Err() == nil {
		changed := r.cfg.View.Changed() // before the look, so that no change falls between
		pause := changed
		if r.pass(ctx) {
			pause = nil // changes come as fast as moves go on; the tick is soon enough
		}
		select {
		case <-pause:
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// pass takes every draining member one step on; it tells whether there is one. The
// leader itself comes last: with leadership gone the others would wait.
func (r *Runner) pass(ctx context.Context) bool {
	var ids []string
	for id, m := range r.cfg.View.Members().ByID {
		if m.Draining {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, strings.Compare)
	self := ""
	for _, id := range ids {
		if ctx.Err() != nil {
			return true
		}
		s, err := r.cfg.Meta.State(ctx, id)
		if err != nil || s == nil {
			r.cfg.Log.Debug("a draining member was not looked at", "member", id, "err", err)
			continue
		}
		if id == s.Self {
			self = id
			continue
		}
		r.step(ctx, s)
	}
	if self != "" && ctx.Err() == nil {
		if s, err := r.cfg.Meta.State(ctx, self); err == nil && s != nil {
			r.step(ctx, s)
		}
	}
	r.forget(ids)
	return len(ids) > 0
}

// step does the one thing that follows.
func (r *Runner) step(ctx context.Context, s *State) {
	v, id := Judge(s), s.Member.ID
	var err error
	switch v.Step {
	case Wait:
		r.waits(id, v)
		if list := s.Settled(); len(list) > 0 {
			err = r.cfg.Meta.Evacuate(ctx, id, list)
		}
	case Transfer:
		r.cfg.Log.Info("decommission: this voter hands leadership off before it is removed", "member", id)
		err = r.cfg.Meta.Transfer(ctx)
	case Remove:
		r.audit(s, v)
		r.cfg.Log.Info("decommission: nothing is left on the member; it leaves the raft configuration", "member", id, "role", string(s.Member.Role))
		if err = r.cfg.Meta.RemoveServer(ctx, s); err == nil {
			s.Server = nil
			err = r.bury(ctx, s, v)
		}
	case Bury:
		r.auditCopies(s, v) // what went since the server was removed, or what a lost leader said before
		err = r.bury(ctx, s, v)
	}
	if err != nil && ctx.Err() == nil {
		r.cfg.Log.Warn("a step of a decommission did not succeed; the next pass looks again", "member", id, "err", err)
	}
}

func (r *Runner) bury(ctx context.Context, s *State, v Verdict) error {
	if err := r.cfg.Meta.Bury(ctx, &s.Member, len(v.Lost) > 0); err != nil {
		return err
	}
	r.cfg.Log.Info("decommission: the member was removed; its tombstone stays", "member", s.Member.ID, "role", string(s.Member.Role), "disk", s.Member.DiskID.String())
	return nil
}

// maxRefsLogged bounds the partitions of one line of the audit; there are as many
// lines as it takes.
const maxRefsLogged = 200

// audit says exactly what is lost, before it is.
func (r *Runner) audit(s *State, v Verdict) {
	if s.Member.Role == topic.RoleGateway && s.Gateway == nil && !s.OldGateway {
		r.cfg.Log.Error("AUDIT data loss accepted: accepted messages that only this gateway has are given up", "member", s.Member.ID,
			"by", s.Member.LossAcceptedBy, "disk", s.Member.DiskID.String(), "records_at_last_heartbeat", s.Member.WALBacklog)
	}
	r.auditCopies(s, v)
}

func (r *Runner) auditCopies(s *State, v Verdict) {
	for part := range slices.Chunk(v.Lost, maxRefsLogged) {
		names := make([]string, len(part))
		for i, ref := range part {
			names[i] = ref.String()
		}
		r.cfg.Log.Error("AUDIT data loss accepted: partitions lose their last usable copies", "member", s.Member.ID,
			"by", s.Member.LossAcceptedBy, "disk", s.Member.DiskID.String(), "of", len(v.Lost), "partitions", strings.Join(names, " "))
	}
}

// waits logs what keeps a member back, once per change.
func (r *Runner) waits(id string, v Verdict) {
	codes := make([]string, len(v.Reasons))
	for i := range v.Reasons {
		codes[i] = v.Reasons[i].Code
	}
	text := strings.Join(codes, " ")
	r.mu.Lock()
	same := r.said[id] == text
	r.said[id] = text
	r.mu.Unlock()
	if !same && text != "" {
		r.cfg.Log.Info("decommission: the member is kept back", "member", id, "reasons", text, "partitions_left", v.Left, "detail", v.Reasons[0].Message)
	}
}

func (r *Runner) forget(draining []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.said {
		if !slices.Contains(draining, id) {
			delete(r.said, id)
		}
	}
}
