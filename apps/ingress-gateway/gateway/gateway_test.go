package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/member"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/ops"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/testkit/leak"
	"github.com/narad-mq/narad/libs/topic"
)

// TestGatewayWithoutACluster: it answers, refuses what it cannot promise and says
// why, and stops in order. Whole clusters are in e2e.
func TestGatewayWithoutACluster(t *testing.T) {
	defer leak.None(t, goleak.IgnoreCurrent(),
		// fasthttp's clock lives for ever, and its workers' cleaner until it wakes next.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
	g, err := New(Config{
		Member: member.Config{
			NodeID: "gateway-1", Role: topic.RoleGateway, DataDir: t.TempDir(), RPCBind: "127.0.0.1:0", RaftBind: "127.0.0.1:0",
			Advertise: "127.0.0.1", Join: []string{"127.0.0.1:1"}, Release: "0.1.0",
		},
		HTTPAddr: "127.0.0.1:0", API: api.Config{NodeID: "gateway-1"}, DrainDelay: 100 * time.Millisecond,
	}, Deps{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{}, Timeout: testkit.Patience}
	defer client.CloseIdleConnections()
	url := "http://" + g.Addr().String() + "/v1/topics/orders/produce"
	res, err := client.Post(url, "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), `"code":"not_ready"`) || !strings.Contains(string(body), `"applied":"no"`) {
		t.Fatalf("produce: %d %s", res.StatusCode, body)
	}
	if !has(g.acceptReasons(), ops.ReasonNotCaughtUp) {
		t.Fatalf("accept reasons %+v", g.acceptReasons())
	}
	cancel()
	testkit.Poll(t, testkit.Patience, "it says that it drains", func() bool { return has(g.acceptReasons(), ops.ReasonDraining) })
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestGatewayWithoutALog: it leaves nothing of a log on its disk, refuses every 202, and
// says of itself what an ack=committed would meet.
func TestGatewayWithoutALog(t *testing.T) {
	dir := t.TempDir()
	g, err := New(Config{
		Member: member.Config{
			NodeID: "gateway-1", Role: topic.RoleGateway, DataDir: dir, RPCBind: "127.0.0.1:0", RaftBind: "127.0.0.1:0",
			Advertise: "127.0.0.1", Join: []string{"127.0.0.1:1"}, Release: "0.1.0",
		},
		HTTPAddr: "127.0.0.1:0", API: api.Config{NodeID: "gateway-1"}, DrainDelay: 10 * time.Millisecond, NoWAL: true,
	}, Deps{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := os.Stat(filepath.Join(dir, walDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a log on the disk: %v", err)
	}
	if _, err := g.producer.Accept(t.Context(), &topic.Topic{Name: "orders", Config: topic.DefaultConfig()}, nil); !problem.HasCode(err, problem.WALUnavailable) {
		t.Errorf("a 202: %v", err)
	}
	if got := g.acceptReasons(); len(got) != 1 || got[0].Code != ops.ReasonNotCaughtUp {
		t.Errorf("accept reasons before the first catch-up: %+v", got)
	}
	g.commit.Drain()
	if got := g.acceptReasons(); len(got) != 1 || got[0].Code != ops.ReasonDraining {
		t.Errorf("accept reasons of one that stops: %+v", got)
	}
	if reasons, _ := g.ready(); has(reasons, ops.ReasonWALUnavailable) {
		t.Errorf("not ready for want of a log: %+v", reasons)
	}
}

func has(reasons []ops.Reason, code string) bool {
	for _, r := range reasons {
		if r.Code == code {
			return true
		}
	}
	return false
}

// fakeLeader answers look-ups from a map.
type fakeLeader struct {
	leaderAPI
	topics map[string]*topic.Topic
	asked  int
	err    error
}

func (f *fakeLeader) LookupTopic(_ context.Context, req *metaapi.LookupTopicRequest) (*metaapi.TopicResult, error) {
	f.asked++
	if f.err != nil {
		return nil, f.err
	}
	if t := f.topics[req.Name]; t != nil {
		return &metaapi.TopicResult{Topic: *t}, nil
	}
	return nil, problem.New(problem.TopicNotFound, "no")
}

func TestUnknownNamesCostTheLeaderOneQuestion(t *testing.T) {
	synctest.Test(t, costsOneQuestion) // an answer is believed for a second
}

func costsOneQuestion(t *testing.T) {
	meta := testkit.NewMeta()
	leader := &fakeLeader{topics: map[string]*topic.Topic{"new": {Name: "new", Incarnation: 9}}}
	names := newTopics(meta, leader, func(context.Context, uint64) error { return nil }, nil)
	for range 10 {
		if got, err := names.Resolve(context.Background(), "new"); err != nil || got.Incarnation != 9 {
			t.Fatalf("%v, %v", got, err)
		}
		if _, err := names.Resolve(context.Background(), "none"); !problem.HasCode(err, problem.TopicNotFound) {
			t.Fatal(err)
		}
	}
	if leader.asked != 2 {
		t.Fatalf("%d questions", leader.asked)
	}
	meta.PutTopic(topic.Topic{Name: "none", Incarnation: 10}, nil) // the replica knows better at once
	if got, err := names.Resolve(context.Background(), "none"); err != nil || got.Incarnation != 10 {
		t.Fatalf("%v, %v", got, err)
	}
	leader.err = errors.New("down")
	if _, err := names.Resolve(context.Background(), "other"); !problem.HasCode(err, problem.NoMetastoreLeader) {
		t.Fatal(err)
	}
	meta.SetState(false, false)
	if _, err := names.Resolve(context.Background(), "other"); !problem.HasCode(err, problem.NotReady) {
		t.Fatal(err)
	}
}
