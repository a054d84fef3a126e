package nodeapi

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/testkit/leak"
	"github.com/narad-mq/narad/libs/topic"
)

func TestMain(m *testing.M) { leak.Main(m) }

// fake is a Node that answers the samples and remembers what it was asked.
type fake struct {
	got any
	err error
}

func answer[Res any](f *fake, req any, res *Res) (*Res, error) {
	f.got = req
	if f.err != nil {
		return nil, f.err
	}
	return res, nil
}

func (f *fake) Commit(_ context.Context, r *CommitRequest) (*CommitResult, error) {
	kept := *r
	kept.Batch = bytes.Clone(r.Batch) // a view of a buffer that is used again
	return answer(f, &kept, commitResult)
}

func (f *fake) Claim(_ context.Context, r *ClaimRequest) (*ClaimResult, error) {
	return answer(f, r, claimResult)
}

func (f *fake) Settle(_ context.Context, r *SettleRequest) (*SettleResult, error) {
	return answer(f, r, settleResult)
}

func (f *fake) Read(_ context.Context, r *ReadRequest) (*ReadResult, error) {
	return answer(f, r, readResult)
}

func (f *fake) Details(_ context.Context, r *DetailsRequest) (*DetailsResult, error) {
	return answer(f, r, detailsResult)
}

func (f *fake) Inventory(_ context.Context, r *InventoryRequest) (*InventoryResult, error) {
	return answer(f, r, inventoryResult)
}

func (f *fake) Reclaim(_ context.Context, r *ReclaimRequest) (*ReclaimResult, error) {
	return answer(f, r, reclaimResult)
}

// The samples: every field set, and the edges of counts and numbers.
var (
	target        = Target{Ref: topic.Ref{Topic: "orders", Incarnation: 0x3f9a17c4e2b08d51, Partition: 3}, DiskID: 0x0102030405060708, Epoch: 9}
	commitRequest = &CommitRequest{Target: target, Batch: []byte("batch")}
	commitResult  = &CommitResult{Epoch: 9, HighWatermark: 1000, BaseOffset: -1, Appended: 0, Duplicates: 7}
	claimRequest  = &ClaimRequest{Gateway: "gateway-1", Claims: []Claim{
		{
			Topic: "orders", Incarnation: 5, Arm: true,
			Partitions: []ClaimPartition{{0, 6, 7}, {1023, 8, 1 << 31}},
			Takers:     []Taker{{1, 1, 0}, {1000, 16 << 20, 43_200_000}},
		},
		{Topic: "empty"},
	}}
	claimResult = &ClaimResult{Claims: []ClaimAnswer{
		{
			Partitions: []ClaimStatus{ClaimMore, ClaimGone},
			Deliveries: [][]Delivery{
				{
					{3, 77, 9, Nonce{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 1_764_000_000_000, 2, 30_000, "id-a", []byte("first")},
					{3, 78, 9, Nonce{12}, -1, 1, 1000, "", []byte("second")},
				},
				nil,
				{{4, 1 << 50, 9, Nonce{}, 0, 1 << 30, 1 << 40, "id-bb", []byte{0}}},
			},
		},
		{Partitions: []ClaimStatus{ClaimEmpty}},
	}}
	settleRequest = &SettleRequest{Ops: []SettleOp{
		{target.Ref, SettleAck, 5, 9, Nonce{1}, 0},
		{topic.Ref{Topic: "other", Incarnation: 1}, SettleExtend, 6, 9, Nonce{2}, 30_000},
		{target.Ref, SettleNack, 1 << 40, 9, Nonce{3}, -1},
		{target.Ref, SettleRelease, 0, 0, Nonce{}, 0},
	}}
	settleResult = &SettleResult{Statuses: []SettleStatus{SettleOK, SettleLost, SettleUnavailable, SettleOK}}
	readRequest  = &ReadRequest{Target: target, Offset: -1, SinceMS: 17, Limit: 1000, MaxBytes: 8 << 20, Confirmed: true}
	readResult   = &ReadResult{LogStart: 2, NextOffset: 5, HighWatermark: 9, Records: []ReadRecord{
		{2, 17, "id-a", []byte("first")}, {4, 18, "id-b", []byte("second")},
	}}
	detailsRequest = &DetailsRequest{Topic: "orders", Incarnation: 5, Partitions: []int32{0, 2}}
	detailsResult  = &DetailsResult{Partitions: []PartitionDetails{
		{Partition: 2, Epoch: 9, ConfigVersion: 1, HighWatermark: 4, Replicas: []ReplicaDetails{{ID: "s1", InSync: true}}},
	}}
	inventoryRequest = &InventoryRequest{After: "dG9waWNzL2E", Limit: 1000, Copies: true}
	inventoryResult  = &InventoryResult{Next: "dG9waWNzL28", Entries: []InventoryEntry{
		{InventoryServing, "topics/orders", "orders", 0x3f9a17c4e2b08d51, []int32{0, 1023}, 1 << 40, false, []InventoryCopy{
			{InventoryQuarantine, "topics/orders/p00003.quarantine-0000000000000007", 3, 7, 1 << 20, 12, "it has more"},
		}},
		{InventoryQuarantine, "topics/orders.stale-0000000000000000", "orders", 0, []int32{}, -1, true, nil},
	}}
	reclaimRequest = &ReclaimRequest{AllowLarge: true, Items: []ReclaimItem{
		{InventoryServing, "topics/orders", "orders", 0x3f9a17c4e2b08d51}, {InventoryQuarantine, "topics/a.stale-0000000000000005", "a", 5},
	}}
	reclaimResult = &ReclaimResult{Outcomes: []ReclaimOutcome{{Reclaimed, "", 1 << 40}, {Kept, "the topic lives", 0}}}
)

// TestContract runs one suite over the memory and the wire.
func TestContract(t *testing.T) {
	t.Run("memory", func(t *testing.T) { f := &fake{}; suite(t, f, f) })
	t.Run("wire", func(t *testing.T) { f := &fake{}; suite(t, f, onWire(t, f)) })
}

func onWire(t testing.TB, n Node) *Client {
	t.Helper()
	s := rpc.NewServer(rpc.ServerConfig{NodeID: "s1", ClusterID: func() string { return "c" }, Log: slog.New(slog.DiscardHandler)})
	Serve(s, n)
	addr := testkit.Serve(t, s)
	c := rpc.NewClient(rpc.ClientConfig{NodeID: "g1", ClusterID: func() string { return "c" }})
	t.Cleanup(c.Close)
	return NewClient(c.Peer("s1", addr))
}

func suite(t *testing.T, f *fake, n Node) {
	ctx := t.Context()
	for name, c := range map[string]struct {
		call      func() (any, error)
		req, want any
	}{
		"commit":  {func() (any, error) { return n.Commit(ctx, commitRequest) }, commitRequest, commitResult},
		"claim":   {func() (any, error) { return n.Claim(ctx, claimRequest) }, claimRequest, claimResult},
		"settle":  {func() (any, error) { return n.Settle(ctx, settleRequest) }, settleRequest, settleResult},
		"read":    {func() (any, error) { return n.Read(ctx, readRequest) }, readRequest, readResult},
		"details": {func() (any, error) { return n.Details(ctx, detailsRequest) }, detailsRequest, detailsResult},

		"inventory": {func() (any, error) { return n.Inventory(ctx, inventoryRequest) }, inventoryRequest, inventoryResult},
		"reclaim":   {func() (any, error) { return n.Reclaim(ctx, reclaimRequest) }, reclaimRequest, reclaimResult},
	} {
		t.Run(name, func(t *testing.T) {
			f.err = nil
			got, err := c.call()
			if err != nil || !reflect.DeepEqual(got, c.want) || !reflect.DeepEqual(f.got, c.req) {
				t.Errorf("answer %+v, error %v, asked %+v; want %+v for %+v", got, err, f.got, c.want, c.req)
			}
			f.err = problem.New(problem.NotPartitionLeader, "moved").With("leader", "s2").With("leader_epoch", 10)
			_, err = c.call()
			var p *problem.Problem
			if !errors.As(err, &p) || p.Code != problem.NotPartitionLeader || p.Members["leader"] != "s2" || p.Applied != problem.AppliedNo {
				t.Errorf("refusal: %v", err)
			}
		})
	}
}

func TestSettleAnswersEveryOperation(t *testing.T) {
	f := &fake{}
	_, err := onWire(t, f).Settle(t.Context(), &SettleRequest{Ops: settleRequest.Ops[:2]}) // the fake answers four
	var te *rpc.TransportError
	if !errors.As(err, &te) || !te.Sent {
		t.Errorf("an answer to other operations was believed: %v", err)
	}
	_, err = onWire(t, f).Settle(t.Context(), &SettleRequest{Ops: make([]SettleOp, MaxSettleOps+1)})
	if !errors.As(err, &te) || te.Sent {
		t.Errorf("too many operations were sent: %v", err)
	}
}

func TestReclaimAnswersEveryItem(t *testing.T) {
	_, err := onWire(t, &fake{}).Reclaim(t.Context(), &ReclaimRequest{Items: reclaimRequest.Items[:1]}) // the fake answers two
	var te *rpc.TransportError
	if !errors.As(err, &te) || !te.Sent {
		t.Errorf("an answer to other items was believed: %v", err)
	}
	_, err = onWire(t, &fake{}).Reclaim(t.Context(), &ReclaimRequest{Items: make([]ReclaimItem, MaxReclaimItems+1)})
	if !errors.As(err, &te) || te.Sent {
		t.Errorf("too many items were sent: %v", err)
	}
	longest := make([]ReclaimItem, MaxReclaimItems)
	for i := range longest {
		longest[i] = ReclaimItem{InventoryQuarantine, "topics/" + strings.Repeat("\x01", 255), strings.Repeat("\x01", 255), 5}
	}
	defer func(old *ReclaimResult) { reclaimResult = old }(reclaimResult)
	reclaimResult = &ReclaimResult{Outcomes: make([]ReclaimOutcome, MaxReclaimItems)}
	for i := range reclaimResult.Outcomes {
		reclaimResult.Outcomes[i] = ReclaimOutcome{Kept, strings.Repeat("r", 200), 1 << 62}
	}
	if _, err = onWire(t, &fake{}).Reclaim(t.Context(), &ReclaimRequest{Items: longest}); err != nil {
		t.Errorf("the largest request and reply: %v", err)
	}
}

// The largest page that the bounds allow fits into a reply, whatever the names are.
func TestLargestInventoryPageFits(t *testing.T) {
	page := &InventoryResult{Next: strings.Repeat("n", MaxInventoryToken), Entries: make([]InventoryEntry, MaxInventoryEntries)}
	name := strings.Repeat("\x01", 255) // six bytes each in JSON; a topic of ours has at most 200 plain ones
	each := MaxInventoryPartitions / MaxInventoryEntries
	for i := range page.Entries {
		e := &page.Entries[i]
		*e = InventoryEntry{Kind: InventorySuperseded, Name: "topics/" + name, Topic: strings.Repeat("t", 200), Bytes: 1 << 62}
		for p := range each {
			e.Partitions = append(e.Partitions, 1<<31-1-int32(p))
		}
	}
	old := inventoryResult
	inventoryResult = page
	defer func() { inventoryResult = old }()
	got, err := onWire(t, &fake{}).Inventory(t.Context(), &InventoryRequest{})
	if err != nil || len(got.Entries) != MaxInventoryEntries {
		t.Error(err)
	}
}
