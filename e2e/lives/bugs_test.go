package lives

import (
	"context"
	"fmt"
	"hash/crc32"
	"path"
	"strings"
	"sync"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// bug is a mistake that a run makes on purpose, to see whether it is noticed. Each
// stands around the real thing, which is as it is.
type bug uint8

const (
	noBug              bug = iota
	purgeUnconfirmed       // a node takes whatever it is told for gone
	confirmFromReplica     // a node asks its own replica: bug 1 of the lifecycle page
	adoptStale             // an open stamps the directory of another life as its own
	discardOnAbsence       // a gateway discards what its replica does not show: bug 3
	reclaimByName          // a node removes what the sweeper names, whatever its marker
	positionAfterDrop      // a position of the old life is written by path into the new one
	settleByName           // a lease is looked up by name and offset
	commitByName           // a record is committed to whatever life has the name
	serveByName            // a claim is served from whatever life has the name
	neverReclaim           // a node finds no end confirmed, ever
	discardByName          // a gateway takes the end of a life for that of everything with the name
	waitBehindHeld         // a gateway sends nothing of a life behind what it holds of the one before
	dropRefused            // a gateway takes a node's word for an end
	keepEnded              // a gateway finds no end confirmed, ever
	bugs
)

var bugNames = [bugs]string{
	"none", "a purge without confirm", "confirm from the own replica", "an open that adopts a stale directory", "discard on local absence",
	"reclaim by name", "a position written after the drop", "a handle looked up by name", "commit by name", "claim by name", "nothing is ever reclaimed",
	"discard by name", "a new record behind held ones", "discard on a node's word", "nothing is ever discarded",
}

// confirm is how a member asks; who it is matters to a bug only.
func (w *world) confirm(rep *replica, gateway bool) func(context.Context, []topic.Incarnation) (map[topic.Incarnation]metaapi.Verdict, error) {
	return func(ctx context.Context, ids []topic.Incarnation) (map[topic.Incarnation]metaapi.Verdict, error) {
		answer := map[topic.Incarnation]metaapi.Verdict{}
		switch b := w.cfg.bug; {
		case b == purgeUnconfirmed && !gateway, b == discardOnAbsence && gateway:
			for _, id := range ids {
				answer[id] = metaapi.VerdictGone
			}
			return answer, nil
		case b == confirmFromReplica && !gateway:
			list, err := rep.Topics("", "", topicsLimit)
			for _, id := range ids {
				answer[id] = metaapi.VerdictGone
				for _, t := range list {
					if t.Incarnation == id {
						answer[id] = metaapi.VerdictLive
					}
				}
			}
			return answer, err
		case b == neverReclaim && !gateway, b == keepEnded && gateway:
			return answer, nil
		case gateway && w.noConfirms.Load():
			return nil, errSilent
		}
		return metaapi.ConfirmIncarnations(ctx, w.leader, ids)
	}
}

const topicsLimit = 1000

// buggy puts the mistakes of a node in front of it.
func (w *world) buggy(p *process, n nodeapi.Node) nodeapi.Node {
	switch w.cfg.bug {
	case settleByName, commitByName, serveByName:
		return &byName{Node: n, p: p, bug: w.cfg.bug, leases: map[topic.Ref]map[int64]nodeapi.SettleOp{}}
	case reclaimByName:
		return &nameReclaimer{Node: n, p: p}
	}
	return n
}

// byName forgets which life it was asked about.
type byName struct {
	nodeapi.Node
	p   *process
	bug bug

	mu     sync.Mutex // guards leases
	leases map[topic.Ref]map[int64]nodeapi.SettleOp
}

// target is the live partition of that name and number.
func (n *byName) target(t nodeapi.Target) nodeapi.Target {
	if parts, err := n.p.m.rep.Assignments(t.Topic); err == nil && int(t.Partition) < len(parts.List) {
		a := &parts.List[t.Partition]
		t.Incarnation, t.Epoch = a.Incarnation, a.LeaderEpoch
	}
	return t
}

func (n *byName) Commit(ctx context.Context, req *nodeapi.CommitRequest) (*nodeapi.CommitResult, error) {
	if n.bug == commitByName {
		req.Target = n.target(req.Target)
	}
	return n.Node.Commit(ctx, req)
}

func (n *byName) Claim(ctx context.Context, req *nodeapi.ClaimRequest) (*nodeapi.ClaimResult, error) {
	for i := range req.Claims {
		c := &req.Claims[i]
		for k := range c.Partitions {
			if t := n.target(nodeapi.Target{Ref: topic.Ref{Topic: c.Topic, Incarnation: c.Incarnation, Partition: c.Partitions[k].Partition}, Epoch: c.Partitions[k].Epoch}); n.bug == serveByName {
				c.Incarnation, c.Partitions[k].Epoch = t.Incarnation, t.Epoch
			}
		}
	}
	res, err := n.Node.Claim(ctx, req)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range res.Claims {
		for _, list := range res.Claims[i].Deliveries {
			for _, d := range list {
				at := topic.Ref{Topic: req.Claims[i].Topic, Partition: d.Partition}
				if n.leases[at] == nil {
					n.leases[at] = map[int64]nodeapi.SettleOp{}
				}
				ref := at
				ref.Incarnation = req.Claims[i].Incarnation
				n.leases[at][d.Offset] = nodeapi.SettleOp{Ref: ref, Offset: d.Offset, Epoch: d.Epoch, Nonce: d.Nonce}
			}
		}
	}
	return res, nil
}

func (n *byName) Settle(ctx context.Context, req *nodeapi.SettleRequest) (*nodeapi.SettleResult, error) {
	if n.bug == settleByName {
		n.mu.Lock()
		for i := range req.Ops {
			op := &req.Ops[i]
			if found, ok := n.leases[topic.Ref{Topic: op.Topic, Partition: op.Partition}][op.Offset]; ok {
				op.Ref, op.Epoch, op.Nonce = found.Ref, found.Epoch, found.Nonce
			}
		}
		n.mu.Unlock()
	}
	return n.Node.Settle(ctx, req)
}

// nameReclaimer believes the sweeper.
type nameReclaimer struct {
	nodeapi.Node
	p *process
}

func (n *nameReclaimer) Reclaim(_ context.Context, req *nodeapi.ReclaimRequest) (*nodeapi.ReclaimResult, error) {
	res := &nodeapi.ReclaimResult{}
	for _, it := range req.Items {
		out := nodeapi.ReclaimOutcome{Status: nodeapi.Reclaimed}
		if err := n.p.disk.RemoveAll(path.Join(dataDir, it.Name)); err != nil {
			out = nodeapi.ReclaimOutcome{Status: nodeapi.Kept, Reason: err.Error()}
		}
		res.Outcomes = append(res.Outcomes, out)
	}
	return res, nil
}

// adopt is the mistake of an open that stamps what it finds.
func (d *disk) adopt(marker string) {
	name := path.Base(path.Dir(marker))
	t, err := d.p.m.rep.Topic(name)
	if err != nil || path.Base(marker) != "incarnation" || path.Dir(path.Dir(marker)) != topicsDir || !d.p.m.rep.Latched() {
		return
	}
	if found := markerOf(d.under, path.Dir(marker)); found == 0 || found == t.Incarnation {
		return
	}
	f, err := d.under.Open(marker)
	if err != nil {
		return
	}
	defer f.Close()
	digits := t.Incarnation.String()
	text := fmt.Sprintf("%s %08x\n", digits, crc32.Checksum([]byte(digits), crc32.MakeTable(crc32.Castagnoli)))
	if _, err := f.WriteAt([]byte(text), 0); err == nil {
		_ = f.Sync()
	}
}

// lateWriter is the mistake of a position that is written after its life lost the
// name: whatever the state files held then is in the next life's directory.
type lateWriter struct {
	saved map[string]map[string][]byte // topic directory -> file in it -> bytes
}

// renamed is told of each rename that was done, and what state files from had.
func (l *lateWriter) renamed(fs *vfs.Mem, from, to string, before map[string][]byte) {
	switch {
	case path.Dir(from) == topicsDir && !strings.Contains(from, ".stale-") && len(before) > 0:
		l.saved[from] = before
	case path.Dir(to) == topicsDir && l.saved[to] != nil:
		for name, b := range l.saved[to] {
			at := path.Join(to, name)
			if err := fs.MkdirAll(path.Dir(at)); err != nil {
				continue
			}
			if f, err := fs.Create(at); err == nil {
				_, _ = f.WriteAt(b, 0)
				_ = f.Sync()
				_ = f.Close()
			}
			_ = fs.SyncDir(path.Dir(at))
		}
		_ = fs.SyncDir(to)
		delete(l.saved, to)
	}
}

// stateFiles reads the state slots of each partition of a topic directory.
func stateFiles(fs vfs.FS, dir string) map[string][]byte {
	out := map[string][]byte{}
	list, err := fs.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range list {
		for _, slot := range []string{"state.0", "state.1"} {
			if b := readAll(fs, path.Join(dir, e.Name(), slot)); len(b) > 0 {
				out[path.Join(e.Name(), slot)] = b
			}
		}
	}
	return out
}

func readAll(fs vfs.FS, name string) []byte {
	f, err := fs.OpenRead(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	n, err := f.Size()
	if err != nil {
		return nil
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil && int64(len(b)) != n {
		return nil
	}
	return b
}
