// Package broadcast tests libs/bus against real NATS servers, inside the test: absent,
// restarted, silent, flooded, with TLS and with users. It is here, and not beside
// libs/bus, so that libs needs no server. scenarios/bus_test.go shows what the bus is
// for, with whole clusters.
//
// Invariant: every server and every bus has ended when its test has.
package broadcast
