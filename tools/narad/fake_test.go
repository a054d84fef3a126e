package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/narad-mq/narad/libs/client/batch"
)

// broker is a gateway in memory with one partition per topic, as far as the commands
// need one.
type broker struct {
	t      *testing.T
	mu     sync.Mutex // guards the rest
	topics map[string]*topicState
	calls  []string
	status string // of the cluster, the whole document
	backup []byte
	// refuseAcks is how many single acks answer 503 first.
	refuseAcks int
	looks      int // at a member that drains
}

type topicState struct {
	version int
	records []batch.Record
	leased  int // records below were handed out
	acked   []string
}

func (s *topicState) json(name string) string {
	return fmt.Sprintf(`{"name":%q,"incarnation":"3f9a17c4e2b08d51","version":%d,"created_at":"2026-11-29T20:04:05.123Z","role":"standalone",
 "partitions":1,"replication_factor":1,"retention_ms":604800000,"visibility_timeout_ms":30000,"reroute":true,"backlog":%d,
 "partition_details":[{"index":0,"status":"ok","leader":"storage-1","log_start":0,"frontier":%d,"high_watermark":%d}]}`,
		name, s.version, len(s.records), len(s.acked), len(s.records))
}

func newBroker(t *testing.T) (*broker, string) {
	t.Helper()
	b := &broker{t: t, topics: map[string]*topicState{}}
	srv := httptest.NewServer(b)
	t.Cleanup(srv.Close)
	return b, srv.URL
}

func refuse(w http.ResponseWriter, status int, code, more string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"status":%d,"code":%q,"applied":"no","request_id":"r1","detail":"as the test wants"%s}`, status, code, more)
}

func (b *broker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		b.t.Error(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, r.Method+" "+r.RequestURI)
	switch r.URL.Path {
	case "/v1/topics":
		b.list(w, r, body)
		return
	case "/v1/cluster/members":
		fmt.Fprint(w, `{"cluster_id":"5d1c","answered_by":"gateway-1","leader_id":"voter-1","stale":false,"tombstones":[],
 "members":[{"id":"storage-1","role":"storage-node","status":"alive","address":"storage-1:7944","release":"0.1.0","heartbeat_age_ms":1200,"disk_used_percent":41}]}`)
		return
	case "/v1/cluster/status":
		fmt.Fprint(w, b.status)
		return
	case "/v1/cluster/backup":
		_, _ = w.Write(b.backup)
		return
	case "/v1/cluster/moves", "/v1/cluster/moves/orders/3":
		move := `{"topic":"orders","partition":3,"from":"storage-1","to":"storage-4","phase":"copying","copied_bytes":50,"total_bytes":100,"bytes_per_second":52428800,"started_at":"2026-11-29T20:04:05.120Z","blocked":null}`
		if r.Method == http.MethodGet {
			move = `{"moves":[` + move + `],"running":1,"limit":8,"waiting":3}`
		}
		fmt.Fprint(w, move)
		return
	case "/v1/cluster/members/ghost/forget":
		w.WriteHeader(http.StatusNoContent)
		return
	case "/v1/cluster/members/storage-1/forget":
		refuse(w, 409, "has_member_record", "")
		return
	case "/v1/topics/events/children", "/v1/topics/events/children/later":
		child := `{"child":"later","delay_ms":5000,"lag_messages":12,"due_lag_ms":90,"dropped_messages":0,"partial":true,"cursors":[{"partition":0},{"partition":1}]}`
		switch r.Method {
		case http.MethodGet:
			child = `{"parent":"events","children":[` + child + `]}`
		case http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
			return
		}
		fmt.Fprint(w, child)
		return
	case "/v1/info":
		fmt.Fprint(w, `{"node_id":"gateway-1"}`)
		return
	case "/v1/cluster/members/storage-1":
		if b.looks++; b.looks > 2 {
			refuse(w, 404, "member_not_found", "")
			return
		}
		fmt.Fprint(w, `{"id":"storage-1","draining":true,"decommission":{"started_at":"2026-11-29T20:04:05.123Z","partitions_left":3,"wal_backlog_records":0,"blocked":[{"code":"no_receivers","message":"nobody"}]}}`)
		return
	case "/v1/cluster/members/storage-1/decommission", "/v1/cluster/members/gateway-1/decommission":
		switch {
		case r.Method == http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		case r.URL.Query().Get("dry_run") == "true":
			fmt.Fprint(w, `{"id":"storage-1","would_decommission":false,"reasons":[{"code":"below_replication_factor","message":"too few","topics":["pay"],"topic_count":1}],"partitions_led":4,"replicas":12,"wal_backlog_records":0}`)
		default:
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprint(w, `{"id":"storage-1","draining":true}`)
		}
		return
	case "/v1/cluster/members/voter-1/decommission":
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(409)
		fmt.Fprint(w, `{"status":409,"code":"decommission_unsafe","detail":"no","reasons":[{"code":"below_min_voters","message":"2 voters would stay"}]}`)
		return
	case "/v1/topics/orders/partitions/2/reset":
		w.WriteHeader(http.StatusAccepted)
		return
	case "/v1/cluster/quorum", "/quorum":
		fmt.Fprint(w, `{"leader_id":"voter-1","leader_epoch":7,"leader_epoch_start":10,"high_watermark":12,"majority":1,"committed_by":["voter-1"],"answered_by":"voter-1",
 "servers":[{"id":"voter-1","role":"metastore-voter","suffrage":"voter","reachable":true,"state":"leader","leo":12}]}`)
		return
	}
	name, op, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/topics/"), "/")
	topic := b.topics[name]
	if topic == nil {
		refuse(w, 404, "topic_not_found", "")
		return
	}
	b.topic(w, r, body, name, op, topic)
}

func (b *broker) list(w http.ResponseWriter, r *http.Request, body []byte) {
	if r.Method == http.MethodGet {
		var all []string
		for name, s := range b.topics {
			all = append(all, s.json(name))
		}
		fmt.Fprintf(w, `{"topics":[%s],"next_page_token":null}`, strings.Join(all, ","))
		return
	}
	var spec struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(body, &spec); err != nil {
		b.t.Error(err)
	}
	b.calls = append(b.calls, string(body))
	if s := b.topics[spec.Name]; s != nil {
		refuse(w, 409, "topic_exists", `,"topic":`+s.json(spec.Name))
		return
	}
	b.topics[spec.Name] = &topicState{version: 1}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, b.topics[spec.Name].json(spec.Name))
}

func (b *broker) topic(w http.ResponseWriter, r *http.Request, body []byte, name, op string, s *topicState) {
	q := r.URL.Query()
	switch op {
	case "":
		switch r.Method {
		case http.MethodDelete:
			delete(b.topics, name)
			w.WriteHeader(http.StatusNoContent)
			return
		case http.MethodPatch:
			b.calls = append(b.calls, string(body))
			s.version++
		}
		fmt.Fprint(w, s.json(name))
	case "produce":
		s.add(batch.Record{Payload: body, Key: []byte(q.Get("key")), ContentType: []byte(r.Header.Get("Content-Type"))})
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintf(w, `{"id":"id-%d",  "incarnation":"3f9a17c4e2b08d51"}`, len(s.records)-1)
	case "produce/batch":
		var d batch.Decoder
		rs, err := d.DecodeProduce(bytes.Clone(body))
		if err != nil {
			b.t.Error(err)
		}
		for _, rec := range rs {
			s.add(rec)
		}
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintf(w, `{"accepted":%d}`, len(rs))
	case "consume":
		n, err := strconv.Atoi(q.Get("max"))
		if err != nil {
			b.t.Error(err)
		}
		rs := s.records[s.leased:min(s.leased+n, len(s.records))]
		s.leased += len(rs)
		if len(rs) == 0 {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		b.write(w, r, batch.Delivery, rs, len(s.records))
	case "messages":
		from, limit := 0, 1000
		if v := q.Get("offset"); v != "" {
			from, _ = strconv.Atoi(v)
		}
		if v := q.Get("limit"); v != "" {
			limit, _ = strconv.Atoi(v)
		}
		b.write(w, r, batch.Replay, s.records[from:min(from+limit, len(s.records))], len(s.records))
	case "ack":
		b.ack(w, body, s)
	default:
		refuse(w, 404, "route_not_found", "")
	}
}

func (s *topicState) add(r batch.Record) {
	n := int64(len(s.records))
	r.Partition, r.Offset, r.ID = 0, n, fmt.Appendf(nil, "id-%d", n)
	r.DeliveryCount, r.LeaseMS, r.ReceiptHandle = 1, 30000, fmt.Appendf(nil, "H%d", n)
	s.records = append(s.records, r)
}

func (b *broker) write(w http.ResponseWriter, r *http.Request, kind batch.Kind, rs []batch.Record, high int) {
	next := int64(0)
	var objects []string
	for _, rec := range rs {
		next = rec.Offset + 1
		objects = append(objects, fmt.Sprintf("{\"id\":%q,\n \"payload_text\":%q,\"receipt_handle\":%q}", rec.ID, rec.Payload, rec.ReceiptHandle))
	}
	if r.Header.Get("Accept") != batch.ContentType {
		fmt.Fprintf(w, `{"messages":[%s],"next_offset":%d,"high_watermark":%d}`, strings.Join(objects, ","), next, high)
		return
	}
	out, err := batch.Encode(nil, &batch.Batch{Kind: kind, Meta: batch.Meta{NextOffset: next, HighWatermark: int64(high)}, Records: rs}, true)
	if err != nil {
		b.t.Error(err)
	}
	_, _ = w.Write(out)
}

func (b *broker) ack(w http.ResponseWriter, body []byte, s *topicState) {
	var req struct {
		Handles []string `json:"receipt_handles"`
	}
	if err := json.Unmarshal(body, &req); err != nil {
		b.t.Error(err)
	}
	var results []string
	for _, h := range req.Handles {
		if b.refuseAcks > 0 {
			b.refuseAcks--
			results = append(results, `{"status":503,"code":"partition_unavailable","applied":"no"}`)
			continue
		}
		s.acked = append(s.acked, h)
		results = append(results, `{"status":204}`)
	}
	fmt.Fprintf(w, `{"results":[%s]}`, strings.Join(results, ","))
}

// shell runs command lines against one server.
type shell struct {
	t    *testing.T
	url  string
	home string
}

func newShell(t *testing.T, url string) *shell {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(home, "config"))
	t.Setenv("NARAD_URL", url)
	return &shell{t: t, url: url, home: home}
}

func (s *shell) run(stdin string, args ...string) (stdout, stderr string, exit int) {
	var out, err bytes.Buffer
	exit = run(s.t.Context(), append([]string{"narad"}, args...), streams{strings.NewReader(stdin), &out, &err})
	return out.String(), err.String(), exit
}

func (s *shell) must(stdin string, args ...string) string {
	s.t.Helper()
	out, stderr, exit := s.run(stdin, args...)
	if exit != 0 {
		s.t.Fatalf("narad %v: exit %d: %s%s", args, exit, out, stderr)
	}
	return out
}
