package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// cluster is a metastore and storage nodes in memory: entries are applied by a
// few lines of the rules that libs/metastate proves, calls are answered from a
// table.
type cluster struct {
	t    *testing.T
	view *testkit.Meta

	mu      sync.Mutex // guards what follows
	topics  map[string][]topic.Assignment
	down    map[string]bool         // does not answer
	has     map[string]Promise      // by node/topic/partition: what a fence answers
	serves  map[string]bool         // by node: Standing says that it leads what it is asked about
	fetched map[string]int64        // by node: FetchedAgoMS
	primed  map[string][][]byte     // by node
	behind  map[string]bool         // by node: a hand-over to it is not reached
	held    map[topic.Ref]string    // hand-overs that were reached
	before  func(e metastate.Entry) // runs before an entry is applied
	entries []metastate.Entry
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{
		t: t, view: testkit.NewMeta(), topics: map[string][]topic.Assignment{}, down: map[string]bool{}, has: map[string]Promise{},
		serves: map[string]bool{}, fetched: map[string]int64{}, primed: map[string][][]byte{}, behind: map[string]bool{}, held: map[topic.Ref]string{},
	}
	for i := 1; i <= 5; i++ {
		c.member(fmt.Sprintf("s%d", i), topic.StatusAlive)
	}
	return c
}

func (c *cluster) member(id string, st topic.MemberStatus) {
	c.view.PutMember(topic.Member{ID: id, Role: topic.RoleStorage, Status: st, DiskID: 1})
}

// topic puts a topic of n partitions on s1, s2, s3, led by leader under epoch 1.
func (c *cluster) topic(name string, n int, leader string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]topic.Assignment, n)
	for p := range list {
		list[p] = topic.Assignment{
			Ref:    topic.Ref{Topic: name, Incarnation: 7, Partition: int32(p)},
			Leader: leader, LeaderEpoch: 1, ConfigVersion: 1,
		}
		for r := 1; r <= 3; r++ {
			list[p].Replicas = append(list[p].Replicas, topic.Replica{Node: fmt.Sprintf("s%d", r), DiskID: 1, CopyID: topic.ID64(r)})
		}
	}
	c.topics[name] = list
	c.publishLocked(name)
}

func (c *cluster) publishLocked(name string) {
	cfg := topic.DefaultConfig()
	cfg.Partitions, cfg.ReplicationFactor = len(c.topics[name]), 3
	c.view.PutTopic(topic.Topic{Name: name, Incarnation: 7, Config: cfg}, append([]topic.Assignment(nil), c.topics[name]...))
}

func (c *cluster) propose(_ context.Context, e metastate.Entry) (*metastate.Result, error) {
	if c.before != nil {
		c.before(e)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries = append(c.entries, e)
	res := &metastate.Result{}
	done := func(ref topic.Ref, epoch topic.Epoch, apply func(*topic.Assignment) bool) {
		a := &c.topics[ref.Topic][ref.Partition]
		ok := a.LeaderEpoch == epoch && apply(a)
		res.Done = append(res.Done, ok)
		if ok {
			c.publishLocked(ref.Topic)
		}
	}
	switch e := e.(type) {
	case *metastate.BeginElections:
		for _, s := range e.Items {
			done(s.Ref, s.Epoch, func(a *topic.Assignment) bool { a.Leader = ""; a.LeaderEpoch++; return true })
		}
	case *metastate.ElectLeaders:
		for _, l := range e.Items {
			done(l.Ref, l.Epoch, func(a *topic.Assignment) bool {
				if a.Leader != "" {
					return false
				}
				a.Leader = l.Leader.Node
				return true
			})
		}
	default:
		return nil, fmt.Errorf("unexpected entry %T", e)
	}
	return res, nil
}

var errDown = errors.New("no answer")

func (c *cluster) reach(node string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down[node] {
		return errDown
	}
	return nil
}

func key(node string, ref topic.Ref) string {
	return fmt.Sprintf("%s/%s/%d", node, ref.Topic, ref.Partition)
}

// Fence implements Nodes.
func (c *cluster) Fence(_ context.Context, node string, items []Fence) ([]Promise, error) {
	if err := c.reach(node); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Promise, len(items))
	for i, it := range items {
		out[i] = Promise{OK: true, LastEpoch: 1}
		if p, ok := c.has[key(node, it.Ref)]; ok {
			out[i] = p
		}
	}
	return out, nil
}

// Prime implements Nodes.
func (c *cluster) Prime(_ context.Context, node string, items []Prime) error {
	if err := c.reach(node); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, it := range items {
		c.primed[node] = append(c.primed[node], it.Positions...)
	}
	return nil
}

// HandOver implements Nodes.
func (c *cluster) HandOver(_ context.Context, node string, items []HandOver) ([]bool, error) {
	if err := c.reach(node); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]bool, len(items))
	for i, it := range items {
		if it.To == (topic.Replica{}) {
			delete(c.held, it.Ref)
			continue
		}
		out[i] = !c.behind[it.To.Node]
		if out[i] {
			c.held[it.Ref] = it.To.Node
		}
	}
	return out, nil
}

// Standing implements Nodes.
func (c *cluster) Standing(_ context.Context, node string, refs []topic.Ref) ([]Standing, error) {
	if err := c.reach(node); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Standing, len(refs))
	for i := range out {
		ago, ok := c.fetched[node]
		if !ok {
			ago = 60_000
		}
		out[i] = Standing{Leads: c.serves[node], FetchedAgoMS: ago}
	}
	return out, nil
}

func (c *cluster) runner(timing Timing) *term {
	c.t.Helper()
	start := time.Now()
	r, err := New(Config{
		View: c.view, Index: c.view, Nodes: c, Propose: c.propose, Log: slog.New(slog.DiscardHandler), Timing: timing,
		Mono:    func() time.Duration { return time.Since(start) },
		Members: c.members,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return r.newTerm()
}

func (c *cluster) members() (out []topic.Member) {
	for _, m := range c.view.Members().ByID {
		out = append(out, *m)
	}
	slices.SortFunc(out, func(a, b topic.Member) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// leads counts what each node leads of some topics.
func (c *cluster) leads(names ...string) map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]int{}
	for _, name := range names {
		for _, a := range c.topics[name] {
			out[a.Leader]++
		}
	}
	return out
}

// set changes the first partitions of a topic.
func (c *cluster) set(name string, n int, change func(p int, a *topic.Assignment)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range n {
		change(p, &c.topics[name][p])
	}
	c.publishLocked(name)
}

func (c *cluster) leader(name string, p int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.topics[name][p]
	return fmt.Sprintf("%s@%d", a.Leader, a.LeaderEpoch)
}

func (c *cluster) want(name string, p int, want string) {
	c.t.Helper()
	if got := c.leader(name, p); got != want {
		c.t.Fatalf("%s/%d is led by %s, want %s", name, p, got, want)
	}
}

// A dead leader's partitions get new leaders, all with two entries and a call to
// each node that lives.
func TestDeadLeader(t *testing.T) {
	c := newCluster(t)
	c.topic("a", 40, "s1")
	c.topic("b", 3, "s2")
	c.has[key("s3", topic.Ref{Topic: "a", Partition: 5})] = Promise{OK: true, LastEpoch: 1, LEO: 10}
	c.member("s1", topic.StatusDead)
	c.down["s1"] = true
	c.runner(Timing{}).pass(t.Context())
	c.want("a", 0, "s3@2") // it leads less
	c.want("a", 5, "s3@2") // it has more
	c.want("b", 1, "s2@1") // its leader lives
	if len(c.entries) != 2 {
		t.Fatalf("%d entries for 40 elections", len(c.entries))
	}
}

func TestEveryElectionNeedsAMajority(t *testing.T) {
	for name, breakIt := range map[string]func(*cluster){
		"two of three do not answer": func(c *cluster) { c.down["s1"], c.down["s2"] = true, true },
		"two are dead":               func(c *cluster) { c.member("s1", topic.StatusDead); c.member("s2", topic.StatusDead) },
		"two on another disk": func(c *cluster) {
			for _, id := range []string{"s1", "s2"} {
				c.view.PutMember(topic.Member{ID: id, Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 9})
			}
		},
		"two do not promise": func(c *cluster) {
			for _, id := range []string{"s2", "s3"} {
				c.has[key(id, topic.Ref{Topic: "a"})] = Promise{}
			}
		},
		"two were never recorded": func(c *cluster) {
			for i := range 2 {
				c.topics["a"][0].Replicas[i].CopyID = 0
			}
			c.publishLocked("a")
		},
	} {
		c := newCluster(t)
		c.topic("a", 1, "")
		breakIt(c)
		c.runner(Timing{Call: 50 * time.Millisecond}).pass(t.Context())
		if got := c.leader("a", 0); got != "@1" {
			t.Errorf("%s: led by %s", name, got)
		}
	}
}

// A partition without a leader keeps its epoch: promises that were made hold.
func TestWithoutALeaderTheEpochStays(t *testing.T) {
	c := newCluster(t)
	c.topic("a", 1, "")
	c.runner(Timing{}).pass(t.Context())
	c.want("a", 0, "s1@1")
}

// Another controller was faster between the fence and the entry.
func TestTheSlowerOfTwoControllersChangesNothing(t *testing.T) {
	c := newCluster(t)
	c.topic("a", 1, "")
	c.before = func(e metastate.Entry) {
		if _, ok := e.(*metastate.ElectLeaders); ok {
			c.mu.Lock()
			c.topics["a"][0].Leader = "s3"
			c.mu.Unlock()
		}
	}
	c.runner(Timing{}).pass(t.Context())
	c.want("a", 0, "s3@1")
}

// The chosen one does not answer any more: it is not made leader.
func TestWhoCannotBePrimedIsNotElected(t *testing.T) {
	c := newCluster(t)
	c.topic("a", 1, "")
	c.has[key("s2", topic.Ref{Topic: "a"})] = Promise{OK: true, LastEpoch: 1, LEO: 5}
	r := c.runner(Timing{})
	r.cfg.Nodes = dyingAfterFence{c, "s2"}
	r.pass(t.Context())
	c.want("a", 0, "@1")
}

type dyingAfterFence struct {
	*cluster
	node string
}

// Prime implements Nodes.
func (d dyingAfterFence) Prime(ctx context.Context, node string, items []Prime) error {
	if node == d.node {
		return errDown
	}
	return d.cluster.Prime(ctx, node, items)
}

func TestPositionsOfTheNewestGenerationTravel(t *testing.T) {
	c := newCluster(t)
	c.topic("a", 1, "")
	ref := topic.Ref{Topic: "a"}
	c.has[key("s1", ref)] = Promise{OK: true, LastEpoch: 1, LEO: 9, Generation: 1, Positions: []byte("old")}
	c.has[key("s2", ref)] = Promise{OK: true, LastEpoch: 1, LEO: 5, Generation: 2, Positions: []byte("two")}
	c.has[key("s3", ref)] = Promise{OK: true, LastEpoch: 1, LEO: 5, Generation: 2, Positions: []byte("three")}
	c.runner(Timing{}).pass(t.Context())
	c.want("a", 0, "s1@1")
	got := map[string]bool{}
	for _, p := range c.primed["s1"] {
		got[string(p)] = true
	}
	if len(got) != 2 || !got["two"] || !got["three"] {
		t.Fatalf("primed with %v", got)
	}
}

// A hint elects early only when the leader is silent and no follower fetched
// from it since; and at most three times in 30 s.
func TestSuspicion(t *testing.T) { synctest.Test(t, suspicion) }

func suspicion(t *testing.T) {
	fast := Timing{Probe: 30 * time.Millisecond, Call: 100 * time.Millisecond, Silence: 10 * time.Millisecond}
	c := newCluster(t)
	c.topic("a", 1, "s1")
	c.serves["s1"] = true
	c.runner(fast).check(t.Context(), "s1")
	c.want("a", 0, "s1@1") // it answers

	c.down["s1"] = true
	r := c.runner(fast)
	c.fetched["s2"] = 0
	r.check(t.Context(), "s1")
	c.want("a", 0, "s1@1") // only the controller cannot reach it

	delete(c.fetched, "s2")
	r.check(t.Context(), "s1")
	c.want("a", 0, "s2@2")

	for range 5 { // it flaps
		c.mu.Lock()
		c.topics["a"][0].Leader = "s1"
		c.publishLocked("a")
		c.mu.Unlock()
		r.check(t.Context(), "s1")
	}
	c.want("a", 0, "s1@4")
	r.check(t.Context(), "s9") // a node that leads nothing
}

// A leader that only the controller reaches has the longest log, with what nobody
// else has; it is not elected again and again. When the others are too few it is
// asked, too: it may have given up.
func TestForsakenLeaderIsNotElectedAgain(t *testing.T) { synctest.Test(t, forsakenLeader) }

func forsakenLeader(t *testing.T) {
	fast := Timing{Probe: 30 * time.Millisecond, Call: 100 * time.Millisecond, Silence: 10 * time.Millisecond}
	c := newCluster(t)
	c.topic("a", 1, "s1")
	c.has[key("s1", topic.Ref{Topic: "a"})] = Promise{OK: true, LastEpoch: 1, LEO: 100}
	c.runner(fast).check(t.Context(), "s1")
	c.want("a", 0, "s2@2")

	c = newCluster(t)
	c.topic("a", 1, "s1")
	c.has[key("s1", topic.Ref{Topic: "a"})] = Promise{OK: true, LastEpoch: 1, LEO: 100}
	c.member("s3", topic.StatusDead)
	c.runner(fast).check(t.Context(), "s1")
	c.want("a", 0, "s1@2")
}

// What a node led that is dead or silent, or stops while nobody has everything, is shared
// among the others.
func TestWhatANodeLedIsShared(t *testing.T) { synctest.Test(t, shared) }

func shared(t *testing.T) {
	fast := Timing{Probe: 30 * time.Millisecond, Call: 100 * time.Millisecond, Silence: 10 * time.Millisecond}
	for name, end := range map[string]func(c *cluster){
		"dead": func(c *cluster) {
			c.down["s1"] = true
			c.member("s1", topic.StatusDead)
			c.runner(fast).pass(t.Context())
		},
		"silent": func(c *cluster) {
			c.down["s1"] = true
			c.runner(fast).check(t.Context(), "s1")
		},
		"stops": func(c *cluster) {
			c.behind["s2"], c.behind["s3"] = true, true
			if left, err := c.runner(fast).StepDown(t.Context(), "s1"); err != nil || left != 0 {
				t.Errorf("left %d, %v", left, err)
			}
		},
	} {
		c := newCluster(t)
		c.topic("a", 30, "s1")
		c.topic("b", 4, "s2")
		end(c)
		if got, want := c.leads("a", "b"), (map[string]int{"s2": 17, "s3": 17}); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestStepDown(t *testing.T) {
	c := newCluster(t)
	c.topic("a", 50, "s1")
	c.topic("b", 1, "s2")
	left, err := c.runner(Timing{}).StepDown(t.Context(), "s1")
	if err != nil || left != 0 {
		t.Fatalf("left %d, %v", left, err)
	}
	got := map[string]int{}
	for p := range 50 {
		got[c.leader("a", p)]++
	}
	if got["s2@2"] < 20 || got["s3@2"] < 20 {
		t.Fatalf("handed to %v", got)
	}
	c.behind["s3"] = true
	left, err = c.runner(Timing{}).StepDown(t.Context(), "s2") // s1 is first of each set; it is wanted
	if err != nil || left != 0 {
		t.Fatalf("left %d, %v", left, err)
	}
	c.want("b", 0, "s1@2")
}

// A follower that is behind takes nothing over, and the leader stays.
func TestHandOverThatIsNotReached(t *testing.T) {
	c := newCluster(t)
	c.topic("a", 1, "s1")
	c.behind["s2"] = true
	if c.runner(Timing{}).Give(t.Context(), c.topics["a"][0], "s2") {
		t.Fatal("it was handed over")
	}
	c.want("a", 0, "s1@1")
}

// A node that stops leaves nothing behind that others can lead: who is behind is
// passed over for another replica, and when all are, they elect without it, as they
// would a moment later.
func TestStepDownPassesOverWhoIsBehind(t *testing.T) {
	c := newCluster(t)
	c.topic("a", 4, "s1")
	c.behind["s2"] = true
	if left, err := c.runner(Timing{}).StepDown(t.Context(), "s1"); err != nil || left != 0 {
		t.Fatalf("left %d, %v", left, err)
	}
	for p := range 4 {
		c.want("a", p, "s3@2")
	}

	c = newCluster(t)
	c.topic("a", 1, "s1")
	c.behind["s2"], c.behind["s3"] = true, true
	c.has[key("s1", topic.Ref{Topic: "a"})] = Promise{OK: true, LastEpoch: 1, LEO: 100}
	if left, err := c.runner(Timing{}).StepDown(t.Context(), "s1"); err != nil || left != 0 {
		t.Fatalf("left %d, %v", left, err)
	}
	c.want("a", 0, "s2@2")

	c = newCluster(t)
	c.topic("a", 1, "s1")
	c.behind["s2"] = true
	c.member("s3", topic.StatusDead) // no majority without it: it goes on leading to its end
	if left, err := c.runner(Timing{}).StepDown(t.Context(), "s1"); err != nil || left != 1 {
		t.Fatalf("left %d, %v", left, err)
	}
	c.want("a", 0, "s1@1")
}

// An election that waited for its turn looks at what the one before it has done.
func TestElectionThatWasOvertaken(t *testing.T) {
	c := newCluster(t)
	c.topic("a", 1, "")
	r := c.runner(Timing{})
	waits := &contest{a: c.topics["a"][0], wanted: "s1"}
	if r.overtaken(waits) {
		t.Fatal("nothing has happened")
	}
	r.pass(t.Context())
	c.want("a", 0, "s1@1")
	if !r.overtaken(waits) {
		t.Fatal("it has a leader by now")
	}
}

// aMinutePasses lets what was refused be asked again.
func aMinutePasses(r *term) {
	clear(r.notGiven)
	clear(r.notTaken)
}

// Leaderships are evened out, some in each pass; what cannot be handed over is not asked
// again so soon.
func TestBalance(t *testing.T) {
	c := newCluster(t)
	c.topic("a", 30, "s2")
	r := c.runner(Timing{Balance: time.Nanosecond})
	r.pass(t.Context())
	if got := c.leads("a"); got["s2"] != 30-maxBalanced {
		t.Fatalf("%v after one pass, %d are handed over in one", got, maxBalanced)
	}
	r.pass(t.Context())
	want := map[string]int{"s1": 10, "s2": 10, "s3": 10}
	if got := c.leads("a"); !maps.Equal(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
	done := len(c.entries)
	r.pass(t.Context())
	if len(c.entries) != done {
		t.Fatal("it is not at rest")
	}

	c.topic("b", 3, "s3")
	c.behind["s1"], c.behind["s2"] = true, true
	r.pass(t.Context())
	c.behind["s1"], c.behind["s2"] = false, false
	r.pass(t.Context())
	if got := c.leads("b"); got["s3"] < 1 {
		t.Fatalf("%v: asked again at once", got)
	}
	aMinutePasses(r)
	r.pass(t.Context())
	if got := c.leads("a", "b"); got["s1"] != 11 || got["s2"] != 11 || got["s3"] != 11 {
		t.Fatalf("%v", got)
	}
}

// A node whose copies are behind for long keeps no others from being evened out.
func TestBalanceBesideWhoIsBehind(t *testing.T) {
	c := newCluster(t)
	c.topic("a", 60, "s1")
	c.set("a", 60, func(p int, a *topic.Assignment) {
		if p < 20 {
			a.Leader = "s2"
		}
	})
	c.behind["s3"] = true
	r := c.runner(Timing{Balance: time.Nanosecond})
	for range 3 {
		r.pass(t.Context())
	}
	if got, want := c.leads("a"), (map[string]int{"s1": 30, "s2": 30}); !maps.Equal(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
	c.behind["s3"] = false
	aMinutePasses(r)
	for range 3 {
		r.pass(t.Context())
	}
	if got, want := c.leads("a"), (map[string]int{"s1": 20, "s2": 20, "s3": 20}); !maps.Equal(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
}

// Nodes that were restarted one by one lead what they led before.
func TestBalanceBringsHome(t *testing.T) {
	c := newCluster(t)
	c.topic("a", 9, "s1")
	c.set("a", 9, func(p int, a *topic.Assignment) { // each set begins with another one, and is led by the next
		rot := p % 3
		a.Replicas = append(slices.Clone(a.Replicas[rot:]), a.Replicas[:rot]...)
		a.Leader = a.Replicas[1].Node
	})
	c.behind["s3"] = true
	r := c.runner(Timing{Balance: time.Nanosecond})
	r.pass(t.Context())
	if len(c.entries) > 0 {
		t.Fatalf("%v: a part of a circle was handed over", c.leads("a"))
	}
	if len(c.held) > 0 {
		t.Fatalf("leaders hold for nothing: %v", c.held)
	}
	c.behind["s3"] = false
	aMinutePasses(r)
	r.pass(t.Context())
	for p := range 9 {
		c.want("a", p, fmt.Sprintf("s%d@2", p%3+1))
	}
}

// What moves is left to its move, and what a node that drains leads; neither such a node
// nor one whose disk is full gets anything.
func TestBalanceLeavesAlone(t *testing.T) {
	c := newCluster(t)
	c.topic("a", 6, "s1")
	c.set("a", 6, func(p int, a *topic.Assignment) {
		if to := (topic.Replica{Node: "s4", DiskID: 1, CopyID: 4}); p%2 == 0 {
			a.Observers = []topic.Replica{to}
		} else {
			a.Replicas = append(a.Replicas, to)
		}
	})
	r := c.runner(Timing{Balance: time.Nanosecond})
	r.pass(t.Context())
	if len(c.entries) > 0 {
		t.Fatalf("what moves was handed over: %v", c.leads("a"))
	}

	c = newCluster(t)
	c.view.PutMember(topic.Member{ID: "s2", Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 1, Draining: true})
	c.view.PutMember(topic.Member{ID: "s3", Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 1, DiskUsedPercent: placement.FullPercent})
	c.topic("a", 6, "s1")
	c.topic("b", 6, "s2")
	r = c.runner(Timing{Balance: time.Nanosecond})
	r.pass(t.Context())
	if len(c.entries) > 0 {
		t.Fatalf("%v, %v", c.leads("a"), c.leads("b"))
	}
}

func TestRunFollowsTheView(t *testing.T) {
	c := newCluster(t)
	r := c.runner(Timing{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	c.topic("a", 1, "")
	testkit.Poll(t, testkit.Patience, "a leader", func() bool { return c.leader("a", 0) == "s1@1" })
	cancel()
	<-done
}

// Leaderships of the metastore that flap may overlap: a run that ends and the next
// one share nothing that they write (the race detector looks on).
func TestRunsMayOverlap(t *testing.T) {
	c := newCluster(t)
	r := c.runner(Timing{Balance: time.Nanosecond, Retry: time.Millisecond, Probe: time.Millisecond, Silence: time.Millisecond}).Runner
	c.topic("a", 3, "s2")
	c.behind["s1"] = true
	c.down["s2"] = true
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var runs sync.WaitGroup
	for range 2 {
		runs.Go(func() { r.Run(ctx) })
	}
	for range 20 {
		r.Suspect("s2")
	}
	runs.Wait()
}
