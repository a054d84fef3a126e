package storage_test

import (
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/quorum"
)

// TestACopyThatComesBackFromAfar: a partition moves to a node that still has a copy of it,
// of before it moved away or of a move that was taken back, with more behind it by now than
// a replica may lack. It is no replica before it has caught up, although the set was that
// before its last change: of an only copy nothing would be committed until then.
func TestACopyThatComesBackFromAfar(t *testing.T) {
	const missing = quorum.CatchUpBytes>>20 + 2 // MiB, each a record
	for name, leave := range map[string]func(m *mover){
		"moved away": func(m *mover) {
			m.become(finished)
			m.nodes["s1"].kill() // before it has given up its copy
			m.from, m.to = "s9", "s1"
		},
		"taken back": func(m *mover) {
			m.become(joined)
			a := m.assignment()
			m.set(&a, nodeapi.Vouch{}, a.Before)
			if len(m.assignment().Replicas) != 1 {
				m.t.Fatalf("it is not taken back: %+v", m.assignment())
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inMove(t, 1, func(m *mover) {
				m.commitNext()
				m.begin()
				leave(m)
				m.until("the one that stays leads", func() bool { m.lead(); return m.assignment().Leader == m.from && m.commitNext() })
				for i := range uint64(missing) {
					m.mustCommit(m.from, large(2, i+1, 1<<20))
				}
				m.hold(true)
				m.begin()
				if name == "moved away" {
					m.nodes["s1"].start()
				}
				observes := func() {
					if m.tick(); m.phase() != copying {
						m.t.Fatalf("it is %s: %+v", phaseNames[m.phase()], m.assignment())
					}
				}
				m.until("it fetches where its old copy ends", func() bool {
					observes()
					v := m.vouch()
					c, ok := v.Copy(m.to)
					return ok && c.CopyID != 0 && c.MissingBytes > quorum.CatchUpBytes
				})
				goal := m.next + 100
				m.until("commits go on beside it", func() bool { observes(); return m.next >= goal })
				m.hold(false)
				m.become(finished)
				m.until("it leads alone", func() bool {
					m.tick()
					got, err := m.read(m.to)
					return err == nil && len(got) == int(m.next)-1+missing
				})
			})
		})
	}
}

// hold keeps from the destination what it fetches, or lets it have that.
func (m *mover) hold(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spoil = nil
	if !on {
		return
	}
	m.spoil = func(from, _ string, _ *nodeapi.FetchRequest, res *nodeapi.FetchResult) {
		if from != m.to {
			return
		}
		for i := range res.Partitions {
			res.Partitions[i].Batches = nil
		}
		pass(20 * time.Millisecond) // it asks again at once, and time must pass in the bubble
	}
}
