package sweeper

import (
	"context"
	"fmt"
	"sync"

	"github.com/narad-mq/narad/libs/bus"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/topic"
)

// maxBroadcast bounds what one pass tells: below what a bus queues. The nodes' own
// sweeps need no broadcast, it only makes them sooner.
const maxBroadcast = 1000

// teller is this process's part in the bus.
type teller struct {
	bus  *bus.Bus // nil: off
	stop context.CancelFunc
	done sync.WaitGroup
}

// cluster is the replica of a process that has none: its cluster's id is known.
type cluster string

func (c cluster) ClusterID() string      { return string(c) }
func (cluster) Changed() <-chan struct{} { return nil }

// openBus begins to connect, so that a connection is there when it is needed.
func (r *Role) openBus(ctx context.Context) (*teller, error) {
	t := &teller{}
	ctx, t.stop = context.WithCancel(ctx)
	b, err := bus.New(bus.Config{Settings: r.cfg.Bus, NodeID: "purge-sweeper", Replica: cluster(r.cluster), Log: r.log})
	if err != nil {
		t.stop()
		return nil, fmt.Errorf("open the bus: %w", err)
	}
	t.bus = b
	if b != nil {
		t.done.Go(func() { _ = b.Run(ctx) }) // it has no error to tell
	}
	return t, nil
}

// again tells of each end of which something was found, and of each member that is
// being drained, and returns how many messages were handed to the bus.
func (t *teller) again(members []topic.Member, nodes []*node) (n int) {
	if t.bus == nil {
		return 0
	}
	for i := range members {
		if m := &members[i]; m.Draining && n < maxBroadcast {
			t.bus.MemberDraining(m.ID, true)
			n++
		}
	}
	told := map[topic.Incarnation]bool{}
	for _, node := range nodes {
		for i := range node.entries {
			e := &node.entries[i]
			if e.Verdict == metaapi.VerdictGone && !told[*e.Incarnation] && n < maxBroadcast {
				told[*e.Incarnation] = true
				t.bus.TopicPurged(e.Topic, *e.Incarnation)
				n++
			}
		}
	}
	return n
}

// close sends what is queued, if a server is there, and hangs up.
func (t *teller) close() {
	t.stop()
	t.done.Wait()
}
