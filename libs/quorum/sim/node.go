package sim

import (
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// disk is what a crash leaves.
type disk struct {
	id, copy  topic.ID64
	directory bool
	log       plog  // with what is written and not synced
	synced    int64 // end of what is
	hwm       int64 // stored
	fence     topic.Epoch
	damaged   bool  // something that it has committed cannot be read, at
	bad       int64 // below hwm
}

// node is a storage node with its copy of the partition. Everything below disk
// is gone when the process is.
type node struct {
	w     *world
	index int
	name  string
	disk  disk

	up        bool
	boot      uint64 // nonce of this start
	downUntil int    // step
	deafUntil int    // step
	idleUntil int    // step
	ledBefore bool   // it led when it stopped
	at        int    // index of the metastore's state that this node shows
	fence     *quorum.Fence
	promise   topic.Epoch // taken and not yet written; 0: none
	follower  *quorum.Follower
	lead      *quorum.Leader
	waiting   []waiter
	reads     []read
	paused    bool // hand-over: nothing is appended
	asked     bool // a fetch is under way, or lost

	// What planted bugs need.
	ends    map[quorum.Replica]int64 // as fetched
	pretend quorum.Replica           // the recorded replica that a wiped copy goes by
	highest int64                    // HWM by a wrong rule
}

// self is the copy as it is on the disk.
func (n *node) self() quorum.Replica {
	return quorum.Replica{Node: n.name, Disk: n.disk.id, Copy: n.disk.copy}
}

// shown is what this node's replica of the metastore shows.
func (n *node) shown() *state { return &n.w.meta.states[n.at] }

// registered tells whether the own registration of this start is shown: until
// then it leads nothing.
func (n *node) registered() bool { return n.shown().boots[n.index] == n.boot }

func (n *node) hwm() int64 {
	switch {
	case !n.up:
		return n.disk.hwm
	case n.lead != nil:
		return max(n.lead.HWM(), n.highest)
	}
	return n.follower.HWM()
}

// start opens the copy. What survived of the unsynced tail is synced before it
// is believed.
func (n *node) start() {
	n.up, n.boot, n.promise, n.lead, n.waiting, n.reads, n.asked = true, n.w.boot(), 0, nil, nil, nil, false
	n.disk.synced = n.disk.log.end()
	n.judge()
	n.fence = quorum.NewFence(n.known(), n.disk.fence)
	n.fence.Recorded(n.shown().set.Replicas)
	n.follow()
	n.shownMore()
}

// known is the replica that this copy goes by.
func (n *node) known() quorum.Replica {
	if n.w.bug == WipedFences && n.pretend.Node != "" {
		return n.pretend
	}
	return n.self()
}

func (w *world) boot() uint64 { return uint64(w.id()) }

// judge looks whether the copy is what it was, and makes it another one if not.
func (n *node) judge() {
	recorded, _ := n.shown().recorded(n.name)
	d := &n.disk
	verdict := quorum.JudgeCopy(quorum.Found{
		Disk: d.id, Directory: d.directory, Copy: d.copy, FenceValid: d.directory, LEO: d.synced, HWM: d.hwm,
	}, recorded, false) // a lone copy loses nothing here
	if verdict == quorum.Lost || !d.directory {
		n.pretend = recorded
		d.copy, d.directory, d.fence = n.w.id(), true, 0
		d.hwm = min(d.hwm, d.synced)
		n.note("starts over as copy %d", d.copy)
	}
}

// follow opens the copy as a follower; everything written is synced first.
func (n *node) follow() {
	hwm := n.disk.hwm
	if n.lead != nil {
		hwm = max(hwm, n.hwm())
	}
	n.disk.synced = n.disk.log.end()
	f, err := quorum.NewFollower(n.fence, quorum.Local{LEO: n.disk.synced, HWM: hwm, LastEpoch: n.disk.log.lastEpoch()})
	if err != nil {
		fail("%s: %v", n.name, err)
	}
	n.follower, n.lead, n.waiting, n.reads, n.ends, n.highest = f, nil, nil, nil, nil, 0
}

// boot1 starts a process that is down, or registers one that is up.
func (n *node) boot1() bool {
	switch {
	case !n.up && n.w.stats.Steps < n.downUntil:
		return false
	case !n.up:
		n.note("starts")
		n.start()
	case n.w.meta.now().boots[n.index] != n.boot:
		n.note("registers")
		n.w.register(n)
	default:
		return false
	}
	return true
}

// How many steps a node stays down, deaf or idle at most: some elections long.
const (
	downMost = 120
	deafMost = 400
)

// crash takes the process and part of what is not synced. The metastore's
// replica may come back some entries older.
func (n *node) crash() bool {
	if !n.up {
		return false
	}
	n.ledBefore, n.downUntil = n.lead != nil, n.w.stats.Steps+n.w.draw.n(1+n.w.draw.n(downMost))
	n.up, n.lead, n.follower, n.paused = false, nil, nil, false
	if n.w.draw.one(3) {
		n.deafen()
	}
	d := &n.disk
	d.log.cut(d.synced + int64(n.w.draw.n(int(d.log.end()-d.synced)+1)))
	n.at = max(0, n.at-n.w.draw.n(4))
	n.note("crashes, log ends at %d", d.log.end())
	return true
}

// whole tells whether the copy on the disk is that replica with all it vouched for.
func (n *node) whole(r quorum.Replica) bool { return n.self() == r && n.disk.synced >= n.disk.hwm }

// wipe takes a disk, a directory, or the end of a log below its stored HWM; the
// process is gone too. Only so much is lost that a majority lives, or lives once
// the last change of the set is taken back.
func (n *node) wipe() bool {
	set := n.w.meta.now().set
	if !n.w.survives(set.Replicas, n) && !n.w.outlives(&set, n) {
		return false
	}
	n.crash()
	d := &n.disk
	switch room := int(min(d.hwm, d.synced) - d.log.base.start); {
	case n.w.draw.one(3) && room > 0:
		d.log.cut(d.log.base.start + int64(n.w.draw.n(room)))
		d.synced = d.log.end()
		d.damaged = d.damaged && d.bad < d.synced
		n.note("loses its log from %d on, high watermark %d", d.synced, d.hwm)
	case n.w.draw.one(2):
		*d = disk{id: d.id}
		n.note("loses its directory")
	default:
		*d = disk{id: n.w.id()}
		n.note("loses its disk")
	}
	n.w.stats.Lost++
	return true
}

// persist writes the state slot: the HWM.
func (n *node) persist() bool {
	if !n.up || n.disk.hwm >= n.hwm() {
		return false
	}
	n.disk.hwm = n.hwm()
	return true
}

// retain removes records below the stored HWM.
func (n *node) retain() bool {
	room := int(n.disk.hwm - n.disk.log.base.start)
	if !n.up || room < 1 {
		return false
	}
	to := n.disk.log.base.start + 1 + int64(n.w.draw.n(room))
	n.disk.log.retain(to)
	n.gone(to)
	n.note("log starts at %d", to)
	return true
}

// deaf tells whether the node is cut off from the voters and their controller.
func (n *node) deaf() bool { return n.w.stats.Steps < n.deafUntil }

// deafen cuts it off for a while: it sees no entry, hears no fence, and goes on
// with what it knows.
func (n *node) deafen() bool {
	n.deafUntil = n.w.stats.Steps + n.w.draw.n(deafMost)
	n.note("is cut off from the voters")
	return true
}

// idle keeps a node from fetching for a while, so that it falls behind.
func (n *node) idle() bool {
	n.idleUntil = n.w.stats.Steps + n.w.draw.n(deafMost)
	n.note("fetches nothing")
	return true
}

// view shows the node some more of the metastore.
func (n *node) view() bool {
	behind := len(n.w.meta.states) - 1 - n.at
	if !n.up || behind == 0 || n.deaf() {
		return false
	}
	n.at += 1 + n.w.draw.n(behind)
	n.shownMore()
	return true
}

// shownMore acts on what the metastore shows now.
func (n *node) shownMore() {
	s := n.shown()
	n.fence.Recorded(s.set.Replicas)
	if n.lead != nil {
		n.applySet()
		if n.lead.Ended() == nil && s.lead.Epoch > n.lead.Epoch() {
			n.lead.StepDown(s.lead.Epoch)
		}
		n.demote()
	}
	switch {
	case s.lead.Leader == n.name:
		n.tryLead()
	case s.lead.Leader != "" && n.lead == nil:
		_ = n.follower.Follow(s.lead.Epoch) // a stale view is refused; a newer one comes
	}
	if n.w.tracing {
		n.note("sees epoch %d leader %q version %d", s.lead.Epoch, s.lead.Leader, s.set.Version)
	}
}

// demote makes a leader whose leadership has ended a follower again.
func (n *node) demote() {
	if n.lead != nil && n.lead.Ended() != nil {
		n.note("leads no more: %v", n.lead.Ended())
		n.follow()
	}
}

// settle does everything that a node without faults does by itself.
func (n *node) settle() {
	n.paused, n.downUntil, n.deafUntil, n.idleUntil = false, 0, 0, 0
	n.boot1()
	n.boot1()
	for n.view() {
		continue
	}
	n.needed()
	n.storeFence()
	n.sync()
	n.persist()
	n.fetch()
}

func (n *node) note(format string, args ...any) {
	if n.w.tracing {
		n.w.note(n.name+" "+format, args...)
	}
}
