package replication

import (
	"context"
	"time"

	"github.com/narad-mq/narad/apps/storage-node/internal/partition"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

// piecesLimit bounds one question: a leader under load lets some hundred KiB wait for a
// few ms.
const piecesLimit = 5 * time.Second

// awaiting is a copy that lacks damaged bytes of its leader.
type awaiting struct {
	a topic.Assignment
	p *partition.Partition
}

// gather gets damaged bytes for copies that await some, one after the other: there are
// few, and a piece is held in memory. It is beside the passes, which wait for nobody.
func (m *Manager) gather(ctx context.Context, list []awaiting) {
	if len(list) == 0 || m.gathering.Swap(true) {
		return
	}
	m.background.Go(func() {
		defer m.gathering.Store(false)
		for i := range list {
			if ctx.Err() != nil {
				return
			}
			at := &list[i]
			if err := at.p.GatherPieces(func(req *nodeapi.PiecesRequest) (*nodeapi.PiecesResult, error) {
				return m.askPieces(ctx, at, req)
			}); err != nil {
				m.cfg.Log.Debug("damaged bytes of the leader are not here yet", "partition", at.a.String(), "leader", at.a.Leader, "err", err)
			}
		}
	})
}

// askPieces asks a leader, as the copy that lacks something.
func (m *Manager) askPieces(ctx context.Context, at *awaiting, req *nodeapi.PiecesRequest) (*nodeapi.PiecesResult, error) {
	id, err := at.p.LoneIdentity()
	if err != nil {
		return nil, err
	}
	lead, _ := at.a.ReplicaOn(at.a.Leader)
	req.From, req.Disk, req.Boot, req.Copy = m.cfg.Self, m.cfg.DiskID, m.cfg.BootNonce, id
	req.Target = nodeapi.Target{Ref: at.a.Ref, DiskID: lead.DiskID, Epoch: at.a.LeaderEpoch}
	ctx, cancel := context.WithTimeout(ctx, piecesLimit)
	defer cancel()
	return m.cfg.Host.AskPieces(ctx, at.a.Leader, req)
}
