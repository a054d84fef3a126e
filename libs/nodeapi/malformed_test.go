package nodeapi

import (
	"testing"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
)

// TestGarbageIsRefusedAndLoggedOnce: of every operation, whatever its encoding. It
// reaches no handler.
func TestGarbageIsRefusedAndLoggedOnce(t *testing.T) {
	for _, m := range []rpc.Method{methodCommit, methodClaim, methodSettle, methodRead, methodDetails, methodFetch, methodFence} {
		t.Run(m.Name, func(t *testing.T) {
			log, node, replica := &testkit.Journal{}, &fake{}, &fakeReplica{}
			s := rpc.NewServer(rpc.ServerConfig{NodeID: "s1", ClusterID: func() string { return "c" }, Log: log.Logger()})
			Serve(s, node)
			ServeReplica(s, replica)
			c := rpc.NewClient(rpc.ClientConfig{NodeID: "s2", ClusterID: func() string { return "c" }})
			t.Cleanup(c.Close)
			peer := c.Peer("s1", testkit.Serve(t, s))
			for range 3 {
				if _, err := peer.Call(t.Context(), m, []byte("\xff garbage")); !problem.HasCode(err, problem.InvalidRequest) {
					t.Fatal(err)
				}
			}
			if n := log.Count("operation=" + m.Name); n != 1 || log.Count("from=s2") != 1 || log.Count("level=ERROR") != 1 {
				t.Errorf("logged %d times: %s", n, log)
			}
			if node.got != nil || replica.got != nil {
				t.Error("a handler was asked")
			}
		})
	}
}
