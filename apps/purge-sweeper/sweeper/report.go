package sweeper

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/go-json-experiment/json"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

// Report is what a pass found, as --json prints it: one document on one line.
type Report struct {
	ClusterID string    `json:"cluster_id"`
	LeaderID  string    `json:"leader_id"`
	Release   string    `json:"release"` // of this program
	DryRun    bool      `json:"dry_run"`
	Nodes     []NodeRow `json:"nodes"`   // storage nodes, by id
	Entries   []Entry   `json:"entries"` // by node, then by name
	Summary   Summary   `json:"summary"`
}

// NodeRow is how one storage node answered.
type NodeRow struct {
	ID        string             `json:"id"`
	RPCAddr   string             `json:"rpc_addr"`
	Status    topic.MemberStatus `json:"status"`    // the controller's verdict
	Reachable bool               `json:"reachable"` // it answered at least once
	Complete  bool               `json:"complete"`  // its whole inventory was read
	Entries   int                `json:"entries"`
	Error     string             `json:"error,omitempty"` // why it is not complete
}

// Entry is one directory and what was decided about it.
type Entry struct {
	Node        string                `json:"node"`
	Topic       string                `json:"topic"` // "" when foreign
	Incarnation *topic.Incarnation    `json:"incarnation"`
	Kind        nodeapi.InventoryKind `json:"kind"`
	Name        string                `json:"name"` // below the node's data directory
	Partitions  []int32               `json:"partitions"`
	Bytes       *int64                `json:"bytes"` // null: not measured
	Verdict     metaapi.Verdict       `json:"verdict"`
	Action      Action                `json:"action"`
	Decided     bool                  `json:"decided"`
	Why         string                `json:"why"`
}

// Summary counts.
type Summary struct {
	Live             int   `json:"live"`
	Gone             int   `json:"gone"`
	Unknown          int   `json:"unknown"`
	Undecided        int   `json:"undecided"` // entries
	IncompleteNodes  int   `json:"incomplete_nodes"`
	ReclaimableBytes int64 `json:"reclaimable_bytes"` // as far as measured
}

func newEntry(node string, e *nodeapi.InventoryEntry, d decision) Entry {
	out := Entry{
		Node: node, Topic: e.Topic, Kind: e.Kind, Name: e.Name, Partitions: e.Partitions,
		Verdict: d.verdict, Action: d.action, Decided: d.decided, Why: d.why,
	}
	if e.Incarnation != 0 {
		out.Incarnation = &e.Incarnation
	}
	if e.Bytes >= 0 {
		out.Bytes = &e.Bytes
	}
	return out
}

// add puts the nodes into the report and counts.
func (r *Report) add(nodes []*node) {
	r.Nodes, r.Entries = make([]NodeRow, 0, len(nodes)), []Entry{}
	for _, n := range nodes {
		n.Entries = len(n.entries)
		r.Nodes = append(r.Nodes, n.NodeRow)
		r.Entries = append(r.Entries, n.entries...)
		if !n.Complete {
			r.Summary.IncompleteNodes++
		}
	}
	for i := range r.Entries {
		r.Summary.count(&r.Entries[i])
	}
}

func (s *Summary) count(e *Entry) {
	switch e.Verdict {
	case metaapi.VerdictLive:
		s.Live++
	case metaapi.VerdictGone:
		s.Gone++
	default:
		s.Unknown++
	}
	if !e.Decided {
		s.Undecided++
	}
	if e.Action == ActionReclaim && e.Bytes != nil {
		s.ReclaimableBytes += *e.Bytes
	}
}

// verdict is the error of the pass: nil when nothing was left open.
func (r *Report) verdict() error {
	if s := r.Summary; s.Undecided > 0 || s.IncompleteNodes > 0 {
		return fmt.Errorf("%d entries and %d nodes %w", s.Undecided, s.IncompleteNodes, ErrUndecided)
	}
	return nil
}

func (r *Report) write(w io.Writer, asJSON bool) error {
	if asJSON {
		raw, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("encode the report: %w", err)
		}
		_, err = w.Write(append(raw, '\n'))
		return err
	}
	return errors.Join(r.entryTable(w), r.nodeTable(w), r.summary(w))
}

func (r *Report) entryTable(w io.Writer) error {
	if len(r.Entries) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	row(t, "NODE", "TOPIC", "INCARNATION", "KIND", "NAME", "PARTITIONS", "BYTES", "VERDICT", "WOULD", "WHY")
	for i := range r.Entries {
		e := &r.Entries[i]
		id, bytes := "-", "-"
		if e.Incarnation != nil {
			id = e.Incarnation.String()
		}
		if e.Bytes != nil {
			bytes = strconv.FormatInt(*e.Bytes, 10)
		}
		row(t, e.Node, e.Topic, id, string(e.Kind), e.Name, strconv.Itoa(len(e.Partitions)), bytes, string(e.Verdict), string(e.Action), e.Why)
	}
	row(t)
	return t.Flush()
}

func (r *Report) nodeTable(w io.Writer) error {
	if len(r.Nodes) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	row(t, "STORAGE NODE", "ADDRESS", "STATUS", "ENTRIES", "SEEN")
	for _, n := range r.Nodes {
		seen := "whole"
		switch {
		case !n.Reachable:
			seen = "unreachable: " + n.Error
		case !n.Complete:
			seen = "in part: " + n.Error
		}
		row(t, n.ID, n.RPCAddr, string(n.Status), strconv.Itoa(n.Entries), seen)
	}
	row(t)
	return t.Flush()
}

func (r *Report) summary(w io.Writer) error {
	s := r.Summary
	_, err := fmt.Fprintf(w, "cluster %s: %d live, %d gone, %d unknown; %d entries and %d nodes undecided. Dry run: nothing was changed; a release that reclaims would free %d bytes.\n",
		cell(r.ClusterID), s.Live, s.Gone, s.Unknown, s.Undecided, s.IncompleteNodes, s.ReclaimableBytes)
	return err
}

// row writes the cells of one line. What it loses the flush of the writer reports.
func row(w io.Writer, cells ...string) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		fmt.Fprint(w, cell(c))
	}
	fmt.Fprintln(w)
}

// cell makes a text safe for a terminal and a table: names of foreign files come
// from anybody.
func cell(s string) string {
	if s == "" {
		return "-"
	}
	if strings.ContainsFunc(s, func(c rune) bool { return !strconv.IsPrint(c) }) {
		return strconv.Quote(s)
	}
	return s
}

// failure says in one line why a node was not seen whole.
func failure(err error) string {
	var p *problem.Problem
	var t *rpc.TransportError
	switch {
	case errors.As(err, &p):
		return string(p.Code) + ": " + p.Detail
	case errors.As(err, &t):
		return t.Err.Error()
	}
	return err.Error()
}
