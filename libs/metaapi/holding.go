package metaapi

import (
	"context"
	"fmt"
	"slices"

	"github.com/narad-mq/narad/libs/topic"
)

// KindPartition asks about a partition of one life (Topic, ID, Partition). Its
// verdict is live or unknown, and who holds it stands in Holdings.
const KindPartition = "partition"

// Holding is who has a partition now: the answer to a question of KindPartition.
type Holding struct {
	Known       bool        `json:"known"` // that life has that partition
	Leader      string      `json:"leader"`
	LeaderEpoch topic.Epoch `json:"leader_epoch"`
	Nodes       []string    `json:"nodes"` // with a copy, as replicas or observers
}

// maxHoldings bounds the partitions of one call: a question with a topic name of
// 200 bytes stays below a 400th of the body.
const maxHoldings = 400

// ConfirmPartitions asks who holds partitions, behind a barrier. What is not in the
// result was not answered, also next to an error.
func ConfirmPartitions(ctx context.Context, v Confirmer, refs []topic.Ref) (map[topic.Ref]Holding, error) {
	out := make(map[topic.Ref]Holding, len(refs))
	for part := range slices.Chunk(refs, maxHoldings) {
		req := &ConfirmRequest{}
		for _, ref := range part {
			req.Questions = append(req.Questions, Question{Kind: KindPartition, ID: ref.Incarnation, Topic: ref.Topic, Partition: ref.Partition})
		}
		res, err := v.Confirm(ctx, req)
		if err != nil {
			return out, fmt.Errorf("confirm who holds %d partitions: %w", len(part), err)
		}
		if len(res.Holdings) != len(part) {
			return out, fmt.Errorf("confirm who holds %d partitions: got %d answers", len(part), len(res.Holdings))
		}
		for i, ref := range part {
			out[ref] = res.Holdings[i]
		}
	}
	return out, nil
}
