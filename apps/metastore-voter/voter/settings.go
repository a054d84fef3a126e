package voter

import (
	"strings"

	"github.com/narad-mq/narad/libs/member"
	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/topic"
)

// maxInitial bounds the initial members: more voters make every write slower
// and hardly any failure survivable that seven do not survive.
const maxInitial = 7

// Settings are the role's own flags.
type Settings struct {
	InitialMembers []string // id=host:raftport
	Single         bool
}

// Configure turns the settings of a program into a Config, or says which
// setting refuses to start (proc.ErrUsage). A list that does not name this node
// makes it join-only.
func Configure(common proc.Common, s Settings) (Config, error) {
	cfg := Config{Member: member.FromCommon(common, topic.RoleVoter), Bus: common.Bus}
	switch {
	case s.Single && (len(s.InitialMembers) > 0 || len(common.Join) > 0):
		return Config{}, proc.Usagef("--single forms a cluster of one: it goes with neither --initial-members nor --join")
	case s.Single:
		cfg.Member.FormAlone = true
		return cfg, nil
	case len(common.Join) == 0 && len(s.InitialMembers) == 0:
		return Config{}, proc.Usagef("give --initial-members with --join, --join alone, or --single: a voter must know its cluster")
	case len(common.Join) == 0:
		return Config{}, proc.Usagef("--initial-members needs --join with the RPC addresses of the same members, to find a cluster that exists already")
	}
	servers, err := parseInitial(s.InitialMembers)
	if err != nil {
		return Config{}, err
	}
	for _, srv := range servers {
		if srv.ID == common.NodeID {
			cfg.Member.Initial = servers
		}
	}
	return cfg, nil
}

func parseInitial(list []string) ([]raftnode.Server, error) {
	if len(list) > maxInitial {
		return nil, proc.Usagef("--initial-members: %d members, at most %d make sense", len(list), maxInitial)
	}
	var out []raftnode.Server
	seen := map[string]bool{}
	for _, item := range list {
		id, addr, ok := strings.Cut(item, "=")
		if !ok || id == "" {
			return nil, proc.Usagef("--initial-members %q: want id=host:port", item)
		}
		if err := proc.ValidateHostPort(addr); err != nil {
			return nil, proc.Usagef("--initial-members %q: %v", item, err)
		}
		if seen[id] || seen[addr] {
			return nil, proc.Usagef("--initial-members: %q stands twice", item)
		}
		seen[id], seen[addr] = true, true
		out = append(out, raftnode.Server{ID: id, Addr: addr, Voter: true})
	}
	return out, nil
}
