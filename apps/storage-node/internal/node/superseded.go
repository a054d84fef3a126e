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
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/topicdir"
)

// errHeld: the node holds the partition again.
var errHeld = errors.New("this node holds the partition")

// vouchLimit bounds the question to one leader.
const vouchLimit = 5 * time.Second

// undecided says why nothing is decided now about a copy of a partition that lives
// elsewhere; "" when it can be judged. It goes by the metastore's word and that of the
// leader that the metastore names, both asked in this pass: that leader leads, and has
// committed a record of its own epoch, so that what it has is what is committed.
func undecided(self string, h metaapi.Holding, v nodeapi.Vouch) string {
	switch {
	case !h.Known:
		return "the metastore leader does not know the partition"
	case slices.Contains(h.Nodes, self):
		return "it is a copy of record"
	case h.Leader == "" || h.Leader == self:
		return "nobody leads the partition"
	case v.Epoch == 0 || v.Epoch != h.LeaderEpoch:
		return "the leader has not answered"
	case !v.Proven:
		return "the leader has committed nothing of its own epoch yet"
	}
	return ""
}

// judgeLeftover says why a copy must be set aside, for an operator; "" when the leader
// that vouches holds everything that the copy has, record by record (quorum.Holds),
// and everything that it knew to be committed, and has the same damage, byte for byte:
// offsets do not tell whether the records between them are there. What the leader said
// once stays true: later leaders have it too.
func judgeLeftover(r *partlog.Remains, v nodeapi.Vouch) (why string) {
	if !r.Found || r.State.CopyID == 0 {
		return "what it had committed cannot be read"
	}
	if why := judgePieces(r, v); why != "" {
		return why
	}
	if v.HWM < r.State.HWM {
		return fmt.Sprintf("it had committed up to %d, the leader has %d", r.State.HWM, v.HWM)
	}
	history := make([]quorum.EpochStart, len(v.History))
	for i, e := range v.History {
		history[i] = quorum.EpochStart(e)
	}
	if !quorum.Holds(history, v.HWM, r.Epochs, r.LEO) {
		return fmt.Sprintf("its log ends at %d in epoch %d, with records that the leader's log, committed up to %d, does not have or cannot tell of",
			r.LEO, quorum.EpochAt(r.Epochs, r.LEO), v.HWM)
	}
	return ""
}

// sweepCopies ends copies of live topics that this node holds no more.
func (n *Node) sweepCopies(ctx context.Context, inventory []topicdir.Entry) {
	if n.cfg.Holders == nil || n.cfg.Candidates == nil {
		return
	}
	left, leaving := n.leftovers(inventory)
	n.finishRetired(ctx, leaving)
	if len(left) == 0 {
		return
	}
	ask, cancel := context.WithTimeout(ctx, confirmLimit)
	holdings, err := n.cfg.Holders(ask, left)
	cancel()
	if err != nil {
		n.log.Warn("nobody confirms who holds partitions; their old copies are kept", "copies", len(left), "error", err)
	}
	vouched := n.askLeaders(ctx, holdings)
	for _, ref := range left {
		h, answered := holdings[ref]
		if !answered || ctx.Err() != nil {
			continue
		}
		v := vouched[ref]
		if why := undecided(n.self, h, v); why != "" {
			n.log.Debug("an old copy is kept for now", "partition", ref.String(), "why", why)
			continue
		}
		n.retire(ctx, ref, v)
	}
}

// leftovers lists live partitions of which a copy is on this disk that, by the
// replica, this node holds no more and uses no more, and copies whose removal was
// interrupted. It counts those that are set aside.
func (n *Node) leftovers(inventory []topicdir.Entry) (out []topic.Ref, leaving []leavingCopy) {
	kept := 0
	defer func() { n.metrics.CopiesKept.Set(float64(kept)) }()
	for _, e := range inventory {
		if e.Kind != topicdir.Serving || e.Marker == 0 {
			continue
		}
		p, err := n.view.Assignments(e.Topic)
		if err != nil || p.Incarnation != e.Marker {
			continue
		}
		in, err := n.cfg.FS.ReadDir(path.Join(n.cfg.DataDir, e.Key()))
		if err != nil {
			continue // survey has reported it
		}
		for _, d := range in {
			if c, ok := topicdir.ParseAside(d.Name()); ok && c.Leaving {
				leaving = append(leaving, leavingCopy{e.Topic, e.Marker, c})
			} else if ok {
				kept++
			}
			index, ok := topicdir.ParsePartition(d.Name())
			if ok && int(index) < len(p.List) && !p.List[index].On(n.self) && n.peekSlot(p.List[index].Ref) == nil {
				out = append(out, p.List[index].Ref)
			}
		}
	}
	return out, leaving
}

// leavingCopy is a copy that was judged, taken away from its name, and not removed yet.
type leavingCopy struct {
	topic string
	id    topic.Incarnation
	copy  topicdir.AsideCopy
}

// finishRetired removes what a process that was killed meanwhile has left of copies that
// it was removing.
func (n *Node) finishRetired(ctx context.Context, list []leavingCopy) {
	for i := range list {
		c := &list[i]
		if ctx.Err() != nil {
			return
		}
		var bytes int64
		err := n.alone(ctx, c.topic, func() (err error) {
			bytes, err = n.cfg.Dirs.FinishRetire(c.topic, c.id, c.copy)
			return err
		})
		n.metrics.ReclaimedBytes.Add(float64(bytes))
		if err != nil && !errors.Is(err, topicdir.ErrAbsent) && !errors.Is(err, topicdir.ErrChanged) {
			n.metrics.PurgeFailures.Inc()
			n.log.Warn("what is left of an old copy stays for the next sweep", "topic", c.topic, "partition", c.copy.Partition, "error", err)
		}
	}
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
		n.askLeader(ctx, out, leader, nodeapi.VouchRequest{Partitions: refs, Histories: true})
		// A copy that is damaged, and any of a leader that is, is compared with its pieces.
		refs = slices.DeleteFunc(refs, func(ref topic.Ref) bool {
			v := out[ref]
			return v.Epoch == 0 || v.Proven && !n.isDamaged(ref)
		})
		n.askLeader(ctx, out, leader, nodeapi.VouchRequest{Partitions: refs, Histories: true, Pieces: true})
	}
	return out
}

// askLeader asks one leader, in as many requests as it takes.
func (n *Node) askLeader(ctx context.Context, out map[topic.Ref]nodeapi.Vouch, leader string, req nodeapi.VouchRequest) {
	c, err := n.cfg.Candidates(leader)
	if err != nil {
		return
	}
	for req.Partitions = range slices.Chunk(req.Partitions, req.Limit()) {
		ask, cancel := context.WithTimeout(ctx, vouchLimit)
		res, err := c.Vouch(ask, &req)
		cancel()
		if err != nil {
			n.log.Debug("a leader does not vouch; old copies are kept", "leader", leader, "partitions", len(req.Partitions), "err", err)
			return
		}
		for i, ref := range req.Partitions {
			out[ref] = res.Partitions[i]
		}
	}
}

// isDamaged tells whether damage is known of an old copy. One that cannot be looked at is
// judged when it can be.
func (n *Node) isDamaged(ref topic.Ref) bool {
	top := topicdir.Entry{Kind: topicdir.Serving, Topic: ref.Topic, Name: ref.Topic}
	was, err := seglog.WasDamaged(n.cfg.FS, topicdir.PartitionDir(path.Join(n.cfg.DataDir, top.Key()), ref.Partition))
	return was && err == nil
}

// retire ends or sets aside one copy, judged as it is then under the open guard, by
// what its leader vouched for, unless it is held again.
func (n *Node) retire(ctx context.Context, ref topic.Ref, v nodeapi.Vouch) {
	var bytes int64
	var judged topicdir.Judged
	err := n.alone(ctx, ref.Topic, func() (err error) {
		bytes, err = n.cfg.Dirs.Retire(topicdir.Retiring{
			Topic: ref.Topic, Incarnation: ref.Incarnation, Partition: ref.Partition,
			Judge: func(dir string) (topicdir.Judged, error) {
				if j := judge(n.view, n.self, n.disk, ref); j.a == nil || j.a.On(n.self) || n.peekSlot(ref) != nil {
					return topicdir.Judged{}, errHeld
				}
				r, err := partlog.Examine(n.cfg.FS, dir, n.cfg.LogOptions)
				why := judgeLeftover(&r, v)
				judged = topicdir.Judged{
					Copy: r.State.CopyID, Remove: why == "",
					Note: topicdir.Note{SinceMS: n.cfg.Now().UnixMilli(), Reason: why},
				}
				return judged, err
			},
		})
		return err
	})
	switch {
	case errors.Is(err, errHeld), errors.Is(err, topicdir.ErrAbsent), errors.Is(err, topicdir.ErrChanged), errors.Is(err, context.Canceled):
	case err != nil:
		n.metrics.PurgeFailures.Inc()
		n.log.Warn("an old copy is left for the next sweep", "partition", ref.String(), "error", err)
	case judged.Remove:
		n.metrics.CopiesReclaimed.Inc()
		n.metrics.ReclaimedBytes.Add(float64(bytes))
		n.log.Info("a superseded copy was removed", "partition", ref.String(), "copy", judged.Copy.String(), "bytes", bytes)
	default:
		n.metrics.CopiesQuarantined.Inc()
		n.log.Error("an old copy has what its leader does not vouch for; it is set aside, and an operator has to look",
			"partition", ref.String(), "copy", judged.Copy.String(), "why", judged.Note.Reason)
	}
}
