package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/proc"
)

// pageMessages is the most of one replay call; it also bounds what is held in memory.
const pageMessages = 500

func replayCommand() *cli.Command {
	return &cli.Command{
		Name: "replay", Usage: "read stored messages again, settled or not; nothing is leased", ArgsUsage: "TOPIC",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "partition", Usage: "only this partition", DefaultText: "all, one after the other"},
			&cli.Int64Flag{Name: "offset", Usage: "first offset; needs --partition", DefaultText: "the start of the log"},
			&cli.StringFlag{Name: "since", Usage: "first message committed at or after this `time` (RFC 3339), or so long ago (2h)"},
			&cli.IntFlag{Name: "count", Aliases: []string{"n"}, Usage: "stop after `n` messages"},
			&cli.BoolFlag{Name: "meta", Usage: "print partition, offset, key and attributes before each payload"},
		},
		Action: replayAction,
	}
}

func replayAction(c *cli.Context) error {
	s, err := newSubscriber(c)
	if err != nil {
		return err
	}
	defer s.client.Close()
	since, err := parseSince(c.String("since"), time.Now())
	if err != nil {
		return err
	}
	from := startAt{since: since}
	if c.IsSet("offset") {
		if !c.IsSet("partition") || since != "" || c.Int64("offset") < 0 {
			return proc.Usagef("--offset needs --partition, takes no --since, and is not negative")
		}
		from.offset = strconv.FormatInt(c.Int64("offset"), 10)
	}
	left := c.Int("count")
	if left == 0 {
		left = -1
	}
	if c.IsSet("partition") {
		_, err := s.replay(c.Int("partition"), from, left)
		return err
	}
	t, err := s.client.Topic(c.Context, s.topic)
	if err != nil {
		return err
	}
	from.incarnation = t.Incarnation
	for p := 0; p < t.Partitions && left != 0; p++ {
		if left, err = s.replay(p, from, left); err != nil {
			return err
		}
	}
	return nil
}

// parseSince gives the query's value; empty stays empty.
func parseSince(s string, now time.Time) (string, error) {
	if s == "" {
		return "", nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t.UTC().Format(time.RFC3339Nano), nil
	}
	ms, err := parseSpan("since", s)
	if err != nil {
		return "", proc.Usagef("--since %q: want a time such as 2026-11-29T20:04:05Z, or how long ago, such as 2h", s)
	}
	return now.Add(-time.Duration(ms) * time.Millisecond).UTC().Format(time.RFC3339Nano), nil
}

// startAt is where a replay starts.
type startAt struct{ offset, since, incarnation string }

// replay prints one partition until its high watermark or until left messages were
// printed (negative: no bound), and returns what is left of left.
func (s *subscriber) replay(partition int, from startAt, left int) (int, error) {
	for left != 0 {
		limit := pageMessages
		if left > 0 {
			limit = min(limit, left)
		}
		page, msgs, err := s.page(partition, from, limit)
		if err != nil {
			return left, err
		}
		if err := s.print(msgs); err != nil {
			return left, fmt.Errorf("print: %w", err)
		}
		if left > 0 {
			left = max(left-len(msgs), 0)
		}
		next := strconv.FormatUint(page.NextOffset, 10)
		if page.NextOffset >= page.HighWatermark {
			break
		}
		if next == from.offset {
			return left, fmt.Errorf("replay partition %d: the answer did not move on from offset %s", partition, next)
		}
		from = startAt{offset: next, incarnation: page.Incarnation}
	}
	return left, nil
}

// page reads one answer, as JSON when that is what will be printed.
func (s *subscriber) page(partition int, from startAt, limit int) (client.ReplayPage, []message, error) {
	if !s.c.Bool("json") {
		o := client.ReplayOptions{Partition: uint32(partition), Incarnation: from.incarnation, PageSize: limit}
		if from.offset != "" {
			n, err := strconv.ParseUint(from.offset, 10, 64)
			if err != nil {
				return client.ReplayPage{}, nil, err
			}
			o.Offset = &n
		}
		if from.since != "" {
			t, err := time.Parse(time.RFC3339Nano, from.since)
			if err != nil {
				return client.ReplayPage{}, nil, err
			}
			o.Since = t
		}
		page, err := s.client.ReplayOnce(s.c.Context, s.topic, o)
		var msgs []message
		for _, r := range page.Records {
			msgs = append(msgs, message{Record: r})
		}
		return page, msgs, err
	}
	body, err := call(s.c, client.Call{
		Op: fmt.Sprintf("replay %q", s.topic), Method: http.MethodGet, Path: topicPath(s.topic) + "/messages", Safety: client.RepeatFreely,
		Query: query("partition", strconv.Itoa(partition), "offset", from.offset, "since", from.since,
			"incarnation", from.incarnation, "limit", strconv.Itoa(limit)),
	})
	if err != nil {
		return client.ReplayPage{}, nil, err
	}
	return rawPage(body)
}

// peek replays from each partition's frontier: what is settled above it, or leased,
// is shown too, for the log does not know.
func (s *subscriber) peek() error {
	t, err := s.client.Topic(s.c.Context, s.topic)
	if err != nil {
		return err
	}
	left := s.c.Int("count")
	if left == 0 {
		left = peekMessages
	}
	for _, p := range t.PartitionDetails {
		if s.c.IsSet("partition") && int(p.Index) != s.c.Int("partition") {
			continue
		}
		if p.Frontier == nil || p.LogStart == nil {
			fmt.Fprintf(s.c.App.ErrWriter, "partition %d does not answer (%s)\n", p.Index, p.Status)
			continue
		}
		from := startAt{offset: strconv.FormatUint(max(*p.Frontier, *p.LogStart), 10), incarnation: t.Incarnation}
		if left, err = s.replay(int(p.Index), from, left); err != nil {
			return err
		}
	}
	return nil
}

// rawPage takes a JSON page apart without touching its messages.
func rawPage(body []byte) (client.ReplayPage, []message, error) {
	var page struct {
		Incarnation   string `json:"incarnation"`
		LogStart      uint64 `json:"log_start"`
		NextOffset    uint64 `json:"next_offset"`
		HighWatermark uint64 `json:"high_watermark"`
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return client.ReplayPage{}, nil, fmt.Errorf("read the answer: %w", err)
	}
	msgs, err := rawMessages(body)
	return client.ReplayPage{
		Incarnation: page.Incarnation, LogStart: page.LogStart, NextOffset: page.NextOffset, HighWatermark: page.HighWatermark,
	}, msgs, err
}
