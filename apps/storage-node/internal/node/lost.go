package node

import (
	"context"
	"errors"

	"github.com/narad-mq/narad/apps/storage-node/internal/partition"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// Opened implements replication.Host.
func (n *Node) Opened(ref topic.Ref) *partition.Partition { return n.peek(ref) }

// Lost counts the partitions whose only copy is recorded to be on this disk and was
// not there when it was opened last: they are served by nobody before an operator puts
// the directory back or resets them.
func (n *Node) Lost() (lost int) {
	n.slots.Range(func(_, v any) bool {
		if asSlot(v).isLost() {
			lost++
		}
		return true
	})
	return lost
}

func (s *slot) isLost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended == nil && errors.Is(s.failed, partition.ErrLost)
}

// lostHere tells whether the only copy of a partition is recorded to be on this disk,
// and is not there now.
func (n *Node) lostHere(ctx context.Context, ref topic.Ref) bool {
	j := judge(n.view, n.self, n.disk, ref)
	if j.standing != leads || j.a.Replicated() {
		return false
	}
	_, err := n.partition(ctx, ref, j.a)
	return errors.Is(err, partition.ErrLost)
}

// notServed is the problem of a partition that could not be opened. That it is lost
// waits for an operator, anything else is tried again.
func notServed(ref topic.Ref, err error) *problem.Problem {
	if errors.Is(err, partition.ErrLost) {
		return problem.New(problem.PartitionUnavailable, "the only copy of %s is recorded to be on this disk and is not there", ref).With("lost", true)
	}
	return unavailable(ref)
}
