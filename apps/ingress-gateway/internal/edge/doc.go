// Package edge runs an api.Handler on fasthttp: it turns connections into
// api.Request and api.Response, and keeps what HTTP/1.1 promises where servers
// usually cut corners.
//
// Why fasthttp: `go test -run xxx -bench Server ./internal/edge` runs a
// produce-like handler with 64 connections and 256 bytes on both servers, client
// and server on the same two cores. The machine was shared: eight runs gave
// fasthttp 34,000 to 95,000 requests/s with 2 to 4 allocations each, net/http
// 19,000 to 54,000 with 34, and a median ratio of 1.75 (one run in eight had
// net/http ahead by 7 %). At the edges fasthttp routes nothing, cleans no path
// and redirects nothing, which is what the API asks for; what it lacks is added
// here. The price is a read buffer of 40 KiB for each open connection, idle or
// not, because a header must fit into it. net/http is only the comparison in
// the benchmark; HTTP/2 would be the reason to come back to it.
//
// Added here, each with a test over real sockets:
//
//   - a body is read by the handler, not before it, and gets bodyTimeout as a
//     whole; a header gets headerTimeout (TestSlowClients)
//   - "100 Continue" goes out only when a dry run of the handler wanted the body
//     (TestExpectContinue)
//   - an answer that comes before the end of the body is followed by a bounded
//     drain, so that the client sees the answer and not a reset
//     (TestTooLargeBodyIsAnsweredNotReset)
//   - a client that closes its side while its consume is parked is noticed
//     (TestAbandonedConsume); a half-closed connection counts as closed
//   - an answer that could not be written is reported to the handler, which
//     releases its leases (TestUnwrittenAnswerReleases)
//   - connections beyond the limit wait in the listen queue, and running out of
//     descriptors does not end the server (TestMaxConnections,
//     TestListenerSurvivesPassingErrors)
//
// Invariant: for each Serve or Refuse of the handler, Response.Finish is called
// exactly once, by the goroutine of the connection, after the last write.
//
// The package decides nothing about routes, names or messages. Whether there is
// TLS is the listener's business; all of the above holds over it (TestOverTLS).
package edge
