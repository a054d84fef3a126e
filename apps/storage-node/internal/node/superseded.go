package node

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/partlog"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/topicdir"
)

// errHeld: the node holds the partition again.
var errHeld = errors.New("this node holds the partition")

// vouchLimit bounds the question to one leader.
const vouchLimit = 5 * time.Second

// leftover is the copy of a partition that lives elsewhere by now.
type leftover struct {
	ref   topic.Ref
	state partlog.State
	valid bool // the state could be read
	// before tells that it is, or may be, of before the partition was begun anew: the
	// leader's log is another one, whose offsets say nothing about this one.
	before bool
}

// fate is what becomes of a leftover.
type fate uint8

const (
	keep    fate = iota // it cannot be judged now: the next sweep looks again
	reclaim             // the leader has everything that it had
	aside               // it had something that the leader does not vouch for: an operator has to look
)

// judgeLeftover decides about a copy by the metastore's word and that of the leader
// that the metastore names, both asked in this pass. Nothing but a leader that
// leads, has committed a record of its own epoch, and has all that the copy knew
// to be committed, ends it.
func judgeLeftover(l *leftover, self string, h metaapi.Holding, v nodeapi.Vouch) (f fate, why string) {
	switch {
	case !h.Known:
		return keep, "the metastore leader does not know the partition"
	case slices.Contains(h.Nodes, self):
		return keep, "it is a copy of record"
	case h.Leader == "" || h.Leader == self:
		return keep, "nobody leads the partition"
	case v.Epoch == 0 || v.Epoch != h.LeaderEpoch:
		return keep, "the leader has not answered"
	case !v.Proven:
		return keep, "the leader has committed nothing of its own epoch yet"
	case !l.valid || l.state.CopyID == 0:
		return aside, "what it had committed cannot be read"
	case l.before:
		return aside, "it is of before the partition was reset, and may be all that is left of that"
	case v.HWM < l.state.HWM:
		return aside, fmt.Sprintf("it had committed up to %d, the leader has %d", l.state.HWM, v.HWM)
	}
	return reclaim, ""
}

// sweepCopies ends copies of live topics that this node holds no more.
func (n *Node) sweepCopies(ctx context.Context, inventory []topicdir.Entry) {
	if n.cfg.Holders == nil || n.cfg.Candidates == nil {
		return
	}
	left := n.leftovers(inventory)
	if len(left) == 0 {
		return
	}
	refs := make([]topic.Ref, len(left))
	for i := range left {
		refs[i] = left[i].ref
	}
	ask, cancel := context.WithTimeout(ctx, confirmLimit)
	holdings, err := n.cfg.Holders(ask, refs)
	cancel()
	if err != nil {
		n.log.Warn("nobody confirms who holds partitions; their old copies are kept", "copies", len(left), "error", err)
	}
	vouched := n.askLeaders(ctx, holdings)
	for i := range left {
		l := &left[i]
		h, answered := holdings[l.ref]
		if !answered || ctx.Err() != nil {
			continue
		}
		f, why := judgeLeftover(l, n.self, h, vouched[l.ref])
		if f == keep {
			n.log.Debug("an old copy is kept for now", "partition", l.ref.String(), "why", why)
			continue
		}
		n.retire(ctx, l, f, why)
	}
}

// leftovers lists the copies on this disk of live partitions that, by the replica,
// this node holds no more and uses no more.
func (n *Node) leftovers(inventory []topicdir.Entry) (out []leftover) {
	for _, e := range inventory {
		if e.Kind != topicdir.Serving || e.Marker == 0 {
			continue
		}
		p, err := n.view.Assignments(e.Topic)
		if err != nil || p.Incarnation != e.Marker {
			continue
		}
		dir := path.Join(n.cfg.DataDir, e.Key())
		in, err := n.cfg.FS.ReadDir(dir)
		if err != nil {
			continue // survey has reported it
		}
		for _, d := range in {
			index, ok := topicdir.ParsePartition(d.Name())
			if !ok || int(index) >= len(p.List) || p.List[index].On(n.self) || n.peekSlot(p.List[index].Ref) != nil {
				continue
			}
			l := leftover{ref: p.List[index].Ref}
			if l.state, l.valid, err = partlog.PeekState(n.cfg.FS, path.Join(dir, d.Name())); err != nil {
				n.log.Warn("an old copy cannot be read and is kept", "partition", l.ref.String(), "error", err)
				continue
			}
			if l.before, err = n.predates(path.Join(dir, d.Name()), p.List[index].Reset); err != nil {
				n.log.Warn("an old copy cannot be read and is kept", "partition", l.ref.String(), "error", err)
				continue
			}
			out = append(out, l)
		}
	}
	return out
}

// predates tells whether the copy in a directory may hold what was there before the
// partition was begun anew with an epoch; 0: it never was.
func (n *Node) predates(dir string, reset topic.Epoch) (bool, error) {
	if reset == 0 {
		return false, nil
	}
	epochs, err := partlog.PeekEpochs(n.cfg.FS, dir)
	return len(epochs) == 0 || epochs[0].Epoch < reset, err
}

// askLeaders asks the leaders that the metastore names, each node once.
func (n *Node) askLeaders(ctx context.Context, holdings map[topic.Ref]metaapi.Holding) map[topic.Ref]nodeapi.Vouch {
	byLeader := map[string][]topic.Ref{}
	for ref, h := range holdings {
		if h.Known && h.Leader != "" && h.Leader != n.self {
			byLeader[h.Leader] = append(byLeader[h.Leader], ref)
		}
	}
	out := map[topic.Ref]nodeapi.Vouch{}
	for leader, refs := range byLeader {
		c, err := n.cfg.Candidates(leader)
		if err != nil {
			continue
		}
		for part := range slices.Chunk(refs, nodeapi.MaxVouchPartitions) {
			ask, cancel := context.WithTimeout(ctx, vouchLimit)
			res, err := c.Vouch(ask, &nodeapi.VouchRequest{Partitions: part})
			cancel()
			if err != nil {
				n.log.Debug("a leader does not vouch; old copies are kept", "leader", leader, "partitions", len(part), "err", err)
				break
			}
			for i, ref := range part {
				out[ref] = res.Partitions[i]
			}
		}
	}
	return out
}

// retire ends or sets aside one copy, under the open guard, unless it is another one
// by now or held again.
func (n *Node) retire(ctx context.Context, l *leftover, f fate, why string) {
	var bytes int64
	err := n.alone(ctx, l.ref.Topic, func() (err error) {
		bytes, err = n.cfg.Dirs.Retire(topicdir.Retiring{
			Topic: l.ref.Topic, Incarnation: l.ref.Incarnation, Partition: l.ref.Partition, Copy: l.state.CopyID, Remove: f == reclaim,
			Identity: func(dir string) (topic.ID64, error) {
				if j := judge(n.view, n.self, n.disk, l.ref); j.a == nil || j.a.On(n.self) || n.peekSlot(l.ref) != nil {
					return 0, errHeld
				}
				st, _, err := partlog.PeekState(n.cfg.FS, dir)
				return st.CopyID, err
			},
		})
		return err
	})
	switch {
	case errors.Is(err, errHeld), errors.Is(err, topicdir.ErrAbsent), errors.Is(err, topicdir.ErrChanged):
	case err != nil:
		n.metrics.PurgeFailures.Inc()
		n.log.Warn("an old copy is left for the next sweep", "partition", l.ref.String(), "error", err)
	case f == reclaim:
		n.metrics.CopiesReclaimed.Inc()
		n.metrics.ReclaimedBytes.Add(float64(bytes))
		n.log.Info("a superseded copy was removed", "partition", l.ref.String(), "copy", l.state.CopyID.String(), "bytes", bytes)
	default:
		n.metrics.CopiesQuarantined.Inc()
		n.log.Error("an old copy has what its leader does not vouch for; it is set aside, and an operator has to look",
			"partition", l.ref.String(), "copy", l.state.CopyID.String(), "why", why)
	}
}
