package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/proc"
)

func topicCommand() *cli.Command {
	return &cli.Command{
		Name: "topic", Usage: "create, list, read, change and delete topics",
		Subcommands: []*cli.Command{
			{
				Name: "add", Usage: "create a topic", ArgsUsage: "NAME", Action: topicAdd,
				Flags: append(settingFlags(),
					&cli.StringFlag{Name: "parent", Usage: "copy every message of this `topic` to the new one, which gets as many partitions"},
					&cli.StringFlag{Name: "delay", Usage: "with --parent: no earlier than this after its commit, e.g. 5s; 0: at once"},
					&cli.IntFlag{Name: "replication-factor", Usage: "copies of each partition: 1, 3 or 5 (default 1)"},
					&cli.BoolFlag{Name: "if-absent", Usage: "no failure when the topic exists; it is not changed"}),
			},
			{
				Name: "ls", Usage: "list topics", Action: topicList,
				Flags: []cli.Flag{&cli.StringFlag{Name: "prefix", Usage: "only names that start with `text`"}},
			},
			{Name: "info", Usage: "show a topic and its partitions", ArgsUsage: "NAME", Action: topicInfo},
			{
				Name: "edit", Usage: "change settings, all or none", ArgsUsage: "NAME", Action: topicEdit,
				Flags: append(settingFlags(), &cli.StringFlag{Name: "if-match", Usage: "only this `etag` (incarnation-version) of the topic"}),
			},
			resetCommand(),
			{
				Name: "rm", Usage: "delete a topic and all its messages", ArgsUsage: "NAME", Action: topicRemove,
				Flags: []cli.Flag{&cli.BoolFlag{Name: "yes", Usage: "do not ask"}},
			},
		},
	}
}

// setting is one field of a topic that a flag sets.
type setting struct {
	flag, field string
	kind        string // int, span, bool, name
}

var settings = []setting{
	{"partitions", "partitions", "int"},
	{"retention", "retention_ms", "span"},
	{"retention-bytes", "retention_bytes", "int"},
	{"visibility-timeout", "visibility_timeout_ms", "span"},
	{"max-in-flight", "max_in_flight_per_partition", "int"},
	{"max-acked-ahead", "max_acked_ahead_per_partition", "int"},
	{"reroute", "reroute", "bool"},
	{"max-deliveries", "max_deliveries", "int"},
	{"dead-letter-topic", "dead_letter_topic", "name"},
}

func settingFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "partitions", Usage: "1..1024, only grows (default 3)"},
		&cli.StringFlag{Name: "retention", Usage: "how long messages are kept, e.g. 7d; 0: for ever (default 7d)"},
		&cli.Int64Flag{Name: "retention-bytes", Usage: "per partition; 0: no bound"},
		&cli.StringFlag{Name: "visibility-timeout", Usage: "length of a lease, 1s..12h (default 30s)"},
		&cli.IntFlag{Name: "max-in-flight", Usage: "leases per partition (default 1024)"},
		&cli.IntFlag{Name: "max-acked-ahead", Usage: "settled messages above the oldest open one, per partition (default 100000)"},
		&cli.BoolFlag{Name: "reroute", Usage: "let unpinned messages go around a dead node; --reroute=false forbids it (default true)"},
		&cli.IntFlag{Name: "max-deliveries", Usage: "before a message becomes a dead letter; 0: no limit"},
		&cli.StringFlag{Name: "dead-letter-topic", Usage: "`name` of the topic that takes dead letters"},
	}
}

// given collects the settings that stand on the command line, as JSON fields.
func given(c *cli.Context) (map[string]any, error) {
	fields := map[string]any{}
	for _, s := range settings {
		if !c.IsSet(s.flag) {
			continue
		}
		switch s.kind {
		case "int":
			if v, ok := c.Value(s.flag).(int); ok {
				fields[s.field] = v
			} else {
				fields[s.field] = c.Int64(s.flag)
			}
		case "span":
			ms, err := parseSpan(s.flag, c.String(s.flag))
			if err != nil {
				return nil, err
			}
			fields[s.field] = ms
		case "bool":
			fields[s.field] = c.Bool(s.flag)
		default:
			fields[s.field] = c.String(s.flag)
		}
	}
	return fields, nil
}

func topicPath(name string) string { return "/v1/topics/" + url.PathEscape(name) }

func topicAdd(c *cli.Context) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	fields, err := given(c)
	if err != nil {
		return err
	}
	name := c.Args().First()
	fields["name"] = name
	if c.IsSet("replication-factor") {
		fields["replication_factor"] = c.Int("replication-factor")
	}
	if err := family(c, fields); err != nil {
		return err
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	req := client.Call{Op: fmt.Sprintf("create topic %q", name), Method: http.MethodPost, Path: "/v1/topics", ContentType: "application/json", Body: body}
	verb := "created"
	if c.Bool("if-absent") {
		req.Safety = client.RepeatFreely
	}
	answer, err := call(c, req)
	var e *client.Error
	if errors.As(err, &e) && e.Code == client.CodeTopicExists && c.Bool("if-absent") {
		var existing json.RawMessage
		if !e.Member("topic", &existing) {
			return err
		}
		answer, err, verb = existing, nil, "there already"
	}
	if err != nil {
		return err
	}
	return show(c, answer, func(w io.Writer, t client.Topic) {
		fmt.Fprintf(w, "%s: %s (%d partitions, replication factor %d, retention %s, leases of %s)\n",
			t.Name, verb, t.Partitions, t.ReplicationFactor, span(t.RetentionMS, "for ever"), span(t.VisibilityTimeoutMS, "-"))
	})
}

func topicList(c *cli.Context) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	var all []json.RawMessage
	for token := ""; ; {
		body, err := call(c, client.Call{
			Op: "list topics", Method: http.MethodGet, Path: "/v1/topics", Safety: client.RepeatFreely,
			Query: query("limit", "1000", "prefix", c.String("prefix"), "page_token", token),
		})
		if err != nil {
			return err
		}
		var page struct {
			Topics []json.RawMessage `json:"topics"`
			Next   string            `json:"next_page_token"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		all = append(all, page.Topics...)
		if page.Next == "" || page.Next == token {
			break
		}
		token = page.Next
	}
	if c.Bool("json") {
		for _, t := range all {
			if err := printJSON(c.App.Writer, t); err != nil {
				return err
			}
		}
		return nil
	}
	joined, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return show(c, joined, func(w io.Writer, topics []client.Topic) {
		row(w, "NAME", "ROLE", "PARTITIONS", "COPIES", "RETENTION", "LEASE", "CREATED")
		for _, t := range topics {
			row(w, t.Name, t.Role, t.Partitions, t.ReplicationFactor, span(t.RetentionMS, "for ever"), span(t.VisibilityTimeoutMS, "-"), t.CreatedAt)
		}
	})
}

func topicInfo(c *cli.Context) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	name := c.Args().First()
	body, err := call(c, client.Call{Op: fmt.Sprintf("read topic %q", name), Method: http.MethodGet, Path: topicPath(name), Safety: client.RepeatFreely})
	if err != nil {
		return err
	}
	return show(c, body, printTopic)
}

func printTopic(w io.Writer, t client.TopicDetails) {
	row(w, "name", t.Name)
	row(w, "etag", strings.Trim(t.ETag(), `"`))
	row(w, "created", t.CreatedAt)
	row(w, "role", t.Role)
	row(w, "copies", t.ReplicationFactor)
	row(w, "retention", span(t.RetentionMS, "for ever"))
	row(w, "retention bytes", t.RetentionBytes)
	row(w, "lease", span(t.VisibilityTimeoutMS, "-"))
	row(w, "max in flight", t.MaxInFlightPerPartition)
	row(w, "max acked ahead", t.MaxAckedAhead)
	row(w, "reroute", t.Reroute)
	row(w, "backlog", t.Backlog)
	row(w, "in flight", t.InFlight)
	if t.OldestUnsettledMS != nil {
		row(w, "oldest unsettled", span(*t.OldestUnsettledMS, "0s"))
	}
	row(w, "bytes", t.Bytes)
	if t.Partial {
		row(w, "partial", "some partitions did not answer: sums leave them out")
	}
	fmt.Fprintln(w)
	row(w, "PARTITION", "STATUS", "LEADER", "EPOCH", "LOG START", "FRONTIER", "HIGH WATERMARK", "LOG END", "IN FLIGHT", "BYTES")
	for _, p := range t.PartitionDetails {
		row(w, p.Index, p.Status, p.Leader, p.LeaderEpoch, p.LogStart, p.Frontier, p.HighWatermark, p.LogEnd, p.InFlight, p.Bytes)
	}
	printReplicas(w, t)
}

// printReplicas draws the copies of a topic that has several: where each ends and how
// far it is behind, as the leader sees it.
func printReplicas(w io.Writer, t client.TopicDetails) {
	if t.ReplicationFactor < 2 {
		return
	}
	fmt.Fprintln(w)
	row(w, "PARTITION", "REPLICA", "ROLE", "LOG END", "LAG", "STATE")
	for _, p := range t.PartitionDetails {
		for _, r := range p.Replicas {
			role, state := "follower", "-" // nobody leads who could tell
			if p.Leader != nil && *p.Leader == r.ID {
				role = "leader"
			}
			if r.InSync != nil {
				state = map[bool]string{true: "in sync", false: "behind"}[*r.InSync]
			}
			row(w, p.Index, r.ID, role, r.LogEnd, r.Lag, state)
		}
	}
}

func topicEdit(c *cli.Context) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	fields, err := given(c)
	if err != nil {
		return err
	}
	if len(fields) == 0 {
		return proc.Usagef("nothing to change: give at least one setting; see narad topic edit --help")
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	name := c.Args().First()
	req := client.Call{Op: fmt.Sprintf("change topic %q", name), Method: http.MethodPatch, Path: topicPath(name), ContentType: "application/json", Body: body}
	if tag := c.String("if-match"); tag != "" {
		req.Header = http.Header{"If-Match": {`"` + strings.Trim(tag, `"`) + `"`}}
	}
	answer, err := call(c, req)
	if err != nil {
		return err
	}
	return show(c, answer, func(w io.Writer, t client.Topic) {
		fmt.Fprintf(w, "%s: changed, now version %d\n", t.Name, t.Version)
	})
}

func topicRemove(c *cli.Context) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	name := c.Args().First()
	cl, err := connect(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	t, err := cl.Topic(c.Context, name)
	if err != nil {
		return err
	}
	if !c.Bool("yes") {
		if !isTerminal(c.App.Reader) {
			return proc.Usagef("deleting %q ends all its messages: confirm with --yes", name)
		}
		fmt.Fprintf(c.App.ErrWriter, "Delete topic %s with %s unsettled messages? [y/N] ", name, text(t.Backlog))
		line, err := bufio.NewReader(c.App.Reader).ReadString('\n')
		if err != nil || !strings.HasPrefix(strings.ToLower(strings.TrimSpace(line)), "y") {
			return errors.New("nothing was deleted")
		}
	}
	// Only the life that was just looked at: a repeat cannot hit a topic made anew.
	if err := cl.DeleteTopic(c.Context, name, t.ETag()); err != nil {
		return err
	}
	if !c.Bool("json") {
		fmt.Fprintf(c.App.Writer, "%s: deleted\n", name)
	}
	return nil
}
