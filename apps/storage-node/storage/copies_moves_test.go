package storage_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// mover is a partition of some copies on s1, s2... that moves, from s1 to s9 unless a
// test says otherwise. The test is the controller: package moves of the voter says in which order it goes.
type mover struct {
	*trio
	factor   int
	from, to string
	next     uint64 // record to commit
	idle     int    // tries to commit since the last one that did
}

// patienceTicks is after how many tries without a commit another one is elected, as
// followers that hear nothing of their leader ask for it.
const patienceTicks = 100

// phase is how far a move is, by what the metastore shows.
type phase int

const (
	unbegun  phase = iota
	copying        // the destination observes
	joined         // both are replicas, the source or nobody leads
	handed         // both are replicas, another one than the source leads
	finished       // the source is none
)

var phaseNames = [...]string{"unbegun", "copying", "joined", "handed over", "finished"}

// inMove runs a test with a partition of so many copies, s1 leading.
func inMove(t *testing.T, factor int, test func(m *mover), prepare ...func(m *mover)) {
	t.Helper()
	testkit.Bubble(t, func(t *testing.T) {
		m := &mover{trio: newTrio(t), factor: factor, from: "s1", to: "s9", next: 1}
		m.cfg.ReplicationFactor = factor
		m.nodes, m.a.Replicas = map[string]*member{}, nil
		for i := range factor + 1 {
			id := fmt.Sprintf("s%d", i+1)
			if i == factor {
				id = "s9"
			}
			one := &member{trio: m.trio, id: id, disk: topic.ID64(i + 1), fs: vfs.NewMem()}
			one.format()
			m.nodes[id] = one
			if id != "s9" {
				m.a.Replicas = append(m.a.Replicas, topic.Replica{Node: id, DiskID: one.disk})
			}
		}
		for _, f := range prepare {
			f(m)
		}
		m.change(func(*topic.Assignment) {})
		for _, one := range m.nodes {
			one.start()
		}
		defer m.shutDown()
		if factor > 1 {
			m.until("copies are recorded", func() bool {
				return !slices.ContainsFunc(m.assignment().Replicas, func(r topic.Replica) bool { return r.CopyID == 0 })
			})
		}
		m.until("s1 leads", func() bool { m.lead(); return m.assignment().Leader == "s1" && m.commitNext() })
		test(m)
	})
}

// lead lets somebody lead, as the controller does: a lone copy needs no election.
func (m *mover) lead() {
	a := m.assignment()
	if a.Leader != "" && m.reach("voter", a.Leader) != nil && m.idle < patienceTicks {
		return
	}
	m.idle = 0
	if len(a.Replicas) == 1 {
		m.change(func(a *topic.Assignment) {
			if a.Leader == "" {
				a.Leader = a.Replicas[0].Node
			}
		})
		return
	}
	_ = m.elect("s1") // it is tried again
}

// commitNext commits the next record, if that is possible now. A record whose outcome
// is unknown is sent again under its number.
func (m *mover) commitNext() bool {
	leader := m.assignment().Leader
	m.idle++
	if leader == "" || m.reach("voter", leader) == nil {
		return false
	}
	if _, err := m.commit(leader, batch(1, m.next)); err != nil {
		return false
	}
	m.next++
	m.idle = 0
	return true
}

func (m *mover) begin() {
	m.change(func(a *topic.Assignment) {
		a.Observers = []topic.Replica{{Node: m.to, DiskID: m.nodes[m.to].disk}}
		a.ConfigVersion++
	})
}

func (m *mover) phase() phase {
	a := m.assignment()
	_, here := a.ReplicaOn(m.from)
	_, there := a.ReplicaOn(m.to)
	switch {
	case !here:
		return finished
	case there && a.Leader != "" && a.Leader != m.from:
		return handed
	case there:
		return joined
	case len(a.Observers) > 0:
		return copying
	}
	return unbegun
}

// vouch asks the leader; zero when it does not answer.
func (m *mover) vouch() (v nodeapi.Vouch) {
	a := m.assignment()
	if a.Leader == "" {
		return v
	}
	role := m.reach("voter", a.Leader)
	if role == nil {
		return v
	}
	res, err := role.Replica().Vouch(m.t.Context(), &nodeapi.VouchRequest{Partitions: []topic.Ref{a.Ref}})
	if err != nil {
		return v
	}
	return res.Partitions[0]
}

// step makes the step of the move that follows, if its time has come.
func (m *mover) step() {
	a, v := m.assignment(), m.vouch()
	switch m.phase() {
	case unbegun, finished:
	case copying:
		c, ok := v.Copy(m.to)
		if lone, _ := a.ReplicaOn(m.from); !ok || c.CopyID == 0 || lone.CopyID == 0 {
			return
		}
		to := slices.Clone(a.Replicas)
		i := slices.IndexFunc(to, func(r topic.Replica) bool { return r.Node == m.from })
		src := to[i]
		to[i] = topic.Replica{Node: m.to, DiskID: m.nodes[m.to].disk, CopyID: c.CopyID}
		m.set(&a, v, append(to, src))
	case joined:
		if a.Leader == m.from {
			_ = m.handOver(m.to) // it is tried again
		}
	case handed:
		m.set(&a, v, slices.DeleteFunc(slices.Clone(a.Replicas), func(r topic.Replica) bool { return r.Node == m.from }))
	}
}

// set changes the replicas when the rule allows it.
func (m *mover) set(a *topic.Assignment, v nodeapi.Vouch, to []topic.Replica) {
	now := quorum.Set{Version: a.ConfigVersion, Replicas: quorumSet(a.Replicas), Before: quorumSet(a.Before), Since: a.Since}
	word := quorum.Vouch{Epoch: v.Epoch, Version: v.ConfigVersion, Settled: v.Settled}
	for _, c := range v.Copies {
		if c.Near {
			word.Near = append(word.Near, quorumSet([]topic.Replica{c.Replica})...)
		}
	}
	if _, err := quorum.NextSet(now, quorum.Leadership{Epoch: a.LeaderEpoch, Leader: a.Leader}, quorumSet(to), word); err != nil {
		return
	}
	m.change(func(b *topic.Assignment) {
		if b.ConfigVersion == a.ConfigVersion && b.LeaderEpoch == a.LeaderEpoch {
			b.Before, b.Since, b.Replicas, b.Observers = a.Replicas, a.LeaderEpoch, to, nil
			b.ConfigVersion++
		}
	})
}

func quorumSet(list []topic.Replica) (out []quorum.Replica) {
	for _, r := range list {
		out = append(out, quorum.Replica{Node: r.Node, Disk: r.DiskID, Copy: r.CopyID})
	}
	return out
}

// tick is what the controller and a producer do in some time.
func (m *mover) tick() {
	m.lead()
	m.commitNext()
	m.step()
	pass(20 * time.Millisecond)
}

// mustFinish lets the move end and looks at what it left: every record once, in order,
// on the destination, and nothing of it on the source once that has looked.
func (m *mover) mustFinish(what string) {
	m.t.Helper()
	m.until(what+": it is moved", func() bool { m.tick(); return m.phase() == finished })
	a := m.assignment()
	if len(a.Replicas) != m.factor || len(a.Observers) > 0 {
		m.t.Fatalf("%s: it ends as %+v", what, a)
	}
	goal := m.next + 3
	m.until(what+": it commits", func() bool { m.tick(); return m.next >= goal })
	leader := m.assignment().Leader
	m.wantRead(leader, ordered(1, int(m.next-1)))
	m.until(what+": the old copy is gone", func() bool {
		pass(time.Second) // a sweep comes every minute
		list, err := m.nodes[m.from].fs.ReadDir("/data/topics/" + trioTopic)
		return errors.Is(err, fs.ErrNotExist) || !slices.ContainsFunc(list, func(e fs.DirEntry) bool { return strings.HasPrefix(e.Name(), "p0") })
	})
	if m.factor > 1 && leader != m.to { // what the destination has is whole
		m.until(what+": the destination leads", func() bool { m.tick(); return m.handOver(m.to) == nil })
	}
	m.until(what+": it is read there", func() bool { _, err := m.read(m.to); return err == nil })
	m.wantRead(m.to, ordered(1, int(m.next-1)))
}

// faults are what happens to a node, and how it is over.
var faults = map[string]func(m *mover, id string) (over func()){
	"killed":             func(m *mover, id string) func() { m.nodes[id].kill(); return m.nodes[id].start },
	"without power":      func(m *mover, id string) func() { m.nodes[id].powerCut(); return m.nodes[id].start },
	"cut off":            func(m *mover, id string) func() { return m.cutOff(id, "voter", "s1", "s2", "s3", "s4", "s5", "s9") },
	"cut off from peers": func(m *mover, id string) func() { return m.cutOff(id, "s1", "s2", "s3", "s4", "s5", "s9") },
}

func (m *mover) cutOff(id string, others ...string) (heal func()) {
	for _, o := range others {
		m.sever(id, o)
	}
	return func() {
		for _, o := range others {
			m.heal(id, o)
		}
	}
}

// TestMoveInterrupted: in every phase of a move of a partition of one, three and five
// copies, and between them, source and destination are killed, lose power or the
// network, for shorter and for longer than a leader's lease.
func TestMoveInterrupted(t *testing.T) {
	for _, factor := range []int{1, 3, 5} {
		for at := copying; at <= finished; at++ {
			for _, victim := range []string{"s1", "s9"} {
				for how, fault := range faults {
					name := fmt.Sprintf("%d copies/%s/%s/%s", factor, phaseNames[at], victim, how)
					t.Run(name, func(t *testing.T) {
						for _, away := range []int{3, 300} { // of 20 ms
							if factor == 5 && (away == 3 || how != "killed" && how != "cut off") {
								continue // three copies show it as well
							}
							inMove(t, factor, func(m *mover) {
								for range 30 {
									m.commitNext()
								}
								m.begin()
								m.become(at)
								over := fault(m, victim)
								for range away {
									m.tick()
								}
								over()
								m.mustFinish(name)
							})
						}
					})
				}
			}
		}
	}
}

// TestMoveAwayAndBack: the source dies before it has given up its old copy, with a tail
// that nobody else got where others can go on without it. The partition moves back there
// as soon as it starts: what it has is cut and used, or fetched, and never removed as old.
func TestMoveAwayAndBack(t *testing.T) {
	for _, c := range []struct {
		factor int
		at     phase
	}{{1, handed}, {1, finished}, {3, joined}, {3, handed}, {3, finished}, {5, joined}} {
		for how, end := range map[string]func(m *member){"killed": (*member).kill, "without power": (*member).powerCut} {
			name := fmt.Sprintf("%d copies/%s/%s", c.factor, phaseNames[c.at], how)
			t.Run(name, func(t *testing.T) {
				inMove(t, c.factor, func(m *mover) {
					for range 30 {
						m.commitNext()
					}
					m.begin()
					m.become(c.at)
					if m.assignment().Leader == "s1" {
						heal := m.cutOff("s1", "s2", "s3", "s4", "s5", "s9")
						m.commitNext() // it has that record alone; another one gets it again
						heal()
					}
					end(m.nodes["s1"])
					m.become(finished)
					goal := m.next + 20
					m.until("it goes on", func() bool { m.tick(); return m.next >= goal })
					if n := len(m.nodes["s1"].segments()); n == 0 {
						t.Fatal("the old copy is gone: there is nothing to come back to")
					}
					m.from, m.to = "s9", "s1"
					m.begin()
					m.nodes["s1"].start()
					m.mustFinish(name)
				})
			})
		}
	}
}

// become lets time go by until the move is in a phase or a later one.
func (m *mover) become(at phase) {
	m.t.Helper()
	m.until("it is "+phaseNames[at], func() bool {
		if m.phase() >= at {
			return true
		}
		m.tick()
		return false
	})
}

// fullAt has a node meet a full disk, as long as full says so.
func fullAt(id string, full *atomic.Bool) func(m *mover) {
	return func(m *mover) {
		m.nodes[id].rule = func(op vfs.Op) vfs.Fault {
			if full.Load() && op.Kind == vfs.OpWrite {
				return vfs.Fault{Err: syscall.ENOSPC}
			}
			return vfs.Fault{}
		}
	}
}

// TestMoveToAFullDisk: the destination cannot store what it fetches. The source goes on
// while the other one observes. When it is a replica already and nothing can be committed
// without it, the move is taken back; with room it comes to its end at the next try.
func TestMoveToAFullDisk(t *testing.T) {
	var full atomic.Bool
	inMove(t, 1, func(m *mover) {
		full.Store(true)
		m.begin()
		goal := m.next + 50
		m.until("the source goes on", func() bool { m.tick(); return m.next >= goal })
		if m.phase() != copying {
			t.Fatalf("it is %s with a full disk", phaseNames[m.phase()])
		}
		full.Store(false)
		m.become(joined)
		full.Store(true)
		for range 20 {
			m.commitNext()
			pass(200 * time.Millisecond)
		}
		v := m.vouch()
		if c, ok := v.Copy("s9"); !ok || c.HeardAgoMS > time.Second.Milliseconds() {
			t.Errorf("it does not fetch any more, and the controller would see that: %+v", c)
		}
		m.change(func(a *topic.Assignment) { // the move is taken back
			a.Replicas, a.Before, a.Since = a.Before, a.Replicas, a.LeaderEpoch
			a.ConfigVersion++
		})
		goal = m.next + 50
		m.until("the source goes on alone", func() bool { m.tick(); return m.next >= goal })
		full.Store(false)
		m.begin()
		m.mustFinish("with room again")
	}, fullAt("s9", &full))
}
