package voter

import (
	"errors"
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/proc"
)

func TestConfigure(t *testing.T) {
	peers := []string{"h1:7944", "h2:7944", "h3:7944"}
	members := []string{"v1=h1:7943", "v2=h2:7943", "v3=h3:7943"}
	for name, tc := range map[string]struct {
		id      string
		join    []string
		s       Settings
		initial int  // servers of the first configuration
		alone   bool // forms a cluster of one
		refused string
	}{
		"initial member":                {id: "v2", join: peers, s: Settings{InitialMembers: members}, initial: 3},
		"a list that does not name it":  {id: "v9", join: peers, s: Settings{InitialMembers: members}},
		"joins":                         {id: "v9", join: peers},
		"single":                        {id: "v1", s: Settings{Single: true}, alone: true},
		"nothing given":                 {id: "v1", refused: "--single"},
		"initial members without peers": {id: "v1", s: Settings{InitialMembers: members}, refused: "needs --join"},
		"single and join":               {id: "v1", join: peers, s: Settings{Single: true}, refused: "neither"},
		"no id":                         {id: "v1", join: peers, s: Settings{InitialMembers: []string{"h1:7943"}}, refused: "want id=host:port"},
		"no port":                       {id: "v1", join: peers, s: Settings{InitialMembers: []string{"v1=h1"}}, refused: "want host:port"},
		"id twice":                      {id: "v1", join: peers, s: Settings{InitialMembers: []string{"v1=h1:1", "v1=h2:1"}}, refused: "twice"},
		"address twice":                 {id: "v1", join: peers, s: Settings{InitialMembers: []string{"v1=h1:1", "v2=h1:1"}}, refused: "twice"},
		"too many":                      {id: "v1", join: peers, s: Settings{InitialMembers: strings.Split(strings.Repeat("a=b:1,", 8), ",")}, refused: "at most 7"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := Configure(proc.Common{NodeID: tc.id, Join: tc.join}, tc.s)
			if tc.refused != "" {
				if !errors.Is(err, proc.ErrUsage) || !strings.Contains(err.Error(), tc.refused) {
					t.Errorf("got %v, want a refusal with %q", err, tc.refused)
				}
				return
			}
			if err != nil || len(cfg.Member.Initial) != tc.initial || cfg.Member.FormAlone != tc.alone {
				t.Errorf("got %+v, %v", cfg.Member, err)
			}
		})
	}
}
