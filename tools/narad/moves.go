package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/proc"
)

func movesCommand() *cli.Command {
	return &cli.Command{
		Name: "moves", Usage: "partitions on their way from one storage node to another", Action: listMoves,
		Subcommands: []*cli.Command{
			{Name: "start", Usage: "move the replica of a partition that FROM has to TO", ArgsUsage: "TOPIC PARTITION FROM TO", Action: startMove},
			{
				Name: "abort", Usage: "take a move back", ArgsUsage: "TOPIC PARTITION", Action: abortMove,
				Description: "Takes back the move that is listed for the partition when the command runs, and no later one. A command that is to be\n" +
					"repeated names the move with --started-at: once that has ended, nothing is done (move_not_in_flight).",
				Flags: []cli.Flag{&cli.TimestampFlag{Name: "started-at", Layout: time.RFC3339, Usage: "only the move that began at that `time`, as `narad cluster moves` shows it"}},
			},
		},
	}
}

func listMoves(c *cli.Context) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	body, err := call(c, movesCall())
	if err != nil {
		return err
	}
	return show(c, body, func(w io.Writer, m client.Moves) {
		fmt.Fprintf(w, "%d running of at most %d, %d waiting\n", m.Running, m.Limit, m.Waiting)
		if len(m.Moves) > 0 {
			fmt.Fprintln(w)
			printMoves(w, m.Moves...)
		}
	})
}

func printMoves(w io.Writer, list ...client.Move) {
	row(w, "PARTITION", "FROM", "TO", "STARTED AT", "PHASE", "PROGRESS", "RATE", "BLOCKED", "LAST")
	for _, m := range list {
		row(w, fmt.Sprintf("%s/%d", m.Topic, m.Partition), m.From, m.To, m.StartedAt.UTC().Format(time.RFC3339Nano), m.Phase, progress(m.CopiedBytes, m.TotalBytes), rate(m.BytesPerSecond), m.Blocked, m.LastError)
	}
}

// barWidth is that of a progress bar, in characters: a step is 5 %.
const barWidth = 20

// progress draws how much of total is done.
func progress(done, total int64) string {
	if total <= 0 {
		return "[" + strings.Repeat("-", barWidth) + "]   ?"
	}
	done = min(max(done, 0), total)
	full := int(float64(done) / float64(total) * barWidth)
	return fmt.Sprintf("[%s%s] %3d%%", strings.Repeat("#", full), strings.Repeat("-", barWidth-full), int(float64(done)/float64(total)*100))
}

func rate(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f MiB/s", float64(bytes)/(1<<20))
}

// partitionArg reads an index; the cluster judges whether it is one of the topic's.
func partitionArg(s string) (int32, error) {
	p, err := strconv.ParseInt(s, 10, 32)
	if err != nil || p < 0 {
		return 0, proc.Usagef("PARTITION %q: want a number from 0", s)
	}
	return int32(p), nil
}

func startMove(c *cli.Context) error {
	if err := wantArgs(c, 4, 4); err != nil {
		return err
	}
	p, err := partitionArg(c.Args().Get(1))
	if err != nil {
		return err
	}
	doc, err := json.Marshal(map[string]any{"topic": c.Args().Get(0), "partition": p, "from": c.Args().Get(2), "to": c.Args().Get(3)})
	if err != nil {
		return fmt.Errorf("start move: %w", err)
	}
	body, err := call(c, client.Call{Op: "start move", Method: http.MethodPost, Path: "/v1/cluster/moves", ContentType: "application/json", Body: doc})
	if err != nil {
		return err
	}
	return show(c, body, func(w io.Writer, m client.Move) { printMoves(w, m) })
}

func abortMove(c *cli.Context) error {
	if err := wantArgs(c, 2, 2); err != nil {
		return err
	}
	p, err := partitionArg(c.Args().Get(1))
	if err != nil {
		return err
	}
	began := c.Timestamp("started-at")
	if began == nil {
		if began, err = underWay(c, c.Args().Get(0), p); err != nil {
			return err
		}
	}
	body, err := call(c, client.AbortMoveCall(c.Args().Get(0), p, *began))
	if err != nil {
		return err
	}
	return show(c, body, func(w io.Writer, m client.Move) { printMoves(w, m) })
}

// underWay is when the move of a partition began that is listed now, so that what is sent
// names it: a repeat of the request takes no later one back.
func underWay(c *cli.Context, topic string, partition int32) (*time.Time, error) {
	body, err := call(c, movesCall())
	if err != nil {
		return nil, err
	}
	var list client.Moves
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("read the moves: %w", err)
	}
	for i := range list.Moves {
		if m := &list.Moves[i]; m.Topic == topic && m.Partition == partition {
			return &m.StartedAt, nil
		}
	}
	return nil, fmt.Errorf("abort move: %s/%d is not moving; `narad cluster moves` shows what is", topic, partition)
}

func movesCall() client.Call {
	return client.Call{Op: "list moves", Method: http.MethodGet, Path: "/v1/cluster/moves", Safety: client.RepeatFreely}
}
