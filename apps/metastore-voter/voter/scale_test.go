package voter

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/member"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// The metadata at its intended size, as in libs/raftnode/scale_test.go.
const (
	scaleTopics     = 10_000
	scalePartitions = 3
	scaleNonvoters  = 50
	scaleWriters    = 64 // that fill the metastore at once
	scaleJoiners    = 8  // that join at once: they share two cores and a disk
	scalePatience   = 5 * time.Minute
	scaleQuiet      = 5 * time.Second // longer than any loop of a member, before the first create is measured
)

// BenchmarkCreateAtScale is one create after the other through a member without a
// vote, until that member's own replica shows the topic, as a gateway waits for it:
// three voters and 50 non-voters, all in this process, with 10,000 topics. Raft and
// membership have the numbers of production. That 53 nodes share this machine's
// cores and its disk is not: the three voters sync a log and a state for each create,
// and what 50 members write behind goes to the same disk (raftnode.Config.NeverVotes).
// otherDisks takes the members' share of it out.
func BenchmarkCreateAtScale(b *testing.B) {
	c := newVoters(b, 3)
	for _, m := range c {
		m.atScale()
	}
	c.start()
	c.waitReady(b)
	fillMetastore(b, c.leader(b))
	for _, m := range c { // who joins gets a snapshot: sooner than 10,000 entries one by one
		if err := m.member.Raft().Snapshot(); err != nil {
			b.Fatal(err)
		}
	}
	others := joinAtScale(b, c)
	settle(b, append(others, c...))
	through := others[0]
	var took []time.Duration
	for b.Loop() { // not b.N: all of the above would be done twice
		begin := time.Now()
		req := onePartition(fmt.Sprintf("new-%d", len(took)))
		req.Config.Partitions = scalePartitions
		res, err := through.member.Leader().CreateTopic(b.Context(), req)
		if err == nil {
			err = through.member.Raft().WaitApplied(b.Context(), res.Index)
		}
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2].Seconds()*1000, "ms-p50")
	b.ReportMetric(took[len(took)*99/100].Seconds()*1000, "ms-p99")
}

// otherDisks names a directory that stands for the disks of the members without a
// vote, which in production are not the voters': one on a memory file system.
const otherDisks = "NARAD_BENCH_OTHER_DISKS"

// joinAtScale starts the members without a vote and waits until they are ready.
func joinAtScale(b *testing.B, c cluster) cluster {
	b.Helper()
	var others cluster
	at := os.Getenv(otherDisks)
	if at != "" {
		var err error
		if at, err = os.MkdirTemp(at, "narad-bench-"); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = os.RemoveAll(at) }) // after the members have ended: cleanups run backwards
	}
	for i := range scaleNonvoters {
		m := c.joiner(b, fmt.Sprintf("s%d", i), topic.RoleStorage)
		if at != "" {
			m.cfg.DataDir = filepath.Join(at, m.cfg.NodeID)
		}
		m.atScale()
		others = append(others, m)
	}
	for some := range slices.Chunk(others, scaleJoiners) {
		for _, m := range some {
			m.start()
		}
		for _, m := range some {
			testkit.Poll(b, scalePatience, m.cfg.NodeID+" is ready", m.ready)
		}
	}
	return others
}

// settle waits until everybody has what was put on the log so far, and what a start
// leaves to do is done.
func settle(b *testing.B, all cluster) {
	b.Helper()
	goal := uint64(0)
	for _, m := range all {
		goal = max(goal, m.member.Raft().Applied())
	}
	for _, m := range all {
		testkit.Poll(b, scalePatience, m.cfg.NodeID+" has caught up", func() bool { return m.member.Raft().Applied() >= goal })
	}
	runtime.GC() // 53 views that were just built
	<-time.After(scaleQuiet)
}

// atScale gives a machine the timing of production.
func (m *machine) atScale() {
	m.cfg.Timing, m.cfg.Raft, m.timing = member.Timing{}, raftnode.Timing{}, Timing{}
}

// fillMetastore proposes the topics, many at once.
func fillMetastore(b *testing.B, leader *machine) {
	b.Helper()
	var writers sync.WaitGroup
	next := make(chan int)
	for range scaleWriters {
		writers.Go(func() {
			for i := range next {
				_, res, err := leader.member.Raft().Apply(b.Context(), scaledTopic(i))
				if err == nil {
					err = res.Err()
				}
				if err != nil {
					b.Errorf("topic %d: %v", i, err)
				}
			}
		})
	}
	for i := range scaleTopics {
		next <- i
	}
	close(next)
	writers.Wait()
}

func scaledTopic(i int) *metastate.CreateTopic {
	cfg := topic.DefaultConfig()
	cfg.Partitions = scalePartitions
	e := &metastate.CreateTopic{Topic: topic.Topic{Name: fmt.Sprintf("topic-%06d", i), Incarnation: topic.Incarnation(i + 1), Config: cfg}}
	for p := range scalePartitions {
		node := fmt.Sprintf("s%d", (i+p)%scaleNonvoters)
		e.Assignments = append(e.Assignments, topic.Assignment{
			Ref:      topic.Ref{Topic: e.Topic.Name, Incarnation: e.Topic.Incarnation, Partition: int32(p)},
			Replicas: []topic.Replica{{Node: node, DiskID: 7}}, Leader: node, LeaderEpoch: 1, ConfigVersion: 1,
		})
	}
	return e
}
