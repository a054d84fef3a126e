// Package dev runs a whole Narad cluster as real processes on loopback: it lays out
// ports, starts the three daemons, starts again what dies, and stops all in order.
// `narad dev` is its command line; drills and end-to-end tests steer it by files.
//
// Under <data-dir>: <node-id>/ is a node's own, run/<node-id>.pid and run/<node-id>.log
// belong to its process, run/endpoints.json lists all nodes with their addresses, and
// run/<node-id>.hold, made by whoever likes, keeps a dead node from being started
// again. dev.json remembers the ports and voters that the data was made with; certs/
// holds an authority and the nodes' certificates when they speak TLS. Files
// are replaced by rename, so that a reader never sees half of one.
//
// Invariant: no child outlives dev. Each runs in a process group of its own, so that
// Ctrl-C reaches dev alone and dev decides the order: gateways, storage nodes, voters.
// On Linux the kernel kills the children when dev dies without a chance to do so.
//
// It is ready when every node is and every voter has its vote: initial members form the
// cluster together, but one that starts seconds after the others finds it formed and has
// to be promoted. That is waited for, up to a minute, because whoever ends another voter
// meanwhile ends the majority.
//
// The NATS server of the bus runs inside dev, unless another one is named: nothing of
// it is on the disk.
//
// What it does not do: it never looks into a node's data, and it does not judge why a
// process died.
//
// The tests that explain it: TestKilledNodeIsStartedAgain, TestReadyFileWaitsForVotes, TestHoldKeepsANodeDown and
// TestChildrenDieWithDev.
package dev
