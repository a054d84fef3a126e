package sweeper

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/narad-mq/narad/libs/gatewayapi"
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
	Nodes     []NodeRow `json:"nodes"`   // storage nodes and gateways, by id
	Entries   []Entry   `json:"entries"` // by node, then by name
	Summary   Summary   `json:"summary"`
	// Forgetting is why ends of topics were not forgotten; "" when nothing stood in
	// the way. It does not make the pass fail: an end costs the metastore some bytes.
	Forgetting string `json:"forgetting,omitempty"`
}

// NodeRow is how one storage node or gateway answered.
type NodeRow struct {
	ID        string             `json:"id"`
	Role      topic.MemberRole   `json:"role"`
	RPCAddr   string             `json:"rpc_addr"`
	Status    topic.MemberStatus `json:"status"`          // the controller's verdict
	Reachable bool               `json:"reachable"`       // it answered at least once
	Complete  bool               `json:"complete"`        // its whole inventory was read
	Entries   int                `json:"entries"`         // directories, or topics of undispatched records
	Error     string             `json:"error,omitempty"` // why it is not complete
}

// KindAccepted is, beside the kinds of a node's directories, accepted records of one
// life of a topic that a gateway has not dispatched.
const KindAccepted nodeapi.InventoryKind = "accepted"

// The kinds of copies of partitions that moved away. A quarantined one may have what
// nobody else has, and nobody but an operator removes it; a superseded one is being
// removed by its node.
const (
	KindQuarantinedCopy nodeapi.InventoryKind = "quarantined_copy"
	KindSupersededCopy  nodeapi.InventoryKind = "superseded_copy"
)

// Entry is one directory, or the records of a topic on a gateway, what was decided
// about it and what became of it.
type Entry struct {
	Node        string                `json:"node"`
	Topic       string                `json:"topic"` // "" when foreign
	Incarnation *topic.Incarnation    `json:"incarnation"`
	Kind        nodeapi.InventoryKind `json:"kind"`
	Name        string                `json:"name"` // below the node's data directory; "" for records
	Partitions  []int32               `json:"partitions"`
	Bytes       *int64                `json:"bytes"` // null: not measured; of what was removed, once it was
	Verdict     metaapi.Verdict       `json:"verdict"`
	Action      Action                `json:"action"`
	Outcome     nodeapi.ReclaimStatus `json:"outcome,omitempty"` // of an entry to be reclaimed; "" in a dry run
	Decided     bool                  `json:"decided"`
	Why         string                `json:"why"`
}

// Summary counts.
type Summary struct {
	Live             int   `json:"live"`
	Gone             int   `json:"gone"`
	Unknown          int   `json:"unknown"`
	Undecided        int   `json:"undecided"` // entries, those included that were to be reclaimed and were not
	IncompleteNodes  int   `json:"incomplete_nodes"`
	ReclaimableBytes int64 `json:"reclaimable_bytes"` // as far as measured, of what is still there
	Reclaimed        int   `json:"reclaimed"`         // entries
	ReclaimedBytes   int64 `json:"reclaimed_bytes"`
	Kept             int   `json:"kept"`        // to be reclaimed, and not
	Absent           int   `json:"absent"`      // to be reclaimed, and gone already
	Broadcast        int   `json:"broadcast"`   // messages handed to the bus
	Forgotten        int   `json:"forgotten"`   // ends of topics
	Quarantined      int   `json:"quarantined"` // copies of partitions that are set aside
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

func newAccepted(node string, l *gatewayapi.UndispatchedLife, d decision) Entry {
	return Entry{
		Node: node, Topic: l.Topic, Incarnation: &l.Incarnation, Kind: KindAccepted, Bytes: &l.Bytes,
		Verdict: d.verdict, Action: d.action, Decided: d.decided, Why: d.why,
	}
}

// newCopy is a copy of a partition that moved away, in the directory of its topic. With
// a topic that is gone it goes with it; that of one that lives is its node's to remove,
// once a leader vouches for it, or an operator's.
func newCopy(node string, e *nodeapi.InventoryEntry, c *nodeapi.InventoryCopy, v metaapi.Verdict) Entry {
	out := Entry{
		Node: node, Topic: e.Topic, Incarnation: &e.Incarnation, Kind: KindQuarantinedCopy, Name: c.Name, Partitions: []int32{c.Partition},
		Verdict: v, Action: ActionKeep, Why: c.Reason,
	}
	if c.Kind == nodeapi.InventorySuperseded {
		out.Kind, out.Decided = KindSupersededCopy, true
	} else {
		out.Decided = v == metaapi.VerdictGone
		if out.Why == "" {
			out.Why = "why is not known"
		}
		if c.SinceMS > 0 {
			out.Why = "set aside on " + time.UnixMilli(c.SinceMS).UTC().Format(time.RFC3339) + ": " + out.Why
		}
	}
	if c.Bytes >= 0 {
		out.Bytes = &c.Bytes
	}
	return out
}

// add puts the nodes into the report and counts.
func (r *Report) add(nodes []*node) {
	r.Nodes, r.Entries = make([]NodeRow, 0, len(nodes)), []Entry{}
	for _, n := range nodes {
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
	if e.Kind == KindQuarantinedCopy {
		s.Quarantined++
	}
	bytes := int64(0)
	if e.Bytes != nil {
		bytes = *e.Bytes
	}
	switch {
	case e.Outcome == nodeapi.Reclaimed:
		s.Reclaimed++
		s.ReclaimedBytes += bytes
	case e.Outcome == nodeapi.Absent:
		s.Absent++
	case e.Action == ActionReclaim:
		s.ReclaimableBytes += bytes
		if e.Outcome == nodeapi.Kept {
			s.Kept++
		}
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
	what := "OUTCOME"
	if r.DryRun {
		what = "WOULD"
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	row(t, "NODE", "TOPIC", "INCARNATION", "KIND", "NAME", "PARTITIONS", "BYTES", "VERDICT", what, "WHY")
	for i := range r.Entries {
		e := &r.Entries[i]
		id, bytes := "-", "-"
		if e.Incarnation != nil {
			id = e.Incarnation.String()
		}
		if e.Bytes != nil {
			bytes = strconv.FormatInt(*e.Bytes, 10)
		}
		row(t, e.Node, e.Topic, id, string(e.Kind), e.Name, strconv.Itoa(len(e.Partitions)), bytes, string(e.Verdict), e.outcome(), e.Why)
	}
	row(t)
	return t.Flush()
}

// outcome is what became of an entry, or would.
func (e *Entry) outcome() string {
	if e.Outcome != "" {
		return string(e.Outcome)
	}
	return string(e.Action)
}

func (r *Report) nodeTable(w io.Writer) error {
	if len(r.Nodes) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	row(t, "NODE", "ROLE", "ADDRESS", "STATUS", "ENTRIES", "SEEN")
	for _, n := range r.Nodes {
		seen := "whole"
		switch {
		case !n.Reachable:
			seen = "unreachable: " + n.Error
		case !n.Complete:
			seen = "in part: " + n.Error
		}
		row(t, n.ID, string(n.Role), n.RPCAddr, string(n.Status), strconv.Itoa(n.Entries), seen)
	}
	row(t)
	return t.Flush()
}

func (r *Report) summary(w io.Writer) error {
	s := r.Summary
	_, err := fmt.Fprintf(w, "cluster %s: %d live, %d gone, %d unknown; %d entries and %d nodes undecided. ",
		cell(r.ClusterID), s.Live, s.Gone, s.Unknown, s.Undecided, s.IncompleteNodes)
	if err == nil && s.Quarantined > 0 {
		_, err = fmt.Fprintf(w, "%d copies of partitions are quarantined. ", s.Quarantined)
	}
	if err != nil {
		return err
	}
	if r.DryRun {
		_, err = fmt.Fprintf(w, "Dry run: nothing was changed; a pass would free %d bytes.\n", s.ReclaimableBytes)
		return err
	}
	_, err = fmt.Fprintf(w, "%d reclaimed (%d bytes), %d kept (%d bytes), %d gone already; %d told on the bus; %d ends forgotten%s.\n",
		s.Reclaimed, s.ReclaimedBytes, s.Kept, s.ReclaimableBytes, s.Absent, s.Broadcast, s.Forgotten, because(r.Forgetting))
	return err
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return " (" + why + ")"
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

// failure says in one line why something was not done or seen. An older release does
// not know the operations of this one: what it has cannot be told.
func failure(err error) string {
	var p *problem.Problem
	var t *rpc.TransportError
	switch {
	case problem.HasCode(err, problem.RouteNotFound):
		return "cannot be told: its release has no such operation"
	case errors.As(err, &p):
		return string(p.Code) + ": " + p.Detail
	case errors.As(err, &t):
		return t.Err.Error()
	}
	return err.Error()
}
