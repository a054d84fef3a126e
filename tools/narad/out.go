package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/proc"
)

// call sends one request and returns the answer's body.
func call(c *cli.Context, req client.Call) ([]byte, error) {
	cl, err := connect(c)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	ans, err := cl.Do(c.Context, req)
	if err != nil {
		return nil, err
	}
	return ans.Body, nil
}

// show prints an answer: as JSON on one line, or decoded through table.
func show[T any](c *cli.Context, body []byte, table func(w io.Writer, v T)) error {
	if c.Bool("json") {
		return printJSON(c.App.Writer, body)
	}
	var v T
	if err := json.Unmarshal(body, &v); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	w := tabwriter.NewWriter(c.App.Writer, 0, 8, 2, ' ', 0)
	table(w, v)
	return w.Flush()
}

// printJSON prints one value on one line. Only the white space outside of strings goes.
func printJSON(w io.Writer, raw []byte) error {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	b.WriteByte('\n')
	_, err := w.Write(b.Bytes())
	return err
}

// row prints the cells of one line of a table.
func row(w io.Writer, cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		fmt.Fprint(w, text(cell))
	}
	fmt.Fprintln(w)
}

// text shows an unknown value as "-".
func text(v any) string {
	switch v := v.(type) {
	case *string:
		return orDash(v)
	case *uint64:
		return orDash(v)
	case *int64:
		return orDash(v)
	case *int:
		return orDash(v)
	case *bool:
		return orDash(v)
	case string:
		if v == "" {
			return "-"
		}
		return printable(v)
	case time.Time:
		return v.UTC().Format("2006-01-02 15:04:05Z")
	}
	return fmt.Sprint(v)
}

func orDash[T any](p *T) string {
	if p == nil {
		return "-"
	}
	return text(*p)
}

// printable keeps a name or a key from steering the terminal.
func printable(s string) string {
	for _, r := range s {
		if !strconv.IsPrint(r) {
			q := strconv.Quote(s)
			return q[1 : len(q)-1]
		}
	}
	return s
}

// span prints milliseconds as a duration; zero has a meaning of its own.
func span(ms int64, zero string) string {
	if ms == 0 {
		return zero
	}
	const day = 24 * 60 * 60 * 1000
	if ms%day == 0 {
		return fmt.Sprintf("%dd", ms/day)
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

// parseSpan reads a duration, days ("7d") included, as milliseconds.
func parseSpan(flag, s string) (int64, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseInt(days, 10, 32); err == nil && n >= 0 {
			return n * 24 * time.Hour.Milliseconds(), nil
		}
	}
	d, err := time.ParseDuration(s)
	if s == "0" {
		d, err = 0, nil
	}
	if err != nil || d < 0 {
		return 0, proc.Usagef("--%s %q: want a duration such as 500ms, 30s, 12h or 7d", flag, s)
	}
	return d.Milliseconds(), nil
}

// isTerminal tells whether a person is likely to look at (or type into) a stream.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// nextStep is what a person should do about an error; empty when the error says it.
func nextStep(err error) string {
	var e *client.Error
	if !errors.As(err, &e) {
		return ""
	}
	switch {
	case e.Status == 0 && e.Applied != client.AppliedUnknown && !errors.Is(err, os.ErrDeadlineExceeded):
		return "is a gateway running there? `narad dev` starts a cluster on this machine; --server, NARAD_URL or `narad ctx use` choose another"
	case e.Code == client.CodeTopicNotFound:
		return "`narad topic ls` lists the topics, `narad topic add NAME` makes one"
	case e.Code == client.CodeTopicExists:
		return "`narad topic info NAME` shows it; `narad topic add NAME --if-absent` takes it as it is"
	case e.Code == client.CodePreconditionFailed:
		return "somebody changed the topic meanwhile: read it again (`narad topic info NAME`) and decide"
	case e.Code == client.CodeNoMetastoreLeader:
		return "`narad cluster quorum` shows the voters; messages can be published meanwhile"
	case e.Code == client.CodePartitionUnavailable:
		return "`narad topic info NAME` shows which partition, `narad cluster members` whether its node lives"
	case e.Applied == client.AppliedUnknown:
		return "look before you repeat it: a repeat may do it twice"
	}
	for _, r := range problem.Table() {
		if string(r.Code) == string(e.Code) {
			return "what to do: " + r.Caller
		}
	}
	return ""
}

func query(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return q
}
