package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/bus"
	"github.com/narad-mq/narad/libs/member"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// drainer notices that this node is being decommissioned: by the mark in its own
// replica, or sooner by a broadcast, which only makes it ask the metastore leader. It
// tells the operator, and sends a heartbeat, so that the controller plans by what is
// true now.
//
// It moves nothing and refuses nothing: what the node holds is served until the leading
// voter has moved it away. Leaderships are not handed over here as at a stop, although
// that could be asked for at once: the move of a copy that leads ends with the election
// of its destination, and a hand-over before it would make two changes of leader out of
// one, take those partitions that no follower can take at once from a node that serves
// them, and leave leaderships to be given back after a cancel. One who decides is enough.
type drainer struct {
	id   string
	disk topic.ID64
	view metastate.View
	asks func(ctx context.Context) ([]topic.Member, error) // the members as the metastore leader has them
	beat func()                                            // sends a heartbeat soon; it does not wait
	log  *slog.Logger

	heard    *bus.Heard
	draining atomic.Bool

	// Of Run alone.
	shown bool      // the own replica has shown the mark
	empty bool      // it was said that nothing is left
	told  time.Time // until when the leader's word counts
}

// newDrainer makes the drainer of a member, and registers its series.
func newDrainer(m *member.Member, log *slog.Logger, r prometheus.Registerer) (*drainer, error) {
	d := &drainer{
		id: m.NodeID(), disk: m.DiskID(), view: unlessRemoved{m.View(), m.Removed}, beat: m.HeartbeatSoon, log: log,
		asks: func(ctx context.Context) ([]topic.Member, error) {
			res, err := m.Leader().Members(ctx)
			if err != nil {
				return nil, err
			}
			return res.Members, nil
		},
		heard: bus.NewHeard(m.NodeID()),
	}
	return d, d.register(r)
}

// Run follows the replica until ctx ends.
func (d *drainer) Run(ctx context.Context) error {
	lapse := time.NewTimer(bus.ToldFor)
	defer lapse.Stop()
	for {
		changed := d.view.Changed() // before the look, so that no change falls between
		d.look()
		select {
		case <-changed:
		case <-lapse.C:
		case <-d.heard.C():
			d.ask(ctx)
			lapse.Reset(bus.ToldFor)
		case <-ctx.Done():
			return nil
		}
	}
}

// marked tells what the own replica says of this node and this disk; known false: it
// says nothing that holds.
func (d *drainer) marked() (draining, known bool) {
	self := d.view.Members().ByID[d.id]
	if !d.view.Latched() || self == nil || self.DiskID != d.disk {
		return false, false
	}
	return self.Draining, true
}

// look says what has changed.
func (d *drainer) look() {
	draining, known := d.marked()
	switch {
	case known && draining:
		d.shown = true
		d.begin()
	case known && d.shown:
		d.shown, d.told = false, time.Time{}
		d.end("decommission cancelled: this node keeps what it has")
	case time.Now().Before(d.told):
		d.begin()
	case d.draining.Load() && !d.shown:
		d.end("decommission: the metastore replica does not show what the leader said; it was cancelled at once, or the replica is behind")
	}
	if d.draining.Load() {
		d.emptied()
	}
}

func (d *drainer) begin() {
	if d.draining.Swap(true) {
		return
	}
	d.beat()
	partitions, led, _ := d.holds()
	d.log.Info("decommission: this node drains; its copies move to other nodes, and it serves them until they have", "partitions", partitions, "leaderships", led)
}

func (d *drainer) end(why string) {
	if !d.draining.Swap(false) {
		return
	}
	d.empty = false
	partitions, led, _ := d.holds()
	d.log.Info(why, "partitions", partitions, "leaderships", led)
}

// emptied says once that nothing is left.
func (d *drainer) emptied() {
	partitions, _, known := d.holds()
	if d.empty || !d.shown || !known || partitions > 0 {
		return
	}
	d.empty = true
	d.log.Info("decommission: nothing is left on this node; the leading voter removes it")
}

// holds counts the partitions of which this node has a copy, and those that it leads.
func (d *drainer) holds() (partitions, led int, known bool) {
	list, err := d.view.AssignmentsOf(d.id)
	if err != nil { // not before the latch, and not once it was removed
		return 0, 0, false
	}
	for i := range list {
		if list[i].Leader == d.id {
			led++
		}
	}
	return len(list), led, true
}

// ask takes the leader's word until the own replica shows the mark. Before the latch it
// is not asked for: what this node holds is not known then.
func (d *drainer) ask(ctx context.Context) {
	if d.draining.Load() || !d.view.Latched() {
		return
	}
	d.heard.Ask(ctx, func(ctx context.Context) {
		list, err := d.asks(ctx)
		if err != nil {
			d.log.Debug("a broadcast says that this node drains, and the metastore leader did not answer", "err", err)
			return
		}
		for i := range list {
			if m := &list[i]; m.ID == d.id && m.DiskID == d.disk && m.Draining {
				d.told = time.Now().Add(bus.ToldFor)
			}
		}
	})
}

// register shows it.
func (d *drainer) register(r prometheus.Registerer) error {
	err := r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "narad_storage_draining", Help: "1 while this storage node is being decommissioned; it serves what it still holds.",
	}, func() float64 {
		if d.draining.Load() {
			return 1
		}
		return 0
	}))
	if err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}
