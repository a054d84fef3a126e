package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Moves is what is under way of moves of partitions.
type Moves struct {
	Moves   []Move `json:"moves"` // oldest first
	Running int    `json:"running"`
	Limit   int    `json:"limit"`
	Waiting int    `json:"waiting"` // planned ones that begin when others end
}

// Move takes a replica of a partition from one storage node to another.
type Move struct {
	Topic          string    `json:"topic"`
	Incarnation    string    `json:"incarnation"`
	Partition      int32     `json:"partition"`
	From           string    `json:"from"`
	To             string    `json:"to"`
	Phase          string    `json:"phase"` // pending, copying, joined, electing, removing; reclaiming for a moment at the end
	CopiedBytes    int64     `json:"copied_bytes"`
	TotalBytes     int64     `json:"total_bytes"` // 0: not known yet
	BytesPerSecond int64     `json:"bytes_per_second"`
	StartedAt      time.Time `json:"started_at"`
	Blocked        *string   `json:"blocked"` // source_dead, target_dead, copy_unverifiable, target_disk_full, leader_unavailable
	LastError      *string   `json:"last_error"`
}

// Moves lists the moves under way; it works with no leader, without progress.
func (c *Client) Moves(ctx context.Context) (Moves, error) {
	return read[Moves](ctx, c, "list moves", "/v1/cluster/moves")
}

// StartMove begins to move the replica of a partition that the node from has to the
// node to. It is not repeated once it may have been done.
func (c *Client) StartMove(ctx context.Context, topic string, partition int32, from, to string) (Move, error) {
	body, err := json.Marshal(map[string]any{"topic": topic, "partition": partition, "from": from, "to": to})
	if err != nil {
		return Move{}, fmt.Errorf("start move: %w", err)
	}
	var out Move
	_, err = c.doJSON(ctx, Call{
		Op: "start move", Method: http.MethodPost, Path: "/v1/cluster/moves", ContentType: "application/json", Body: body,
	}, &out)
	return out, err
}

// AbortMove takes the move of a partition back that began at startedAt, as its row in
// Moves has it, and no later one (409 move_not_in_flight): it is repeated freely. The zero
// time takes back whatever is under way, and is not repeated once it may have been done.
func (c *Client) AbortMove(ctx context.Context, topic string, partition int32, startedAt time.Time) (Move, error) {
	var out Move
	_, err := c.doJSON(ctx, AbortMoveCall(topic, partition, startedAt), &out)
	return out, err
}

// AbortMoveCall is the request of AbortMove, for Do.
func AbortMoveCall(topic string, partition int32, startedAt time.Time) Call {
	call := Call{
		Op: "abort move", Method: http.MethodDelete,
		Path: "/v1/cluster/moves/" + url.PathEscape(topic) + "/" + strconv.FormatInt(int64(partition), 10),
	}
	if !startedAt.IsZero() {
		call.Query = url.Values{"started_at": {startedAt.UTC().Format(time.RFC3339Nano)}}
		call.Safety = RepeatFreely
	}
	return call
}
