package metaapi

import (
	"context"
	"fmt"
	"slices"

	"github.com/narad-mq/narad/libs/topic"
)

// Confirmer is the part of a Voter that whoever destroys needs.
type Confirmer interface {
	Confirm(ctx context.Context, req *ConfirmRequest) (*ConfirmResult, error)
}

// ConfirmIncarnations asks about ids, in as many calls as MaxQuestions makes
// necessary; 0 names nothing and is not asked about. What is not in the result was
// not answered: it has to be treated as unknown, also next to an error, which ends
// the asking and leaves what was answered before it.
func ConfirmIncarnations(ctx context.Context, v Confirmer, ids []topic.Incarnation) (map[topic.Incarnation]Verdict, error) {
	return confirm(ctx, v, KindIncarnation, ids)
}

// ConfirmAttachments is ConfirmIncarnations for attach epochs.
func ConfirmAttachments(ctx context.Context, v Confirmer, epochs []topic.ID64) (map[topic.ID64]Verdict, error) {
	return confirm(ctx, v, KindAttachEpoch, epochs)
}

func confirm(ctx context.Context, v Confirmer, kind string, ids []topic.ID64) (map[topic.ID64]Verdict, error) {
	out := make(map[topic.Incarnation]Verdict, len(ids))
	var questions []Question
	seen := make(map[topic.Incarnation]bool, len(ids))
	for _, id := range ids {
		if id != 0 && !seen[id] {
			seen[id] = true
			questions = append(questions, Question{Kind: kind, ID: id})
		}
	}
	for part := range slices.Chunk(questions, MaxQuestions) {
		res, err := v.Confirm(ctx, &ConfirmRequest{Questions: part})
		if err != nil {
			return out, fmt.Errorf("confirm %d of kind %s: %w", len(part), kind, err)
		}
		if len(res.Verdicts) != len(part) {
			return out, fmt.Errorf("confirm %d of kind %s: got %d verdicts", len(part), kind, len(res.Verdicts))
		}
		for i, q := range part {
			out[q.ID] = res.Verdicts[i]
		}
	}
	return out, nil
}
