package gateway

import (
	"cmp"
	"context"
	"slices"

	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/topic"
)

// backlog implements gatewayapi.Backlog.
type backlog struct {
	each func(f func(name string, id topic.Incarnation, bytes int64)) // life with undispatched records
	read func() bool                                                  // everything of earlier starts is counted
}

var _ gatewayapi.Backlog = backlog{}

// Undispatched implements gatewayapi.Backlog.
func (b backlog) Undispatched(_ context.Context, req *gatewayapi.UndispatchedRequest) (*gatewayapi.UndispatchedResult, error) {
	limit := req.Limit
	if limit < 1 || limit > gatewayapi.MaxUndispatched {
		limit = gatewayapi.MaxUndispatched
	}
	res := &gatewayapi.UndispatchedResult{Partial: !b.read(), Lives: []gatewayapi.UndispatchedLife{}} // read is asked first
	b.each(func(name string, id topic.Incarnation, bytes int64) {
		if id > req.After {
			res.Lives = append(res.Lives, gatewayapi.UndispatchedLife{Topic: name, Incarnation: id, Bytes: bytes})
		}
	})
	slices.SortFunc(res.Lives, func(x, y gatewayapi.UndispatchedLife) int { return cmp.Compare(x.Incarnation, y.Incarnation) })
	if len(res.Lives) > limit {
		res.Lives, res.More = res.Lives[:limit], true
	}
	return res, nil
}
