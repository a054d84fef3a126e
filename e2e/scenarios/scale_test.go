//go:build e2e

package scenarios

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// scaleTopics are the topics that messages flow through, and their factors.
var scaleTopics = map[string]int{"lone": 1, "safe": 3}

// scaleLease is how late what a gateway leased comes again that was killed before it
// answered; from then to the end of the load it takes about that long.
const scaleLease = 45 * time.Second

// scaled is a cluster that grows and shrinks under a load.
type scaled struct {
	*testing.T
	c     *harness.Cluster
	cl    *client.Client // looks and orders
	ctx   context.Context
	books map[string]*harness.Ledger
	watch *watch
}

// TestScaleOutAndIn: a cluster of three voters and three storage nodes gets two more of
// each while messages flow. The Raft leader and the newest voter are killed together,
// then a storage node that leads and the newest one; the rest goes on. It shrinks back,
// by the leader and another voter, and by two storage nodes. Every process that stays is
// restarted one by one, some with kill -9: the gateways, each with its part of the load,
// when the cluster is large, the rest in the end. Nothing is lost, no copy and no move is
// left, and leaderships are even.
func TestScaleOutAndIn(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 3, Gateways: 2})
	s := &scaled{T: t, c: c, books: map[string]*harness.Ledger{}}
	s.cl, _ = connect(t, c)
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	s.ctx = ctx
	end := s.load()
	s.grow()
	s.rollGateways()
	s.killVoters()
	s.killStorageNodes()
	s.shrink()
	s.rolling()
	awaitEven(t, s.ctx, s.cl, []string{"lone", "safe"}, []string{"storage-2", "storage-3", "storage-4"})
	end()
	for name, book := range s.books {
		s.watch.judge(t, name, book)
		book.Stored(s.ctx, t, s.cl, name)
	}
	(&ending{
		t: t, ctx: s.ctx, cl: s.cl, dir: c.Dir, topics: []string{"lone", "safe"}, restart: restarts(c), interrupted: s.watch.hasCrashed,
	}).clean()
}

// load starts the flow, half of it through each gateway, and through the other one while
// that is away; the function that it returns ends it once everything came.
func (s *scaled) load() (end func()) {
	for name, factor := range scaleTopics {
		create(s.ctx, s.T, s.cl, client.TopicSpec{Name: name, Partitions: 6, ReplicationFactor: factor, VisibilityTimeoutMS: scaleLease.Milliseconds()})
		s.books[name] = harness.NewLedger()
	}
	s.watch = startWatch(s.ctx, s.T, s.cl, "lone", "safe")
	producing, stop := context.WithCancel(s.ctx)
	consuming, quit := context.WithCancel(s.ctx)
	var producers, consumers sync.WaitGroup
	for i := range s.c.URLs() {
		urls := s.c.URLs()
		urls[0], urls[i] = urls[i], urls[0]
		cl, err := client.New(client.Config{URLs: urls})
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(cl.Close)
		for name, book := range s.books {
			w := harness.Load{Client: cl, Topic: name, Ledger: book}
			producers.Go(func() { w.Produce(producing, fmt.Sprintf("%s-by-%d", name, i), 20*time.Millisecond) })
			consumers.Go(func() { w.Consume(consuming, s.T) })
		}
	}
	return func() {
		stop()
		producers.Wait()
		if err := harness.Until(s.ctx, scaleLease+healLimit, func() bool {
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
		// It is promoted 2 s later at the soonest: who stood still for that long missed it, and
		// has the leader's word.
		how := <-staged
		if id, _, _ := strings.Cut(how, " "); !strings.HasSuffix(how, "non_voter") && !s.admitted(id) {
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

// admitted tells whether a leader says that it let a node in without a vote.
func (s *scaled) admitted(id string) bool {
	return slices.ContainsFunc(s.c.IDs(harness.Voter), func(v string) bool {
		return logLines(s.T, filepath.Join(s.c.Dir, "run", v+".log"), "admitting a node as raft non-voter", "node="+id+" server=") > 0
	})
}

// leader waits until a voter leads: on a busy machine they elect by themselves.
func (s *scaled) leader() (id string) {
	if err := harness.Until(s.ctx, 30*time.Second, func() bool { id = leadingVoter(s.ctx, s.cl); return id != "" }); err != nil {
		s.Fatalf("no voter leads; logs in %s", s.c.Dir)
	}
	return id
}

// killVoters kills the leader and the newest voter together.
func (s *scaled) killVoters() {
	leader := s.leader()
	newest := "voter-5"
	if leader == newest {
		newest = "voter-4"
	}
	s.killPair(leader, newest, "a metadata write", func(ctx context.Context, n int) error {
		_, err := s.cl.UpdateTopic(ctx, "lone", retention(n), "")
		return err
	})
}

// startedLimit is for a node that starts, joins and has caught up.
const startedLimit = 40 * time.Second

// pairLimit bounds what is not possible after two nodes died together, on a machine that
// does much else and may have to repeat an election; a quiet one takes 1 s.
const pairLimit = 20 * time.Second

// killPair kills two nodes together, tells how long it took until something was done
// without them, and lets them come back.
func (s *scaled) killPair(one, two, what string, do func(ctx context.Context, n int) error) {
	old := map[string]int{one: s.c.Node(one).PID, two: s.c.Node(two).PID}
	for id := range old {
		s.c.Hold(id)
	}
	began := time.Now()
	for id := range old {
		s.kill(id)
	}
	tries := 0
	if err := harness.Until(s.ctx, time.Minute, func() bool {
		ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
		defer cancel()
		tries++
		return do(ctx, tries) == nil
	}); err != nil {
		s.Errorf("%s is not possible without %s and %s; logs in %s", what, one, two, s.c.Dir)
	}
	took := time.Since(began).Round(10 * time.Millisecond)
	if took > pairLimit {
		s.Errorf("%s took %s without %s and %s, more than %s", what, took, one, two, pairLimit)
	}
	s.Logf("%s and %s were killed together: %s after %s", one, two, what, took)
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
	// Whoever dies with storage-5: a partition that it leads and storage-5 is not in. A leader
	// that did not answer in time names no replicas.
	var info client.TopicDetails
	at, leader := -1, ""
	if err := harness.Until(s.ctx, 30*time.Second, func() bool {
		info, _ = s.cl.Topic(s.ctx, "safe")
		for i, p := range info.PartitionDetails {
			has := slices.ContainsFunc(p.Replicas, func(r client.Replica) bool { return r.ID == "storage-5" })
			if p.Leader != nil && *p.Leader != "storage-5" && len(p.Replicas) == scaleTopics["safe"] && !has {
				at, leader = i, *p.Leader
			}
		}
		return at >= 0
	}); err != nil {
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

// rollGateways restarts the gateways one by one, the first with kill -9, each while it
// takes messages, which go to the other one then.
func (s *scaled) rollGateways() {
	const accepted = `narad_accept_total\{outcome="accepted"\}`
	for i, id := range s.c.IDs(harness.Gateway) {
		before := gauge(s.c, id, accepted)
		if err := harness.Until(s.ctx, startedLimit, func() bool { return gauge(s.c, id, accepted) > max(before, 0) }); err != nil {
			s.Errorf("%s takes no messages: its restart shows nothing; logs in %s", id, s.c.Dir)
		}
		s.restartNode(id, i == 0)
	}
}

// rolling restarts every member but the gateways, one by one, every third with kill -9.
func (s *scaled) rolling() {
	members, err := s.cl.Members(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	began, n := time.Now(), 0
	for _, node := range s.c.Nodes() {
		if node.Role != harness.Gateway && slices.ContainsFunc(members.Members, func(m client.Member) bool { return m.ID == node.ID }) {
			n++
			s.restartNode(node.ID, n%3 == 0)
		}
	}
	s.Logf("%d processes were restarted in %s", n, time.Since(began).Round(10*time.Millisecond))
}

func (s *scaled) restartNode(id string, kill bool) {
	pid := s.c.Node(id).PID
	if kill {
		s.kill(id)
	} else {
		s.c.Terminate(id)
	}
	s.c.WaitReady(id, pid)
}

// kill kills a node; that of a storage node is a reason for duplicates.
func (s *scaled) kill(id string) {
	if s.c.Node(id).Role == harness.Storage {
		s.watch.crashed(id)
	}
	s.c.Kill(id)
}

// shrink takes two voters and two storage nodes away again.
func (s *scaled) shrink() {
	gone := []string{"storage-1", "storage-5"}
	for _, id := range gone {
		if err := harness.Until(s.ctx, 30*time.Second, func() bool { return s.cl.Decommission(s.ctx, id, false) == nil }); err != nil {
			s.Fatalf("%s cannot be decommissioned", id)
		}
	}
	leader := s.leader()
	for _, id := range []string{leader, another(s.c, leader)} {
		if err := harness.Until(s.ctx, 30*time.Second, func() bool { return s.cl.Decommission(s.ctx, id, false) == nil }); err != nil {
			s.Fatalf("%s cannot be decommissioned", id)
		}
		awaitRemoved(s.T, s.ctx, s.cl, id)
	}
	for _, id := range gone {
		awaitRemoved(s.T, s.ctx, s.cl, id)
	}
	pastRebalance(s.ctx, s.T, s.c, s.cl) // the removals cause one
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
