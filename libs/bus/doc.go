// Package bus tells other nodes, at once and without a promise, what the metastore
// tells them anyway: that a topic was purged, that a member is being drained. It is
// the only importer of nats.go.
//
//	TopicPurged, MemberDraining ──> queue ──> Run ──> NATS, narad.<cluster id>.v1.<subject>
//	NATS ──> judge ──> queue ──> Config.TopicPurged, Config.MemberDraining
//
// A payload is one JSON document of at most 4 KiB, fields in this order:
//
//	{"v":1,"id":"<16 hex>","from":"gateway-1","sent_at":"2026-11-29T20:04:05.123Z","topic":"orders","incarnation":"3f9a17c4e2b08d51"}
//	{"v":1,"id":"<16 hex>","from":"voter-2","sent_at":"2026-11-29T20:04:05.123Z","member":"storage-3","draining":true}
//
// A reader subscribes to its own cluster's subjects, ignores fields that it does not
// know, and drops and counts what has another v, more bytes, or is not such a document.
//
// Invariants. Nobody who publishes ever waits: a full queue drops and counts. A
// server that is away, at the start too, is tried for ever and ends no program; what
// was queued meanwhile is sent late. Nothing is believed: whoever reaches the server
// can say everything, so a message is a reason to ask the metastore leader, never a
// reason to do. Lost, late, repeated and forged messages cost time, no data.
//
// It stores nothing (NATS core, no JetStream), uses no queue group, and acknowledges
// nothing. A nil Bus is one that is off. bus_test.go judges bytes; e2e/broadcast
// shows it against servers that are absent, restarted and flooded.
package bus
