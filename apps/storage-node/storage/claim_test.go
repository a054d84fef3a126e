package storage_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/narad-mq/narad/libs/nodeapi"
)

// A caller that gave up while its claim was served leaves no lease behind, and the
// record has not been delivered.
func TestClaimOfACallerThatIsGone(t *testing.T) {
	inBubble(t, onePartition(), func(t *testing.T, p *process) {
		p.mustCommit("orders", 0, batch(1, 1, 2, 3))
		target := p.target("orders", 0)
		claim := nodeapi.Claim{
			Topic: "orders", Incarnation: target.Incarnation,
			Partitions: []nodeapi.ClaimPartition{{Partition: 0, DiskID: target.DiskID, Epoch: target.Epoch}},
			Takers:     []nodeapi.Taker{{Max: 2, MaxBytes: 1 << 20}},
		}
		p.take("orders", 1) // the partition is open
		ctx := &gone{Context: t.Context()}
		ctx.after.Store(1) // after the taker was served
		res, err := p.role.Node().Claim(ctx, &nodeapi.ClaimRequest{Gateway: "gw", Claims: []nodeapi.Claim{claim}})
		if err == nil {
			t.Fatalf("answered %+v to nobody", res)
		}
		if d := p.details("orders", 0); d.InFlight != 1 {
			t.Fatalf("%d leases, of which one has a holder", d.InFlight)
		}
		ds := p.take("orders", 2)
		if got := payloads(ds); !slices.Equal(got, []string{"1-2", "1-3"}) || ds[0].DeliveryCount != 1 {
			t.Fatalf("took %v, delivery %d", got, ds[0].DeliveryCount)
		}
	})
}

// gone is a context that ends when it was looked at a number of times.
type gone struct {
	context.Context
	after atomic.Int32
}

func (g *gone) Err() error {
	if g.after.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}
