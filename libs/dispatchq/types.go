package dispatchq

import (
	"time"

	"github.com/narad-mq/narad/libs/topic"
)

// Key names a queue.
type Key struct {
	Topic       string
	Incarnation topic.Incarnation
	Partition   int32 // that the record was accepted for
	Pinned      bool  // the client named the partition: never rerouted
}

// Pos is where the shell finds a record again. The machine only carries it. It
// has the fields of wal.Position, so that one converts into the other.
type Pos struct {
	Segment uint64
	Frame   uint32
	Record  uint32
	Size    uint32
	Index   uint32
}

// Item is one record on its way. It holds no pointer: there may be half a million.
type Item struct {
	Pos    Pos
	WAL    topic.ID64 // identity under which the record was first written
	Seq    uint64     // number of that identity
	Chunk  uint64     // the shell's: where the body may still be in memory
	At     uint32     // the shell's: offset there
	Size   uint32     // length of the body
	Parked bool       // it lies in the parked log of its queue, not in the WAL
	added  time.Duration
}

// State is what the view says of one life of a topic.
type State uint8

// The states.
const (
	Unavailable State = iota // the view cannot tell: everything waits where it is
	Live
	Gone // the name is gone or has another incarnation: records are held
)

// Place is one partition as the view shows it.
type Place struct {
	Leader string // node id; "": none
	Alive  bool   // the member table says that the leader lives
	DiskID topic.ID64
	Epoch  topic.Epoch
	// Elects tells that a new leader comes by itself and soon, with everything that
	// the one before had: a single copy on its way to another node, both alive.
	// Leaving it for another partition would cost a duplicate and gain nothing.
	Elects bool
}

// serves tells whether there is somebody to send to, or will be soon.
func (p *Place) serves() bool { return p.Elects || p.Leader != "" && p.Alive }

// Route is what the view says of one life of a topic at one moment. Immutable; a
// World returns the same pointer while nothing changed.
type Route struct {
	State   State
	Reroute bool    // single copy, and the topic allows it
	Places  []Place // index = partition
}

// World answers what the local metadata view says. Cheap: it is asked per
// life of a topic at each change of the view.
type World interface {
	Route(name string, id topic.Incarnation) *Route
}

// Target is the partition that a batch or probe goes to.
type Target struct {
	Partition int32
	Place
}

// Batch is an order to send: the items, in order, to Target, and to report the
// outcome with Answer.
type Batch struct {
	ID     uint64
	Key    Key
	Target Target
	Items  []Item
}

// Outcome is what became of a batch.
type Outcome uint8

// The outcomes.
const (
	Committed Outcome = iota // everything in it is committed
	Refused                  // surely nothing was done
	Mismatch                 // the leader knows another life of the topic (412); nothing was done
	Unknown                  // it may be done now or later
)

// Probe is an order to ask the leader of a queue's own partition whether it
// serves, without any record, and to report with Probed.
type Probe struct {
	Key    Key
	Target Target
}

// Park is an order to append the items, in order and synced, to the parked log of
// the queue, and to report with Parked. Then they are done for the WAL.
type Park struct {
	Key   Key
	Items []Item
}

// Load is an order to read the next records of the queue's parked log, at most
// Most, and to report with Loaded. Records whose batch was committed are removed
// from the log by the shell.
type Load struct {
	Key  Key
	Most int
}

// Orders is what the shell has to do now.
type Orders struct {
	Send  []Batch
	Probe []Probe
	Park  []Park
	Load  []Load
	Abort []uint64 // batches to give up waiting for, by ID; their outcome is Unknown
}

// Config holds the limits. DefaultConfig has the reasons.
type Config struct {
	Slots         int           // batches in flight that count
	SlotTime      time.Duration // after which a batch in flight no longer counts
	NodeOverdue   int           // batches in flight beyond SlotTime to one node before it gets no more
	BatchBytes    int           // of bodies
	BatchItems    int
	TargetItems   int           // below it a queue lingers while others are in flight
	MaxLinger     time.Duration // bound of twice the leader's recent commit latency
	RerouteAfter  time.Duration // of tries that surely did nothing
	RetryMin      time.Duration // first pause after a failure; doubles
	RetryMax      time.Duration
	ProbeInterval time.Duration // of the own partition while rerouted; doubles up to ProbeMax
	ProbeMax      time.Duration
	ParkAfter     time.Duration // without progress
	ReparkAfter   time.Duration // between two parkings of one queue
	ConfirmAgain  time.Duration // between two questions about a life whose records are held
	MaxItems      int           // records known at a time, all queues
	LoadItems     int           // records of a parked log known at a time, per queue; less when there are many such logs
}

// DefaultConfig is what gateways run with.
func DefaultConfig() Config {
	return Config{
		Slots: 16, SlotTime: time.Second,
		NodeOverdue:  4,              // each may hold 8 MiB; a black hole must not fill the memory
		BatchBytes:   8<<20 - 64<<10, // a remote batch is at most 8 MiB, with 16 bytes a record and a header
		BatchItems:   4096,           // 64 records already amortise a sync; above 4096 nothing is won
		TargetItems:  64,
		MaxLinger:    50 * time.Millisecond,
		RerouteAfter: 3 * time.Second,
		RetryMin:     20 * time.Millisecond, RetryMax: time.Second,
		ProbeInterval: time.Second, ProbeMax: 30 * time.Second,
		ParkAfter: 5 * time.Minute, ReparkAfter: 30 * time.Second,
		ConfirmAgain: 10 * time.Second, // a name may be held for long: one barrier a pass must stay nothing
		MaxItems:     500_000,          // about 100 bytes each
		LoadItems:    4096,
	}
}

// Stats counts what the machine holds.
type Stats struct {
	Items    int    // records known, parked windows included
	Unloaded int64  // records in parked logs that are not known yet
	Held     int64  // of both, those of lives that the view or a leader refuses
	InFlight int    // batches
	Rerouted uint64 // records sent to another partition than their own, ever, repeats included
}
