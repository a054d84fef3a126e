// Package client is the Go client of Narad's HTTP API: topics, produce, consume
// with leases, replay and what the cluster says of itself. It needs the standard
// library only and is a module of its own.
//
// Invariant: a request is repeated only when repeating it cannot do harm. Every
// refusal says whether anything may have been applied (Error.Applied). "no" is
// retried while attempts last; "unknown" only for requests that are idempotent, or
// for a produce whose caller allowed duplicates. Once an attempt of a call ended
// unknown, the call's final error says unknown, whatever the last answer was.
//
// With several URLs a failing gateway is left for the next one at once; after a
// round over all of them the client backs off, with jitter and never earlier than
// Retry-After asks.
//
// Consume runs handlers over leased messages: leases are extended at a third of
// their length, a lost lease cancels the handler's context, nil acks, an error or a
// panic nacks, and an ack that is refused with 503 is repeated until its lease ends.
//
// What it does not do: it never follows a redirect, never splits a batch, keeps no
// message on disk, and promises at-least-once as the server does: dedupe by
// Delivery.ID.
//
// The tests that explain it: TestUnknownOutcomeIsNotRepeated, TestNextGateway and
// TestConsumeExtendsAtAThird.
package client
