package storage_test

import (
	"context"
	"fmt"
	"slices"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// handOver moves a leadership in order.
func (k *kin) handOver(ref topic.Ref, to string) error {
	a := k.assignment(ref)
	from, _ := a.ReplicaOn(a.Leader)
	want, _ := a.ReplicaOn(to)
	role := k.reach("voter", from.Node)
	if role == nil {
		return errNoRoute
	}
	res, err := role.Replica().Handover(context.Background(), &nodeapi.HandoverRequest{
		Target: nodeapi.Target{Ref: ref, DiskID: from.DiskID, Epoch: a.LeaderEpoch}, To: to, ToDisk: want.DiskID,
	})
	if err != nil || !res.Ready {
		return fmt.Errorf("hand-over of %s to %s: %+v, %w", ref, to, res, err)
	}
	return k.elect(ref, to)
}

// fence asks a replica to promise the epoch.
func (k *kin) fence(ref topic.Ref, r topic.Replica, epoch topic.Epoch) (got nodeapi.FenceAnswer, ok bool) {
	role := k.reach("voter", r.Node)
	if role == nil {
		return got, false
	}
	res, err := role.Replica().Fence(context.Background(), &nodeapi.FenceRequest{
		WithPositions: true, Items: []nodeapi.FenceItem{{Ref: ref, DiskID: r.DiskID, Epoch: epoch}},
	})
	if err != nil {
		return got, false
	}
	got = res.Answers[0]
	return got, got.Status == nodeapi.FencePromised && got.CopyID == r.CopyID && got.PromisedEpoch == epoch
}

// elect runs one election; of equals it prefers wanted.
func (k *kin) elect(ref topic.Ref, wanted string) error {
	if a := k.assignment(ref); len(a.Replicas) == 1 {
		return nil
	}
	k.change(ref, func(a *topic.Assignment) {
		if a.Leader != "" {
			a.Leader = ""
			a.LeaderEpoch++
		}
	})
	a := k.assignment(ref)
	var answers []quorum.FenceAnswer
	positions := map[string][]byte{}
	for _, r := range a.Replicas {
		if got, ok := k.fence(ref, r, a.LeaderEpoch); ok {
			answers = append(answers, quorum.FenceAnswer{
				Replica: kinCopy(r), Epoch: a.LeaderEpoch, LastEpoch: got.LastEpoch, LEO: got.LEO,
				Generation: got.PositionGeneration, Settled: got.Settled, HWM: got.HWM,
			})
			positions[r.Node] = got.Position
		}
	}
	want, _ := a.ReplicaOn(wanted)
	won, err := quorum.Elect(a.LeaderEpoch, answers, quorumSet(a.Replicas), kinCopy(want))
	if err != nil {
		return fmt.Errorf("elect for %s: %w", ref, err)
	}
	item := nodeapi.PrimeItem{Target: nodeapi.Target{Ref: ref, DiskID: won.Leader.Disk, Epoch: a.LeaderEpoch}}
	for _, r := range won.Positions {
		item.Positions = append(item.Positions, positions[r.Node])
	}
	role := k.reach("voter", won.Leader.Node)
	if role == nil {
		return errNoRoute
	}
	if err := role.Replica().Prime(context.Background(), &nodeapi.PrimeRequest{Items: []nodeapi.PrimeItem{item}}); err != nil {
		return err
	}
	k.change(ref, func(now *topic.Assignment) {
		if now.LeaderEpoch == a.LeaderEpoch && now.ConfigVersion == a.ConfigVersion {
			now.Leader = won.Leader.Node
		}
	})
	return nil
}

// electAll elects where nobody leads.
func (k *kin) electAll() {
	for _, ref := range k.refs() {
		if a := k.assignment(ref); a.Leader == "" {
			if err := k.elect(ref, a.Replicas[k.rng.IntN(len(a.Replicas))].Node); err != nil {
				continue // tried again
			}
		}
	}
}

// move is one that has begun.
type move struct {
	from, to string
}

// beginMove starts to move a copy to a node that has none.
func (k *kin) beginMove(ref topic.Ref) *move {
	a := k.assignment(ref)
	var free []string
	for _, id := range kinNodes {
		if _, has := a.ReplicaOn(id); !has {
			free = append(free, id)
		}
	}
	m := &move{a.Replicas[k.rng.IntN(len(a.Replicas))].Node, free[k.rng.IntN(len(free))]}
	if k.rng.IntN(2) == 0 && a.Leader != "" {
		m.from = a.Leader
	}
	k.change(ref, func(a *topic.Assignment) {
		a.Observers = []topic.Replica{{Node: m.to, DiskID: k.nodes[m.to].disk}}
		a.ConfigVersion++
	})
	return m
}

// advance takes the next step of a move, as package moves of the controller does; true
// when the move is over.
func (k *kin) advance(ref topic.Ref, m *move) bool {
	a := k.assignment(ref)
	src, hasSrc := a.ReplicaOn(m.from)
	_, hasDst := a.ReplicaOn(m.to)
	switch {
	case hasDst && !hasSrc:
		return true
	case a.Leader == "":
		return false
	case hasDst && a.Leader == m.from:
		_ = k.handOver(ref, m.to) // tried again
		return false
	}
	v, ok := k.vouch(ref, &a)
	if !ok {
		return false
	}
	to := slices.Clone(a.Replicas)
	if hasDst {
		to = slices.DeleteFunc(to, func(r topic.Replica) bool { return r.Node == m.from })
	} else {
		c, fetches := v.Copy(m.to)
		if !fetches || c.CopyID == 0 {
			return false
		}
		to[slices.Index(to, src)] = c.Replica
		to = append(to, src)
	}
	k.setReplicas(&a, to, &v)
	return false
}

func (k *kin) vouch(ref topic.Ref, a *topic.Assignment) (nodeapi.Vouch, bool) {
	role := k.reach("voter", a.Leader)
	if role == nil {
		return nodeapi.Vouch{}, false
	}
	res, err := role.Replica().Vouch(context.Background(), &nodeapi.VouchRequest{Partitions: []topic.Ref{ref}})
	if err != nil || len(res.Partitions) != 1 {
		return nodeapi.Vouch{}, false
	}
	return res.Partitions[0], true
}

// setReplicas changes a set if the rule allows it now.
func (k *kin) setReplicas(a *topic.Assignment, to []topic.Replica, word *nodeapi.Vouch) {
	now := quorum.Set{Version: a.ConfigVersion, Replicas: quorumSet(a.Replicas), Before: quorumSet(a.Before), Since: a.Since}
	v := quorum.Vouch{Epoch: word.Epoch, Version: word.ConfigVersion, Settled: word.Settled}
	for _, c := range word.Copies {
		if c.Near {
			v.Near = append(v.Near, kinCopy(c.Replica))
		}
	}
	next, err := quorum.NextSet(now, quorum.Leadership{Epoch: a.LeaderEpoch, Leader: a.Leader}, quorumSet(to), v)
	if err != nil {
		return // not yet
	}
	k.change(a.Ref, func(now *topic.Assignment) {
		if now.ConfigVersion != a.ConfigVersion || now.LeaderEpoch != a.LeaderEpoch {
			return
		}
		now.Before, now.Since, now.ConfigVersion = now.Replicas, next.Since, next.Version
		now.Replicas, now.Observers = to, nil
		leadAlone(now)
	})
}
