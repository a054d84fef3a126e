//go:build e2e

package scenarios

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// scaleTopics are the topics that messages flow through, and their factors.
var scaleTopics = map[string]int{"lone": 1, "safe": 3}

// scaled is a cluster that grows and shrinks under a load.
type scaled struct {
	*testing.T
	c     *harness.Cluster
	cl    *client.Client // by the first gateway, which stays
	ctx   context.Context
	books map[string]*harness.Ledger
	watch *watch
}

// TestScaleOutAndIn: a cluster of three voters and three storage nodes gets two more of
// each while messages flow. The Raft leader and the newest voter are killed together,
// then a storage node that leads and the newest one; the rest goes on. It shrinks back,
// by the leader and another voter, and by two storage nodes. Then every process that
// stays is restarted one by one, every third with kill -9. Nothing is lost, no copy and
// no move is left.
func TestScaleOutAndIn(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 3, Gateways: 2})
	s := &scaled{T: t, c: c, books: map[string]*harness.Ledger{}}
	s.cl, s.ctx = connect(t, c)
	end := s.load()
	s.grow()
	s.killVoters()
	s.killStorageNodes()
	s.shrink()
	s.rolling()
	end()
	for name, book := range s.books {
		s.watch.judge(t, name, book)
	}
	var left []string
	if err := harness.Until(s.ctx, 60*time.Second, func() bool { left = s.stale(); return len(left) == 0 }); err != nil {
		t.Errorf("copies that nobody holds: %v; in %s", left, c.Dir)
	}
}

// load starts the flow; the function that it returns ends it once everything came.
func (s *scaled) load() (end func()) {
	for name, factor := range scaleTopics {
		if _, err := s.cl.CreateTopic(s.ctx, client.TopicSpec{Name: name, Partitions: 6, ReplicationFactor: factor, VisibilityTimeoutMS: 120_000}); err != nil {
			s.Fatal(err)
		}
		s.books[name] = harness.NewLedger()
	}
	s.watch = startWatch(s.ctx, s.T, s.cl, "lone", "safe")
	producing, stop := context.WithCancel(s.ctx)
	consuming, quit := context.WithCancel(s.ctx)
	var producers, consumers sync.WaitGroup
	for name, book := range s.books {
		w := harness.Load{Client: s.cl, Topic: name, Ledger: book}
		producers.Go(func() { w.Produce(producing, name, 10*time.Millisecond) })
		consumers.Go(func() { w.Consume(consuming, s.T) })
	}
	return func() {
		stop()
		producers.Wait()
		if err := harness.Until(s.ctx, 60*time.Second, func() bool {
			for _, book := range s.books {
				if n, _ := book.Missing(); n > 0 {
					return false
				}
			}
			return true
		}); err != nil {
			s.Errorf("messages are missing; logs in %s", s.c.Dir)
		}
		quit()
		consumers.Wait()
		s.watch.end()
	}
}

// suffrage is what the Raft configuration says of a node; empty: it has no server.
func (s *scaled) suffrage(id string) string {
	q, err := s.cl.Quorum(s.ctx)
	if err != nil {
		return ""
	}
	for _, srv := range q.Servers {
		if srv.ID == id {
			return srv.Suffrage
		}
	}
	return ""
}

// grow adds two voters, each staged and then promoted, and two storage nodes.
func (s *scaled) grow() {
	began := time.Now()
	looking, stop := context.WithCancel(s.ctx)
	defer stop()
	voters := []string{"voter-4", "voter-5"}
	staged := make(chan string, len(voters))
	for _, id := range voters {
		go func() {
			first := ""
			_ = harness.Until(looking, startedLimit, func() bool { first = s.suffrage(id); return first != "" })
			staged <- id + " came as a " + first
		}()
	}
	s.c.Join(harness.Voter, voters...)
	s.c.Join(harness.Storage, "storage-4", "storage-5")
	for range voters {
		if how := <-staged; !strings.HasSuffix(how, "non_voter") {
			s.Error(how)
		}
	}
	for _, id := range voters {
		if err := harness.Until(s.ctx, startedLimit, func() bool { return s.suffrage(id) == "voter" }); err != nil {
			s.Fatalf("%s is not promoted: %q; logs in %s", id, s.suffrage(id), s.c.Dir)
		}
	}
	s.Logf("both new voters, staged first, vote after %s", time.Since(began).Round(10*time.Millisecond))
}

// killVoters kills the leader and the newest voter together.
func (s *scaled) killVoters() {
	leader := leadingVoter(s.ctx, s.cl)
	newest := "voter-5"
	if leader == newest || leader == "" {
		newest = "voter-4"
	}
	s.killPair(leader, newest, "a metadata write", func(ctx context.Context, n int) error {
		_, err := s.cl.UpdateTopic(ctx, "lone", retention(n), "")
		return err
	})
}

// startedLimit is for a node that starts, joins and has caught up.
const startedLimit = 40 * time.Second

// killPair kills two nodes together, tells how long it took until something was done
// without them, and lets them come back.
func (s *scaled) killPair(one, two, what string, do func(ctx context.Context, n int) error) {
	old := map[string]int{one: s.c.Node(one).PID, two: s.c.Node(two).PID}
	for id := range old {
		s.c.Hold(id)
	}
	began := time.Now()
	for id := range old {
		s.watch.crashed(id)
		s.c.Kill(id)
	}
	tries := 0
	if err := harness.Until(s.ctx, 30*time.Second, func() bool {
		ctx, cancel := context.WithTimeout(s.ctx, time.Second)
		defer cancel()
		tries++
		return do(ctx, tries) == nil
	}); err != nil {
		s.Errorf("%s is not possible without %s and %s; logs in %s", what, one, two, s.c.Dir)
	}
	s.Logf("%s and %s were killed together: %s after %s", one, two, what, time.Since(began).Round(10*time.Millisecond))
	for id := range old {
		s.c.Free(id)
	}
	for id, pid := range old {
		s.c.WaitReady(id, pid)
	}
}

// killStorageNodes waits until the new storage nodes have their share, and kills the
// newest and one that leads together: what has a majority without them goes on.
func (s *scaled) killStorageNodes() {
	if err := harness.Until(s.ctx, time.Minute, func() bool {
		m, err := s.cl.Member(s.ctx, "storage-5")
		return err == nil && m.Replicas != nil && *m.Replicas > 2
	}); err != nil {
		s.Errorf("storage-5 got no share; logs in %s", s.c.Dir)
	}
	atRest(s.ctx, s.T, s.c, s.cl, time.Minute)
	// Whoever dies with storage-5: a partition that it leads and storage-5 is not in.
	info, err := s.cl.Topic(s.ctx, "safe")
	if err != nil {
		s.Fatal(err)
	}
	at, leader := -1, ""
	for i, p := range info.PartitionDetails {
		has := slices.ContainsFunc(p.Replicas, func(r client.Replica) bool { return r.ID == "storage-5" })
		if p.Leader != nil && *p.Leader != "storage-5" && !has {
			at, leader = i, *p.Leader
		}
	}
	if at < 0 {
		s.Fatalf("every partition is on storage-5: %+v", info.PartitionDetails)
	}
	partition := uint32(at)
	s.killPair(leader, "storage-5", "a commit", func(ctx context.Context, n int) error {
		text := fmt.Sprintf("pair-%d", n)
		s.books["safe"].Sending(text)
		_, err := s.cl.Produce(ctx, "safe", client.Message{Payload: []byte(text), Partition: &partition}, client.ProduceOptions{Committed: true})
		s.books["safe"].Produced(err, text)
		return err
	})
}

// rolling restarts every member but the gateway that the test asks, one by one.
func (s *scaled) rolling() {
	members, err := s.cl.Members(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	began, n := time.Now(), 0
	for _, node := range s.c.Nodes() {
		if node.ID == "gateway-1" || !slices.ContainsFunc(members.Members, func(m client.Member) bool { return m.ID == node.ID }) {
			continue
		}
		if n++; n%3 == 0 {
			s.watch.crashed(node.ID)
			s.c.Kill(node.ID)
		} else {
			s.c.Terminate(node.ID)
		}
		s.c.WaitReady(node.ID, node.PID)
	}
	s.Logf("%d processes were restarted in %s", n, time.Since(began).Round(10*time.Millisecond))
}

// shrink takes two voters and two storage nodes away again.
func (s *scaled) shrink() {
	gone := []string{"storage-1", "storage-5"}
	for _, id := range gone {
		if err := harness.Until(s.ctx, 30*time.Second, func() bool { return s.cl.Decommission(s.ctx, id, false) == nil }); err != nil {
			s.Fatalf("%s cannot be decommissioned", id)
		}
	}
	leader := leadingVoter(s.ctx, s.cl)
	for _, id := range []string{leader, another(s.c, leader)} {
		if err := harness.Until(s.ctx, 30*time.Second, func() bool { return s.cl.Decommission(s.ctx, id, false) == nil }); err != nil {
			s.Fatalf("%s cannot be decommissioned", id)
		}
		awaitRemoved(s.T, s.ctx, s.cl, id)
	}
	for _, id := range gone {
		awaitRemoved(s.T, s.ctx, s.cl, id)
	}
	atRest(s.ctx, s.T, s.c, s.cl, time.Minute)
	s.Logf("three voters and three storage nodes stay; %s", s.rest())
}

// rest fails unless the planner stays at rest for a little; it says what was seen.
func (s *scaled) rest() string {
	looks := 0
	if err := harness.Until(s.ctx, 2*time.Second, func() bool {
		m, err := s.cl.Moves(s.ctx)
		looks++
		return err == nil && len(m.Moves)+m.Waiting > 0
	}); err == nil {
		s.Error("the planner moves on after it was at rest")
	}
	return fmt.Sprintf("nothing moved in %d looks", looks)
}

// stale lists directories of partitions on nodes that have no replica of them. What
// decommissioned nodes have is theirs: they are to be wiped.
func (s *scaled) stale() (out []string) {
	members, err := s.cl.Members(s.ctx)
	if err != nil {
		return []string{err.Error()}
	}
	for name := range scaleTopics {
		info, err := s.cl.Topic(s.ctx, name)
		if err != nil {
			return []string{err.Error()}
		}
		for _, m := range members.Members {
			dirs, err := filepath.Glob(filepath.Join(s.c.Dir, m.ID, "topics", name, "p*"))
			if err != nil || m.Role != harness.Storage {
				continue
			}
			for _, d := range dirs {
				at, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(d), "p"))
				if err == nil && at < len(info.PartitionDetails) &&
					!slices.ContainsFunc(info.PartitionDetails[at].Replicas, func(r client.Replica) bool { return r.ID == m.ID }) {
					out = append(out, d)
				}
			}
		}
	}
	return out
}
