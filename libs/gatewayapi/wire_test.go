package gatewayapi

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/testkit/leak"
	"github.com/narad-mq/narad/libs/topic"
)

func TestMain(m *testing.M) { leak.Main(m) }

type fake struct {
	got   *WakeRequest
	asked *UndispatchedRequest
	drain *DrainedRequest
	err   error
}

var drained = &DrainedResult{Marked: true, Sealed: true, Backlog: 1 << 40, Drained: true}

func (f *fake) Drained(_ context.Context, req *DrainedRequest) (*DrainedResult, error) {
	f.drain = req
	return drained, f.err
}

func (f *fake) Undispatched(_ context.Context, req *UndispatchedRequest) (*UndispatchedResult, error) {
	f.asked = req
	return backlogged, f.err
}

var backlogged = &UndispatchedResult{Lives: []UndispatchedLife{{"orders", 1 << 63, 7}, {"o", 5, 1 << 40}}, More: true, Partial: true}

func (f *fake) Wake(_ context.Context, req *WakeRequest) error {
	f.got = req
	return f.err
}

var sample = &WakeRequest{From: "storage-1", Ready: []Ready{
	{Ref: topic.Ref{Topic: "orders", Incarnation: 5, Partition: 300}, Epoch: 7},
	{Ref: topic.Ref{Topic: "o", Incarnation: 6}, Epoch: 1},
}}

func TestContract(t *testing.T) {
	t.Run("memory", func(t *testing.T) { f := &fake{}; suite(t, f, f) })
	t.Run("wire", func(t *testing.T) {
		f := &fake{}
		s := rpc.NewServer(rpc.ServerConfig{NodeID: "g1", ClusterID: func() string { return "c" }, Log: slog.New(slog.DiscardHandler)})
		Serve(s, f)
		ServeBacklog(s, f)
		ServeDrain(s, f)
		addr := testkit.Serve(t, s)
		c := rpc.NewClient(rpc.ClientConfig{NodeID: "s1", ClusterID: func() string { return "c" }})
		t.Cleanup(c.Close)
		suite(t, f, NewClient(c.Peer("g1", addr)))
	})
}

func suite(t *testing.T, f *fake, g interface {
	Gateway
	Backlog
	Drain
},
) {
	of := &DrainedRequest{BootNonce: 1 << 63}
	if res, err := g.Drained(t.Context(), of); err != nil || !reflect.DeepEqual(res, drained) || !reflect.DeepEqual(f.drain, of) {
		t.Errorf("drained: %+v, %v, asked %+v", res, err, f.drain)
	}
	ask := &UndispatchedRequest{After: 1 << 63, Limit: 2}
	if res, err := g.Undispatched(t.Context(), ask); err != nil || !reflect.DeepEqual(res, backlogged) || !reflect.DeepEqual(f.asked, ask) {
		t.Errorf("undispatched: %+v, %v, asked %+v", res, err, f.asked)
	}
	if err := g.Wake(t.Context(), sample); err != nil || !reflect.DeepEqual(f.got, sample) {
		t.Errorf("%v, got %+v", err, f.got)
	}
	f.err = problem.New(problem.NotReady, "starting")
	if err := g.Wake(t.Context(), sample); !problem.HasCode(err, problem.NotReady) {
		t.Errorf("refusal: %v", err)
	}
}

// A release before the question answers route_not_found.
func TestAnOldReleaseKnowsNoDrain(t *testing.T) {
	if !NoDrain(problem.New(problem.RouteNotFound, "no such operation")) || NoDrain(problem.New(problem.NotReady, "starting")) || NoDrain(nil) {
		t.Error("the question that a release does not know is not told from a refusal")
	}
}

func TestGolden(t *testing.T) {
	want := "01" + "0973746f726167652d31" + "02" +
		"066f7264657273" + "0000000000000005" + "ac02" + "00000007" +
		"016f" + "0000000000000006" + "00" + "00000001"
	whole := appendWake(nil, sample)
	if got := hex.EncodeToString(whole); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	for n := range whole {
		if _, err := decodeWake(whole[:n]); err == nil {
			t.Errorf("cut at %d it was read", n)
		}
	}
}

func TestLargestWakeFits(t *testing.T) {
	req := &WakeRequest{From: strings.Repeat("f", maxNodeID), Ready: make([]Ready, MaxReady)}
	for i := range req.Ready {
		req.Ready[i] = Ready{Ref: topic.Ref{Topic: strings.Repeat("t", topic.MaxNameLength), Partition: topic.MaxPartitions}}
	}
	if n := len(appendWake(nil, req)); n > maxWakeBody {
		t.Errorf("%d bytes", n)
	}
}

func TestLargestBacklogFits(t *testing.T) {
	res := &UndispatchedResult{Lives: make([]UndispatchedLife, MaxUndispatched)}
	for i := range res.Lives {
		res.Lives[i] = UndispatchedLife{strings.Repeat("t", topic.MaxNameLength), math.MaxUint64, math.MaxInt64}
	}
	raw, err := json.Marshal(res)
	if err != nil || len(raw) > maxUndispatchedReply {
		t.Errorf("%d bytes, %v", len(raw), err)
	}
}

func FuzzWake(f *testing.F) {
	f.Add(appendWake(nil, sample))
	f.Fuzz(func(t *testing.T, b []byte) {
		req, err := decodeWake(b)
		if err != nil {
			return
		}
		again, err := decodeWake(appendWake(nil, req))
		if err != nil || !reflect.DeepEqual(req, again) {
			t.Errorf("%x: %+v and %+v, %v", b, req, again, err)
		}
	})
}

func TestGarbageIsRefusedAndLoggedOnce(t *testing.T) {
	log, f := &testkit.Journal{}, &fake{}
	s := rpc.NewServer(rpc.ServerConfig{NodeID: "g1", ClusterID: func() string { return "c" }, Log: log.Logger()})
	Serve(s, f)
	c := rpc.NewClient(rpc.ClientConfig{NodeID: "s1", ClusterID: func() string { return "c" }})
	t.Cleanup(c.Close)
	peer := c.Peer("g1", testkit.Serve(t, s))
	for range 3 {
		if _, err := peer.Call(t.Context(), methodWake, []byte("\xff garbage")); !problem.HasCode(err, problem.InvalidRequest) {
			t.Fatal(err)
		}
	}
	if n := log.Count("operation=wake"); n != 1 || f.got != nil {
		t.Errorf("logged %d times, asked %+v: %s", n, f.got, log)
	}
}
