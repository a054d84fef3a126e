package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/narad-mq/narad/apps/storage-node/internal/partition"
	"github.com/narad-mq/narad/apps/storage-node/internal/queue"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

var (
	_ nodeapi.Replica   = (*Node)(nil)
	_ nodeapi.Candidate = (*Node)(nil)
)

// Fetch implements nodeapi.Replica.
func (n *Node) Fetch(ctx context.Context, req *nodeapi.FetchRequest) (*nodeapi.FetchResult, error) {
	if !n.registered(req) {
		if !n.view.Latched() {
			return nil, problem.New(problem.NotReady, "this node's metastore replica has not caught up")
		}
		n.metrics.BadFetches.Inc()
		n.shared.Complain("a fetch came from a process that is not registered under its node id", "from", req.From)
		return nil, notRegistered(req)
	}
	f := fetch{n: n, req: req, arrived: n.shared.Mono(), room: min(req.MaxBytes, nodeapi.MaxFetchBytes), watcher: partition.NewWatcher()}
	return f.run(ctx)
}

// registered tells whether a fetch is of the process that the metastore has under the
// node id, on its disk.
func (n *Node) registered(req *nodeapi.FetchRequest) bool {
	m := n.view.Members().ByID[req.From]
	return m != nil && m.BootNonce == req.Boot && m.DiskID == req.Disk
}

func notRegistered(req *nodeapi.FetchRequest) *problem.Problem {
	return problem.New(problem.IDInUse, "%q is not registered with this start and disk", req.From)
}

// fetch is one fetch of many partitions.
type fetch struct {
	n       *Node
	req     *nodeapi.FetchRequest
	arrived int64
	room    int
	watcher *partition.Watcher
	parts   []*partition.Partition // by index of the request; nil: not led here
	early   early
	denied  []int            // those that got nothing of the catch-up now
	share   <-chan time.Time // tells when there may be something for them
	answers []nodeapi.FetchAnswer
	lent    []*[]byte // where batches of the answers are
}

// run answers as soon as a partition has news, at the latest when the wait ends. A
// fetch whose process was replaced while it waited says nothing more: what it names
// may be another copy by now.
func (f *fetch) run(ctx context.Context) (*nodeapi.FetchResult, error) {
	f.parts = make([]*partition.Partition, len(f.req.Partitions))
	f.early = newEarly(f.n.view.Changed(), len(f.req.Partitions)) // before the look, so that no change falls between
	defer close(f.early.over)
	defer f.unwatch()
	for i := range f.req.Partitions {
		f.begin(i)
	}
	timer := time.NewTimer(time.Duration(min(f.req.WaitMS, nodeapi.MaxFetchWaitMS)) * time.Millisecond)
	defer timer.Stop()
	for len(f.answers) == 0 {
		select {
		case <-f.share:
			if f.n.registered(f.req) {
				f.askDenied()
				continue
			}
		case <-f.watcher.Wake():
			if f.n.registered(f.req) {
				f.heard()
				continue
			}
		case <-f.early.news():
			if f.n.registered(f.req) {
				f.caughtUp()
				continue
			}
		case <-timer.C:
		case <-ctx.Done(): // another fetch of that copy, from further on, may be here already
			return nil, fmt.Errorf("answer a fetch of %s: %w", f.req.From, ctx.Err())
		}
		if !f.n.registered(f.req) {
			return nil, notRegistered(f.req)
		}
		for i, p := range f.parts {
			if p != nil {
				f.ask(i, true)
			}
		}
		break
	}
	f.tooEarly()
	slices.SortFunc(f.answers, func(a, b nodeapi.FetchAnswer) int { return a.Index - b.Index })
	res := &nodeapi.FetchResult{Partitions: f.answers}
	res.OnRelease(f.giveBack)
	return res, nil
}

// askFar asks for a copy that is far behind. What is read for it goes into buffers that
// are used again: megabytes each time, which the garbage collector would run for.
func (f *fetch) askFar(i int, fetching *partition.Fetching) (nodeapi.FetchAnswer, bool) {
	buf, ok := f.n.farBufs.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	fetching.Buf = *buf
	a, news := f.parts[i].Fetch(fetching)
	if *buf = fetching.Buf; len(a.Batches) == 0 {
		f.n.farBufs.Put(buf)
		return a, news
	}
	f.lent = append(f.lent, buf)
	f.n.catchUp.spent(len(a.Batches), f.n.shared.Mono())
	return a, news
}

// giveBack is for when nobody needs the answers any more.
func (f *fetch) giveBack() {
	for _, buf := range f.lent {
		f.n.farBufs.Put(buf)
	}
	f.lent = nil
}

// deny keeps one that gets nothing of the catch-up now, to be asked again.
func (f *fetch) deny(i int, again time.Duration) {
	if f.share == nil {
		f.share = time.After(again)
	}
	if !slices.Contains(f.denied, i) { // it had other news meanwhile
		f.denied = append(f.denied, i)
	}
}

// askDenied asks them again.
func (f *fetch) askDenied() {
	denied := f.denied
	f.denied, f.share = nil, nil
	for _, i := range denied {
		f.ask(i, false)
	}
}

// begin looks at one partition of the request and leaves a watcher there. It does
// not wait for one that is not led here yet: the others would wait with it, and
// their leaderships live by this fetch.
func (f *fetch) begin(i int) {
	q := &f.req.Partitions[i]
	j := judge(f.n.view, f.n.self, f.n.disk, q.Ref)
	p := f.n.peek(q.Ref)
	if _, ok := fetchStatus(j, q, f.n.disk); !ok || p == nil || p.Epoch() != q.Epoch {
		if !f.await(i, j) {
			f.refuse(i, j)
		}
		return
	}
	f.parts[i] = p
	p.Watch(f.watcher, i) // before the look, so that no news falls between
	f.ask(i, f.req.WaitMS == 0)
}

// refuse answers that the partition cannot be fetched here now.
func (f *fetch) refuse(i int, j judgement) {
	a := nodeapi.FetchAnswer{Index: i, Status: nodeapi.FetchUnavailable}
	if st, ok := fetchStatus(j, &f.req.Partitions[i], f.n.disk); !ok {
		a.Status = st
	}
	if j.a != nil {
		a.Epoch = j.a.LeaderEpoch
	}
	if q := &f.req.Partitions[i]; dishonest(j, q, f.n.disk) {
		f.n.metrics.BadFetches.Inc()
		f.n.shared.Complain("refused a fetch that no honest replica sends: it is for another life or another disk", "partition", q.Ref.String(), "from", f.req.From, "disk", q.DiskID.String())
	}
	f.answers = append(f.answers, a)
}

// dishonest tells of what fetchStatus refuses what no replica comes to ask whose
// metastore is merely older or newer than this node's. Honest ones ask for older and newer
// epochs after every election, the older ones maybe for a disk that this node had then;
// for a life that has ended, or is not known yet, after a topic was deleted or made. But
// this node promised, by its replica of the metastore, before others heard that it leads:
// of a life that it led it knows that it lives or that it has ended, and under one epoch
// nobody hears of two disks.
func dishonest(j judgement, q *nodeapi.FetchPartition, disk topic.ID64) bool {
	return j.standing == replaced || j.standing == leads && q.Epoch == j.a.LeaderEpoch && q.DiskID != disk
}

// fetchStatus refuses a fetch that this node cannot answer, by its replica of the
// metastore. Whether the epoch is right the partition itself knows best.
func fetchStatus(j judgement, q *nodeapi.FetchPartition, disk topic.ID64) (nodeapi.FetchStatus, bool) {
	switch {
	case j.standing == gone, j.standing == replaced:
		return nodeapi.FetchGone, false
	case j.standing != leads, q.DiskID != disk:
		return nodeapi.FetchNotLeader, false
	case q.Epoch < j.a.LeaderEpoch:
		return nodeapi.FetchStaleEpoch, false
	case q.Epoch > j.a.LeaderEpoch:
		return nodeapi.FetchNotLeader, false // this node has not seen that epoch yet
	}
	return nodeapi.FetchOK, true
}

// ask asks a partition for its answer.
func (f *fetch) ask(i int, final bool) {
	q := &f.req.Partitions[i]
	room, bounded := f.room, q.Observer || f.parts[i].FarBehind(q.Offset)
	if bounded {
		var again time.Duration
		if room, again = f.n.catchUp.take(min(room, max(q.MaxBytes, 1)), f.n.shared.Mono()); again > 0 {
			f.deny(i, again)
		}
	}
	fetching := partition.Fetching{
		From:           quorum.Replica{Node: f.req.From, Disk: f.req.Disk, Copy: q.Copy},
		FetchPartition: q, ArrivedMS: f.arrived, Final: final, Room: room,
		Full: f.room <= 0 && len(f.answers) > 0,
	}
	var a nodeapi.FetchAnswer
	news := false
	if bounded {
		a, news = f.askFar(i, &fetching)
	} else {
		a, news = f.parts[i].Fetch(&fetching)
	}
	if !news {
		return
	}
	a.Index = i
	f.room -= len(a.Batches) + len(a.Position) + len(a.Snapshot)
	f.answers = append(f.answers, a)
}

// heard asks the partitions that had news, and watches those that had nothing
// for this follower after all.
func (f *fetch) heard() {
	for _, i := range f.watcher.Take() {
		if f.parts[i] == nil {
			f.again(i)
			continue
		}
		before := len(f.answers)
		f.parts[i].Watch(f.watcher, i)
		f.ask(i, false)
		if len(f.answers) > before {
			f.parts[i].Unwatch(f.watcher)
		}
	}
}

func (f *fetch) unwatch() {
	for _, p := range f.parts {
		if p != nil {
			p.Unwatch(f.watcher)
		}
	}
}

// fencers bounds the promises that are made at once: each is a sync or two.
const fencers = 16

// Fence implements nodeapi.Replica.
func (n *Node) Fence(ctx context.Context, req *nodeapi.FenceRequest) (*nodeapi.FenceResult, error) {
	if !n.view.Latched() {
		return nil, problem.New(problem.NotReady, "this node's metastore replica has not caught up")
	}
	res := &nodeapi.FenceResult{Answers: make([]nodeapi.FenceAnswer, len(req.Items))}
	slots := make(chan struct{}, fencers)
	var all sync.WaitGroup
	for i := range req.Items {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			res.Answers[i] = n.fence(ctx, &req.Items[i], req.WithPositions)
		})
	}
	all.Wait()
	size := 0
	for i := range res.Answers {
		a := &res.Answers[i]
		if size > nodeapi.MaxFenceBytes && len(a.Position) > 0 {
			a.Position, a.PositionLeft = nil, true
		}
		size += len(a.Position)
	}
	return res, nil
}

func (n *Node) fence(ctx context.Context, item *nodeapi.FenceItem, positions bool) nodeapi.FenceAnswer {
	j := judge(n.view, n.self, n.disk, item.Ref)
	if j.a == nil || j.standing != leads && !j.holds(n.self) || item.DiskID != n.disk {
		return nodeapi.FenceAnswer{Status: nodeapi.FenceNotHere}
	}
	p, err := n.Copy(ctx, j.a)
	if p == nil {
		n.log.Warn("a replica that is fenced cannot be opened", "partition", item.String(), "error", err)
		return nodeapi.FenceAnswer{Status: nodeapi.FenceUnavailable}
	}
	return p.Fence(item.Epoch, quorum.Leadership{Epoch: j.a.LeaderEpoch, Leader: j.a.Leader}, positions)
}

// Handover implements nodeapi.Replica.
func (n *Node) Handover(ctx context.Context, req *nodeapi.HandoverRequest) (*nodeapi.HandoverResult, error) {
	j := judge(n.view, n.self, n.disk, req.Ref)
	if refusal := j.refuseTarget(req.Ref, req.DiskID, req.Epoch, n.disk, false); refusal != nil {
		return nil, refusal
	}
	to, ok := j.a.ReplicaOn(req.To)
	if req.To != "" && (!ok || to.DiskID != req.ToDisk) {
		return nil, problem.New(problem.NotReady, "%s has no replica of %s here", req.To, req.Ref)
	}
	p, err := n.partition(ctx, req.Ref, j.a)
	if err != nil {
		return nil, unavailable(req.Ref)
	}
	if req.To == "" {
		return &nodeapi.HandoverResult{}, p.CallOff(req.Epoch)
	}
	ctx, cancel := context.WithTimeout(ctx, nodeapi.MaxHandoverWaitMS*time.Millisecond)
	defer cancel()
	return p.HandOver(req.Epoch, to, func(news <-chan struct{}) bool {
		select {
		case <-news:
			return true
		case <-ctx.Done():
			return false
		}
	})
}

// Prime implements nodeapi.Candidate.
func (n *Node) Prime(_ context.Context, req *nodeapi.PrimeRequest) error {
	for i := range req.Items {
		it := &req.Items[i]
		p := n.peek(it.Ref) // it was fenced a moment ago
		if p == nil || it.DiskID != n.disk {
			return problem.New(problem.NotReady, "%s is not open here", it.Ref)
		}
		if !p.Prime(it.Epoch, it.Positions) {
			return problem.New(problem.NotReady, "epoch %d of %s is not what is promised here", it.Epoch, it.Ref)
		}
	}
	return nil
}

// Standing implements nodeapi.Candidate.
func (n *Node) Standing(ctx context.Context, req *nodeapi.StandingRequest) (*nodeapi.StandingResult, error) {
	res := &nodeapi.StandingResult{Partitions: make([]nodeapi.Standing, len(req.Partitions))}
	for i, ref := range req.Partitions {
		res.Partitions[i] = nodeapi.Standing{FetchedAgoMS: -1}
		if p := n.peek(ref); p != nil {
			res.Partitions[i] = p.Standing()
		} else if s := n.peekSlot(ref); s != nil && s.isLost() {
			res.Partitions[i].Lost = n.lostHere(ctx, ref) // looked for again: somebody may have put it back
		}
	}
	return res, nil
}

// Vouch implements nodeapi.Candidate.
func (n *Node) Vouch(_ context.Context, req *nodeapi.VouchRequest) (*nodeapi.VouchResult, error) {
	if limit := req.Limit(); len(req.Partitions) > limit {
		return nil, problem.New(problem.InvalidRequest, "%d partitions", len(req.Partitions)).With("parameter", "partitions")
	}
	res := &nodeapi.VouchResult{Partitions: make([]nodeapi.Vouch, len(req.Partitions))}
	for i, ref := range req.Partitions {
		if p := n.peek(ref); p != nil && judge(n.view, n.self, n.disk, ref).standing == leads {
			res.Partitions[i] = p.Vouch(req.Histories)
			if err := p.VouchPieces(&res.Partitions[i], req.Pieces); err != nil {
				return nil, err
			}
		}
	}
	return res, nil
}

// Copy opens this node's copy of a replicated partition and gives it the role
// that the assignment names. With an error the copy may still be there: it can be
// fenced although it cannot lead.
func (n *Node) Copy(ctx context.Context, a *topic.Assignment) (*partition.Partition, error) {
	v, ok := n.slots.Load(a.Ref)
	if !ok {
		v, _ = n.slots.LoadOrStore(a.Ref, &slot{})
	}
	s := asSlot(v)
	if p := s.open.Load(); p != nil && p.Holds(a) {
		return p, nil
	}
	p, err := n.assumed(ctx, s, a.Ref, a)
	if err != nil {
		return s.open.Load(), err
	}
	return p, nil
}

// Replace puts the start of the leader's log in place of a copy's whole log.
func (n *Node) Replace(ref topic.Ref, with *partition.Install) error {
	v, ok := n.slots.Load(ref)
	if !ok {
		return nil
	}
	// No purge moves the directory meanwhile, and none has before; nor does anybody
	// open the log between its end and its replacement.
	return n.alone(context.Background(), ref.Topic, func() error {
		p, err := n.close(asSlot(v))
		if err != nil {
			return fmt.Errorf("close %s to replace its log: %w", ref, err)
		}
		if p == nil {
			return nil
		}
		if at := n.peekSlot(ref); at == nil || at.hasEnded() {
			return fmt.Errorf("replace the log of %s: %w", ref, queue.ErrClosed)
		}
		n.log.Warn("a copy lies below its leader's log start; its log is replaced", "partition", ref.String())
		return p.Replace(with)
	})
}
