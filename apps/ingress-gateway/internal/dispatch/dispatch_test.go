package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/dispatchq"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
	"github.com/narad-mq/narad/libs/wal"
)

// store is a storage node that keeps what it is sent and fails on request.
type store struct {
	nodeapi.Node // what the dispatcher does not call
	mu           sync.Mutex
	got          []got
	fail         func(*nodeapi.CommitRequest) error
	serves       bool
}

// got is one record as a partition would see it.
type got struct {
	partition int32
	stream    record.Stream
	seq       uint64
	oldest    record.Oldest
	payload   string
}

func (s *store) Commit(_ context.Context, req *nodeapi.CommitRequest) (*nodeapi.CommitResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		if err := s.fail(req); err != nil {
			return nil, err
		}
	}
	var dec record.Decoder
	if err := dec.Reset(req.Batch); err != nil {
		return nil, err
	}
	for rec, ok := dec.Next(); ok; rec, ok = dec.Next() {
		v, err := record.ParseBody(rec.Body)
		if err != nil {
			return nil, err
		}
		s.got = append(s.got, got{req.Partition, dec.Header().Stream, rec.Number.Seq, dec.Header().Oldest, string(v.Payload)})
	}
	return &nodeapi.CommitResult{}, nil
}

func (s *store) Details(_ context.Context, req *nodeapi.DetailsRequest) (*nodeapi.DetailsResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.serves {
		return nil, problem.New(problem.NotReady, "no")
	}
	return &nodeapi.DetailsResult{Partitions: []nodeapi.PartitionDetails{{Partition: req.Partitions[0], Epoch: 1}}}, nil
}

func (s *store) set(fail func(*nodeapi.CommitRequest) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

func (s *store) all() []got {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]got(nil), s.got...)
}

type space struct {
	mu    sync.Mutex
	bytes int
}

func (s *space) Recovered(_ string, _ topic.Incarnation, n int) { s.add(n) }
func (s *space) Dispatched(_ topic.Incarnation, n int)          { s.add(-n) }
func (s *space) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes += n
}

type fixture struct {
	*testing.T
	fs    *vfs.Mem
	meta  *testkit.Meta
	store *store
	cfg   dispatchq.Config
	space space
	log   *wal.WAL
	d     *Dispatcher
	stop  func()

	disk   vfs.FS       // Deps.FS; nil: fs
	below  int          // Deps.ParkBelow
	warned atomic.Int64 // log lines of warnings

	behind   atomic.Bool // the replica is not caught up
	verdicts verdicts
	registry *prometheus.Registry
}

// warnings counts the lines of a logger.
type warnings struct {
	slog.Handler
	n *atomic.Int64
}

func (w warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (w warnings) Handle(context.Context, slog.Record) error    { w.n.Add(1); return nil }

func newFixture(t *testing.T) *fixture {
	f := &fixture{T: t, fs: vfs.NewMem(), meta: testkit.NewMeta(), store: &store{serves: true}, cfg: dispatchq.DefaultConfig()}
	f.meta.PutMember(topic.Member{ID: "n1", Role: topic.RoleStorage, Status: topic.StatusAlive})
	f.put("a", 7, "n1")
	f.start()
	t.Cleanup(func() { f.stop() })
	return f
}

// put makes or changes a topic of two partitions with that leader.
func (f *fixture) put(name string, id topic.Incarnation, leader string) {
	f.meta.PutTopic(topic.Topic{Name: name, Incarnation: id, Config: topic.DefaultConfig()}, []topic.Assignment{
		{Ref: topic.Ref{Topic: name, Incarnation: id}, Leader: leader, LeaderEpoch: 1},
		{Ref: topic.Ref{Topic: name, Incarnation: id, Partition: 1}, Leader: leader, LeaderEpoch: 1},
	})
}

func (f *fixture) start() {
	f.Helper()
	log, err := wal.Open(f.fs, "wal", wal.Options{SegmentBytes: 1 << 20, FillAhead: -1})
	if err != nil {
		f.Fatal(err)
	}
	f.log = log
	disk := f.disk
	if disk == nil {
		disk = f.fs
	}
	f.registry = prometheus.NewRegistry()
	f.d, err = New(f.cfg, Deps{
		View: f.meta, WAL: log, FS: disk, Dir: "wal", Space: &f.space,
		Node:    func(string) nodeapi.Node { return f.store },
		Confirm: f.verdicts.confirm, CaughtUp: func() bool { return !f.behind.Load() },
		Registry: f.registry, Log: slog.New(warnings{slog.DiscardHandler, &f.warned}), ParkBelow: f.below,
	})
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.d.Run(ctx) }()
	f.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			f.Error(err)
		}
		if err := log.Close(); err != nil {
			f.Error(err)
		}
		f.stop = func() {}
	}
}

func (f *fixture) append(name string, id topic.Incarnation, partition int32, payloads ...string) {
	f.Helper()
	entries := make([]wal.Entry, len(payloads))
	for i, p := range payloads {
		entries[i] = wal.Entry{
			Topic: name, Incarnation: id, Partition: partition, AcceptMS: 1,
			Body: record.AppendBody(nil, &record.Message{Payload: []byte(p)}),
		}
		f.space.add(len(entries[i].Body))
	}
	if _, err := f.log.Append(entries); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) empty() {
	f.Helper()
	testkit.Poll(f, testkit.Patience, "everything is dispatched", func() bool { return f.d.Left() == 0 })
	// What was given up is counted off the space a moment after it is counted off the logs.
	testkit.Poll(f, testkit.Patience, "no bytes are counted", func() bool {
		f.space.mu.Lock()
		defer f.space.mu.Unlock()
		return f.space.bytes == 0
	})
	testkit.Poll(f, testkit.Patience, "no bodies are kept without need", func() bool {
		f.d.chunks.mu.Lock()
		defer f.d.chunks.mu.Unlock()
		return f.d.chunks.bytes == 0
	})
}

func (f *fixture) payloads() (out []string) {
	for _, g := range f.store.all() {
		out = append(out, g.payload)
	}
	return out
}

func numbered(from, to int) (out []string) {
	for i := from; i <= to; i++ {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

func TestRecordsReachTheirPartition(t *testing.T) {
	f := newFixture(t)
	f.append("a", 7, 1, "one", "two")
	f.empty()
	all := f.store.all()
	want := record.Stream{Kind: record.StreamWAL, ID: f.log.Identity(), A: 1}
	if len(all) != 2 || all[0].stream != want || all[0].payload != "one" || all[1].seq != all[0].seq+1 || all[0].partition != 1 {
		t.Fatalf("got %+v", all)
	}
}

func TestLostAnswerIsRepeatedThereUnderTheSameNumbers(t *testing.T) {
	f := newFixture(t)
	var seen []int32
	f.store.set(func(r *nodeapi.CommitRequest) error {
		seen = append(seen, r.Partition)
		if len(seen) <= 3 {
			return &rpc.TransportError{Sent: true, Err: errors.New("reset")}
		}
		return nil
	})
	f.append("a", 7, 0, "x")
	f.empty()
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	if len(seen) != 4 || len(f.store.got) != 1 {
		t.Fatalf("sent to %v, got %v", seen, f.store.got)
	}
	for _, p := range seen {
		if p != 0 {
			t.Fatalf("sent to %v", seen)
		}
	}
}

func TestEndedLifeIsHeldAndDelaysNobody(t *testing.T) {
	f := newFixture(t)
	for range 20 {
		f.append("gone", 9, 0, numbered(1, 500)...)
	}
	f.append("a", 6, 0, "an older life")
	f.append("a", 7, 0, "x")
	testkit.Poll(t, testkit.Patience, "the record behind them is dispatched", func() bool { return len(f.store.all()) == 1 })
	testkit.Poll(t, testkit.Patience, "they are counted", func() bool { return f.d.stats.Load().Held == 10_001 })
	if left := f.d.Left(); left != 10_001 {
		t.Fatalf("%d left", left)
	}
}

func TestRestartDispatchesUnderTheOldIdentity(t *testing.T) {
	f := newFixture(t)
	f.meta.SetState(true, false)
	f.append("a", 7, 0, numbered(1, 5)...)
	first := f.log.Identity()
	f.stop()
	f.space.bytes = 0
	f.start()
	f.append("a", 7, 0, "6")
	f.meta.SetState(true, true)
	f.empty()
	all := f.store.all()
	if len(all) != 6 || all[0].stream.ID != first || all[5].stream.ID != f.log.Identity() || all[5].payload != "6" {
		t.Fatalf("got %+v", all)
	}
}

func TestStuckQueueIsParkedAndComesBackInOrderAfterARestart(t *testing.T) {
	f := newFixture(t)
	f.stop()
	f.cfg.ParkAfter, f.cfg.ReparkAfter = 50*time.Millisecond, 20*time.Millisecond
	f.put("a", 7, "")
	f.start()
	f.append("a", 7, 0, numbered(1, 100)...)
	f.append("a", 7, 0, numbered(101, 200)...)
	testkit.Poll(t, testkit.Patience, "they are parked", func() bool {
		return f.log.Stats().Backlog == 0 && f.d.parked.left() == 200
	})
	f.stop()
	f.space.bytes = 0
	f.start()
	f.append("a", 7, 0, numbered(201, 300)...)
	testkit.Poll(t, testkit.Patience, "the newer ones are parked behind", func() bool { return f.d.parked.left() == 300 })
	if records, oldest := f.d.Parked(); records != 300 || oldest != 1 {
		t.Errorf("%d parked records, the oldest of %d; want 300, of 1", records, oldest)
	}
	f.put("a", 7, "n1")
	f.append("a", 7, 0, numbered(301, 310)...)
	f.empty()
	if got, want := fmt.Sprint(f.payloads()), fmt.Sprint(numbered(1, 310)); got != want {
		t.Fatalf("got %s", got)
	}
	testkit.Poll(t, testkit.Patience, "no parked log is left", func() bool { // they go after their last record is counted off
		left, err := wal.ListParked(f.fs, "wal")
		if err != nil {
			t.Fatal(err)
		}
		return len(left) == 0
	})
}

// TestShortageAtStartDelaysAndLosesNothing: a parked log that cannot be opened for
// want of descriptors is no damage, ends nothing, and is not overtaken.
func TestShortageAtStartDelaysAndLosesNothing(t *testing.T) {
	f := newFixture(t)
	f.stop()
	f.cfg.ParkAfter = 20 * time.Millisecond
	f.put("a", 7, "")
	f.start()
	f.append("a", 7, 0, numbered(1, 100)...)
	testkit.Poll(t, testkit.Patience, "they are parked", func() bool { return f.d.parked.left() == 100 })
	f.stop()
	f.space.bytes = 0
	var fails atomic.Int64
	f.disk = vfs.NewFault(f.fs, func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpOpen && strings.Contains(op.Path, "/parked/") && fails.Add(1) == 1 {
			return vfs.Fault{Err: syscall.EMFILE}
		}
		return vfs.Fault{}
	})
	f.put("a", 7, "n1")
	f.start()
	f.append("a", 7, 0, numbered(101, 110)...)
	f.empty()
	if got, want := fmt.Sprint(f.payloads()), fmt.Sprint(numbered(1, 110)); got != want || fails.Load() < 2 || f.warned.Load() == 0 {
		t.Fatalf("%d opens, got %s", fails.Load(), got)
	}
}

// TestParkingDoesNotFillTheDisk: the replica lives on the same disk, and a process
// that cannot write there ends. What cannot be parked stays in the WAL.
func TestParkingDoesNotFillTheDisk(t *testing.T) {
	f := newFixture(t)
	f.stop()
	f.put("a", 7, "")
	f.start() // it would wait for minutes before it parks
	f.append("a", 7, 0, numbered(1, 100)...)
	f.stop()
	total, free, err := f.fs.Usage("wal")
	if err != nil {
		t.Fatal(err)
	}
	f.fs.SetCapacity(int64(total-free) * 100 / 40) // room for a copy, but not below the mark
	f.cfg.ParkAfter, f.cfg.ReparkAfter, f.below = 20*time.Millisecond, 20*time.Millisecond, 41
	f.space.bytes = 0
	f.start()
	testkit.Poll(t, testkit.Patience, "parking fails", func() bool { return f.warned.Load() > 1 })
	if left, backlog := f.d.parked.left(), f.log.Stats().Backlog; left != 0 || backlog != 100 {
		t.Fatalf("%d parked, %d in the WAL", left, backlog)
	}
	f.fs.SetCapacity(1 << 30)
	testkit.Poll(t, testkit.Patience, "they are parked when there is room", func() bool { return f.d.parked.left() == 100 })
	f.put("a", 7, "n1")
	f.empty()
}

// TestDamagedParkedLogCountsDown: what is lost is counted, and is no backlog and
// no share of the disk any more (cases.md 83).
func TestDamagedParkedLogCountsDown(t *testing.T) {
	f := newFixture(t)
	f.stop()
	f.cfg.ParkAfter = 50 * time.Millisecond
	f.put("a", 7, "")
	f.start()
	f.append("a", 7, 0, numbered(1, 100)...)
	testkit.Poll(t, testkit.Patience, "they are parked", func() bool { return f.d.parked.left() == 100 })
	dir := "wal/parked/" + wal.Queue{Incarnation: 7}.String()
	files, err := f.fs.ReadDir(dir)
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, e := range files {
		file, err := f.fs.Open(dir + "/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if size, err := file.Size(); err == nil && size > seglog.HeaderSize {
			_, err = file.WriteAt([]byte{0xff}, size-1)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	f.put("a", 7, "n1")
	f.empty()
}

func TestOutcomeIsUnknownUnlessSurelyNothingWasDone(t *testing.T) {
	for _, c := range []struct {
		err  error
		want dispatchq.Outcome
	}{
		{nil, dispatchq.Committed},
		{problem.New(problem.NotPartitionLeader, ""), dispatchq.Refused},
		{problem.New(problem.IncarnationMismatch, ""), dispatchq.Mismatch},
		{problem.New(problem.OutcomeUnknown, ""), dispatchq.Unknown},
		{problem.New(problem.Internal, ""), dispatchq.Unknown},
		{&rpc.TransportError{Err: errors.New("refused")}, dispatchq.Refused},
		{&rpc.TransportError{Sent: true, Err: errors.New("reset")}, dispatchq.Unknown},
		{context.DeadlineExceeded, dispatchq.Unknown},
	} {
		if got := outcome(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}

func TestBatchesNameTheOldestRecordOfTheWAL(t *testing.T) {
	f := newFixture(t)
	f.append("gone", 9, 0, "held")
	testkit.Poll(t, testkit.Patience, "it is held", func() bool { return f.d.stats.Load().Held == 1 })
	f.append("a", 7, 0, "x")
	testkit.Poll(t, testkit.Patience, "the other is sent", func() bool { return len(f.store.all()) == 1 })
	all := f.store.all()
	if want := (record.Oldest{ID: f.log.Identity(), Seq: all[0].seq - 1}); all[0].oldest != want {
		t.Fatalf("oldest %+v, want %+v", all[0].oldest, want)
	}
	f.put("gone", 9, "n1") // the view had lagged
	testkit.Poll(t, testkit.Patience, "both are dispatched", func() bool { return f.d.Left() == 0 })
	f.append("a", 7, 0, "y")
	f.empty()
	all = f.store.all()
	if last := all[len(all)-1]; last.oldest.Seq != last.seq {
		t.Fatalf("oldest %+v of %+v", last.oldest, last)
	}
}
