package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/proc"
)

func childrenCommand() *cli.Command {
	return &cli.Command{
		Name: "children", Usage: "topics that get a copy of every message of another",
		Subcommands: []*cli.Command{
			{
				Name: "add", Usage: "copy what is committed to PARENT from now on to CHILD", ArgsUsage: "PARENT CHILD", Action: childrenAdd,
				Flags: []cli.Flag{&cli.StringFlag{Name: "delay", Usage: "no earlier than this after its commit, e.g. 5s; such a child takes no direct produce (default 0)"}},
			},
			{Name: "ls", Usage: "list the children of a topic and how far behind each is", ArgsUsage: "PARENT", Action: childrenList},
			{Name: "rm", Usage: "end the copying; both topics stay", ArgsUsage: "PARENT CHILD", Action: childrenRemove},
		},
	}
}

// family puts --parent and --delay into the document of a new topic.
func family(c *cli.Context, fields map[string]any) error {
	if c.IsSet("delay") && !c.IsSet("parent") {
		return proc.Usagef("--delay is of a child: give --parent")
	}
	if c.IsSet("parent") {
		fields["parent"] = c.String("parent")
	}
	return delayOf(c, fields)
}

func delayOf(c *cli.Context, fields map[string]any) error {
	if !c.IsSet("delay") {
		return nil
	}
	ms, err := parseSpan("delay", c.String("delay"))
	if err != nil {
		return err
	}
	fields["delay_ms"] = ms
	return nil
}

func childrenPath(parent string) string { return topicPath(parent) + "/children" }

func childrenAdd(c *cli.Context) error {
	if err := wantArgs(c, 2, 2); err != nil {
		return err
	}
	fields := map[string]any{"child": c.Args().Get(1)}
	if err := delayOf(c, fields); err != nil {
		return err
	}
	doc, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	parent := c.Args().First()
	body, err := call(c, client.Call{
		Op: fmt.Sprintf("attach to %q", parent), Method: http.MethodPost, Path: childrenPath(parent), ContentType: "application/json", Body: doc,
	})
	if err != nil {
		return err
	}
	return show(c, body, func(w io.Writer, ch client.Child) {
		fmt.Fprintf(w, "what is committed to %s from now on is copied to %s%s\n", parent, ch.Child, after(ch.DelayMS))
	})
}

// after says a delay in words.
func after(ms int64) string {
	if ms == 0 {
		return ""
	}
	return fmt.Sprintf(", %v after its commit", time.Duration(ms)*time.Millisecond)
}

func childrenList(c *cli.Context) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	parent := c.Args().First()
	body, err := call(c, client.Call{
		Op: fmt.Sprintf("list children of %q", parent), Method: http.MethodGet, Path: childrenPath(parent), Safety: client.RepeatFreely,
	})
	if err != nil {
		return err
	}
	type family struct {
		Children []client.Child `json:"children"`
	}
	return show(c, body, func(w io.Writer, f family) {
		if len(f.Children) == 0 {
			fmt.Fprintf(w, "%s has no children\n", parent)
			return
		}
		row(w, "CHILD", "DELAY", "LAG", "OVERDUE", "DROPPED", "PARTITIONS")
		for _, ch := range f.Children {
			known := fmt.Sprint(len(ch.Cursors))
			if ch.Partial {
				known += ", others do not answer"
			}
			row(w, ch.Child, time.Duration(ch.DelayMS)*time.Millisecond, ch.LagMessages, time.Duration(ch.DueLagMS)*time.Millisecond, ch.DroppedMessages, known)
		}
	})
}

func childrenRemove(c *cli.Context) error {
	if err := wantArgs(c, 2, 2); err != nil {
		return err
	}
	parent, child := c.Args().Get(0), c.Args().Get(1)
	if _, err := call(c, client.Call{
		Op: fmt.Sprintf("detach from %q", parent), Method: http.MethodDelete, Path: childrenPath(parent) + "/" + url.PathEscape(child),
	}); err != nil {
		return err
	}
	_, err := fmt.Fprintf(c.App.Writer, "%s gets no copies of %s any more\n", child, parent)
	return err
}
