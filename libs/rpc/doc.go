// Package rpc is the node RPC plane: POST /rpc/v1/<operation> over HTTP/1.1,
// strict JSON for control, raw bytes for data, problem+json for refusals.
//
// A Method names an operation with its class and its size bounds; the contract
// packages (metaapi, nodeapi, gatewayapi) hold the methods, and client and
// server share them. Invariants:
//
//   - Client.Call answers a whole reply, a *problem.Problem or a *TransportError.
//     A TransportError with Sent false is a promise that no byte of the request
//     left this process (TestSentIsExact).
//   - Each class has its own slots and body memory at the server and its own
//     connections at the client, so that a stalled class starves no other
//     (TestClassesDoNotStarveEachOther). Over a bound is an immediate 503
//     overloaded, applied no; nothing queues.
//   - A request goes to a peer of an older release without the fields that the
//     peer does not know, when they may be left out, and is refused otherwise
//     (TestRefusedFieldsAreLeftOut).
//   - A call that names another cluster or another node than the one that it
//     reached is refused before its body is read (TestWrongClusterIsRefused).
//
// The package knows no TLS: a server takes a listener and a client a dial
// function, and whoever makes them decides what is below. It retries nothing
// but what net/http knows was not written, and what was refused for a field.
package rpc
