package node

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/narad-mq/narad/apps/storage-node/internal/partition"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// Opened implements replication.Host.
func (n *Node) Opened(ref topic.Ref) *partition.Partition { return n.peek(ref) }

// Lost counts what LostCopies lists.
func (n *Node) Lost() int { return len(n.LostCopies()) }

// LostCopies lists, by name, the partitions whose only copy is recorded to be on this disk
// and was not there when it was opened last: they are served by nobody before an operator
// puts the directory back or resets them.
func (n *Node) LostCopies() (lost []topic.Ref) {
	n.slots.Range(func(k, v any) bool {
		if ref, ok := k.(topic.Ref); ok && asSlot(v).isLost() {
			lost = append(lost, ref)
		}
		return true
	})
	slices.SortFunc(lost, func(a, b topic.Ref) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	return lost
}

// LookedForLost tells that LostCopies lists also those that nobody has used since the start.
func (n *Node) LookedForLost() bool { return n.looked.Load() }

// lookForLost looks once, after the latch, for lone copies that are recorded to be on this
// disk and are not there: else one that nobody uses is not missed before retention comes to
// it. Each costs one stat; what is not there is opened as soon as it is led, which looks
// further and remembers it.
func (n *Node) lookForLost(ctx context.Context) {
	var missing []topic.Ref
	listed := false
	for {
		changed := n.view.Changed() // before the look, so that no change falls between
		own, err := n.view.AssignmentsOf(n.self)
		if err == nil { // after the latch
			if !listed {
				missing, listed = n.withoutDirectory(ctx, own), true
			}
			missing = n.openLed(ctx, missing)
			n.looked.Store(true)
			if len(missing) == 0 {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// withoutDirectory are the partitions whose only copy is recorded to be on this disk, where
// no directory has its name.
func (n *Node) withoutDirectory(ctx context.Context, own []topic.Assignment) (missing []topic.Ref) {
	for i := range own {
		a := &own[i]
		if ctx.Err() != nil {
			return nil
		}
		if r, ok := a.ReplicaOn(n.self); !ok || len(a.Replicas) > 1 || r.DiskID != n.disk || r.CopyID == 0 {
			continue
		}
		switch there, err := n.cfg.Dirs.HasPartition(a.Topic, a.Partition); {
		case err != nil:
			n.log.Warn("it is not known whether the only copy of a partition is there", "partition", a.Ref.String(), "error", err)
		case !there:
			missing = append(missing, a.Ref)
		}
	}
	return missing
}

// openLed opens those that are led, and returns those that may be later. Package
// replication opens what others observe.
func (n *Node) openLed(ctx context.Context, missing []topic.Ref) []topic.Ref {
	return slices.DeleteFunc(missing, func(ref topic.Ref) bool {
		j := judge(n.view, n.self, n.disk, ref)
		if j.standing != leads || j.a.Replicated() {
			return j.standing != notReady && (j.standing != notLeader || j.a.Leader != "")
		}
		_, _ = n.partition(ctx, ref, j.a) // an error is remembered and logged there
		return true
	})
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
