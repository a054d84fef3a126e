// Package api is the client-facing HTTP API as handlers that know no server.
//
// A server adapter (package edge) fills a Request, calls API.Serve, writes the
// Response and then calls Response.Finish with whether the answer went out. A
// handler validates everything that it can before it reads the body, and has no
// effect before that: an adapter that must decide about "Expect: 100-continue"
// serves the request with Request.Dry first and sends 100 only if the handler
// got as far as wanting the body.
//
// Invariants: a request is routed by its path as it stands, and the topic name
// that is validated is the very string that reaches the broker; every refusal is
// a problem of libs/problem, with applied on mutating routes only; memory taken
// for bodies is counted against one budget; a lease whose answer could not be
// written is released.
//
// Files: routes.go is the table of contents; limits.go every limit; http.go the
// seam to the server and broker.go the seam to the broker behind. The package
// does not authenticate (a later issue), does not know TLS, and stores nothing.
// TestEveryCode shows each refusal, TestRoundTripOfAllSmallBodies the rendering.
package api
