package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/proc"
)

// opsTimeout bounds one question to an operator port: it answers from its own view.
const opsTimeout = 5 * time.Second

func clusterCommand() *cli.Command {
	return &cli.Command{
		Name: "cluster", Usage: "what the cluster says of itself",
		Subcommands: []*cli.Command{
			{Name: "status", Usage: "what is wrong, since when and what to do; exit 0: nothing, 1: something", Action: clusterStatus},
			{Name: "members", Usage: "list the processes of the cluster", Action: clusterMembers},
			{
				Name: "quorum", Usage: "the metastore's voters and how far each is", Action: clusterQuorum,
				Flags: []cli.Flag{&cli.StringSliceFlag{Name: "ops", Usage: "ask these operator ports (`host:port`,..) instead of a gateway: works when no gateway does"}},
			},
			movesCommand(),
			{Name: "forget", Usage: "remove a Raft server that never became a member", ArgsUsage: "ID", Action: clusterForget},
			decommissionCommand(),
			{Name: "backup", Usage: "write the cluster's metadata to FILE, for metastore-voter --restore; messages are not in it", ArgsUsage: "FILE", Action: clusterBackup},
			{Name: "constants", Usage: "the numbers by which a cluster forms and judges its members", Action: clusterConstants},
		},
	}
}

func clusterMembers(c *cli.Context) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	body, err := call(c, client.Call{Op: "list members", Method: http.MethodGet, Path: "/v1/cluster/members", Safety: client.RepeatFreely})
	if err != nil {
		return err
	}
	return show(c, body, func(w io.Writer, m client.Members) {
		fmt.Fprintf(w, "cluster %s, leader %s, answered by %s\n\n", m.ClusterID, text(m.LeaderID), m.AnsweredBy)
		row(w, "ID", "ROLE", "STATUS", "LEADER", "ADDRESS", "RELEASE", "HEARTBEAT", "LED", "REPLICAS", "WAL BACKLOG", "DISK")
		for _, x := range m.Members {
			row(w, x.ID, x.Role, status(x), yes(x.Leader), x.Address, x.Release, ago(x.HeartbeatAgeMS), x.PartitionsLed, x.Replicas, x.WALBacklogRecords, percent(x.DiskUsedPercent))
		}
		for _, x := range m.Tombstones {
			row(w, x.ID, "-", "removed "+text(x.RemovedAt))
		}
		if m.Stale {
			fmt.Fprintln(w, "\nstale: no leader measures heartbeats now")
		}
	})
}

func status(m client.Member) string {
	if m.Draining {
		return m.Status + ", draining"
	}
	return m.Status
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

func ago(ms *int64) string {
	if ms == nil {
		return "-"
	}
	return (time.Duration(*ms) * time.Millisecond).String() + " ago"
}

func percent(p *int) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprintf("%d%%", *p)
}

func clusterQuorum(c *cli.Context) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	if ports := c.StringSlice("ops"); len(ports) > 0 {
		return quorumOfPorts(c, ports)
	}
	body, err := call(c, client.Call{Op: "read quorum", Method: http.MethodGet, Path: "/v1/cluster/quorum", Safety: client.RepeatFreely})
	if err != nil {
		return err
	}
	return show(c, body, printQuorum)
}

func printQuorum(w io.Writer, q client.Quorum) {
	quorumHead(w, q)
	fmt.Fprintln(w)
	servers(w, q)
}

// quorumHead says what is committed and who holds it. A leader commits by entries of its
// own epoch only, which is why their beginning is told.
func quorumHead(w io.Writer, q client.Quorum) {
	start := q.LeaderEpochStart
	if start != nil && *start == 0 { // unknown to who answered: only the leader knows it
		start = nil
	}
	fmt.Fprintf(w, "leader %s, epoch %s with its own entries from %s, committed below %s by %s (majority %d), answered by %s\n",
		text(q.LeaderID), text(q.LeaderEpoch), text(start), text(q.HighWatermark), text(strings.Join(q.CommittedBy, ", ")), q.Majority, text(q.AnsweredBy))
}

// servers prints one table over the views of several programs.
func servers(w io.Writer, views ...client.Quorum) {
	row(w, "SEEN BY", "ID", "ROLE", "SUFFRAGE", "REACHABLE", "STATE", "EPOCH", "LOG END", "LAG", "APPLIED", "HEARD LEADER")
	for _, v := range views {
		for _, s := range v.Servers {
			row(w, v.AnsweredBy, s.ID, s.Role, s.Suffrage, yes(s.Reachable), s.State, s.LeaderEpoch, s.LEO, s.Lag, s.Applied, ago(s.LastContactMS))
		}
	}
}

// quorumOfPorts asks each program for its own view and fails when one did not answer.
func quorumOfPorts(c *cli.Context, ports []string) error {
	httpClient := &http.Client{Timeout: opsTimeout}
	defer httpClient.CloseIdleConnections()
	var views []client.Quorum
	var failed []error
	for _, port := range ports {
		body, err := askOps(c.Context, httpClient, port)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if c.Bool("json") {
			if err := printJSON(c.App.Writer, body); err != nil {
				return err
			}
			continue
		}
		var q client.Quorum
		if err := json.Unmarshal(body, &q); err != nil {
			failed = append(failed, fmt.Errorf("ask %s: read the answer: %w", port, err))
			continue
		}
		views = append(views, q)
	}
	if !c.Bool("json") && len(views) > 0 {
		all, err := json.Marshal(views)
		if err != nil {
			return err
		}
		if err := show(c, all, printViews); err != nil {
			return err
		}
	}
	return errors.Join(failed...)
}

// printViews prints what several programs say, each of itself, and what follows from it.
func printViews(w io.Writer, views []client.Quorum) {
	all := together(views)
	for _, v := range views {
		quorumHead(w, v)
	}
	if len(views) > 1 {
		quorumHead(w, all)
	}
	fmt.Fprintln(w)
	servers(w, views...)
}

// together is what several views make of the whole group, and completes their lags by
// it. Whoever says that it leads under the highest epoch leads: one that was cut off
// still has an older one. Without a leader the longest log is what lags are measured
// against; it may have entries that are not committed.
func together(views []client.Quorum) client.Quorum {
	all, end, epoch := client.Quorum{}, uint64(0), uint64(0)
	var by []string
	for _, v := range views {
		by = append(by, v.AnsweredBy)
		all.Majority = max(all.Majority, v.Majority) // one that was not admitted counts no voters
		all.HighWatermark = higher(all.HighWatermark, v.HighWatermark)
		if v.LeaderEpoch != nil && all.LeaderID == nil {
			all.LeaderEpoch = higher(all.LeaderEpoch, v.LeaderEpoch)
		}
		for _, s := range v.Servers {
			switch {
			case s.LEO == nil:
			case s.State == "leader" && v.LeaderEpoch != nil && *v.LeaderEpoch >= epoch:
				epoch, end = *v.LeaderEpoch, *s.LEO
				all.LeaderID, all.LeaderEpoch, all.LeaderEpochStart = &s.ID, v.LeaderEpoch, v.LeaderEpochStart
			case all.LeaderID == nil:
				end = max(end, *s.LEO)
			}
		}
	}
	for _, v := range views {
		for i := range v.Servers {
			s := &v.Servers[i]
			behind := all.LeaderID != nil && (s.LeaderEpoch == nil || *s.LeaderEpoch < epoch)
			if s.LEO == nil || behind { // a log of an older epoch may end in entries that go
				continue
			}
			lag := end - min(*s.LEO, end)
			s.Lag = &lag
			if s.Suffrage == "voter" && all.HighWatermark != nil && *s.LEO >= *all.HighWatermark && !slices.Contains(all.CommittedBy, s.ID) {
				all.CommittedBy = append(all.CommittedBy, s.ID)
			}
		}
	}
	all.AnsweredBy = strings.Join(by, ", ")
	return all
}

func higher(a, b *uint64) *uint64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

func askOps(ctx context.Context, httpClient *http.Client, port string) ([]byte, error) {
	if strings.Contains(port, "/") {
		return nil, proc.Usagef("--ops %q: want host:port", port)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+port+"/quorum", nil)
	if err != nil {
		return nil, proc.Usagef("--ops %q: want host:port", port)
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask operator port: %w", err)
	}
	defer resp.Body.Close()
	const limit = 1 << 20 // a view of one server is far below
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", port, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask %s: it answered %s", port, resp.Status)
	}
	return body, nil
}
