package replication

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/storage-node/internal/alarm"
	"github.com/narad-mq/narad/apps/storage-node/internal/batches"
	"github.com/narad-mq/narad/apps/storage-node/internal/metrics"
	"github.com/narad-mq/narad/apps/storage-node/internal/partition"
	"github.com/narad-mq/narad/apps/storage-node/internal/queue"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

const testEpoch = 4

// leader is the node that is followed, and the metastore that hears of it.
type leader struct {
	nodeapi.Replica
	metaapi.Elections

	mu       sync.Mutex // guards what follows
	answer   func(q *nodeapi.FetchPartition) *nodeapi.FetchAnswer
	err      error
	hangs    bool
	fetches  [][]int32 // the partitions of each
	offsets  map[int32][]int64
	suspects []time.Duration // since the start
	began    time.Time
}

func (l *leader) Fetch(ctx context.Context, req *nodeapi.FetchRequest) (*nodeapi.FetchResult, error) {
	res, err, hangs := l.take(req)
	switch {
	case hangs:
		<-ctx.Done()
		return nil, ctx.Err()
	case err == nil && len(res.Partitions) == 0:
		wait(ctx, time.Duration(req.WaitMS)*time.Millisecond)
	}
	return res, err
}

func (l *leader) take(req *nodeapi.FetchRequest) (*nodeapi.FetchResult, error, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	res := &nodeapi.FetchResult{}
	var named []int32
	for i := range req.Partitions {
		q := &req.Partitions[i]
		named = append(named, q.Ref.Partition)
		l.offsets[q.Ref.Partition] = append(l.offsets[q.Ref.Partition], q.Offset)
		if a := l.answer(q); a != nil {
			a.Index, a.Epoch = i, max(a.Epoch, testEpoch)
			res.Partitions = append(res.Partitions, *a)
		}
	}
	slices.Sort(named)
	l.fetches = append(l.fetches, named)
	return res, l.err, l.hangs
}

func (l *leader) Suspect(context.Context, *metaapi.SuspectRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.suspects = append(l.suspects, time.Since(l.began))
	return nil
}

// set changes how it behaves.
func (l *leader) set(f func(*leader)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l)
}

// reported is when the node was suspected so far.
func (l *leader) reported() (at []time.Duration) {
	l.set(func(l *leader) { at = slices.Clone(l.suspects) })
	return at
}

// last is the newest offset that a partition was asked for from, and how often it was.
func (l *leader) last(part int32) (offset int64, times int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.offsets[part])
	return l.offsets[part][n-1], n
}

// newest is what the last fetch named.
func (l *leader) newest() []int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fetches[len(l.fetches)-1]
}

// following runs a test with a fetcher that follows partitions 0 to n-1 of a leader
// that has no news.
func following(t *testing.T, n int32, fs vfs.FS, test func(t *testing.T, l *leader)) {
	t.Helper()
	testkit.Bubble(t, func(t *testing.T) {
		l := &leader{offsets: map[int32][]int64{}, began: time.Now(), answer: func(*nodeapi.FetchPartition) *nodeapi.FetchAnswer { return nil }}
		m := New(Config{
			Self: "s1", DiskID: 1, BootNonce: 7, Elections: l, Log: slog.New(slog.DiscardHandler),
			Peers: func(string) (nodeapi.Replica, error) { return l, nil },
		})
		s := sharedOn(t, fs)
		set := partition.Set{Leadership: quorum.Leadership{Epoch: testEpoch, Leader: "s2"}}
		set.Replicas = []quorum.Replica{{Node: "s1", Disk: 1}, {Node: "s2", Disk: 2}, {Node: "s3", Disk: 3}}
		parts := map[topic.Ref]*part{}
		for i := range n {
			ref := topic.Ref{Topic: "t", Incarnation: 9, Partition: i}
			p, err := partition.Open(s, ref, "/p"+strconv.Itoa(int(i)), set)
			if err == nil {
				err = p.Assume(set)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = p.Close() }()
			parts[ref] = &part{p: p, epoch: testEpoch, disk: 2}
		}
		f := newFetcher(m, "s2")
		f.start(context.Background())
		defer f.close()
		f.set(parts)
		synctest.Wait()
		test(t, l)
	})
}

func sharedOn(t *testing.T, fs vfs.FS) *partition.Shared {
	t.Helper()
	none := func() float64 { return 0 }
	m, err := metrics.New(prometheus.NewRegistry(), metrics.Gauges{Leases: none, Free: none, Lost: none, Damaged: none, LagRecords: none, LagSeconds: none})
	if err != nil {
		t.Fatal(err)
	}
	began, next := time.Now(), byte(0)
	mono := func() int64 { return time.Since(began).Milliseconds() }
	return &partition.Shared{
		Serving: func(topic.Ref, topic.Epoch) {},
		FS:      fs, Node: "s1", DiskID: 1, Log: slog.New(slog.DiscardHandler), Metrics: m, Now: time.Now,
		Mono: mono, Steady: mono, Random: func(b []byte) { next++; b[0] = next },
		Cache: batches.NewCache(1 << 20), Deadlines: alarm.New(mono),
		Flusher: queue.NewFlusher(func(*queue.Queue, error) {}), Failed: func(err error) { t.Errorf("the disk failed: %v", err) },
	}
}

// placed is a batch of one record as the leader has it.
func placed(base int64, epoch topic.Epoch) []byte {
	return placedPayload(base, epoch, []byte("payload"))
}

func placedPayload(base int64, epoch topic.Epoch, payload []byte) []byte {
	var b record.Builder
	b.Reset(record.Stream{Kind: record.StreamWAL, ID: 5}, 0, record.Oldest{})
	_ = b.Add(uint64(base)+1, record.AppendBody(nil, &record.Message{Payload: payload}))
	batch := slices.Clone(b.Finish(record.CodecNone))
	record.Place(batch, base, epoch, 1)
	return batch
}

// once answers what is asked of one partition from an offset with a good batch.
func once(part int32, offset int64) func(*nodeapi.FetchPartition) *nodeapi.FetchAnswer {
	return func(q *nodeapi.FetchPartition) *nodeapi.FetchAnswer {
		if q.Ref.Partition != part || q.Offset != offset {
			return nil
		}
		return &nodeapi.FetchAnswer{Batches: placed(offset, testEpoch)}
	}
}

// One fetch names every partition, and none before its bytes are synced: to name it says
// that it has them. The others do not wait for it.
func TestFetchLeavesOutWhatIsNotSynced(t *testing.T) {
	var mu sync.Mutex // guards held
	var held chan struct{}
	slow := func(op vfs.Op) vfs.Fault {
		mu.Lock()
		wait := held
		mu.Unlock()
		if wait != nil && op.Kind == vfs.OpSync {
			<-wait
		}
		return vfs.Fault{}
	}
	hold := func(ch chan struct{}) {
		mu.Lock()
		defer mu.Unlock()
		held = ch
	}
	following(t, 3, vfs.NewFault(vfs.NewMem(), slow), func(t *testing.T, l *leader) {
		const round = 2 * nodeapi.MaxFetchWaitMS * time.Millisecond
		if first := l.newest(); !slices.Equal(first, []int32{0, 1, 2}) {
			t.Fatalf("the first fetch named %v", first)
		}
		l.set(func(l *leader) { l.answer = once(1, 0) }) // its file is made with syncs of its own
		<-time.After(round)
		syncs := make(chan struct{})
		hold(syncs)
		l.set(func(l *leader) { l.answer = once(1, 1) })
		<-time.After(round)
		before, times := l.last(1)
		<-time.After(round)
		if at, now := l.last(1); at != 1 || now != times {
			t.Errorf("what is not synced was asked for from %d, then from %d, %d times more", before, at, now-times)
		}
		if last := l.newest(); !slices.Equal(last, []int32{0, 2}) {
			t.Errorf("beside a partition that is not synced %v were asked for", last)
		}
		hold(nil)
		close(syncs)
		<-time.After(round)
		if at, _ := l.last(1); at != 2 {
			t.Errorf("synced, and it is asked for from %d", at)
		}
		if last := l.newest(); !slices.Equal(last, []int32{0, 1, 2}) {
			t.Errorf("the last fetch named %v", last)
		}
	})
}

// What is large is written and synced one partition at a time, from the first answer on,
// as long as a majority has more: live syncs wait for what the disk has under way. What
// ends at the high watermark may be waited for, and waits for no turn.
func TestLargeAnswersAreWrittenInTurn(t *testing.T) {
	for name, c := range map[string]struct {
		hwm, most int64
	}{"a majority has more": {2, 1}, "somebody may wait": {1, 4}} {
		t.Run(name, func(t *testing.T) {
			var under, most atomic.Int64
			slow := func(op vfs.Op) vfs.Fault {
				if op.Kind == vfs.OpSync && strings.Contains(op.Path, "/0000") { // a segment, under the name it was made with too
					most.Store(max(most.Load(), under.Add(1)))
					<-time.After(10 * time.Millisecond)
					under.Add(-1)
				}
				return vfs.Fault{}
			}
			following(t, 4, vfs.NewFault(vfs.NewMem(), slow), func(t *testing.T, l *leader) {
				l.set(func(l *leader) {
					l.answer = func(q *nodeapi.FetchPartition) *nodeapi.FetchAnswer {
						if q.Offset > 0 {
							return nil
						}
						return &nodeapi.FetchAnswer{Batches: placedPayload(0, testEpoch, make([]byte, farBytes)), HWM: c.hwm}
					}
				})
				<-time.After(2 * nodeapi.MaxFetchWaitMS * time.Millisecond)
				for part := range int32(4) {
					if at, _ := l.last(part); at != 1 {
						t.Errorf("partition %d is asked for from %d", part, at)
					}
				}
				if got := most.Load(); got != c.most {
					t.Errorf("%d logs were synced at once, want %d", got, c.most)
				}
			})
		})
	}
}

// An answer that no honest leader gives appends nothing, and a good one after it does.
func TestBadAnswersAppendNothing(t *testing.T) {
	damaged := placed(0, testEpoch)
	damaged[len(damaged)-1] ^= 1
	for name, bad := range map[string]nodeapi.FetchAnswer{
		"a wrong checksum":      {Batches: damaged},
		"another base offset":   {Batches: placed(3, testEpoch)},
		"a newer epoch":         {Batches: placed(0, testEpoch+1)},
		"half a batch":          {Batches: placed(0, testEpoch)[:60]},
		"bytes behind it":       {Batches: append(placed(0, testEpoch), 0)},
		"of another epoch":      {Epoch: testEpoch + 1, Batches: placed(0, testEpoch)},
		"another incarnation":   {Status: nodeapi.FetchGone, Batches: placed(0, testEpoch)},
		"it does not lead":      {Status: nodeapi.FetchNotLeader, Batches: placed(0, testEpoch)},
		"it cannot read":        {Status: nodeapi.FetchUnavailable, Batches: placed(0, testEpoch)},
		"a good one and a gap":  {Batches: append(placed(0, testEpoch), placed(7, testEpoch)...)},
		"twice the same offset": {Batches: append(placed(0, testEpoch), placed(0, testEpoch)...)},
	} {
		t.Run(name, func(t *testing.T) {
			following(t, 2, vfs.NewMem(), func(t *testing.T, l *leader) {
				l.set(func(l *leader) {
					l.answer = func(q *nodeapi.FetchPartition) *nodeapi.FetchAnswer {
						if a := bad; q.Ref.Partition == 0 {
							return &a
						}
						return nil
					}
				})
				<-time.After(2 * time.Second)
				at, times := l.last(0)
				if at != 0 || times < 3 {
					t.Fatalf("it was asked for %d times, from %d at last", times, at)
				}
				if times > 60 {
					t.Errorf("it was asked for %d times within 2 s", times)
				}
				l.set(func(l *leader) { l.answer = once(0, 0) })
				<-time.After(2 * time.Second)
				if at, _ := l.last(0); at != 1 {
					t.Fatalf("after a good answer it is asked for from %d", at)
				}
			})
		})
	}
}

// A leader that fails, says nothing, or refuses for long is reported, soon and not too
// often; one that answers is not.
func TestSilentLeaderIsSuspected(t *testing.T) {
	refuses := func(*nodeapi.FetchPartition) *nodeapi.FetchAnswer {
		return &nodeapi.FetchAnswer{Status: nodeapi.FetchNotLeader}
	}
	for name, c := range map[string]struct {
		goes             func(l *leader)
		earliest, latest time.Duration // of the first report
	}{
		"it fails":        {func(l *leader) { l.err = errors.New("refused") }, suspectAfter, suspectAfter + 2*retryAfter},
		"it says nothing": {func(l *leader) { l.hangs = true }, lateAfter, lateAfter + nodeapi.MaxFetchWaitMS*time.Millisecond},
		"it refuses":      {func(l *leader) { l.answer = refuses }, refusedFor, refusedFor + 2*retryAfter},
	} {
		t.Run(name, func(t *testing.T) {
			following(t, 2, vfs.NewMem(), func(t *testing.T, l *leader) {
				<-time.After(10 * nodeapi.MaxFetchWaitMS * time.Millisecond)
				if at := l.reported(); len(at) > 0 {
					t.Fatalf("it answered, and was reported at %v", at)
				}
				l.set(func(l *leader) { c.goes(l); l.began = time.Now() })
				<-time.After(10 * time.Second)
				at := l.reported()
				slack := nodeapi.MaxFetchWaitMS * time.Millisecond // the fetch that was under way has to end first
				if len(at) < 2 || at[0] < c.earliest || at[0] > c.latest+slack {
					t.Fatalf("it was reported at %v, not first between %s and %s", at, c.earliest, c.latest+slack)
				}
				for i := 1; i < len(at); i++ {
					if at[i]-at[i-1] < suspectEvery {
						t.Fatalf("it was reported too often: %v", at)
					}
				}
				l.set(func(l *leader) {
					l.err, l.hangs, l.answer = nil, false, func(*nodeapi.FetchPartition) *nodeapi.FetchAnswer { return nil }
				})
				<-time.After(fetchBudget + time.Second) // those under way end
				n := len(l.reported())
				<-time.After(5 * time.Second)
				if at := l.reported(); len(at) != n {
					t.Fatalf("it answers again, and was reported at %v", at)
				}
			})
		})
	}
}
