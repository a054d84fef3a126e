package rpc

import "time"

// Prefix is the path below which the operations live.
const Prefix = "/rpc/v1/"

// The headers that every call carries.
const (
	headerCluster = "Narad-Cluster" // cluster id of the sender, empty before admission
	headerFrom    = "Narad-From"    // node id of the sender
	headerTo      = "Narad-To"      // node id that the sender means, empty when it does not know
)

// Class groups operations that share bounds. One class never starves another.
type Class uint8

// The classes.
const (
	ClassControl Class = iota // metadata, membership, wake-ups
	ClassCommit               // batches to a partition leader
	ClassConsume              // claims and replay
	ClassAck                  // settlements
	ClassFetch                // replication
	classes                   // how many there are
)

// String names the class.
func (c Class) String() string {
	return [...]string{"control", "commit", "consume", "ack", "fetch"}[c]
}

// Method is one operation, as client and server both know it.
type Method struct {
	Name       string // the last part of the path
	Class      Class
	MaxRequest int // bytes of the request body; above it 413
	MaxReply   int // bytes of the reply body; above it the call fails
}

// Bounds of one class.
type bounds struct {
	slots int64 // calls at once in one server
	bytes int64 // request bodies in memory at once in one server
	conns int   // connections of one client to one peer
}

// defaultBounds gives each class its bounds. Slots: a gateway has at most 16
// batches in flight, so 512 commits serve 32 gateways that all aim at one node;
// a claim or settlement never waits, so 256 of them saturate any machine, and
// control waits for Raft, so that 256 is what a voter may have proposed at
// once. Bytes: about eight of the largest bodies of the class, at least. Conns: one
// connection carries one call at a time, and past these the client coalesces.
func defaultBounds() [classes]bounds {
	return [classes]bounds{
		ClassControl: {slots: 256, bytes: 32 << 20, conns: 16},
		ClassCommit:  {slots: 512, bytes: 256 << 20, conns: 32},
		ClassConsume: {slots: 256, bytes: 32 << 20, conns: 32},
		ClassAck:     {slots: 256, bytes: 64 << 20, conns: 32},
		ClassFetch:   {slots: 256, bytes: 32 << 20, conns: 16},
	}
}

// Timeouts of the plane.
const (
	// DefaultBudget ends a call whose context has no deadline: no operation is
	// meant to take longer.
	DefaultBudget = 10 * time.Second
	// dialTimeout is generous for a network of one data centre, and short
	// enough to try another peer within a user's patience.
	dialTimeout = 3 * time.Second
	// A peer that vanished without a word must not cost one call's budget for
	// each idle connection: probes find it within about 20 s.
	probeIdle, probeInterval, probeCount = 10 * time.Second, 3 * time.Second, 3
	// headerTimeout closes connections that trickle their header.
	headerTimeout = 5 * time.Second
	// readTimeout bounds header and body of one request. It must stay above
	// DefaultBudget, with room: net/http ends the context of a handler that is
	// still running at that moment.
	readTimeout = 30 * time.Second
	// writeTimeout bounds a call from its header to the end of its reply, for
	// peers that do not read.
	writeTimeout = 60 * time.Second
	// clientIdle is below serverIdle, so that the side that writes next closes.
	clientIdle = 90 * time.Second
	serverIdle = 180 * time.Second
)

const (
	// maxHeaderBytes is far above what our own client sends (under 1 KiB).
	maxHeaderBytes = 8 << 10
	// maxConns bounds the connections of one server: 40 peers with every class
	// at its bound; more wait in the listen queue.
	maxConns = 5120
	// maxProblemBytes bounds a refusal: the longest carries a topic record.
	maxProblemBytes = 64 << 10
)
