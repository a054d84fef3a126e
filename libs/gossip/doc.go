// Package gossip tells who is probably alive, a few seconds before the metastore
// knows it. It is the only importer of hashicorp/memberlist.
//
//	Open:  the port, TCP and UDP on one number; whoever comes is turned away
//	Run:   wait for the cluster id ──> memberlist, labelled with it ──> join who is missing, for ever
//
// Suspects is all that others see of it: a set of node ids. A node is suspected
// when it was heard in this process's life, the member table still says that it
// gossips, and the members of the gossip cluster have agreed that it is silent: no
// answer to a probe, direct, over others or over TCP, and no objection of its own.
//
// Invariants. A suspicion is a hint for routing: it says nothing of what a node
// has or has done, and no verdict of the metastore rests on it (tools/arch keeps
// this package out of everything that decides). Members of the member table only
// are let in, so strangers cost no memory. The label keeps clusters apart, also
// those with one secret. An error of the network never ends a program.
//
// It carries no data of the application and no metadata of members. Who cannot
// gossip at all is never suspected. gossip_test.go shows it over loopback.
package gossip
