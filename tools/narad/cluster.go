package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
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
	fmt.Fprintf(w, "leader %s, epoch %s, committed below %s by %s (majority %d), answered by %s\n\n",
		text(q.LeaderID), text(q.LeaderEpoch), text(q.HighWatermark), text(strings.Join(q.CommittedBy, ", ")), q.Majority, q.AnsweredBy)
	servers(w, q)
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
		if err := show(c, all, func(w io.Writer, views []client.Quorum) {
			servers(w, views...)
		}); err != nil {
			return err
		}
	}
	return errors.Join(failed...)
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
