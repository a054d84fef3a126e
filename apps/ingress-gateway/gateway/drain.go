package gateway

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/bus"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// sealAgain is between tries to seal a log whose disk fails.
const sealAgain = time.Second

// sealer is the part of the write-ahead log that a decommission needs.
type sealer interface {
	Seal() error
	Unseal() error
	Sealed() (refuses, saved bool)
}

// drainer makes this gateway leave in order. It refuses produce from the moment that
// the own replica shows the mark, seals the log on disk, and says that it is drained
// only while all of it holds. It accepts again only when a replica that is surely
// newer than the mark shows none: one that lags after a restart decides nothing.
type drainer struct {
	id    string
	disk  topic.ID64
	nonce topic.ID64 // of this process start
	view  metastate.View
	wal   sealer       // nil: it keeps no log, and so nothing accepted
	left  func() int64 // accepted records that are not dispatched
	read  func() bool  // what earlier starts left is counted
	asks  func(ctx context.Context) (*metaapi.MemberDetailResult, error)
	log   *slog.Logger
	heard *bus.Heard

	refuses atomic.Bool
	// told is until when the leader's word counts; nil: there is none. As a time.Time it
	// goes by the monotonic clock.
	told atomic.Pointer[time.Time]
}

var _ gatewayapi.Drain = (*drainer)(nil)

// open begins with what the log says: a sealed one stays sealed until a cancel is seen.
func (d *drainer) open() {
	if d.wal != nil {
		refuses, _ := d.wal.Sealed()
		d.refuses.Store(refuses)
	}
}

// Leaving tells whether produce is refused because this gateway is decommissioned.
func (d *drainer) Leaving() bool {
	if d.refuses.Load() || d.marked() {
		return true
	}
	until := d.told.Load()
	return until != nil && time.Now().Before(*until)
}

// marked tells whether the own replica shows the mark for this disk.
func (d *drainer) marked() bool {
	self := d.view.Members().ByID[d.id]
	return self != nil && self.Draining && self.DiskID == d.disk
}

// Run follows the replica until ctx ends.
func (d *drainer) Run(ctx context.Context) error {
	again := time.NewTicker(sealAgain)
	defer again.Stop()
	for {
		changed := d.view.Changed() // before the look, so that no change falls between
		var retry <-chan time.Time
		if err := d.look(); err != nil {
			d.log.Error("decommission: the write-ahead log; it is tried again", "error", err)
			retry = again.C
		}
		select {
		case <-changed:
		case <-retry:
		case <-d.heard.C():
			d.ask(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

// look does what the mark says, or its absence.
func (d *drainer) look() error {
	if d.marked() {
		if !d.refuses.Swap(true) {
			d.log.Info("decommission: this gateway drains; produce is refused, what was accepted is dispatched")
		}
		if d.wal == nil {
			return nil
		}
		return d.wal.Seal()
	}
	self := d.view.Members().ByID[d.id]
	current := d.view.Latched() && self != nil && self.BootNonce == d.nonce
	if !current || !d.refuses.Load() {
		return nil
	}
	if d.wal != nil {
		if err := d.wal.Unseal(); err != nil {
			return err
		}
	}
	d.refuses.Store(false)
	d.told.Store(nil)
	d.log.Info("decommission cancelled: this gateway accepts again")
	return nil
}

// ask refuses by the leader's word until the own replica shows the mark.
func (d *drainer) ask(ctx context.Context) {
	if d.Leaving() {
		return
	}
	d.heard.Ask(ctx, func(ctx context.Context) {
		if res, err := d.asks(ctx); err == nil && res.Draining {
			until := time.Now().Add(bus.ToldFor)
			d.told.Store(&until)
		}
	})
}

// Drained implements gatewayapi.Drain.
func (d *drainer) Drained(_ context.Context, req *gatewayapi.DrainedRequest) (*gatewayapi.DrainedResult, error) {
	if req.BootNonce != d.nonce {
		return nil, problem.New(problem.PreconditionFailed, "this is another start of %q", d.id)
	}
	out := &gatewayapi.DrainedResult{Marked: d.refuses.Load() && d.marked(), Sealed: true}
	if d.wal != nil {
		_, out.Sealed = d.wal.Sealed() // before the count: nothing is added after it
	}
	whole := d.read()
	out.Backlog = d.left()
	out.Drained = out.Marked && out.Sealed && whole && out.Backlog == 0
	return out, nil
}

// register shows it.
func (d *drainer) register(r prometheus.Registerer) error {
	return r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "narad_gateway_draining", Help: "1 while this gateway is being decommissioned and refuses produce.",
	}, func() float64 {
		if d.Leaving() {
			return 1
		}
		return 0
	}))
}

// whileStaying is a committer that refuses once the gateway leaves.
type whileStaying struct {
	api.Committer
	leaving func() bool
}

// Commit implements api.Committer.
func (w whileStaying) Commit(req *api.CommitRequest) ([]api.Committed, error) {
	if w.leaving() {
		return nil, leavingRefusal()
	}
	return w.Committer.Commit(req)
}

// CanCommit implements api.Committer.
func (w whileStaying) CanCommit() error {
	if w.leaving() {
		return leavingRefusal()
	}
	return w.Committer.CanCommit()
}

func leavingRefusal() error {
	return problem.New(problem.Draining, "this gateway is being decommissioned")
}
