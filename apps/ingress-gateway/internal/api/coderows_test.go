package api_test

import (
	"context"
	"strings"

	"github.com/narad-mq/narad/libs/client/batch"
	"github.com/narad-mq/narad/libs/problem"
)

func edgeRows() []codeRow {
	return []codeRow{
		{name: "no route", line: "GET /v1/nothing", status: 404, code: "route_not_found"},
		{name: "trailing slash", line: "GET /v1/topics/", status: 404, code: "route_not_found"},
		{name: "double slash", line: "GET //v1/topics", status: 404, code: "route_not_found"},
		{name: "case of the path", line: "GET /V1/topics", status: 404, code: "route_not_found"},
		{name: "absolute form", line: "GET http://gateway:7942/v1/info", status: 404, code: "route_not_found"},
		{name: "escaped route", line: "GET /v1/%74opics", status: 404, code: "route_not_found"},
		{name: "HEAD", line: "HEAD /v1/topics", status: 405, code: "method_not_allowed"},
		{name: "OPTIONS", line: "OPTIONS /v1/info", status: 405, code: "method_not_allowed"},
		{name: "PUT", line: "PUT /v1/topics/orders/produce", body: "x", status: 405, code: "method_not_allowed"},
		{name: "other site", line: produce, body: "x", header: header{"Sec-Fetch-Site", "cross-site"}, status: 403, code: "cross_origin"},
		{name: "same site, other origin", line: produce, body: "x", header: header{"Sec-Fetch-Site", "same-site"}, status: 403, code: "cross_origin"},
		{name: "origin", line: "GET /v1/topics", header: header{"Origin", "http://evil.example"}, status: 403, code: "cross_origin"},
		{name: "null origin", line: "GET /v1/topics", header: header{"Origin", "null"}, status: 403, code: "cross_origin"},
		{name: "own origin", line: "GET /v1/topics", header: header{"Origin", "http://gateway:7942"}, status: 200},
		{name: "info is for every site", line: "GET /v1/info", header: header{"Origin", "null"}, status: 200},
		{name: "expectation", line: produce, body: "x", header: header{"Expect", "foo"}, status: 417, code: "expectation_failed"},
		{name: "unknown parameter", line: produce + "?kee=1", body: "x", status: 400, code: "invalid_request", parameter: "kee"},
		{name: "repeated parameter", line: produce + "?key=1&key=1", body: "x", status: 400, code: "invalid_request", parameter: "key"},
		{name: "semicolon is no separator", line: consume + "?wait=0s;max=1", status: 400, code: "invalid_request", parameter: "wait"},
		{name: "body where none belongs", line: consume + "?wait=0s", body: "x", status: 400, code: "invalid_request", parameter: "body"},
	}
}

func nameRows() []codeRow {
	long := func(n int) string { return strings.Repeat("x", n) }
	return []codeRow{
		{name: "name with a slash", line: "POST /v1/topics/a%2fb/produce", body: "x", status: 400, code: "invalid_topic_name"},
		{name: "name of dots", line: "GET /v1/topics/..", status: 400, code: "invalid_topic_name"},
		{name: "escaped dots", line: "GET /v1/topics/%2e%2e", status: 400, code: "invalid_topic_name"},
		{name: "escaped twice", line: "GET /v1/topics/%2541", status: 400, code: "invalid_topic_name"},
		{name: "name cut", line: "GET /v1/topics/a%2", status: 400, code: "invalid_topic_name"},
		{name: "NUL", line: "GET /v1/topics/a%00", status: 400, code: "invalid_topic_name"},
		{name: "stale name", line: "GET /v1/topics/t.stale-3f9a17c4e2b08d51", status: 400, code: "invalid_topic_name"},
		{name: "201 characters", line: "GET /v1/topics/" + long(201), status: 400, code: "invalid_topic_name"},
		{name: "parameter after a semicolon", line: "GET /v1/topics/orders;x", status: 400, code: "invalid_topic_name"},
	}
}

func createRows() []codeRow {
	long := func(n int) string { return strings.Repeat("x", n) }
	return []codeRow{
		{name: "create twice", line: "POST /v1/topics", body: `{"name":"orders"}`, status: 409, code: "topic_exists"},
		{name: "create without name", line: "POST /v1/topics", body: `{}`, status: 400, code: "invalid_request", parameter: "name"},
		{name: "create with a bad name", line: "POST /v1/topics", body: `{"name":"a/b"}`, status: 400, code: "invalid_topic_name"},
		{name: "create out of range", line: "POST /v1/topics", body: `{"name":"n","partitions":1025}`, status: 400, code: "invalid_request", parameter: "partitions"},
		{name: "factor of 2", line: "POST /v1/topics", body: `{"name":"n","replication_factor":2}`, status: 400, code: "invalid_request", parameter: "replication_factor"},
		{name: "dead letters", line: "POST /v1/topics", body: `{"name":"n","dead_letter_topic":"d"}`, status: 501, code: "not_implemented"},
		{name: "max deliveries", line: "POST /v1/topics", body: `{"name":"n","max_deliveries":3}`, status: 501, code: "not_implemented"},
		{name: "schema", line: "POST /v1/topics", body: `{"name":"n","schema":{"type":"object"}}`, status: 501, code: "not_implemented"},
		{name: "field unknown", line: "POST /v1/topics", body: `{"name":"n","colour":1}`, status: 400, code: "invalid_request", parameter: "colour"},
		{name: "field in capitals", line: "POST /v1/topics", body: `{"Name":"n"}`, status: 400, code: "invalid_request", parameter: "Name"},
		{name: "field twice", line: "POST /v1/topics", body: `{"name":"n","name":"n"}`, status: 400, code: "invalid_request", parameter: "name"},
		{name: "field null", line: "POST /v1/topics", body: `{"name":"n","reroute":null}`, status: 400, code: "invalid_request", parameter: "reroute"},
		{name: "field of another type", line: "POST /v1/topics", body: `{"name":"n","partitions":"3"}`, status: 400, code: "invalid_request", parameter: "partitions"},
		{name: "fraction", line: "POST /v1/topics", body: `{"name":"n","partitions":3.0}`, status: 400, code: "invalid_request", parameter: "partitions"},
		{name: "two values", line: "POST /v1/topics", body: `{"name":"n"}{}`, status: 400, code: "invalid_request", parameter: "body"},
		{name: "cut", line: "POST /v1/topics", body: `{"name":"n"`, status: 400, code: "invalid_request", parameter: "body"},
		{name: "empty body", line: "POST /v1/topics", status: 400, code: "invalid_request", parameter: "body"},
		{name: "list", line: "POST /v1/topics", body: `[]`, status: 400, code: "invalid_request", parameter: "body"},
		{name: "not UTF-8", line: "POST /v1/topics", body: "{\"name\":\"\xff\"}", status: 400, code: "invalid_request", parameter: "body"},
		{name: "text body", line: "POST /v1/topics", body: `{"name":"n"}`, header: header{"Content-Type", "text/plain"}, status: 415, code: "unsupported_media_type"},
		{name: "gzip body", line: "POST /v1/topics", body: `{"name":"n"}`, header: header{"Content-Encoding", "gzip"}, status: 415, code: "unsupported_encoding"},
		{name: "large body", line: "POST /v1/topics", body: long(1<<20 + 1), status: 413, code: "body_too_large"},
		{name: "no leader", line: "POST /v1/topics", body: `{"name":"n"}`, fail: "Create", failWith: problem.New(problem.NoMetastoreLeader, "none"), status: 503, code: "no_metastore_leader"},
		{name: "few nodes", line: "POST /v1/topics", body: `{"name":"n"}`, fail: "Create", failWith: problem.New(problem.NotEnoughStorage, "none"), status: 503, code: "not_enough_storage_nodes"},
		{name: "no answer", line: "POST /v1/topics", body: `{"name":"n"}`, fail: "Create", failWith: context.DeadlineExceeded, status: 504, code: "outcome_unknown"},
	}
}

func listRows() []codeRow {
	return []codeRow{
		{name: "list limit", line: "GET /v1/topics?limit=1001", status: 400, code: "invalid_request", parameter: "limit"},
		{name: "page token", line: "GET /v1/topics?page_token=%21", status: 400, code: "invalid_request", parameter: "page_token"},
		{name: "get unknown", line: "GET /v1/topics/nobody", status: 404, code: "topic_not_found"},
	}
}

func patchRows() []codeRow {
	return []codeRow{
		{name: "patch nothing", line: "PATCH /v1/topics/orders", body: `{}`, status: 400, code: "invalid_request", parameter: "body"},
		{name: "patch immutable", line: "PATCH /v1/topics/orders", body: `{"replication_factor":1}`, status: 409, code: "immutable_field", parameter: "replication_factor"},
		{name: "patch read-only", line: "PATCH /v1/topics/orders", body: `{"version":2}`, status: 409, code: "immutable_field", parameter: "version"},
		{name: "patch unknown", line: "PATCH /v1/topics/orders", body: `{"colour":2}`, status: 400, code: "invalid_request", parameter: "colour"},
		{name: "patch grows", line: "PATCH /v1/topics/orders", body: `{"partitions":9}`, status: 200},
		{name: "patch grows too far", line: "PATCH /v1/topics/orders", body: `{"partitions":1025}`, status: 400, code: "invalid_request", parameter: "partitions"},
		{name: "patch shrinks", line: "PATCH /v1/topics/orders", body: `{"partitions":1}`, status: 400, code: "invalid_request", parameter: "partitions"},
		{name: "patch range", line: "PATCH /v1/topics/orders", body: `{"retention_ms":5}`, status: 400, code: "invalid_request", parameter: "retention_ms"},
		{name: "patch stale", line: "PATCH /v1/topics/orders", body: `{"reroute":false}`, header: header{"If-Match", `"3f9a17c4e2b08d51-2"`}, status: 412, code: "precondition_failed"},
		{name: "patch star", line: "PATCH /v1/topics/orders", body: `{"reroute":false}`, header: header{"If-Match", `*`}, status: 400, code: "invalid_request", parameter: "If-Match"},
		{name: "patch two", line: "PATCH /v1/topics/orders", body: `{"reroute":false}`, header: header{"If-Match", `"3f9a17c4e2b08d51-1", "3f9a17c4e2b08d51-2"`}, status: 400, code: "invalid_request", parameter: "If-Match"},
		{name: "patch weak", line: "PATCH /v1/topics/orders", body: `{"reroute":false}`, header: header{"If-Match", `W/"3f9a17c4e2b08d51-1"`}, status: 400, code: "invalid_request", parameter: "If-Match"},
		{name: "delete stale", line: "DELETE /v1/topics/orders", header: header{"If-Match", `"3f9a17c4e2b08d52-1"`}, status: 412, code: "precondition_failed"},
		{name: "delete newer", line: "DELETE /v1/topics/orders", header: header{"If-Match", `"3f9a17c4e2b08d51-9"`}, status: 412, code: "precondition_failed"},
		{name: "delete changed", line: "DELETE /v1/topics/orders", fail: "Delete", failWith: problem.New(problem.TopicChanged, "x"), status: 409, code: "topic_changed"},
	}
}

func produceRows() []codeRow {
	long := func(n int) string { return strings.Repeat("x", n) }
	return []codeRow{
		{name: "produce unknown", line: "POST /v1/topics/nobody/produce", body: "x", status: 404, code: "topic_not_found"},
		{name: "produce nothing", line: produce, status: 400, code: "empty_message"},
		{name: "produce too much", line: produce, body: long(1<<20 + 1), status: 413, code: "message_too_large"},
		{name: "ack of another kind", line: produce + "?ack=maybe", body: "x", status: 400, code: "invalid_request", parameter: "ack"},
		{name: "timeout without committed", line: produce + "?timeout=5s", body: "x", status: 400, code: "invalid_request", parameter: "timeout"},
		{name: "long key", line: produce + "?key=" + long(1025), body: "x", status: 400, code: "invalid_key"},
		{name: "key cut", line: produce + "?key=%4", body: "x", status: 400, code: "invalid_key"},
		{name: "partition 3 of 3", line: produce + "?partition=3", body: "x", status: 400, code: "partition_out_of_range"},
		{name: "partition -1", line: produce + "?partition=-1", body: "x", status: 400, code: "invalid_request", parameter: "partition"},
		{name: "another life", line: produce + "?incarnation=0000000000000001", body: "x", status: 409, code: "topic_changed"},
		{name: "no incarnation", line: produce + "?incarnation=1", body: "x", status: 400, code: "invalid_request", parameter: "incarnation"},
		{name: "batch as a message", line: produce, body: "x", header: header{"Content-Type", batch.ContentType}, status: 415, code: "unsupported_media_type"},
		{name: "deflate", line: produce, body: "x", header: header{"Content-Encoding", "deflate"}, status: 415, code: "unsupported_encoding"},
		{name: "two encodings", line: produce, body: "x", header: header{"Content-Encoding", "gzip, zstd"}, status: 415, code: "unsupported_encoding"},
		{name: "encoding twice", line: produce, body: "x", header: header{"Content-Encoding", "gzip", "Content-Encoding", "gzip"}, status: 415, code: "unsupported_encoding"},
		{name: "not zstd", line: produce, body: "x", header: header{"Content-Encoding", "zstd"}, status: 400, code: "invalid_encoding"},
		{name: "not gzip", line: produce, body: "x", header: header{"Content-Encoding", "gzip"}, status: 400, code: "invalid_encoding"},
		{name: "long content type", line: produce, body: "x", header: header{"Content-Type", "a/" + long(255)}, status: 400, code: "invalid_request", parameter: "Content-Type"},
		{name: "attribute name", line: produce, body: "x", header: header{"Narad-Attr-A_b", "x"}, status: 400, code: "invalid_attribute"},
		{name: "no attribute name", line: produce, body: "x", header: header{"Narad-Attr-", "x"}, status: 400, code: "invalid_attribute"},
		{name: "reserved attribute", line: produce, body: "x", header: header{"Narad-Attr-Narad-Foo", "x"}, status: 400, code: "invalid_attribute"},
		{name: "attribute twice", line: produce, body: "x", header: header{"Narad-Attr-a", "x", "narad-attr-A", "x"}, status: 400, code: "invalid_attribute"},
		{name: "attribute and traceparent", line: produce, body: "x", header: header{"Narad-Attr-Traceparent", "x", "traceparent", "x"}, status: 400, code: "invalid_attribute"},
		{name: "attribute not UTF-8", line: produce, body: "x", header: header{"Narad-Attr-A", "\xff"}, status: 400, code: "invalid_attribute"},
		{name: "attribute with C1", line: produce, body: "x", header: header{"Narad-Attr-A", "a\u0085b"}, status: 400, code: "invalid_attribute"},
		{name: "long attribute", line: produce, body: "x", header: header{"Narad-Attr-A", long(1025)}, status: 400, code: "invalid_attribute"},
		{name: "17 attributes", line: produce, body: "x", header: attributes(17, 1), status: 400, code: "invalid_attribute"},
		{name: "5 KiB of attributes", line: produce, body: "x", header: attributes(5, 1024), status: 400, code: "invalid_attribute"},
		{name: "WAL failed", line: produce, body: "x", fail: "Accept", failWith: problem.New(problem.WALUnavailable, "x").Unknown(), status: 503, code: "wal_unavailable"},
		{name: "disk full", line: produce, body: "x", fail: "Accept", failWith: problem.New(problem.DiskFull, "x"), status: 503, code: "disk_full"},
		{name: "any error", line: produce, body: "x", fail: "Accept", failWith: context.Canceled, status: 504, code: "outcome_unknown"},
	}
}

func batchRows() []codeRow {
	long := func(n int) string { return strings.Repeat("x", n) }
	return []codeRow{
		{name: "batch of text", line: batches, body: "x", header: header{"Content-Type", "text/plain"}, status: 415, code: "unsupported_media_type"},
		{name: "batch with producer", line: batches, body: `{"messages":[]}`, header: header{"Narad-Producer", "p:0"}, status: 400, code: "invalid_request", parameter: "Narad-Producer"},
		{name: "batch with attribute header", line: batches, body: `{"messages":[]}`, header: header{"Narad-Attr-A", "x"}, status: 400, code: "invalid_attribute"},
		{name: "batch with key", line: batches + "?key=a", body: `{"messages":[]}`, status: 400, code: "invalid_request", parameter: "key"},
		{name: "empty batch", line: batches, body: `{"messages":[]}`, status: 400, code: "invalid_batch"},
		{name: "no messages", line: batches, body: `{}`, status: 400, code: "invalid_batch"},
		{name: "large batch", line: batches, body: long(16<<20 + 1), status: 413, code: "body_too_large"},
		{name: "1001 messages", line: batches, body: `{"messages":[` + strings.Repeat(`{"payload":1},`, 1000) + `{"payload":1}]}`, status: 400, code: "batch_too_large"},
		{name: "binary", line: batches, body: "NRB1", header: header{"Content-Type", batch.ContentType}, status: 400, code: "invalid_batch"},
	}
}

func consumeRows() []codeRow {
	return []codeRow{
		{name: "wait", line: consume + "?wait=31s", status: 400, code: "invalid_request", parameter: "wait"},
		{name: "wait without unit", line: consume + "?wait=5", status: 400, code: "invalid_request", parameter: "wait"},
		{name: "wait negative", line: consume + "?wait=-1s", status: 400, code: "invalid_request", parameter: "wait"},
		{name: "wait huge", line: consume + "?wait=99999999999999999999s", status: 400, code: "invalid_request", parameter: "wait"},
		{name: "wait overflows", line: consume + "?wait=999999999999999999m", status: 400, code: "invalid_request", parameter: "wait"},
		{name: "max 0", line: consume + "?max=0", status: 400, code: "invalid_request", parameter: "max"},
		{name: "max 1001", line: consume + "?max=1001", status: 400, code: "invalid_request", parameter: "max"},
		{name: "max_bytes", line: consume + "?max_bytes=16777217", status: 400, code: "invalid_request", parameter: "max_bytes"},
		{name: "visibility", line: consume + "?visibility_timeout_ms=999", status: 400, code: "invalid_request", parameter: "visibility_timeout_ms"},
		{name: "encoding", line: consume + "?encoding=hex", status: 400, code: "invalid_request", parameter: "encoding"},
		{name: "consume partition", line: consume + "?partition=7", status: 400, code: "partition_out_of_range"},
		{name: "too many wait", line: consume + "?wait=0s", fail: "Consume", failWith: problem.New(problem.TooManyRequests, "x"), status: 429, code: "too_many_requests"},
		{name: "unavailable", line: consume + "?wait=0s", fail: "Consume", failWith: problem.New(problem.PartitionUnavailable, "x"), status: 503, code: "partition_unavailable"},
	}
}

func settleRows() []codeRow {
	return []codeRow{
		{name: "no handle", line: ack, status: 400, code: "invalid_request", parameter: "body"},
		{name: "empty handle", line: ack + "?receipt_handle=", status: 400, code: "invalid_receipt_handle"},
		{name: "nonsense handle", line: ack + "?receipt_handle=abc", status: 400, code: "invalid_receipt_handle"},
		{name: "escaped handle", line: ack + "?receipt_handle=%2541", status: 400, code: "invalid_receipt_handle"},
		{name: "handle twice", line: ack + "?receipt_handle=a&receipt_handle=a", status: 400, code: "invalid_request", parameter: "receipt_handle"},
		{name: "handle in both", line: ack + "?receipt_handle=" + noHandle, body: `{"receipt_handles":["a"]}`, status: 400, code: "invalid_request", parameter: "body"},
		{name: "handle of nothing", line: ack + "?receipt_handle=" + noHandle, status: 410, code: "lease_lost"},
		{name: "handle of another life", line: ack + "?receipt_handle=AQAAAAIAAAAAAAAAKQAAAAcAAAAAAAAAAQECAwQFBgcICQoLDA", status: 410, code: "lease_lost"},
		{name: "empty list", line: ack, body: `{"receipt_handles":[]}`, status: 400, code: "invalid_request", parameter: "receipt_handles"},
		{name: "extend without time", line: "POST /v1/topics/orders/extend?receipt_handle=" + noHandle, status: 400, code: "invalid_request", parameter: "visibility_timeout_ms"},
		{name: "extend for ever", line: "POST /v1/topics/orders/extend?visibility_timeout_ms=9223372036854775807&receipt_handle=" + noHandle, status: 400, code: "invalid_request", parameter: "visibility_timeout_ms"},
		{name: "extend list without time", line: "POST /v1/topics/orders/extend", body: `{"receipt_handles":["a"]}`, status: 400, code: "invalid_request", parameter: "visibility_timeout_ms"},
		{name: "nack delay", line: "POST /v1/topics/orders/nack?delay_ms=43200001&receipt_handle=" + noHandle, status: 400, code: "invalid_request", parameter: "delay_ms"},
		{name: "ack takes no delay", line: ack, body: `{"receipt_handles":["a"],"delay_ms":1}`, status: 400, code: "invalid_request", parameter: "delay_ms"},
		{name: "owner is down", line: ack + "?receipt_handle=" + noHandle, fail: "SettleOne", failWith: context.Canceled, status: 503, code: "partition_unavailable"},
		{name: "owner is silent", line: ack + "?receipt_handle=" + noHandle, fail: "Settle", failWith: context.DeadlineExceeded, status: 504, code: "outcome_unknown"},
	}
}

func replayRows() []codeRow {
	return []codeRow{
		{name: "replay of all", line: replay, status: 400, code: "invalid_request", parameter: "partition"},
		{name: "replay from both", line: replay + "?partition=0&offset=0&since=2026-11-29T20:04:05Z", status: 400, code: "invalid_request", parameter: "since"},
		{name: "replay since yesterday", line: replay + "?partition=0&since=yesterday", status: 400, code: "invalid_request", parameter: "since"},
		{name: "replay beyond", line: replay + "?partition=0&offset=1", status: 400, code: "offset_out_of_range"},
		{name: "replay of another life", line: replay + "?partition=0&incarnation=0000000000000001", status: 409, code: "topic_changed"},
		{name: "replay below", line: replay + "?partition=0&offset=0", fail: "Read", failWith: problem.New(problem.OffsetGone, "x"), status: 410, code: "offset_gone"},
		{name: "replay too far", line: replay + "?partition=0&offset=9223372036854775808", status: 400, code: "invalid_request", parameter: "offset"},
	}
}

func laterRows() []codeRow {
	return []codeRow{
		{name: "unknown member", line: "GET /v1/cluster/members/nobody", status: 404, code: "member_not_found"},
		{name: "position", line: "POST /v1/topics/orders/position", body: `{}`, status: 501, code: "not_implemented"},
		{name: "forget a member", line: "POST /v1/cluster/members/storage-1/forget", status: 409, code: "has_member_record"},
		{name: "forget nobody", line: "POST /v1/cluster/members/nobody/forget", status: 404, code: "member_not_found"},
		{name: "forget a bad name", line: "POST /v1/cluster/members/%2/forget", status: 404, code: "member_not_found"},
		{name: "forget one with partitions", line: "POST /v1/cluster/members/ghost/forget", fail: "Forget", failWith: problem.New(problem.HasAssignments, "x"), status: 409, code: "has_assignments"},
		{name: "forget without a leader", line: "POST /v1/cluster/members/ghost/forget", fail: "Forget", failWith: problem.New(problem.NoMetastoreLeader, "x"), status: 503, code: "no_metastore_leader"},
		{name: "forget without an answer", line: "POST /v1/cluster/members/ghost/forget", fail: "Forget", failWith: context.DeadlineExceeded, status: 504, code: "outcome_unknown"},
		{name: "backup of an old replica", line: "GET /v1/cluster/backup", fail: "Backup", failWith: problem.New(problem.NotReady, "x"), status: 503, code: "not_ready"},
		{name: "one backup too many", line: "GET /v1/cluster/backup", fail: "Backup", failWith: problem.New(problem.Overloaded, "x"), status: 503, code: "overloaded"},
		{name: "users", line: "GET /v1/users", status: 501, code: "not_implemented"},
		{name: "a fault of ours", line: "GET /v1/topics", fail: "List", failWith: errSecret, status: 500, code: "internal"},
	}
}
