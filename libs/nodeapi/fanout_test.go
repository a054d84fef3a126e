package nodeapi

import (
	"context"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// families answers what it was told to and remembers what it was asked.
type families struct {
	got     any
	marks   MarksResult
	cursors CursorsResult
	err     error
}

func (f *families) Marks(_ context.Context, req *MarksRequest) (*MarksResult, error) {
	f.got = *req
	return &f.marks, f.err
}

func (f *families) Cursors(_ context.Context, req *CursorsRequest) (*CursorsResult, error) {
	f.got = *req
	return &f.cursors, f.err
}

// The most that may be asked and answered passes the wire as it is; fewer marks than
// were asked for are no answer.
func TestFanoutContract(t *testing.T) {
	f := &families{}
	var ask MarksRequest
	look := CursorsRequest{Topic: strings.Repeat("t", topic.MaxNameLength), Incarnation: 1 << 63}
	for i := range int32(MaxCursorPartitions) {
		ref := topic.Ref{Topic: look.Topic, Incarnation: look.Incarnation, Partition: i}
		ask.Partitions = append(ask.Partitions, Target{Ref: ref, DiskID: 1 << 63, Epoch: 1 << 31})
		f.marks.Marks = append(f.marks.Marks, 1<<62)
		look.Partitions = append(look.Partitions, i)
		row := PartitionCursors{Partition: i, HighWatermark: 1 << 62}
		for c := range topic.ID64(topic.MaxChildren) {
			row.Cursors = append(row.Cursors, CursorDetails{AttachEpoch: 1<<63 + c, NextOffset: 1 << 62, DueLagMS: 1 << 50, Dropped: 1 << 62})
		}
		f.cursors.Partitions = append(f.cursors.Partitions, row)
	}
	s := rpc.NewServer(rpc.ServerConfig{NodeID: "s1", ClusterID: func() string { return "" }, Log: slog.New(slog.DiscardHandler)})
	ServeFanout(s, f)
	addr := testkit.Serve(t, s)
	dial := rpc.NewClient(rpc.ClientConfig{NodeID: "v1", ClusterID: func() string { return "" }})
	t.Cleanup(dial.Close)
	for name, v := range map[string]Fanout{"memory": f, "wire": NewClient(dial.Peer("s1", addr))} {
		f.err = nil
		marks, err := v.Marks(t.Context(), &ask)
		if err != nil || !reflect.DeepEqual(*marks, f.marks) || !reflect.DeepEqual(f.got, ask) {
			t.Errorf("%s: marks: %v", name, err)
		}
		cursors, err := v.Cursors(t.Context(), &look)
		if err != nil || !reflect.DeepEqual(*cursors, f.cursors) || !reflect.DeepEqual(f.got, look) {
			t.Errorf("%s: cursors: %v", name, err)
		}
		f.err = problem.New(problem.StaleEpoch, "it is another")
		if _, err := v.Marks(t.Context(), &ask); !problem.HasCode(err, problem.StaleEpoch) {
			t.Errorf("%s: refusal: %v", name, err)
		}
	}
	f.err, f.marks.Marks = nil, f.marks.Marks[1:]
	if _, err := NewClient(dial.Peer("s1", addr)).Marks(t.Context(), &ask); err == nil {
		t.Error("a mark is missing, and nobody says so")
	}
}
