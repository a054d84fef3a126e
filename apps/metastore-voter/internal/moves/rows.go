package moves

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// watchLocked returns what this term knows of a move, of which another one of the
// same partition is none.
func (r *Runner) watchLocked(m *topic.Move) *watched {
	w := r.seen[m.Ref]
	if w == nil || w.row.ID() != m.ID() {
		w = &watched{row: metaapi.MoveRow{Phase: metaapi.MovePending}, deadSince: -1, muteSince: -1}
		r.seen[m.Ref] = w
	}
	w.row.Move = *m
	return w
}

// deadFor is for how long this term has seen the destination dead: a new leader
// gives every node the whole time.
func (r *Runner) deadFor(m *topic.Move, members map[string]*topic.Member) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.watchLocked(m)
	rec := members[m.To]
	if rec != nil && rec.Status == topic.StatusAlive {
		w.deadSince = -1
		return 0
	}
	now := r.cfg.Mono()
	if w.deadSince < 0 {
		w.deadSince = now
	}
	return now - w.deadSince
}

// silentFor is for how long the destination has fetched nothing, by the word of leaders
// that are not it. One that is elected anew has never heard it, and may be elected anew
// before it can tell of a long silence: so the time is kept over epochs.
func (r *Runner) silentFor(s *scene) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, now := r.watchLocked(&s.move), r.cfg.Mono()
	if s.part == nil || !joinedAlready(s) || s.part.Leader == s.move.To {
		w.silent = false
		return 0
	}
	if c, ok := s.vouch.Copy(s.move.To); ok && s.answered() {
		switch {
		case c.HeardAgoMS >= 0 && c.HeardAgoMS < quorum.LeaseMS:
			w.silent = false
		case !w.silent:
			w.silent, w.silentSince = true, now-time.Duration(max(c.HeardAgoMS, 0))*time.Millisecond
		}
	}
	if !w.silent {
		return 0
	}
	return now - w.silentSince
}

// muteFor is for how long this term has had no word of the partition's leader that holds
// for what the metastore shows.
func (r *Runner) muteFor(s *scene) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, now := r.watchLocked(&s.move), r.cfg.Mono()
	if s.part == nil || s.answered() {
		w.muteSince = -1
		return 0
	}
	if w.muteSince < 0 {
		w.muteSince = now
	}
	return now - w.muteSince
}

// rateOver is the time over which a rate is averaged, so that it can be read.
const rateOver = 2 * time.Second

// note keeps what a pass found, for those who ask.
func (r *Runner) note(m *topic.Move, st step, v *nodeapi.Vouch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.watchLocked(m)
	if st.blocked != w.row.Blocked && st.blocked != "" {
		r.cfg.Log.Warn("a move is blocked", "partition", m.Ref.String(), "from", m.From, "to", m.To, "reason", string(st.blocked))
	}
	if st.phase != "" {
		w.row.Phase = st.phase
	}
	w.row.Blocked = st.blocked
	if st.why != "" || st.do == wait {
		w.row.LastError = st.why
	}
	c, ok := v.Copy(m.To)
	if !ok {
		return
	}
	copied, now := max(v.Bytes-c.MissingBytes, 0), r.cfg.Mono()
	w.row.TotalBytes = v.Bytes
	if w.at == 0 {
		w.row.CopiedBytes, w.at = copied, now
		return
	}
	if passed := now - w.at; passed >= rateOver || passed >= lookEvery && w.row.BytesPerSecond == 0 {
		w.row.BytesPerSecond = max(copied-w.row.CopiedBytes, 0) * int64(time.Second) / int64(passed)
		w.row.CopiedBytes, w.at = copied, now
	}
}

func (r *Runner) failed(ref topic.Ref, err error) {
	r.cfg.Log.Debug("a step of a move was not made", "partition", ref.String(), "err", err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.seen[ref]; w != nil {
		w.row.LastError = err.Error()
	}
}

// List answers what is under way, and how many more this runner has planned; moves that
// no pass has looked at yet are pending.
func (r *Runner) List() (*metaapi.MovesResult, error) {
	s, err := r.read()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	res := &metaapi.MovesResult{Moves: make([]metaapi.MoveRow, 0, len(s.moves)), Limit: metaapi.MaxRunningMoves}
	for _, n := range r.waiting {
		res.Waiting += n
	}
	for i := range s.moves {
		row := r.watchLocked(&s.moves[i]).row
		if row.Blocked == "" {
			res.Running++
		}
		res.Moves = append(res.Moves, row)
	}
	return res, nil
}

// gauges shows moves on the leading voter only, so that a sum over voters counts
// nothing twice.
type gauges struct {
	r                *Runner
	running, blocked *prometheus.Desc
}

func newGauges(r *Runner) *gauges {
	return &gauges{
		r:       r,
		running: prometheus.NewDesc("narad_moves_running", "Moves of partitions that are not blocked; shown by the leading voter.", nil, nil),
		blocked: prometheus.NewDesc("narad_moves_blocked", "Moves of partitions that wait for what does not come by itself, by what; shown by the leading voter.", []string{"reason"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.running
	ch <- g.blocked
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	g.r.mu.Lock()
	leading, running := g.r.running, 0
	blocked := map[metaapi.MoveBlocked]int{}
	for _, w := range g.r.seen {
		if w.row.Blocked == "" {
			running++
		} else {
			blocked[w.row.Blocked]++
		}
	}
	g.r.mu.Unlock()
	if !leading {
		return
	}
	ch <- prometheus.MustNewConstMetric(g.running, prometheus.GaugeValue, float64(running))
	for _, why := range metaapi.MoveBlockedReasons() {
		ch <- prometheus.MustNewConstMetric(g.blocked, prometheus.GaugeValue, float64(blocked[why]), string(why))
	}
}
