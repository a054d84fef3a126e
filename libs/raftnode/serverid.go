package raftnode

import (
	"strings"

	"github.com/narad-mq/narad/libs/topic"
)

// Raft server ids. A vote, and a word for a stored entry, are promises of one
// disk: Raft counts them by server id. So a server that was admitted to a cluster
// is named for its node and its disk, "v1#3f9a17c4e2b08d51", and a node that lost
// its disk comes back as another server. Only the servers of a first
// configuration, which every initial member must write alike without knowing the
// disks of the others, are named for the node alone. People see node ids only.
//
// A node keeps its own in the stable store, from Admit or Bootstrap on.

// serverIDSeparator is in no node id.
const serverIDSeparator = "#"

// ServerID is the Raft server id of a node that is admitted with a disk.
func ServerID(nodeID string, disk topic.ID64) string {
	return nodeID + serverIDSeparator + disk.String()
}

// NodeOf is the node id in a Raft server id.
func NodeOf(serverID string) string {
	node, _, _ := strings.Cut(serverID, serverIDSeparator)
	return node
}
