package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/client"
)

// own is what a voter says of itself.
func own(id, state string, epoch, start, hwm, leo uint64) client.Quorum {
	q := client.Quorum{LeaderEpoch: &epoch, LeaderEpochStart: &start, HighWatermark: &hwm, Majority: 2, AnsweredBy: id}
	q.Servers = []client.QuorumServer{{ID: id, Suffrage: "voter", Reachable: true, State: state, LeaderEpoch: &epoch, LEO: &leo}}
	return q
}

// TestTogether: what several programs say of themselves gives who leads, what is
// committed, who holds it and how far each is behind.
func TestTogether(t *testing.T) {
	guest := own("storage-1", "follower", 7, 0, 100, 100)
	guest.Servers[0].Suffrage, guest.Majority = "non_voter", 1
	silent := client.Quorum{AnsweredBy: "voter-9", Majority: 1, Servers: []client.QuorumServer{{ID: "voter-9", Suffrage: "voter"}}}
	for name, c := range map[string]struct {
		views []client.Quorum
		head  string
		lags  []string
	}{
		"a leader": {
			[]client.Quorum{own("v3", "follower", 7, 0, 90, 105), own("v1", "leader", 7, 40, 100, 103), own("v2", "follower", 7, 0, 98, 99), own("v4", "follower", 7, 0, 98, 104), guest},
			"leader v1, epoch 7 with its own entries from 40, committed below 100 by v3, v1, v4 (majority 2), answered by v3, v1, v2, v4, storage-1\n",
			[]string{"0", "0", "4", "0", "3"},
		},
		"one that was cut off says that it leads": {
			[]client.Quorum{own("v1", "leader", 7, 60, 100, 110), own("v2", "leader", 9, 101, 102, 103), own("v3", "follower", 9, 0, 101, 103)},
			"leader v2, epoch 9 with its own entries from 101, committed below 102 by v2, v3 (majority 2), answered by v1, v2, v3\n",
			[]string{"-", "0", "0"},
		},
		"it says so last": {
			[]client.Quorum{own("v2", "leader", 9, 101, 102, 103), own("v1", "leader", 7, 60, 100, 101)},
			"leader v2, epoch 9 with its own entries from 101, committed below 102 by v2 (majority 2), answered by v2, v1\n",
			[]string{"0", "-"},
		},
		"no leader": {
			[]client.Quorum{own("v3", "candidate", 8, 0, 90, 95), own("v2", "follower", 7, 0, 100, 103), silent},
			"leader -, epoch 8 with its own entries from -, committed below 100 by v2 (majority 2), answered by v3, v2, voter-9\n",
			[]string{"8", "0", "-"},
		},
		"nobody knows anything": {
			[]client.Quorum{silent, silent},
			"leader -, epoch - with its own entries from -, committed below - by - (majority 1), answered by voter-9, voter-9\n",
			[]string{"-", "-"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			printViews(&b, c.views)
			lines := strings.SplitAfter(b.String(), "\n")
			if got := lines[len(c.views)]; got != c.head || lines[len(c.views)+1] != "\n" {
				t.Errorf("%q, want %q", got, c.head)
			}
			var lags []string
			for i, v := range c.views {
				if want := fmt.Sprintf("answered by %s\n", v.AnsweredBy); !strings.HasSuffix(lines[i], want) || strings.Contains(lines[i], "entries from 0") {
					t.Errorf("%q, want one %q", lines[i], want)
				}
				lags = append(lags, text(v.Servers[0].Lag))
			}
			if !slices.Equal(lags, c.lags) {
				t.Errorf("lags %s, want %s", lags, c.lags)
			}
		})
	}
}
