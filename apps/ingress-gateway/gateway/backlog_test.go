package gateway

import (
	"slices"
	"testing"

	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/topic"
)

// TestUndispatchedLivesInPages: pages of every size say the same, each life once,
// and what is not read yet makes each of them partial.
func TestUndispatchedLivesInPages(t *testing.T) {
	want := []topic.Incarnation{2, 3, 5, 8, 1 << 63}
	read := true
	b := backlog{read: func() bool { return read }, each: func(f func(string, topic.Incarnation, int64)) {
		for _, id := range []topic.Incarnation{5, 1 << 63, 2, 8, 3} {
			f("orders", id, int64(id%100))
		}
	}}
	for size := -1; size <= 6; size++ {
		var got []topic.Incarnation
		for req := (gatewayapi.UndispatchedRequest{Limit: size}); ; {
			res, err := b.Undispatched(t.Context(), &req)
			if err != nil || res.Partial || size > 0 && len(res.Lives) > size {
				t.Fatalf("pages of %d: %+v, %v", size, res, err)
			}
			for _, l := range res.Lives {
				got = append(got, l.Incarnation)
				req.After = l.Incarnation
			}
			if !res.More {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("pages of %d: %v", size, got)
		}
	}
	read = false
	if res, err := b.Undispatched(t.Context(), &gatewayapi.UndispatchedRequest{}); err != nil || !res.Partial {
		t.Errorf("%+v, %v", res, err)
	}
}
