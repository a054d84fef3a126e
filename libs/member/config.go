package member

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metaapi/lifecycle"
	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/tlsconf"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// Timing holds the constants of a member's life, for tests to shorten. The zero
// value of a field means its default.
type Timing struct {
	JoinEvery      time.Duration // between join attempts and promotion requests; 2 s
	LeaderlessFor  time.Duration // without a leader before the join loop runs again; 15 s
	HeartbeatEvery time.Duration // 5 s
	RegisterEvery  time.Duration // between registrations until one is applied here; 2 s
	AskBudget      time.Duration // for one join request to one peer; 2 s
	ProbeRounds    int           // of an initial member with an empty disk; 3
	ProbeEvery     time.Duration // between rounds; 1 s
	StopWait       time.Duration // for calls that run when the member stops; 5 s
	FreshContact   time.Duration // how old the leader's last word may be for a ready node; 5 s
}

// DefaultTiming gives the numbers of the design.
func DefaultTiming() Timing {
	return Timing{
		JoinEvery: lifecycle.JoinEvery, LeaderlessFor: lifecycle.LeaderlessFor,
		HeartbeatEvery: lifecycle.HeartbeatEvery, RegisterEvery: 2 * time.Second, AskBudget: lifecycle.ProbePeer,
		ProbeRounds: lifecycle.ProbeRounds, ProbeEvery: lifecycle.ProbeEvery, StopWait: 5 * time.Second, FreshContact: lifecycle.FreshContact,
	}
}

func (t Timing) withDefaults() Timing {
	d := DefaultTiming()
	for _, f := range []struct{ have, otherwise *time.Duration }{
		{&t.JoinEvery, &d.JoinEvery},
		{&t.LeaderlessFor, &d.LeaderlessFor},
		{&t.HeartbeatEvery, &d.HeartbeatEvery},
		{&t.RegisterEvery, &d.RegisterEvery},
		{&t.AskBudget, &d.AskBudget},
		{&t.ProbeEvery, &d.ProbeEvery},
		{&t.StopWait, &d.StopWait},
		{&t.FreshContact, &d.FreshContact},
	} {
		if *f.have == 0 {
			*f.have = *f.otherwise
		}
	}
	if t.ProbeRounds == 0 {
		t.ProbeRounds = d.ProbeRounds
	}
	return t
}

// Config is everything that a member needs to know.
type Config struct {
	NodeID     string
	Role       topic.MemberRole
	DataDir    string        // made if missing
	RPCBind    string        // host:port to listen on; port 0 takes a free one
	RaftBind   string        // host:port to listen on; port 0 takes a free one
	GossipBind string        // host:port to listen on; port 0 takes a free one; "": no gossip
	SecretFile string        // with the cluster secret, of which the gossip key is made; "": gossip is plaintext
	Advertise  string        // host that others dial
	TLS        tlsconf.Files // of both planes; none: they speak plaintext
	Join       []string      // RPC addresses of voters
	Zone       string
	Release    string
	// Initial is the first configuration of a cluster that this voter may form
	// with an empty disk; nil: it only joins. It must name this node.
	Initial []raftnode.Server
	// FormAlone makes this voter form a cluster of itself when its disk is empty.
	FormAlone bool
	Timing    Timing
	Raft      raftnode.Timing
}

// FromCommon takes what a program's common settings say.
func FromCommon(c proc.Common, role topic.MemberRole) Config {
	return Config{
		NodeID: c.NodeID, Role: role, DataDir: c.DataDir, RPCBind: c.RPCAddr, RaftBind: c.RaftAddr,
		GossipBind: c.GossipAddr, SecretFile: c.ClusterSecretFile, Advertise: c.Advertise, TLS: c.TLS, Join: c.Join, Zone: c.Zone, Release: proc.Release,
	}
}

// Deps is what a member is given.
type Deps struct {
	Log      *slog.Logger          // nil discards
	Registry prometheus.Registerer // nil: no metrics
	FS       vfs.FS                // for the identity; nil: the machine's
	// Load gives what heartbeats carry for display: the WAL backlog in records
	// and the use of the data disk. nil: zeros.
	Load func() (walBacklog int64, diskUsedPercent int)
	// Lost gives what heartbeats say of lone copies that are not there; one loop calls
	// it. nil, or a nil answer: nothing is said.
	Lost func() *metaapi.LostCopies
}

func (c *Config) validate() error {
	switch {
	case c.NodeID == "" || c.DataDir == "" || c.RPCBind == "" || c.RaftBind == "" || c.Advertise == "":
		return errors.New("open member: node id, data directory, addresses and advertised host are all needed")
	case c.Role != topic.RoleVoter && c.Role != topic.RoleStorage && c.Role != topic.RoleGateway:
		return fmt.Errorf("open member: unknown role %q", c.Role)
	case c.Role != topic.RoleVoter && (len(c.Initial) > 0 || c.FormAlone):
		return fmt.Errorf("open member: a %s never forms a cluster", c.Role)
	case len(c.Join) == 0 && len(c.Initial) == 0 && !c.FormAlone:
		return errors.New("open member: it knows nobody to join and may not form a cluster")
	}
	c.Timing = c.Timing.withDefaults()
	return nil
}
