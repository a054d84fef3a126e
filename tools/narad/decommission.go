package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/proc"
)

// lookAgain is between two looks at a member that drains.
const lookAgain = time.Second

func decommissionCommand() *cli.Command {
	return &cli.Command{
		Name: "decommission", Usage: "remove a member for good, once nothing is left on it, and show how far it is", ArgsUsage: "ID", Action: decommission,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "dry-run", Usage: "change nothing; say what would keep it back; exit 1: it would be refused"},
			&cli.BoolFlag{Name: "cancel", Usage: "keep a member that drains"},
			&cli.BoolFlag{Name: "accept-data-loss", Usage: "let a member that is marked dead go with what only it has, or one with a new disk with what was on the old one; refused (member_alive) for any other, forgotten when it comes back"},
			&cli.BoolFlag{Name: "no-wait", Usage: "do not wait until it is gone"},
		},
	}
}

func resetCommand() *cli.Command {
	return &cli.Command{
		Name: "reset", Usage: "let a partition whose copies are lost go on without them", ArgsUsage: "NAME PARTITION", Action: resetPartition,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "accept-data-loss", Usage: "say that what is lost of it is given up; needed"}},
	}
}

func decommission(c *cli.Context) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	id := c.Args().First()
	one := client.Call{Op: "decommission", Method: http.MethodPost, Path: "/v1/cluster/members/" + url.PathEscape(id) + "/decommission", Query: url.Values{}, Safety: client.RepeatFreely}
	if c.Bool("accept-data-loss") {
		one.Query.Set("accept_data_loss", "true")
	}
	switch {
	case c.Bool("cancel") && (c.Bool("dry-run") || c.Bool("accept-data-loss")):
		return proc.Usagef("--cancel goes with no other flag")
	case c.Bool("cancel"):
		one = client.Call{Op: "cancel decommission", Method: http.MethodDelete, Path: one.Path}
		if _, err := call(c, one); err != nil {
			return err
		}
		return say(c, id, "it stays")
	case c.Bool("dry-run"):
		one.Query.Set("dry_run", "true")
		return planDecommission(c, one)
	}
	if _, err := call(c, one); err != nil {
		return reasoned(c, err)
	}
	if err := say(c, id, "it drains"); err != nil || c.Bool("no-wait") {
		return err
	}
	return followDecommission(c, id)
}

func say(c *cli.Context, id, what string) error {
	if c.Bool("json") {
		return nil
	}
	_, err := fmt.Fprintf(c.App.Writer, "%s: %s\n", printable(id), what)
	return err
}

// reasoned prints the reasons of a refusal, and returns it.
func reasoned(c *cli.Context, err error) error {
	var refused *client.Error
	if !errors.As(err, &refused) || c.Bool("json") {
		return err
	}
	var p struct {
		Reasons []client.Reason `json:"reasons"`
	}
	if json.Unmarshal(refused.Problem, &p) == nil {
		printReasons(c.App.Writer, p.Reasons)
	}
	return err
}

func printReasons(w io.Writer, reasons []client.Reason) {
	for _, r := range reasons {
		row(w, r.Code, r.Message)
		if r.TopicCount > 0 {
			row(w, "", fmt.Sprintf("%d topics: %s", r.TopicCount, strings.Join(r.Topics, ", ")))
		}
	}
}

func planDecommission(c *cli.Context, one client.Call) error {
	body, err := call(c, one)
	if err != nil {
		return err
	}
	var plan client.DecommissionPlan
	if err := json.Unmarshal(body, &plan); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	err = show(c, body, func(w io.Writer, p client.DecommissionPlan) {
		fmt.Fprintf(w, "%s leads %d partitions, has %d copies and %d messages that are not dispatched\n", text(p.ID), p.PartitionsLed, p.Replicas, p.WALBacklogRecords)
		printReasons(w, p.Reasons)
	})
	if err == nil && !plan.WouldDecommission {
		err = fmt.Errorf("%s would not be decommissioned now", printable(plan.ID))
	}
	return err
}

// followDecommission shows each change until the member is gone. A gateway that is
// removed never sees its own end: another one has to be asked.
func followDecommission(c *cli.Context, id string) error {
	body, err := call(c, client.Call{Op: "read info", Method: http.MethodGet, Path: "/v1/info", Safety: client.RepeatFreely})
	var info client.Info
	if err == nil {
		err = json.Unmarshal(body, &info)
	}
	if err != nil {
		return err
	}
	if info.NodeID == id {
		return say(c, id, "it is the gateway that was asked: ask another one whether it is gone (narad cluster members)")
	}
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	said := ""
	for {
		line, gone, err := lookAtMember(c, id)
		if err != nil {
			return err
		}
		if gone {
			return say(c, id, "it was removed; to bring it back, start it with an empty data directory")
		}
		if line != said {
			said = line
			if err := say(c, id, line); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-c.Context.Done():
			return fmt.Errorf("%s still drains; the decommission goes on without this command", printable(id))
		}
	}
}

// lookAtMember tells in one line how far it is.
func lookAtMember(c *cli.Context, id string) (line string, gone bool, err error) {
	body, err := call(c, client.Call{Op: "read member", Method: http.MethodGet, Path: "/v1/cluster/members/" + url.PathEscape(id), Safety: client.RepeatFreely})
	var refused *client.Error
	if errors.As(err, &refused) && refused.Code == "member_not_found" {
		return "", true, nil
	}
	if err != nil {
		return "", false, err
	}
	var m client.Member
	if err := json.Unmarshal(body, &m); err != nil {
		return "", false, fmt.Errorf("read the answer: %w", err)
	}
	d := m.Decommission
	if d == nil && !m.Draining {
		return "", false, fmt.Errorf("%s drains no more: somebody cancelled it", printable(id))
	}
	if d == nil {
		return "about to be removed", false, nil
	}
	line = fmt.Sprintf("%d partitions and %d messages left", d.PartitionsLeft, d.WALBacklogRecords)
	for _, r := range d.Blocked {
		line += "; " + printable(r.Code) + ": " + printable(r.Message)
	}
	return line, false, nil
}

func resetPartition(c *cli.Context) error {
	if err := wantArgs(c, 2, 2); err != nil {
		return err
	}
	p, err := partitionArg(c.Args().Get(1))
	if err != nil {
		return err
	}
	if !c.Bool("accept-data-loss") {
		return proc.Usagef("a reset gives up what is lost of the partition: say --accept-data-loss")
	}
	name := c.Args().First()
	path := fmt.Sprintf("/v1/topics/%s/partitions/%d/reset", url.PathEscape(name), p)
	if _, err := call(c, client.Call{Op: "reset partition", Method: http.MethodPost, Path: path, Query: url.Values{"accept_data_loss": {"true"}}}); err != nil {
		return err
	}
	return say(c, fmt.Sprintf("%s/%d", name, p), "it goes on without what was lost")
}
