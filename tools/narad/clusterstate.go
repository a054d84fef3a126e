package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/metaapi/lifecycle"
)

// clusterStatus prints what is wrong and fails unless nothing is.
func clusterStatus(c *cli.Context) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	body, err := call(c, client.Call{Op: "read cluster status", Method: http.MethodGet, Path: "/v1/cluster/status", Safety: client.RepeatFreely})
	if err != nil {
		return err
	}
	var s client.ClusterStatus
	if err := json.Unmarshal(body, &s); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if err := show(c, body, printStatus); err != nil {
		return err
	}
	if s.Status != "ok" {
		return fmt.Errorf("the cluster is %s: %d problems", printable(s.Status), len(s.Problems))
	}
	return nil
}

func printStatus(w io.Writer, s client.ClusterStatus) {
	fmt.Fprintf(w, "%s as of %s\n", text(s.Status), text(s.AsOf))
	if len(s.Problems) == 0 {
		return
	}
	fmt.Fprintln(w)
	row(w, "SEVERITY", "CODE", "SUBJECT", "SINCE", "WHAT")
	for _, p := range s.Problems {
		since := "-"
		if p.Since != nil {
			since = text(*p.Since)
		}
		row(w, p.Severity, p.Code, p.Subject, since, p.Detail)
		row(w, "", "", "", "", "-> "+text(p.Do))
	}
}

// forgotten is what `cluster forget` says; the cluster's answer has no body.
type forgotten struct {
	ID        string `json:"id"`
	Forgotten bool   `json:"forgotten"`
}

func clusterForget(c *cli.Context) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	id := c.Args().First()
	if _, err := call(c, client.Call{Op: "forget member", Method: http.MethodPost, Path: "/v1/cluster/members/" + url.PathEscape(id) + "/forget"}); err != nil {
		return err
	}
	doc, err := json.Marshal(forgotten{ID: id, Forgotten: true})
	if err != nil {
		return err
	}
	return show(c, doc, func(w io.Writer, f forgotten) { fmt.Fprintf(w, "%s: forgotten\n", text(f.ID)) })
}

// clusterConstants asks nobody: the numbers are the same in every program of a release.
func clusterConstants(c *cli.Context) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	body, err := json.Marshal(lifecycle.Table())
	if err != nil {
		return err
	}
	return show(c, body, func(w io.Writer, rows []lifecycle.Row) {
		for _, r := range rows {
			row(w, r.Thing, r.Value)
		}
	})
}
