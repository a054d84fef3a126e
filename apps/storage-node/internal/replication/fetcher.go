package replication

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/narad-mq/narad/apps/storage-node/internal/partition"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// maxGroup bounds the partitions of one fetch, so that news of one costs little
	// for the others that wait with it.
	maxGroup = 256
	// maxFetches bounds the fetches of one pair of nodes under way: what is ready
	// beyond waits for the next one that returns.
	maxFetches = 24
	// fewFetches: with so many under way a fetch waits for news only shortMS, so that
	// groups that fell apart come together again.
	fewFetches = 8
	shortMS    = 50
	// gatherFor is how long partitions whose wait ended without news are collected
	// into one fetch again.
	gatherFor = 2 * time.Millisecond
	// fetchBytes bounds one answer, and partBytes what one partition may have of it,
	// so that one that catches up does not hold the others up for long.
	fetchBytes = 8 << 20
	partBytes  = 1 << 20
	// farBytes of one partition of which a majority has more are written and synced when it
	// is their turn (writers): half of the pieces that a leader sends, because batches are not cut.
	farBytes = 128 << 10
	// fetchBudget is what a fetch may take beyond its wait.
	fetchBudget = 5 * time.Second
	// retryAfter is the pause after a fetch that failed, or was refused again and again.
	// A node that is about to lead keeps a fetch until it does, but not beside news of
	// another partition: so the first refusal costs retryFirst, and each one twice as much.
	retryAfter = 100 * time.Millisecond
	retryFirst = 5 * time.Millisecond
	// suspectAfter is how long every fetch of a node has failed before it is
	// reported, and how often it is reported then.
	suspectAfter = 300 * time.Millisecond
	suspectEvery = time.Second
	// lateAfter is how long beyond its wait a fetch may take before the node is
	// reported: one that is paused or cut off does not refuse, it says nothing.
	lateAfter = time.Second
	// refusedFor is how long a node may refuse to lead what the metastore says that
	// it leads, before it is reported: it hears of it at about the same time.
	refusedFor = 2 * time.Second
	// complainEvery bounds what a leader that sends what cannot be taken over makes
	// this node log; it is counted each time.
	complainEvery = time.Second
)

// part is one partition that is followed.
type part struct {
	p     *partition.Partition
	epoch topic.Epoch
	disk  topic.ID64 // of the leader's copy

	// Guarded by fetcher.mu.
	busy   bool // it is in a fetch, or what came is being written
	queued bool // it stands in fetcher.ready

	// Of the fetch that has it:
	refusing time.Time     // since when the node has refused to lead it; zero: it does lead
	pause    time.Duration // after the last refusal
}

// fetcher follows everything that one node leads and this node has a copy of.
type fetcher struct {
	m    *Manager
	node string
	kick chan struct{}
	stop context.CancelFunc
	done sync.WaitGroup

	mu        sync.Mutex // guards what follows
	parts     map[topic.Ref]*part
	ready     []*part // those that may be in the next fetch
	inFlight  int
	failing   time.Time // since when every fetch failed; zero: the last one did not
	suspected time.Time // when it was reported last

	complained time.Time // when something that it sent was logged last
}

func newFetcher(m *Manager, node string) *fetcher {
	return &fetcher{m: m, node: node, kick: make(chan struct{}, 1), parts: map[topic.Ref]*part{}}
}

func (f *fetcher) start(ctx context.Context) {
	ctx, f.stop = context.WithCancel(ctx)
	f.done.Go(func() { f.run(ctx) })
}

// close ends the fetcher and waits for its fetches.
func (f *fetcher) close() {
	f.stop()
	f.done.Wait()
}

// set replaces the partitions that are followed; those that stay as they are keep
// what is under way. All that rest are looked at again: one that stood still may go
// on.
func (f *fetcher) set(parts map[topic.Ref]*part) {
	f.mu.Lock()
	for ref, next := range parts {
		if have := f.parts[ref]; have != nil && have.p == next.p && have.epoch == next.epoch && have.disk == next.disk {
			parts[ref] = have
		}
	}
	f.parts = parts
	f.ready = slices.DeleteFunc(f.ready, func(at *part) bool { return parts[at.p.Ref()] != at })
	for _, at := range parts {
		f.readyLocked(at)
	}
	f.mu.Unlock()
	f.wake()
}

// readyLocked lets a partition be in the next fetch.
func (f *fetcher) readyLocked(at *part) {
	if !at.busy && !at.queued && f.parts[at.p.Ref()] == at {
		at.queued = true
		f.ready = append(f.ready, at)
	}
}

func (f *fetcher) wake() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// run sends a fetch for whatever is ready.
func (f *fetcher) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.kick:
		}
		for g := f.next(); g != nil; g = f.next() {
			f.done.Go(func() { f.fetch(ctx, g) })
		}
	}
}

// group is one fetch.
type group struct {
	parts []*part
	asked []quorum.Fetch
	req   nodeapi.FetchRequest
}

// next takes what is ready into a group; nil when nothing is, or enough is under way.
func (f *fetcher) next() *group {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inFlight >= maxFetches {
		return nil
	}
	var g *group
	for len(f.ready) > 0 {
		at := f.ready[0]
		f.ready = f.ready[1:]
		at.queued = false
		q, asked, ok := at.p.Request(at.epoch)
		if !ok {
			continue // it leads or stands still; the next pass of the manager looks again
		}
		if g == nil {
			g = &group{}
		}
		at.busy = true
		q.DiskID = at.disk
		if q.MaxBytes == 0 {
			q.MaxBytes = partBytes
		}
		g.parts, g.asked, g.req.Partitions = append(g.parts, at), append(g.asked, asked), append(g.req.Partitions, q)
		if len(g.parts) == maxGroup {
			break
		}
	}
	if g == nil {
		return nil
	}
	g.req.From, g.req.Disk, g.req.Boot = f.m.cfg.Self, f.m.cfg.DiskID, f.m.cfg.BootNonce
	g.req.WaitMS, g.req.MaxBytes = f.m.toTick(), fetchBytes
	if f.inFlight >= fewFetches {
		g.req.WaitMS = min(g.req.WaitMS, shortMS)
	}
	f.inFlight++
	return g
}

// fetch sends a group and takes over what comes back.
func (f *fetcher) fetch(ctx context.Context, g *group) {
	res, err := f.call(ctx, &g.req)
	pause := time.Duration(0)
	wake := f.wake
	switch {
	case err != nil:
		pause = retryAfter
	case len(res.Partitions) == 0:
		// Its wait is over, as are those of other groups at this moment: they come
		// together again in one.
		wake = func() { time.AfterFunc(gatherFor, f.wake) }
		fallthrough
	default:
		pause = f.take(ctx, g, res, wake)
		res.Release()
	}
	f.heard(ctx, err)
	if pause > 0 {
		wait(ctx, pause)
	}
	f.mu.Lock()
	f.inFlight--
	for _, at := range g.parts {
		at.busy = false
		f.readyLocked(at)
	}
	f.mu.Unlock()
	wake()
}

func (f *fetcher) call(ctx context.Context, req *nodeapi.FetchRequest) (*nodeapi.FetchResult, error) {
	peer, err := f.m.cfg.Peers(f.node)
	if err != nil {
		return nil, err
	}
	wait := time.Duration(req.WaitMS) * time.Millisecond
	late := time.AfterFunc(wait+lateAfter, func() { f.silent(ctx) })
	defer late.Stop()
	budget, cancel := context.WithTimeout(ctx, fetchBudget+wait) // not ctx, which the timer reads
	defer cancel()
	return peer.Fetch(budget, req)
}

// take hands the answers to the partitions, and gives those without news and
// those that wrote nothing back at once. It returns when all is durable, with the
// pause that a refusal asks for.
func (f *fetcher) take(ctx context.Context, g *group, res *nodeapi.FetchResult, wake func()) (pause time.Duration) {
	answers := make([]*nodeapi.FetchAnswer, len(g.parts))
	for i := range res.Partitions {
		answers[res.Partitions[i].Index] = &res.Partitions[i]
	}
	var wrote, rest []*part
	var far []int
	for i, at := range g.parts {
		a := answers[i]
		if a != nil && refused(a.Status) {
			pause = max(pause, f.refusal(ctx, at))
			rest = append(rest, at)
			continue
		}
		at.refusing, at.pause = time.Time{}, 0
		if a != nil && len(a.Batches) >= farBytes && majorityHasMore(a) {
			far = append(far, i)
			continue
		}
		written, err := f.hand(at, g.asked[i], a)
		switch {
		case err != nil:
			pause = retryAfter
			rest = append(rest, at)
		case written:
			wrote = append(wrote, at)
		default:
			f.release(at)
		}
	}
	wake()
	parts := g.parts
	g.parts = rest // these wait for the pause; those that wrote are given back one by one
	var syncs sync.WaitGroup
	for _, at := range wrote {
		f.m.syncing <- struct{}{}
		syncs.Go(func() {
			defer func() { <-f.m.syncing }()
			f.sync(at)
		})
	}
	for _, i := range far {
		if f.inTurn(parts[i], g.asked[i], answers[i]) != nil {
			pause = retryAfter
			g.parts = append(g.parts, parts[i])
		}
	}
	syncs.Wait()
	if len(g.parts) == 0 || ctx.Err() != nil {
		return 0
	}
	return pause
}

// hand gives an answer to its partition.
func (f *fetcher) hand(at *part, asked quorum.Fetch, a *nodeapi.FetchAnswer) (written bool, err error) {
	written, err = at.p.Answered(asked, a)
	if err != nil {
		f.failed(at, err)
	}
	return written, err
}

// majorityHasMore tells whether all that an answer brings is committed, and more: nobody
// waits for this copy to have it. Of garbage it says no; who is handed it says what it is.
func majorityHasMore(a *nodeapi.FetchAnswer) bool {
	for rest := a.Batches; len(rest) > 0; {
		h, err := record.ParseHeader(rest)
		if err != nil || h.EndOffset() >= a.HWM {
			return false
		}
		rest = rest[min(h.Size(), len(rest)):]
	}
	return true
}

// sync makes durable what a partition wrote, and gives it back.
func (f *fetcher) sync(at *part) {
	if err := at.p.SyncFollowed(); err != nil {
		f.m.cfg.Log.Warn("copied records were not synced", "partition", at.p.Ref().String(), "error", err)
	}
	f.release(at)
	f.wake()
}

// inTurn writes and syncs a large answer that nobody waits for, and gives the partition
// back unless there is an error.
func (f *fetcher) inTurn(at *part, asked quorum.Fetch, a *nodeapi.FetchAnswer) error {
	f.m.writing <- struct{}{}
	defer func() { <-f.m.writing }()
	written, err := f.hand(at, asked, a)
	switch {
	case err != nil:
		return err
	case written:
		f.sync(at)
	default: // it leads, or follows another one by now
		f.release(at)
	}
	return nil
}

// release makes a partition ready for the next fetch.
func (f *fetcher) release(at *part) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at.busy = false
	f.readyLocked(at)
}

// refused tells the statuses after which there is nothing to take over: the
// metastore will say who leads.
func refused(s nodeapi.FetchStatus) bool {
	switch s {
	case nodeapi.FetchOK, nodeapi.FetchDiverging, nodeapi.FetchBelowStart:
		return false
	default:
		return true
	}
}

// failed deals with an answer that a copy could not take over.
func (f *fetcher) failed(at *part, err error) {
	var install *partition.Install
	if !errors.As(err, &install) {
		f.mu.Lock()
		now := time.Now()
		tell := now.Sub(f.complained) >= complainEvery
		if tell {
			f.complained = now
		}
		f.mu.Unlock()
		if tell {
			f.m.cfg.Log.Warn("a copy could not take over what its leader sent", "partition", at.p.Ref().String(), "leader", f.node, "error", err)
		}
		return
	}
	if err := f.m.cfg.Host.Replace(at.p.Ref(), install); err != nil {
		f.m.cfg.Log.Warn("a copy could not be replaced by its leader's log start", "partition", at.p.Ref().String(), "error", err)
	}
	f.m.lookAgain() // it has to be opened
}
