package metaapi

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

// endings answers a page and remembers what it was asked.
type endings struct {
	fake
	page EndingsResult
}

func (e *endings) Endings(_ context.Context, r *EndingsRequest) (*EndingsResult, error) {
	return answer(&e.fake, *r, e.page)
}

func (e *endings) ForgetEnded(_ context.Context, r *ForgetEndedRequest) (*ChangeResult, error) {
	return answer(&e.fake, *r, results.change)
}

func serveEndings(t *testing.T, e Endings) string {
	t.Helper()
	s := rpc.NewServer(rpc.ServerConfig{NodeID: "v1", ClusterID: func() string { return "" }, Log: slog.New(slog.DiscardHandler)})
	ServeEndings(s, e)
	return testkit.Serve(t, s)
}

// The largest page and the most ids pass over memory, wire and leader alike.
func TestEndingsContract(t *testing.T) {
	e := &endings{page: EndingsResult{More: true}}
	forget := ForgetEndedRequest{}
	for i := range topic.Incarnation(MaxEndings) {
		e.page.Endings = append(e.page.Endings, Ending{1<<63 + i, strings.Repeat("t", 200), 1 << 60})
		forget.IDs = append(forget.IDs, 1<<63+i)
	}
	addr := serveEndings(t, e)
	for name, v := range map[string]Endings{
		"memory": e, "wire": NewClient(client(t).Peer("v1", addr)),
		"leader": NewLeader(LeaderConfig{RPC: client(t), Hint: func() string { return addr }, Voters: func() []string { return nil }}),
	} {
		e.err = nil
		page, err := v.Endings(t.Context(), &EndingsRequest{After: 5, Limit: 7})
		if err != nil || !reflect.DeepEqual(*page, e.page) || e.got != (EndingsRequest{After: 5, Limit: 7}) {
			t.Errorf("%s: page %v, asked %+v", name, err, e.got)
		}
		done, err := v.ForgetEnded(t.Context(), &forget)
		if err != nil || *done != results.change || !reflect.DeepEqual(e.got, forget) {
			t.Errorf("%s: forget: %+v, %v", name, done, err)
		}
		e.err = problem.New(problem.TopicChanged, "it lives").With("incarnation", "0000000000000005")
		if _, err = v.ForgetEnded(t.Context(), &forget); !problem.HasCode(err, problem.TopicChanged) {
			t.Errorf("%s: refusal: %v", name, err)
		}
	}
}
