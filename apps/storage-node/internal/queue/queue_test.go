package queue_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/apps/storage-node/internal/alarm"
	"github.com/narad-mq/narad/apps/storage-node/internal/batches"
	"github.com/narad-mq/narad/apps/storage-node/internal/queue"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/lease"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

var lim = lease.Limits{MaxInFlight: 1000, MaxAckedAhead: 1000}

// source is a log of single-record batches, up to a high watermark.
type source struct {
	cache *batches.Cache
	hwm   atomic.Int64
	fail  atomic.Bool

	mu    sync.Mutex
	saves int
	syncs int
}

func (s *source) HighWatermark() int64 { return s.hwm.Load() }
func (s *source) LogStart() int64      { return 0 }

func (s *source) Batch(off int64) (*batches.Batch, error) {
	if s.fail.Load() {
		return nil, errors.New("too many open files")
	}
	var b record.Builder
	b.Reset(record.Stream{Kind: record.StreamWAL, ID: 1}, 0, record.Oldest{})
	m := record.Message{Payload: []byte("x")}
	if err := b.Add(uint64(off), record.AppendBody(nil, &m)); err != nil {
		return nil, err
	}
	raw := b.Finish(record.CodecNone)
	record.Place(raw, off, 1, 1)
	return s.cache.Decode(raw)
}

func (s *source) SavePositions(_ []byte, sync bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saves++
	if sync {
		s.syncs++
	}
	return nil
}

func (s *source) counts() (saves, syncs int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.saves, s.syncs
}

type wakes struct{ ch chan string }

func (w *wakes) Ready(gateway string, _ gatewayapi.Ready) { w.ch <- gateway }

type rig struct {
	q     *queue.Queue
	src   *source
	wakes *wakes
}

func newRig(t *testing.T) *rig {
	t.Helper()
	now := func() int64 { return time.Now().UnixMilli() }
	r := &rig{src: &source{cache: batches.NewCache(1 << 20)}, wakes: &wakes{make(chan string, 100)}}
	sched := alarm.New(now)
	flusher := queue.NewFlusher(func(_ *queue.Queue, err error) { t.Error(err) })
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { sched.Run(ctx) })
	wg.Go(func() { flusher.Run(ctx) })
	q, err := queue.Open(queue.Config{
		Ref: topic.Ref{Topic: "t", Incarnation: 1}, Epoch: 1, Source: r.src, Now: now, Waker: r.wakes,
		Deadlines: sched, Flusher: flusher, Skipped: func(from, to int64, err error) { t.Errorf("skipped %d..%d: %v", from, to, err) },
	}, [32]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	r.q = q
	t.Cleanup(func() { cancel(); wg.Wait() })
	return r
}

// Whatever the order of arming and committing: who armed is told, or was told
// at once that there is something.
func TestArmRacesCommit(t *testing.T) {
	r := newRig(t)
	for i := range int64(2000) {
		committed := make(chan struct{})
		go func() {
			r.src.hwm.Store(i + 1)
			r.q.Committed(false)
			close(committed)
		}()
		left, err := r.q.Arm("g", lim)
		if err != nil {
			t.Fatal(err)
		}
		if left != lease.More {
			select {
			case <-r.wakes.ch:
			case <-time.After(testkit.Patience):
				t.Fatalf("round %d: armed, committed, and never woken", i)
			}
		}
		<-committed
		if len(r.wakes.ch) != 0 {
			t.Fatalf("round %d: woken without having armed", i)
		}
		got, _, err := r.q.Take(&queue.Want{Records: 1, Bytes: 1, First: true, VisibilityMS: 60_000}, lim, nil)
		if err != nil || len(got) != 1 || got[0].Offset != i {
			t.Fatalf("round %d: %v %v", i, got, err)
		}
		st := make([]nodeapi.SettleStatus, 1)
		r.q.Settle([]nodeapi.SettleOp{{Kind: nodeapi.SettleAck, Offset: i, Epoch: 1, Nonce: got[0].Nonce}}, st)
		if st[0] != nodeapi.SettleOK {
			t.Fatalf("round %d: ack %d", i, st[0])
		}
	}
}

// A read that fails for want of something that may come back leases nothing and
// skips nothing.
func TestFailedReadGivesLeasesBack(t *testing.T) {
	r := newRig(t)
	r.src.hwm.Store(5)
	r.src.fail.Store(true)
	want := queue.Want{Records: 5, Bytes: 100, First: true, VisibilityMS: 60_000}
	if got, _, err := r.q.Take(&want, lim, nil); err == nil || len(got) != 0 {
		t.Fatalf("%v %v", got, err)
	}
	if st := r.q.Stats(); st.InFlight != 0 || st.Frontier != 0 {
		t.Fatalf("%+v", st)
	}
	r.src.fail.Store(false)
	got, _, err := r.q.Take(&want, lim, nil)
	if err != nil || len(got) != 5 || got[0].DeliveryCount != 1 {
		t.Fatalf("%v %v", got, err)
	}
}

// Positions are written within 100 ms, synced within a second, and not at all
// while nothing changes; a closed queue takes nothing.
func TestFlushCadence(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		r := newRig(t)
		<-time.After(10 * time.Second)
		synctest.Wait()
		if n, _ := r.src.counts(); n != 0 {
			t.Fatalf("%d saves of an idle queue", n)
		}
		r.src.hwm.Store(100)
		settle := func() {
			got, _, err := r.q.Take(&queue.Want{Records: 1, Bytes: 1, First: true, VisibilityMS: 60_000}, lim, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.q.Settle([]nodeapi.SettleOp{{Kind: nodeapi.SettleAck, Offset: got[0].Offset, Epoch: 1, Nonce: got[0].Nonce}}, make([]nodeapi.SettleStatus, 1))
		}
		for range 30 {
			settle()
			<-time.After(100 * time.Millisecond)
		}
		synctest.Wait()
		if saves, syncs := r.src.counts(); saves < 20 || saves > 40 || syncs < 2 || syncs > 5 {
			t.Fatalf("in 3 s: %d saves, %d of them synced", saves, syncs)
		}
		<-time.After(10 * time.Second)
		synctest.Wait()
		before, _ := r.src.counts()
		<-time.After(10 * time.Second)
		synctest.Wait()
		if n, _ := r.src.counts(); n != before {
			t.Fatal("saves while nothing changes")
		}
		settle()
		r.q.Drop()
		<-time.After(10 * time.Second)
		synctest.Wait()
		if n, _ := r.src.counts(); n != before {
			t.Fatal("a dropped queue was saved")
		}
		if _, err := r.q.Arm("g", lim); !errors.Is(err, queue.ErrClosed) {
			t.Fatalf("arm after the end: %v", err)
		}
	})
}

// What was only committed is synced every second where other copies count, every five
// for a lone copy, beside positions not once more, and not at all while nothing is
// committed. One is synced at a time, however many there are.
func TestHighWatermarkCadence(t *testing.T) {
	for name, c := range map[string]struct {
		replicated bool
		step       func(r *rig)
		most, min  int
	}{
		"several copies": {true, func(*rig) {}, 11, 9},
		"a lone copy":    {false, func(*rig) {}, 2, 1},
		"with positions": {true, func(r *rig) { r.q.Touch() }, 11, 9},
	} {
		testkit.Bubble(t, func(t *testing.T) {
			r := newRig(t)
			for range 200 { // 10 s
				r.src.hwm.Add(1)
				r.q.Committed(c.replicated)
				c.step(r)
				<-time.After(50 * time.Millisecond)
			}
			synctest.Wait()
			_, syncs := r.src.counts()
			if syncs < c.min || syncs > c.most {
				t.Errorf("%s: %d syncs in 10 s", name, syncs)
			}
			<-time.After(10 * time.Second)
			synctest.Wait()
			if _, n := r.src.counts(); n > syncs+1 {
				t.Errorf("%s: %d syncs while nothing was committed", name, n-syncs)
			}
		})
	}
}

// gauged is a source whose disk takes a while, and that counts who syncs at once.
type gauged struct {
	source
	now, most *atomic.Int32
}

func (g *gauged) SavePositions(_ []byte, sync bool) error {
	if sync {
		g.most.Store(max(g.most.Load(), g.now.Add(1)))
		<-time.After(10 * time.Millisecond)
		g.now.Add(-1)
	}
	return nil
}

// Thousands of partitions that only commit take one place at the disk.
func TestHighWatermarksAreSavedOneAtATime(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		now := func() int64 { return time.Now().UnixMilli() }
		flusher := queue.NewFlusher(func(_ *queue.Queue, err error) { t.Error(err) })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { flusher.Run(ctx); close(ended) }()
		var at, most atomic.Int32
		for range 50 {
			q, err := queue.Open(queue.Config{
				Ref: topic.Ref{Topic: "t", Incarnation: 1}, Epoch: 1, Source: &gauged{source{}, &at, &most}, Now: now,
				Waker: &wakes{make(chan string, 100)}, Deadlines: alarm.New(now), Flusher: flusher,
			}, [32]byte{1})
			if err != nil {
				t.Fatal(err)
			}
			q.Committed(true)
		}
		<-time.After(3 * time.Second)
		cancel()
		<-ended
		if most.Load() != 1 {
			t.Errorf("%d at once", most.Load())
		}
	})
}

// A disk that refuses positions for an hour is tried ten times a second and synced
// once, however long it lasts: what waits does not grow.
func TestRefusedPositionsAreNotTriedEverMore(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		failures := 0
		flusher := queue.NewFlusher(func(*queue.Queue, error) { failures++ })
		src := &refusing{source{cache: batches.NewCache(1 << 20)}}
		q, err := queue.Open(queue.Config{
			Ref: topic.Ref{Topic: "t", Incarnation: 1}, Epoch: 1, Source: src, Now: func() int64 { return time.Now().UnixMilli() },
			Waker: &wakes{make(chan string, 100)}, Deadlines: alarm.New(func() int64 { return time.Now().UnixMilli() }), Flusher: flusher,
		}, [32]byte{1})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { flusher.Run(ctx); close(ended) }()
		q.Touch()
		<-time.After(time.Minute)
		cancel()
		<-ended
		if failures < 500 || failures > 700 {
			t.Errorf("tried %d times in a minute", failures)
		}
		q.Drop()
	})
}

// refusing is a source whose disk takes no position.
type refusing struct{ source }

func (*refusing) SavePositions([]byte, bool) error { return errors.New("no space") }

// A queue that was dropped leases, arms, settles and saves nothing any more, although
// its source would still answer.
func TestADroppedQueueGivesNothing(t *testing.T) {
	r := newRig(t)
	r.src.hwm.Store(5)
	want := queue.Want{Records: 1, Bytes: 100, First: true, VisibilityMS: 1000}
	held, _, err := r.q.Take(&want, lim, nil)
	if err != nil || len(held) != 1 {
		t.Fatal(held, err)
	}
	r.q.Drop()
	saves, _ := r.src.counts()
	want.Records = 1
	if got, _, err := r.q.Take(&want, lim, nil); !errors.Is(err, queue.ErrClosed) || len(got) != 0 {
		t.Errorf("take: %+v, %v", got, err)
	}
	if _, err := r.q.Arm("gateway-1", lim); !errors.Is(err, queue.ErrClosed) {
		t.Errorf("arm: %v", err)
	}
	out := make([]nodeapi.SettleStatus, 1)
	r.q.Settle([]nodeapi.SettleOp{{Kind: nodeapi.SettleAck, Offset: held[0].Offset, Epoch: held[0].Epoch, Nonce: held[0].Nonce}}, out)
	if out[0] != nodeapi.SettleUnavailable {
		t.Errorf("settle: %d", out[0])
	}
	r.q.GiveBack(held)
	if err := r.q.Close(); err != nil {
		t.Error(err)
	}
	if after, _ := r.src.counts(); after != saves {
		t.Errorf("saved %d times after the drop", after-saves)
	}
}
