package member

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/gossip"
)

// openGossip binds the gossip port, if there is to be one.
func (m *Member) openGossip(registry prometheus.Registerer) (err error) {
	if m.cfg.GossipBind == "" {
		return nil
	}
	var key []byte
	if m.cfg.SecretFile != "" {
		if key, err = gossip.ReadKey(m.cfg.SecretFile); err != nil {
			return err
		}
	}
	m.gossip, err = gossip.Open(gossip.Config{
		NodeID: m.cfg.NodeID, Bind: m.cfg.GossipBind, Advertise: m.cfg.Advertise, Key: key,
		Log: m.log, Registry: registry, Suspects: m.suspects,
	})
	return err
}

// runGossip takes part in the gossip of the members in this node's replica.
func (m *Member) runGossip(ctx context.Context) error {
	return m.gossip.Run(ctx, gossip.Source{
		ClusterID: func() string {
			if id := m.ClusterID(); id != "" {
				return id
			}
			return m.View().ClusterID()
		},
		Peers: func() map[string]string {
			peers := map[string]string{}
			for id, rec := range m.View().Members().ByID {
				peers[id] = rec.GossipAddr
			}
			return peers
		},
		Changed: func() <-chan struct{} { return m.View().Changed() },
	})
}

func (m *Member) gossipAddr() string {
	if m.gossip == nil {
		return ""
	}
	return m.gossip.Addr()
}

// Suspects is who is probably dead, as gossip has it: a hint for routing, for
// gateways. Nothing that decides, promotes, removes or destroys may ask it.
func (m *Member) Suspects() *gossip.Suspects { return m.suspects }
