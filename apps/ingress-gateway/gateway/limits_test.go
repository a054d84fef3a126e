package gateway

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/member"
	"github.com/narad-mq/narad/libs/topic"
)

// TestPromisedMetrics: alerts rely on these names and labels (api.md, section 10),
// and nothing that this program shows breaks the rules for names.
func TestPromisedMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	g, err := New(Config{
		Member: member.Config{
			NodeID: "gateway-1", Role: topic.RoleGateway, DataDir: t.TempDir(), RPCBind: "127.0.0.1:0", RaftBind: "127.0.0.1:0",
			Advertise: "127.0.0.1", Join: []string{"127.0.0.1:1"}, Release: "0.1.0",
		},
		HTTPAddr: "127.0.0.1:0", API: api.Config{NodeID: "gateway-1"},
	}, Deps{Registry: registry})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}()
	var resp api.Response
	g.api.Serve(&api.Request{Method: []byte("GET"), Path: []byte("/v1/info"), Headers: noHeaders{}}, &resp)
	resp.Finish(true)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	shown := map[string]int{}
	for i, f := range families {
		shown[f.GetName()] = i
	}
	for name, labels := range map[string][]string{
		"narad_accept_total": {"outcome"}, "narad_accept_seconds": nil, "narad_wal_fsync_seconds": nil,
		"narad_wal_backlog_records": nil, "narad_wal_backlog_oldest_seconds": nil, "narad_wal_failed": nil,
		"narad_dispatch_batch_records": nil, "narad_http_requests_total": {"code", "method", "route"},
		"narad_raft_has_leader": nil, "narad_raft_last_contact_seconds": nil, "narad_disk_free_bytes": nil,
		"narad_consume_wait_seconds": {"outcome"}, "narad_settle_seconds": nil, "narad_settled_total": {"outcome"},
		"narad_members": {"role", "status"}, "narad_wal_damage_ranges_total": nil, "narad_wal_damage_bytes_total": nil,
	} {
		at, ok := shown[name]
		if !ok {
			t.Errorf("%s is not shown", name)
			continue
		}
		var have []string
		for _, l := range families[at].GetMetric()[0].GetLabel() {
			have = append(have, l.GetName())
		}
		if !slices.Equal(have, labels) {
			t.Errorf("%s has labels %v, want %v", name, have, labels)
		}
	}
	if at, ok := shown["narad_disk_free_bytes"]; ok && families[at].GetMetric()[0].GetGauge().GetValue() <= 0 {
		t.Error("no free bytes on the data disk")
	}
}

// noHeaders is a request without any.
type noHeaders struct{}

func (noHeaders) Get(string) ([]byte, int)           { return nil, 0 }
func (noHeaders) Each(func(name, value []byte) bool) {}

// TestBuffersFitMemory: connections and bodies may take a quarter of the limit each.
func TestBuffersFitMemory(t *testing.T) {
	for _, c := range []struct {
		limit  int64
		chosen bool
		want   int
	}{{0, false, 10_000}, {512 << 20, false, 2520}, {512 << 20, true, 10_000}, {64 << 30, false, 10_000}, {1 << 20, false, minConnections}} {
		cfg := Config{}
		cfg.Edge.MaxConnections = 10_000
		fitMemory(&cfg, c.limit, c.chosen)
		if cfg.Edge.MaxConnections != c.want || cfg.API.MaxBodyMemory != c.limit/4 {
			t.Errorf("limit %d: %d connections, %d bytes of bodies", c.limit, cfg.Edge.MaxConnections, cfg.API.MaxBodyMemory)
		}
	}
}

// TestConnectionsLeaveDescriptors: clients cannot take them all.
func TestConnectionsLeaveDescriptors(t *testing.T) {
	for files, want := range map[uint64]int{1 << 20: 10_000, 1024: 768, 0: 1, 1 << 63: 10_000} {
		cfg := Config{}
		cfg.Edge.MaxConnections = 10_000
		if fitFiles(&cfg, files); cfg.Edge.MaxConnections != want {
			t.Errorf("%d descriptors: %d connections, want %d", files, cfg.Edge.MaxConnections, want)
		}
	}
}
