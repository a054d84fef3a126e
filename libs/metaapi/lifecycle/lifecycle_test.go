package lifecycle

import (
	"regexp"
	"slices"
	"testing"
	"time"
)

// specified is the table of the specification, as it stands there; of each row
// the quantities must be in ours, in that order.
var specified = []string{
	`every 2s / "my own Raft sees a leader"`,
	`at most 4 followed per attempt; up to 8 leader addresses remembered`,
	`every 2s once the non-voter's replica has caught up, until it is a voter`,
	`the leader has led 12s; its heartbeats to the joiner are not failing (a failure counts for 12s); the member record is alive and not draining`,
	`about 150ms; election after a crash about 1s`,
	`5s / 30s; a new leader waits 30s on its own clock, after a Barrier, before marking anyone`,
	`up to 60s (the sweep is skipped on timeout, so data is never deleted in a hurry). The timeout never marks the node ready; it keeps waiting`,
	`live: leader in view, contact within 5s (or the node is the leader), ownership latch set`,
	`a node with no leader for 15s runs the join loop`,
	`3 rounds, 1s apart, 2s per peer, before an initial member bootstraps`,
	`409 with code older_release; logged at error once by the joiner, at most once 1m per joiner by the leader`, // "a minute"
	`only after a Raft Barrier bounded at 5s and a new read`,
}

var quantity = regexp.MustCompile(`[0-9]+[0-9ms]*`)

func quantities(t *testing.T, s string) (out []string) {
	for _, q := range quantity.FindAllString(s, -1) {
		if d, err := time.ParseDuration(q); err == nil {
			q = d.String()
		}
		out = append(out, q)
	}
	if len(out) == 0 {
		t.Fatalf("no number in %q", s)
	}
	return out
}

// TestTable: the numbers are requirements.
func TestTable(t *testing.T) {
	rows := Table()
	if len(rows) != len(specified) {
		t.Fatalf("%d rows, specified are %d", len(rows), len(specified))
	}
	for i, row := range rows {
		if got, want := quantities(t, row.Value), quantities(t, specified[i]); !slices.Equal(got, want) {
			t.Errorf("%s: %v in %q, specified %v", row.Thing, got, row.Value, want)
		}
	}
}
