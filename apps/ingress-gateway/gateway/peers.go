package gateway

import (
	"sync"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/rpc"
)

// peers keeps a client per storage node. A node whose address changed gets a new
// one; the entries are as many as storage nodes were ever seen.
type peers struct {
	view    metastate.View
	client  *rpc.Client
	clients sync.Map // node id -> *peer
}

type peer struct {
	addr string
	node *nodeapi.Client
}

func newPeers(view metastate.View, client *rpc.Client) *peers {
	return &peers{view: view, client: client}
}

// node returns the wire to a node of the member table; nil when it is not there.
func (p *peers) node(id string) nodeapi.Node {
	m := p.view.Members().ByID[id]
	if m == nil || m.RPCAddr == "" {
		return nil
	}
	if have, ok := p.clients.Load(id); ok {
		if c, ok := have.(*peer); ok && c.addr == m.RPCAddr {
			return c.node
		}
	}
	c := &peer{m.RPCAddr, nodeapi.NewClient(p.client.Peer(id, m.RPCAddr))}
	p.clients.Store(id, c)
	return c.node
}

// fanout is node, for what a storage node tells of children.
func (p *peers) fanout(id string) nodeapi.Fanout {
	f, ok := p.node(id).(nodeapi.Fanout)
	if !ok {
		return nil
	}
	return f
}
