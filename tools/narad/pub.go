package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/proc"
)

const (
	// maxInputBytes bounds one message that is read here: above the largest limit that
	// a gateway can be given (4 MiB), so that the gateway's own answer is seen.
	maxInputBytes = 5 << 20
	// batchBytes ends a batch early: small against the gateway's 16 MiB, large against
	// the cost of a request.
	batchBytes = 4 << 20
	// progressEvery is how often a long work shows where it is.
	progressEvery = 500 * time.Millisecond
)

func pubCommand() *cli.Command {
	return &cli.Command{
		Name: "pub", Usage: "publish a message: the argument, a file or standard input", ArgsUsage: "TOPIC [MESSAGE]",
		Description: "Bytes are sent as they are, a final newline included. With --lines each line is a message, without its newline; empty lines are left out.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "read the message from `file`; -: standard input"},
			&cli.BoolFlag{Name: "lines", Usage: "one message per line, sent in batches"},
			&cli.StringFlag{Name: "key", Usage: "messages of one key go to one partition"},
			&cli.StringSliceFlag{Name: "attr", Usage: "attribute `name=value`; may be repeated"},
			&cli.IntFlag{Name: "partition", Usage: "pin to this partition"},
			&cli.StringFlag{Name: "content-type", Usage: "stored with the message"},
			&cli.BoolFlag{Name: "committed", Usage: "wait until the partition has it (ack=committed)"},
			&cli.DurationFlag{Name: "timeout", Usage: "how long --committed may take, 100ms to 30s", DefaultText: "5s"},
			&cli.StringFlag{Name: "producer", Usage: "number the message as `ID:N`, with --committed and --partition; sent again it is not stored twice"},
			&cli.BoolFlag{Name: "allow-duplicates", Usage: "repeat when the outcome is unknown: rather twice than an error"},
		},
		Action: pubAction,
	}
}

func pubAction(c *cli.Context) error {
	if err := wantArgs(c, 1, 2); err != nil {
		return err
	}
	m, err := template(c)
	if err != nil {
		return err
	}
	in, err := input(c)
	if err != nil {
		return err
	}
	defer in.Close()
	cl, err := connect(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	p := publisher{c: c, client: cl, topic: c.Args().First()}
	if p.options, err = produceOptions(c); err != nil {
		return err
	}
	if c.Bool("lines") {
		return p.lines(in, m)
	}
	return p.one(in, m)
}

func produceOptions(c *cli.Context) (client.ProduceOptions, error) {
	o := client.ProduceOptions{Committed: c.Bool("committed"), AllowDuplicates: c.Bool("allow-duplicates"), Timeout: c.Duration("timeout")}
	if c.IsSet("timeout") && !o.Committed {
		return o, proc.Usagef("--timeout goes with --committed")
	}
	if !c.IsSet("producer") {
		return o, nil
	}
	id, number, _ := strings.Cut(c.String("producer"), ":")
	seq, err := strconv.ParseUint(number, 10, 63)
	switch {
	case err != nil || id == "":
		return o, proc.Usagef("--producer %q: want ID:N", c.String("producer"))
	case !o.Committed || !c.IsSet("partition") || c.Bool("lines"):
		return o, proc.Usagef("--producer goes with --committed and --partition, and not with --lines")
	}
	o.Producer, o.Seq = id, seq
	return o, nil
}

// template is the message without its payload.
func template(c *cli.Context) (client.Message, error) {
	m := client.Message{Key: []byte(c.String("key")), ContentType: c.String("content-type")}
	if c.IsSet("partition") {
		n := c.Int("partition")
		if n < 0 || n > 1023 {
			return m, proc.Usagef("--partition %d: want 0..1023", n)
		}
		m.Partition = client.Pin(uint32(n))
	}
	for _, a := range c.StringSlice("attr") {
		name, value, found := strings.Cut(a, "=")
		if !found || name == "" {
			return m, proc.Usagef("--attr %q: want name=value", a)
		}
		if m.Attributes == nil {
			m.Attributes = map[string]string{}
		}
		m.Attributes[name] = value
	}
	return m, nil
}

// input is where the message comes from.
func input(c *cli.Context) (io.ReadCloser, error) {
	file := c.String("file")
	switch {
	case c.NArg() == 2 && file != "":
		return nil, proc.Usagef("a message and --file at once: give one")
	case c.NArg() == 2:
		return io.NopCloser(strings.NewReader(c.Args().Get(1))), nil
	case file != "" && file != "-":
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("read the message: %w", err)
		}
		return f, nil
	case file == "" && isTerminal(c.App.Reader):
		return nil, proc.Usagef("no message: give it as an argument, with --file, or pipe it in")
	}
	return io.NopCloser(c.App.Reader), nil
}

type publisher struct {
	c       *cli.Context
	client  *client.Client
	topic   string
	options client.ProduceOptions
}

func (p *publisher) one(in io.Reader, m client.Message) error {
	payload, err := io.ReadAll(io.LimitReader(in, maxInputBytes+1))
	if err != nil {
		return fmt.Errorf("read the message: %w", err)
	}
	if len(payload) > maxInputBytes {
		return fmt.Errorf("the message is larger than %d bytes; with --lines each line is a message", maxInputBytes)
	}
	m.Payload = payload
	r, err := p.client.Produce(p.c.Context, p.topic, m, p.options)
	if err != nil {
		return err
	}
	if p.c.Bool("json") {
		return printJSON(p.c.App.Writer, r.Raw)
	}
	if p.options.Committed && r.Partition != nil && r.Offset != nil {
		_, err = fmt.Fprintf(p.c.App.Writer, "%s in partition %d at offset %d\n", r.ID, *r.Partition, *r.Offset)
	} else {
		_, err = fmt.Fprintln(p.c.App.Writer, r.ID)
	}
	return err
}

// lines sends a message per line. When a batch fails, what was sent before it stays
// sent: the error says how many.
func (p *publisher) lines(in io.Reader, m client.Message) error {
	r := bufio.NewReaderSize(in, 64<<10)
	var batch []client.Message
	size, sent, empty := 0, 0, 0
	show := newProgress(p.c)
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		if err := p.batch(batch); err != nil {
			return fmt.Errorf("after %d messages that were taken: %w", sent, err)
		}
		sent += len(batch)
		batch, size = batch[:0], 0
		show(sent)
		return nil
	}
	for {
		line, err := readLine(r)
		if len(line) > 0 {
			m.Payload = line
			batch = append(batch, m)
			size += len(line)
		} else if err == nil {
			empty++
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read line %d: %w", sent+len(batch)+empty+1, errors.Join(err, flush()))
		}
		if err != nil || len(batch) == client.MaxBatchMessages || size >= batchBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		if err != nil {
			break
		}
	}
	if empty > 0 {
		fmt.Fprintf(p.c.App.ErrWriter, "%d empty lines left out\n", empty)
	}
	if p.c.Bool("json") {
		return nil
	}
	_, err := fmt.Fprintf(p.c.App.Writer, "%d messages\n", sent)
	return err
}

func (p *publisher) batch(msgs []client.Message) error {
	r, err := p.client.ProduceBatch(p.c.Context, p.topic, msgs, p.options)
	if err != nil {
		return err
	}
	if p.c.Bool("json") {
		if err := printJSON(p.c.App.Writer, r.Raw); err != nil {
			return err
		}
	}
	for i, item := range r.Results {
		if !item.OK() {
			return fmt.Errorf("message %d of the batch was not committed: %d %s (applied: %s)", i+1, item.Status, item.Code, item.Applied)
		}
	}
	return nil
}

// readLine returns a line of its own memory, without the newline. io.EOF comes with
// the last one.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxInputBytes {
			return nil, fmt.Errorf("longer than %d bytes", maxInputBytes)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if n := len(line); err == nil && n > 0 {
			line = line[:n-1]
		}
		return line, err
	}
}

// newProgress shows a count now and then, to a person only.
func newProgress(c *cli.Context) func(n int) {
	if !isTerminal(c.App.ErrWriter) || c.Bool("json") {
		return func(int) {}
	}
	last := time.Now()
	return func(n int) {
		if now := time.Now(); now.Sub(last) >= progressEvery {
			last = now
			fmt.Fprintf(c.App.ErrWriter, "\r%d messages", n)
		}
	}
}
