package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/proc"
)

const (
	// fetchMessages of one consume call: few enough that printing keeps ahead of the leases.
	fetchMessages = 100
	// maxWait of one consume call; a longer --wait is several calls.
	maxWait = 30 * time.Second
	// ackTime is how long the acks of what was printed are tried, also after Ctrl-C.
	ackTime = 10 * time.Second
	// ackPause between two tries.
	ackPause = 300 * time.Millisecond
	// peekMessages is what --peek shows when no --count is given.
	peekMessages = 10
)

func subCommand() *cli.Command {
	return &cli.Command{
		Name: "sub", Usage: "consume messages: print, then ack", ArgsUsage: "TOPIC",
		Description: "Runs until Ctrl-C, until --count messages came, or until none came for --wait. Payloads are printed one per line; --meta puts a line before each.",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "count", Aliases: []string{"n"}, Usage: "stop after `n` messages; fewer within --wait is a failure"},
			&cli.DurationFlag{Name: "wait", Usage: "stop when nothing came for this long", DefaultText: "never"},
			&cli.BoolFlag{Name: "no-ack", Usage: "leave them leased: they come again after the visibility timeout"},
			&cli.BoolFlag{Name: "peek", Usage: "read what is not settled yet without leasing it (10 messages unless --count)"},
			&cli.BoolFlag{Name: "meta", Usage: "print partition, offset, key and attributes before each payload"},
			&cli.IntFlag{Name: "partition", Usage: "only this partition"},
			&cli.DurationFlag{Name: "visibility-timeout", Usage: "length of the leases", DefaultText: "the topic's"},
		},
		Action: subAction,
	}
}

// message is what is printed of a message, from JSON or binary.
type message struct {
	client.Record
	raw    []byte // the JSON object; nil in binary
	handle string
}

type subscriber struct {
	c      *cli.Context
	client *client.Client
	topic  string
	out    *bufio.Writer
}

func newSubscriber(c *cli.Context) (*subscriber, error) {
	if err := wantArgs(c, 1, 1); err != nil {
		return nil, err
	}
	if n := c.Int("partition"); c.IsSet("partition") && (n < 0 || n > 1023) {
		return nil, proc.Usagef("--partition %d: want 0..1023", n)
	}
	if c.Int("count") < 0 || c.Duration("wait") < 0 {
		return nil, proc.Usagef("--count and --wait take no negative value")
	}
	cl, err := connect(c)
	if err != nil {
		return nil, err
	}
	return &subscriber{c: c, client: cl, topic: c.Args().First(), out: bufio.NewWriter(c.App.Writer)}, nil
}

func subAction(c *cli.Context) error {
	s, err := newSubscriber(c)
	if err != nil {
		return err
	}
	defer s.client.Close()
	if c.Bool("peek") {
		return s.peek()
	}
	return s.consume()
}

// consume prints and settles, batch by batch.
func (s *subscriber) consume() error {
	want, patience := s.c.Int("count"), s.c.Duration("wait")
	got := 0
	quietSince := time.Now()
	for want == 0 || got < want {
		n, wait := fetchMessages, maxWait
		if want > 0 {
			n = min(n, want-got)
		}
		if s.c.IsSet("wait") {
			wait = min(wait, max(patience-time.Since(quietSince), 0))
		}
		msgs, err := s.receive(n, wait)
		if s.c.Context.Err() != nil {
			break // Ctrl-C is how a person ends this
		}
		if err != nil {
			return err
		}
		if len(msgs) == 0 {
			if s.c.IsSet("wait") && time.Since(quietSince) >= patience {
				break
			}
			continue
		}
		if err := s.printAndAck(msgs); err != nil {
			return err
		}
		got += len(msgs)
		quietSince = time.Now()
	}
	if want > 0 && got < want {
		return fmt.Errorf("got %d of %d messages", got, want)
	}
	return nil
}

// receive leases up to n messages; as JSON when that is what will be printed.
func (s *subscriber) receive(n int, wait time.Duration) ([]message, error) {
	var partition *uint32
	if s.c.IsSet("partition") {
		partition = client.Pin(uint32(s.c.Int("partition")))
	}
	visibility := s.c.Duration("visibility-timeout")
	if !s.c.Bool("json") {
		if wait == 0 {
			wait = client.NoWait
		}
		r, err := s.client.Receive(s.c.Context, s.topic, client.ReceiveOptions{Wait: wait, Max: n, Partition: partition, VisibilityTimeout: visibility})
		var msgs []message
		for _, d := range r.Deliveries {
			msgs = append(msgs, message{Record: d.Record, handle: d.ReceiptHandle})
		}
		return msgs, err
	}
	q := query("max", strconv.Itoa(n), "wait", strconv.FormatInt(wait.Milliseconds(), 10)+"ms")
	if partition != nil {
		q.Set("partition", strconv.Itoa(int(*partition)))
	}
	if visibility > 0 {
		q.Set("visibility_timeout_ms", strconv.FormatInt(visibility.Milliseconds(), 10))
	}
	ans, err := s.client.Do(s.c.Context, client.Call{
		Op: fmt.Sprintf("consume from %q", s.topic), Method: http.MethodPost, Path: topicPath(s.topic) + "/consume",
		Query: q, Wait: wait, Safety: client.RepeatFreely,
	})
	if err != nil || ans.Status == http.StatusNoContent {
		return nil, err
	}
	return rawMessages(ans.Body)
}

// rawMessages takes the objects of an answer apart without touching them.
func rawMessages(body []byte) ([]message, error) {
	var page struct {
		Messages []json.RawMessage `json:"messages"`
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	msgs := make([]message, len(page.Messages))
	for i, raw := range page.Messages {
		var m struct {
			Handle string `json:"receipt_handle"`
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			return nil, fmt.Errorf("read the answer: %w", err)
		}
		msgs[i] = message{raw: raw, handle: m.Handle}
	}
	return msgs, nil
}

// printAndAck acks what reached the output, also when Ctrl-C came in between; what
// could not be printed is given back.
func (s *subscriber) printAndAck(msgs []message) error {
	handles := make([]string, len(msgs))
	for i, m := range msgs {
		handles[i] = m.handle
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.c.Context), ackTime)
	defer cancel()
	if err := s.print(msgs); err != nil {
		_, nackErr := s.client.NackMany(ctx, s.topic, handles, 0)
		return errors.Join(fmt.Errorf("print: %w", err), nackErr)
	}
	if s.c.Bool("no-ack") {
		return nil
	}
	return s.ack(ctx, handles)
}

// ack repeats the single refusals that may pass.
func (s *subscriber) ack(ctx context.Context, handles []string) error {
	for {
		results, err := s.client.AckMany(ctx, s.topic, handles)
		if err != nil {
			return fmt.Errorf("%d printed messages may come again: %w", len(handles), err)
		}
		var again []string
		lost := 0
		for i, r := range results {
			switch {
			case r.OK():
			case r.Status == http.StatusGone:
				lost++
			default:
				again = append(again, handles[i])
			}
		}
		if lost > 0 {
			fmt.Fprintf(s.c.App.ErrWriter, "%d leases ran out before the ack: these messages come again\n", lost)
		}
		if len(again) == 0 {
			return nil
		}
		handles = again
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d printed messages could not be acked within %s and come again", len(handles), ackTime)
		case <-time.After(ackPause):
		}
	}
}

func (s *subscriber) print(msgs []message) error {
	for _, m := range msgs {
		if err := s.printOne(m); err != nil {
			return err
		}
	}
	return s.out.Flush()
}

func (s *subscriber) printOne(m message) error {
	if m.raw != nil {
		return printJSON(s.out, m.raw)
	}
	if s.c.Bool("meta") {
		printMeta(s.out, m.Record)
	}
	if _, err := s.out.Write(m.Payload); err != nil {
		return err
	}
	return s.out.WriteByte('\n')
}

func printMeta(w io.Writer, r client.Record) {
	fmt.Fprintf(w, "--- partition %d offset %d id %s committed %s", r.Partition, r.Offset, r.ID, r.CommittedAt.Format(time.RFC3339Nano))
	if len(r.Key) > 0 {
		fmt.Fprintf(w, " key %s", printable(string(r.Key)))
	}
	if r.ContentType != "" {
		fmt.Fprintf(w, " type %s", printable(r.ContentType))
	}
	for name, value := range r.Attributes {
		fmt.Fprintf(w, " %s=%s", name, printable(value))
	}
	fmt.Fprintln(w)
}
