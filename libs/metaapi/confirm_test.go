package metaapi

import (
	"context"
	"errors"
	"testing"

	"github.com/narad-mq/narad/libs/topic"
)

// confirmer calls even ids gone and fails at call number failAt.
type confirmer struct {
	calls, failAt int
	short         bool
}

func (c *confirmer) Confirm(_ context.Context, req *ConfirmRequest) (*ConfirmResult, error) {
	c.calls++
	if c.calls == c.failAt {
		return nil, errors.New("no leader")
	}
	res := &ConfirmResult{}
	for _, q := range req.Questions {
		v := VerdictUnknown
		if q.Kind == "incarnation" && q.ID%2 == 0 {
			v = VerdictGone
		}
		res.Verdicts = append(res.Verdicts, v)
	}
	if c.short {
		res.Verdicts = res.Verdicts[1:]
	}
	return res, nil
}

func TestConfirmIncarnations(t *testing.T) {
	ids := []topic.Incarnation{0, 2, 2, 3}
	for id := topic.Incarnation(10); id < 10+MaxQuestions; id++ {
		ids = append(ids, id)
	}
	c := &confirmer{}
	got, err := ConfirmIncarnations(t.Context(), c, ids)
	if _, zero := got[0]; err != nil || c.calls != 2 || len(got) != MaxQuestions+2 || got[2] != VerdictGone || got[3] != VerdictUnknown || zero {
		t.Fatalf("%d calls, %d verdicts, %v", c.calls, len(got), err)
	}
	got, err = ConfirmIncarnations(t.Context(), &confirmer{failAt: 2}, ids)
	if err == nil || len(got) != MaxQuestions || got[2] != VerdictGone {
		t.Fatalf("%d verdicts, %v", len(got), err)
	}
	if got, err = ConfirmIncarnations(t.Context(), &confirmer{short: true}, ids[:4]); err == nil || len(got) != 0 {
		t.Fatalf("verdicts that fit no question: %v, %v", got, err)
	}
}
