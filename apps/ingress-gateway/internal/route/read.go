package route

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	readBudget    = 5 * time.Second
	detailsBudget = 2 * time.Second
)

// The states of a partition in details.
const (
	statusOK          = "ok"
	statusNoLeader    = "no_leader"
	statusUnavailable = "unavailable"
	statusLost        = "lost"
)

// Read implements api.Consumer.
func (r *Router) Read(ctx context.Context, t *topic.Topic, partition int32, req nodeapi.ReadRequest) (*nodeapi.ReadResult, error) {
	target, leader, err := r.leader(t, partition)
	if err != nil {
		return nil, err
	}
	unavailable := problem.New(problem.PartitionUnavailable, "the leader of partition %d of %q could not be asked", partition, t.Name).With("partition", partition)
	wire := r.deps.Node(leader)
	if wire == nil {
		return nil, unavailable
	}
	ctx, cancel := context.WithTimeout(ctx, readBudget)
	defer cancel()
	ctx, stop := r.untilEnd(ctx, t)
	defer stop()
	req.Target = target
	res, err := wire.Read(ctx, &req)
	if err == nil {
		return res, nil
	}
	if err := r.ended(t); err != nil {
		return nil, err
	}
	var refused *problem.Problem
	if errors.As(err, &refused) {
		switch refused.Code {
		case problem.OffsetOutOfRange, problem.OffsetGone, problem.TopicChanged:
			return nil, refused
		}
	}
	return nil, unavailable
}

// Details implements api.Consumer: all leaders are asked at once.
func (r *Router) Details(ctx context.Context, t *topic.Topic) ([]api.PartitionRow, error) {
	rows := make([]api.PartitionRow, t.Partitions)
	for i := range rows {
		rows[i] = api.PartitionRow{Index: int32(i), Status: statusUnavailable}
	}
	parts, err := r.deps.View.Assignments(t.Name)
	if errors.Is(err, metastate.ErrUnavailable) || err == nil && parts.Incarnation != t.Incarnation {
		return rows, nil
	}
	if err != nil {
		return rows, nil // newer than this replica: nothing is known of its partitions yet
	}
	members := r.deps.View.Members().ByID
	byLeader := map[string][]int32{}
	for i := range min(len(rows), len(parts.List)) {
		a := &parts.List[i]
		rows[i].Leader, rows[i].Epoch, rows[i].ConfigVersion = a.Leader, a.LeaderEpoch, a.ConfigVersion
		switch {
		case metastate.Lost(a, members):
			rows[i].Status = statusLost
			continue
		case a.Leader == "":
			rows[i].Status = statusNoLeader
			continue
		}
		byLeader[a.Leader] = append(byLeader[a.Leader], int32(i))
	}
	ctx, cancel := context.WithTimeout(ctx, detailsBudget)
	defer cancel()
	var wg sync.WaitGroup
	for leader, list := range byLeader {
		wire := r.deps.Node(leader)
		if wire == nil {
			continue
		}
		wg.Go(func() { // each writes the rows of its own partitions
			res, err := wire.Details(ctx, &nodeapi.DetailsRequest{Topic: t.Name, Incarnation: t.Incarnation, Partitions: list})
			if err != nil {
				return
			}
			fill(rows, leader, res)
		})
	}
	wg.Wait()
	return rows, nil
}

// fill puts a leader's answer into the rows that it leads.
func fill(rows []api.PartitionRow, leader string, res *nodeapi.DetailsResult) {
	for i := range res.Partitions {
		d := &res.Partitions[i]
		if d.Partition < 0 || int(d.Partition) >= len(rows) || rows[d.Partition].Leader != leader {
			continue
		}
		if d.Problem != nil {
			if lost, ok := d.Problem.Members["lost"].(bool); ok && lost {
				rows[d.Partition].Status = statusLost
			}
			continue
		}
		row := &rows[d.Partition]
		row.Status, row.Details = statusOK, d
	}
}
