package sweeper

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// forgetAfter is how old an end has to be: a gateway whose replica lags may accept
	// records for a life that has just ended, after it was asked for them.
	forgetAfter = time.Hour
	// maxEnds bounds the ends looked at in one pass; the rest has its turn when these
	// are forgotten.
	maxEnds = 100_000
)

// Why nothing is forgotten.
const (
	notAllSeen     = "not every member of record was seen whole"
	membersChanged = "members came, went or restarted during the pass"
)

var errEndless = errors.New("the list of ends does not end")

// endings lists the ends that the metastore remembers.
func (r *Role) endings(ctx context.Context) (ends []metaapi.Ending, err error) {
	for after := topic.Incarnation(0); len(ends) < maxEnds; {
		page, err := r.leader.Endings(ctx, &metaapi.EndingsRequest{After: after, Limit: metaapi.MaxEndings})
		if err != nil {
			return nil, err
		}
		ends = append(ends, page.Endings...)
		if !page.More {
			break
		}
		if len(page.Endings) == 0 || page.Endings[len(page.Endings)-1].Incarnation <= after {
			return nil, errEndless
		}
		after = page.Endings[len(page.Endings)-1].Incarnation
	}
	return ends, nil
}

// forget has the metastore forget the ends of which nothing is left anywhere. Once
// forgotten, what still lay somewhere would be kept for ever; so it needs the word of
// every member of record, dead ones included, and that they are the same at the end.
func (r *Role) forget(ctx context.Context, members []topic.Member, nodes []*node, ends []metaapi.Ending) (forgotten int, why string) {
	ids, why := forgettable(ends, nodes, time.Now().Add(-r.forgetAfter))
	if len(ids) == 0 {
		return 0, why
	}
	now, err := r.leader.Members(ctx)
	if err != nil {
		return 0, failure(err)
	}
	if !sameMembers(members, now.Members) {
		return 0, membersChanged
	}
	for part := range slices.Chunk(ids, metaapi.MaxEndings) {
		if _, err := r.leader.ForgetEnded(ctx, &metaapi.ForgetEndedRequest{IDs: part}); err != nil {
			r.log.Warn("ends of topics were not forgotten", "error", err)
			return forgotten, failure(err)
		}
		forgotten += len(part)
	}
	return forgotten, ""
}

// forgettable chooses the ends that are older than before and of which nothing was
// found. A directory that could not be told apart may be of any life of its topic.
func forgettable(ends []metaapi.Ending, nodes []*node, before time.Time) (ids []topic.Incarnation, why string) {
	for _, n := range nodes {
		if !n.Complete {
			return nil, notAllSeen
		}
	}
	for _, e := range ends {
		left := slices.ContainsFunc(nodes, func(n *node) bool { return n.found[e.Incarnation] || n.unsure[e.Topic] || n.unsure[""] })
		if !left && time.UnixMilli(e.EndedMS).Before(before) {
			ids = append(ids, e.Incarnation)
		}
	}
	return ids, ""
}

// sameMembers tells whether those who may hold something are the same processes on
// the same disks.
func sameMembers(a, b []topic.Member) bool {
	type who struct {
		id   string
		disk topic.ID64
		boot topic.ID64
	}
	set := func(list []topic.Member) map[who]bool {
		out := map[who]bool{}
		for i := range list {
			if m := &list[i]; holdsData(m) {
				out[who{m.ID, m.DiskID, m.BootNonce}] = true
			}
		}
		return out
	}
	was, is := set(a), set(b)
	if len(was) != len(is) {
		return false
	}
	for m := range is {
		if !was[m] {
			return false
		}
	}
	return true
}
