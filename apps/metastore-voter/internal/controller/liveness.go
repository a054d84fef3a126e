package controller

import (
	"context"
	"time"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// scene is what a pass over the members looks at.
type scene struct {
	self      string
	now       time.Duration
	since     time.Duration // begin of the term: the earliest moment from which silence counts
	deadAfter time.Duration
	members   []topic.Member
	heard     map[string]time.Duration // in this term
	voters    []string                 // of the Raft configuration
}

// deafShare: a leader that heard nobody for this part of the dead time, two
// heartbeats, is deaf. Heartbeats are spread over their interval: waiting until
// everybody is silent for the whole dead time would mark the ones heard first
// while the others still count as heard.
const deafShare = 3

// judge decides who is dead. It marks nobody (refused) when the marks would
// leave fewer live voters than a quorum, the leader counted, or when the leader
// is deaf: then it is more likely that this leader is the one cut off.
func (s *scene) judge() (dead []metastate.DeadMark, refused bool) {
	silent := map[string]bool{}
	for i := range s.members {
		m := &s.members[i]
		if m.ID != s.self && m.Status == topic.StatusAlive && s.silent(m.ID) {
			silent[m.ID] = true
			dead = append(dead, metastate.DeadMark{ID: m.ID, HeartbeatMS: m.HeartbeatMS})
		}
	}
	if len(dead) == 0 {
		return nil, false
	}
	if s.deaf() || s.liveVoters(silent) < len(s.voters)/2+1 {
		return nil, true
	}
	return dead, false
}

// deaf tells whether there are other members and none was heard lately.
func (s *scene) deaf() bool {
	others := false
	for i := range s.members {
		if id := s.members[i].ID; id != s.self {
			others = true
			if s.quietFor(id) < s.deadAfter/deafShare {
				return false
			}
		}
	}
	return others
}

func (s *scene) silent(id string) bool { return s.quietFor(id) >= s.deadAfter }

func (s *scene) quietFor(id string) time.Duration { return s.now - max(s.heard[id], s.since) }

// liveVoters counts the voters that would be alive after the marks.
func (s *scene) liveVoters(silent map[string]bool) int {
	alive := map[string]bool{s.self: true}
	for i := range s.members {
		if m := &s.members[i]; m.Status == topic.StatusAlive && !silent[m.ID] {
			alive[m.ID] = true
		}
	}
	n := 0
	for _, id := range s.voters {
		if alive[id] {
			n++
		}
	}
	return n
}

// judge makes one pass and proposes its marks. Each is conditional on the stamp
// that was observed; stamps that wait go first, so that "observed" is all that
// was heard.
func (c *Controller) judge(ctx context.Context, t *term) {
	s := c.scene(t)
	dead, refused := s.judge()
	if deaf := s.deaf(); t.deaf && !deaf || c.refused.Load() && !refused {
		// The silence was, or may have been, this leader's own: whoever was not heard
		// again yet gets the whole time from now on.
		t.since, t.deaf, dead = s.now, deaf, nil
	} else {
		t.deaf = deaf
	}
	if refused && !c.refused.Load() {
		c.log.Error("controller: refusing to mark voters dead", "members", len(s.members), "voters", len(s.voters))
	}
	c.setRefused(refused)
	if len(dead) == 0 || !c.stamp(ctx, t) {
		return
	}
	ids := make([]string, 0, len(dead))
	for _, d := range dead {
		ids = append(ids, d.ID)
	}
	_, res, err := c.propose(ctx, &metastate.MarkDead{Items: dead})
	if err != nil {
		c.log.Warn("members were not marked dead; the next pass looks again", "members", ids, "err", err)
		return
	}
	for i, marked := range res.Marked {
		if marked {
			c.log.Warn("member marked dead", "member", ids[i], "silent_for", c.timing.DeadAfter)
		}
	}
}

func (c *Controller) setRefused(refused bool) { c.refused.Store(refused) }

func (c *Controller) scene(t *term) *scene {
	s := &scene{
		self: c.cfg.NodeID, now: c.mono(), since: t.since, deadAfter: c.timing.DeadAfter,
		heard: map[string]time.Duration{},
	}
	for _, srv := range c.raft.Configuration().Servers {
		if srv.Voter {
			s.voters = append(s.voters, srv.ID)
		}
	}
	t.mu.Lock()
	for id, at := range t.heard {
		s.heard[id] = at
	}
	t.mu.Unlock()
	// The stamps are not in the table of the view: they are read only when
	// somebody seems to be silent.
	quiet := false
	for id, m := range c.raft.View().Members().ByID {
		s.members = append(s.members, *m)
		quiet = quiet || id != s.self && m.Status == topic.StatusAlive && s.silent(id)
	}
	if !quiet {
		return s
	}
	err := c.raft.Read(func(r metastate.Reader) (err error) {
		s.members, err = metastate.AllMembers(r)
		return err
	})
	if err != nil {
		c.log.Error("members cannot be read; nobody is judged", "err", err)
		s.members = nil
	}
	return s
}
