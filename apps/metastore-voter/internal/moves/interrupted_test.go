package moves

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi/lifecycle"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/testkit/race"
	"github.com/narad-mq/narad/libs/topic"
)

// memory is a metastore in memory.
type memory map[metastate.Bucket]map[string]string

func (m memory) Get(b metastate.Bucket, key []byte) []byte {
	if v, ok := m[b][string(key)]; ok {
		return []byte(v)
	}
	return nil
}

func (m memory) Scan(b metastate.Bucket, prefix []byte, fn func(key, value []byte) bool) {
	for _, k := range slices.Sorted(maps.Keys(m[b])) {
		if strings.HasPrefix(k, string(prefix)) && !fn([]byte(k), []byte(m[b][k])) {
			return
		}
	}
}

func (m memory) Put(b metastate.Bucket, key, value []byte) error {
	m[b][string(key)] = string(value)
	return nil
}

func (m memory) Delete(b metastate.Bucket, key []byte) error {
	delete(m[b], string(key))
	return nil
}

// fate is what happens to one entry.
type fate int

const (
	applied fate = iota
	lost         // it is not applied, and the proposer hears an error
	unknown      // it is applied, and the proposer hears an error
	late         // the proposer hears an error, and it is applied before the entry after it
	newTerm      // unknown, and another controller goes on
	fates
)

var fateNames = [...]string{"applied", "lost", "unknown", "late", "a new term"}

var errInterrupted = errors.New("no answer")

// copiedPerTick is how many records a copy fetches with a tick, of which its leader gets
// one more; nearRecords is how few it lacks when it is near.
const copiedPerTick, nearRecords = 6, 2

// stage is the metastore as it is, one partition with its copies, and the controller
// whose runner is tested. A copy is how many records it has; committed is what a
// majority of the replicas has had.
type stage struct {
	metastate.View // nil: only what is below is asked
	t              *testing.T
	state          memory
	ref            topic.Ref
	runner         *Runner
	mono           time.Duration
	down           map[string]bool // nodes that answer nothing
	records        map[string]int  // by node
	committed      int
	version        uint64 // of the set that was seen last, under epoch; from there on it is settled
	epoch          topic.Epoch
	settleFrom     int
	apart          bool // s1 and s9 do not hear each other, and everybody else hears both

	entries int          // proposed by the runner, of the move and its elections
	fates   map[int]fate // by their number
	waiting metastate.Entry
	ended   bool // the term ends with this pass
	boots   topic.ID64
}

func newStage(t *testing.T, factor int) *stage {
	s := &stage{t: t, state: memory{}, ref: topic.Ref{Topic: "t", Incarnation: 7}, down: map[string]bool{}, records: map[string]int{}, fates: map[int]fate{}}
	for _, b := range metastate.Buckets() {
		s.state[b] = map[string]string{}
	}
	cfg := topic.DefaultConfig()
	cfg.Partitions, cfg.ReplicationFactor = 1, factor
	a := topic.Assignment{Ref: s.ref, Leader: "s1", LeaderEpoch: 1, ConfigVersion: 1}
	for i := range factor {
		a.Replicas = append(a.Replicas, topic.Replica{Node: fmt.Sprintf("s%d", i+1), DiskID: 1})
	}
	for _, r := range append(slices.Clone(a.Replicas), topic.Replica{Node: "s9"}) {
		s.register(r.Node)
	}
	s.apply(&metastate.CreateTopic{Topic: topic.Topic{Name: "t", Incarnation: 7, Config: cfg}, Assignments: []topic.Assignment{a}})
	rec := &metastate.RecordCopies{}
	for _, r := range a.Replicas {
		rec.Items = append(rec.Items, metastate.CopyRecord{Ref: s.ref, Node: r.Node, WasDisk: 1, DiskID: 1, CopyID: 7})
	}
	s.apply(rec)
	for _, r := range a.Replicas {
		s.records[r.Node] = 20
	}
	s.committed = 20
	s.term()
	return s
}

// term begins a controller's term.
func (s *stage) term() {
	r, err := New(Config{
		View: s, Read: func(f func(metastate.Reader) error) error { return f(s.state) }, Sure: func(context.Context) error { return nil },
		Propose: s.propose, Nodes: s, Elections: s, Log: slog.New(slog.DiscardHandler),
		Mono: func() time.Duration { return s.mono }, WallMS: func() int64 { return s.mono.Milliseconds() },
		Assigned: func() ([]topic.Assignment, error) { return []topic.Assignment{*s.part()}, nil },
	})
	if err != nil {
		s.t.Fatal(err)
	}
	r.begin()
	s.runner, s.ended = r, false
}

func (s *stage) register(node string) {
	s.boots++
	s.apply(&metastate.RegisterMember{NowMS: 1, Member: topic.Member{ID: node, Role: topic.RoleStorage, DiskID: 1, BootNonce: s.boots, RPCAddr: "a:1", Release: "0.2.0"}})
}

func (s *stage) apply(e metastate.Entry) *metastate.Result {
	s.t.Helper()
	raw, err := metastate.Encode(e)
	if err != nil {
		s.t.Fatal(err)
	}
	res, err := metastate.Apply(s.state, raw)
	if err != nil {
		s.t.Fatal(err)
	}
	return &res
}

// propose is how the controller proposes; each entry has its fate.
func (s *stage) propose(_ context.Context, e metastate.Entry) (*metastate.Result, error) {
	if s.waiting != nil {
		s.apply(s.waiting)
		s.waiting = nil
	}
	f := s.fates[s.entries]
	s.entries++
	switch f {
	case lost:
		return nil, errInterrupted
	case late:
		s.waiting = e
		return nil, errInterrupted
	case unknown, newTerm:
		s.ended = s.ended || f == newTerm
		s.apply(e)
		return nil, errInterrupted
	}
	res := s.apply(e)
	return res, res.Err()
}

// Members implements metastate.View.
func (s *stage) Members() *metastate.MemberTable {
	out := &metastate.MemberTable{ByID: map[string]*topic.Member{}}
	list, err := metastate.AllMembers(s.state)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range list {
		out.ByID[list[i].ID] = &list[i]
	}
	return out
}

func (s *stage) part() *topic.Assignment {
	a, err := metastate.PartitionOf(s.state, s.ref)
	if err != nil || a == nil {
		s.t.Fatal(a, err)
	}
	return a
}

// Vouch implements Nodes.
func (s *stage) Vouch(_ context.Context, node string, refs []topic.Ref) ([]nodeapi.Vouch, error) {
	a := s.part()
	if s.down[node] || a.Leader != node {
		return nil, errInterrupted
	}
	v := nodeapi.Vouch{Epoch: a.LeaderEpoch, ConfigVersion: a.ConfigVersion, Settled: s.settled(a)}
	for _, r := range slices.Concat(a.Replicas, a.Observers) {
		c := nodeapi.VouchedCopy{Replica: topic.Replica{Node: r.Node, DiskID: 1, CopyID: 7}, Near: s.records[r.Node] >= s.records[node]-nearRecords}
		if s.separate(r.Node, node) {
			c.Near, c.HeardAgoMS = false, -1 // its leadership is young
		}
		if s.down[r.Node] {
			c.Near, c.HeardAgoMS = false, time.Hour.Milliseconds()
		}
		v.Copies = append(v.Copies, c)
	}
	return []nodeapi.Vouch{v}, nil
}

// Give implements Elections: the leadership is handed to a copy that has everything.
func (s *stage) Give(ctx context.Context, a topic.Assignment, to string) bool {
	if s.down[to] || s.down[a.Leader] || s.records[to] < s.records[a.Leader] {
		return false
	}
	res, err := s.propose(ctx, &metastate.BeginElections{Items: []metastate.ElectionStart{{Ref: s.ref, Epoch: a.LeaderEpoch, ConfigVersion: a.ConfigVersion}}})
	return err == nil && res.Done[0] && s.elect(ctx, to)
}

func (s *stage) majority(a *topic.Assignment) bool {
	n := 0
	for _, r := range a.Replicas {
		if !s.down[r.Node] {
			n++
		}
	}
	return n > len(a.Replicas)/2
}

// elect makes the copy of a majority that has most the leader; of equals wanted.
func (s *stage) elect(ctx context.Context, wanted string) bool {
	a := s.part()
	if a.Leader != "" || !s.majority(a) {
		return false
	}
	var best topic.Replica
	for _, r := range a.Replicas {
		if !s.down[r.Node] && (best.Node == "" || s.records[r.Node] > s.records[best.Node] || s.records[r.Node] == s.records[best.Node] && r.Node == wanted) {
			best = r
		}
	}
	res, err := s.propose(ctx, &metastate.ElectLeaders{Items: []metastate.Elected{{Ref: s.ref, Epoch: a.LeaderEpoch, ConfigVersion: a.ConfigVersion, Leader: best}}})
	return err == nil && res.Done[0]
}

// settled is what a leader says of the set that it applied.
func (s *stage) settled(a *topic.Assignment) bool {
	if s.version != a.ConfigVersion || s.epoch != a.LeaderEpoch {
		s.version, s.epoch, s.settleFrom = a.ConfigVersion, a.LeaderEpoch, s.records[a.Leader]
	}
	return len(a.Replicas) == 1 || s.committed > s.settleFrom
}

// replicate appends a record to the leader's copy, has the others fetch, and commits.
func (s *stage) replicate(a *topic.Assignment) {
	s.settled(a)
	s.records[a.Leader]++
	var ends []int
	for _, r := range slices.Concat(a.Replicas, a.Observers) {
		if r.Node != a.Leader && !s.down[r.Node] && !s.separate(r.Node, a.Leader) { // what it has beyond the leader's it cuts
			s.records[r.Node] = min(s.records[r.Node]+copiedPerTick, s.records[a.Leader])
		}
		if _, counts := a.ReplicaOn(r.Node); counts {
			ends = append(ends, s.records[r.Node])
		}
	}
	slices.Sort(ends)
	s.committed = max(s.committed, ends[(len(ends)-1)/2])
}

func (s *stage) separate(a, b string) bool {
	return s.apart && a != b && (a == "s1" || a == "s9") && (b == "s1" || b == "s9")
}

// tick is one pass, and what nodes and the rest of the controller do in between.
func (s *stage) tick() {
	s.t.Helper()
	s.mono += lookEvery
	a := s.part()
	if lead, ok := a.ReplicaOn(a.Leader); ok && !s.down[lead.Node] {
		if s.records[lead.Node] < s.committed {
			s.t.Fatalf("LOST: %s leads with %d records of %d that were committed; %+v", lead.Node, s.records[lead.Node], s.committed, a)
		}
		s.replicate(a)
	} else if a.Leader != "" && len(a.Replicas) > 1 {
		s.apply(&metastate.BeginElections{Items: []metastate.ElectionStart{{Ref: s.ref, Epoch: a.LeaderEpoch, ConfigVersion: a.ConfigVersion}}})
	}
	s.elect(s.t.Context(), "")
	s.runner.pass(s.t.Context())
	if s.ended {
		s.term()
	}
}

// kill ends a node, and the metastore calls it dead; a node that is frozen is silent
// for shorter. revive starts it on its disk.
func (s *stage) kill(node string) {
	s.freeze(node)
	s.apply(&metastate.MarkDead{Items: []metastate.DeadMark{{ID: node, HeartbeatMS: 1}}})
}

func (s *stage) freeze(node string) { s.down[node] = true }

func (s *stage) revive(node string) {
	delete(s.down, node)
	s.register(node)
}

// move begins the move of one replica to s9.
func (s *stage) move(from string) {
	s.t.Helper()
	n, err := s.runner.Begin(s.t.Context(), topic.MoveAsked, []placement.Move{{Ref: s.ref, From: from, To: "s9"}})
	if err != nil || n != 1 {
		s.t.Fatalf("begin: %d, %v", n, err)
	}
}

func (s *stage) moves() []topic.Move {
	list, err := metastate.AllMoves(s.state)
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

func (s *stage) moving() bool { return len(s.moves()) > 0 }

// settle ticks until nothing moves and somebody leads, and checks the outcome; moved:
// it has to have come to its end, else it may have been taken back as well.
func (s *stage) settle(factor int, from string, moved bool) {
	s.t.Helper()
	for range 200 {
		if s.tick(); s.waiting == nil && !s.moving() && s.part().Leader != "" {
			break
		}
	}
	a := s.part()
	_, there := a.ReplicaOn("s9")
	_, here := a.ReplicaOn(from)
	if s.moving() || a.Leader == "" || len(a.Replicas) != factor || len(a.Observers) > 0 || here == there || moved && here {
		s.t.Fatalf("it ends as %+v, moving %v", a, s.moving())
	}
	before := s.committed
	if s.tick(); s.committed <= before {
		s.t.Fatalf("nothing is committed any more: %+v", a)
	}
}

// cases are moves of a partition with so many copies: of the leader, of another one.
func cases(t *testing.T, do func(t *testing.T, factor int, from string)) {
	for _, factor := range []int{1, 3, 5} {
		for _, from := range []string{"s1", "s2"} {
			if factor > 1 || from == "s1" {
				t.Run(fmt.Sprintf("%d copies, %s moves", factor, from), func(t *testing.T) { do(t, factor, from) })
			}
		}
	}
}

// TestEveryEntryInterrupted: every entry of a move, and every two of them, meet every
// fate. The move always ends, with nothing lost.
func TestEveryEntryInterrupted(t *testing.T) {
	cases(t, func(t *testing.T, factor int, from string) {
		clean := newStage(t, factor)
		clean.move(from)
		clean.entries = 0
		clean.settle(factor, from, true)
		n := 0
		for i := range clean.entries {
			for j := i; j < clean.entries+2; j++ {
				if race.Enabled && j > i {
					continue
				}
				for f := lost; f < fates; f++ {
					for g := lost; g < fates; g++ {
						s := newStage(t, factor)
						s.move(from)
						s.entries, s.fates = 0, map[int]fate{i: f, j: g}
						s.settle(factor, from, true)
						if n++; t.Failed() {
							t.Fatalf("entry %d: %s, entry %d: %s", i, fateNames[f], j, fateNames[g])
						}
					}
				}
			}
		}
		t.Logf("%d entries, %d runs", clean.entries, n)
	})
}

// TestPairThatIsApart: source and destination of an only copy cannot reach each other.
// The destination suspects the leader again and again, which is elected anew because
// it has more, and has never heard of the destination. The move is taken back all the
// same, because nothing is committed until then.
func TestPairThatIsApart(t *testing.T) {
	s := newStage(t, 1)
	s.move("s1")
	for range 20 {
		if _, joined := s.part().ReplicaOn("s9"); joined {
			break
		}
		s.tick()
	}
	if a := s.part(); len(a.Replicas) != 2 || a.Leader != "s1" {
		t.Fatalf("no pair: %+v", a)
	}
	s.apart = true
	before := s.committed
	for n := range 2 * int(silentAfter/lookEvery) {
		if a := s.part(); n%10 == 9 && len(a.Replicas) == 2 && a.Leader != "" {
			s.apply(&metastate.BeginElections{Items: []metastate.ElectionStart{{Ref: s.ref, Epoch: a.LeaderEpoch, ConfigVersion: a.ConfigVersion}}})
		}
		s.tick()
	}
	if a := s.part(); s.moving() || len(a.Replicas) != 1 || a.Leader != "s1" || s.committed < before+10 {
		t.Fatalf("%d were committed, and it is %+v", s.committed-before, a)
	}
}

// TestEveryStepWithANodeDown: at every step of a move the source, the destination or
// another replica stands still, or dies and comes back soon, or so late that the move is
// taken back. Meanwhile commits go on, but for a lone partition whose source is down.
func TestEveryStepWithANodeDown(t *testing.T) {
	const frozen = 8 * time.Second // above silentAfter, below what makes a member dead
	cases(t, func(t *testing.T, factor int, from string) {
		for _, victim := range []string{from, "s9", "s3"} {
			for at := range 10 { // passes; a clean move takes fewer
				for _, away := range []time.Duration{frozen, 20 * time.Second, lifecycle.DeadMoveAfter + time.Second} {
					if victim == "s3" && factor == 1 || race.Enabled && at%3 > 0 {
						continue
					}
					s := newStage(t, factor)
					s.move(from)
					for range at {
						s.tick()
					}
					what := fmt.Sprintf("%s is away for %s after %d passes", victim, away, at)
					_, keeps := s.part().ReplicaOn(from)
					goesOn := victim != from && s.moving() && (keeps || factor > 1) && (away != frozen || s.part().Leader != victim)
					before := s.committed
					s.away(victim, away, away == frozen)
					if n := s.committed - before; goesOn && n < int(away/lookEvery)/3 {
						t.Errorf("%s: only %d were committed meanwhile; %+v", what, n, s.part())
					}
					if victim == "s9" && away > lifecycle.DeadMoveAfter && s.moving() {
						t.Errorf("%s: the move waits for ever; %+v", what, s.part())
					}
					if away == frozen {
						delete(s.down, victim)
					} else {
						s.revive(victim)
					}
					s.settle(factor, from, false)
				}
			}
		}
	})
}

// away lets time go by with a node down.
func (s *stage) away(node string, d time.Duration, frozen bool) {
	s.t.Helper()
	if frozen {
		s.freeze(node)
	} else {
		s.kill(node)
	}
	for until := s.mono + d; s.mono < until; {
		s.tick()
	}
}
