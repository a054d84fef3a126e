// Package tlsconf is TLS for a plane: it loads certificates, wraps listeners and
// dial functions with them, and takes new files into use while the process runs.
//
// Between nodes (a CA is given) both sides show a certificate of one cluster CA,
// and TLS 1.3 is the least. A client checks the server's certificate against the
// CA and against the host that it dialled: nodes dial each other by --advertise
// and --join, so these hosts have to be among the certificate's names (DNS names
// or IP addresses). Which node answers at a host is checked above, by node id, in
// every call (rpc, wrong_node); the name in a certificate is not tied to a node
// id. On a port for clients (no CA) only the server shows a certificate and TLS 1.2
// is enough.
//
// Invariants: a pair in use was valid, matched, came from its own CA and covered
// its own host when it was taken; files that fail any of this are refused at the
// start, and later leave the pair in use as it is (TestBadFilesKeepThePair). A
// connection keeps the certificates of its handshake until it ends: new files
// drop nothing. A failed handshake ends its own connection and costs one log line
// a minute at most, whoever causes it (TestHandshakeFailuresAreQuiet).
//
// A nil *Source is a plane without TLS. No key is ever logged or shown. Making
// certificates is package certs below.
package tlsconf
