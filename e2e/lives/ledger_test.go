package lives

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// handle is a lease as a consumer holds it.
type handle struct {
	node string
	ref  topic.Ref
	d    nodeapi.Delivery
}

func (w *world) violate(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
}

func (w *world) violated() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.violations) > 0
}

func (w *world) newRecord(id topic.Incarnation) *rec {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &rec{n: len(w.records), life: id}
	w.records = append(w.records, r)
	return r
}

// committed notes where a record has to stay.
func (w *world) committed(r *rec, at topic.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.commits[at] == nil {
		w.commits[at] = map[string]bool{}
	}
	w.commits[at][r.String()], r.stored = true, true
	w.sum.commits++
}

func payloadOf(body []byte) string {
	v, err := record.ParseBody(body)
	if err != nil {
		return err.Error()
	}
	return string(v.Payload)
}

func lifeOf(payload string) string { before, _, _ := strings.Cut(payload, "-"); return before }

// claim is a consumer at one gateway: it takes from every partition that the
// gateway's replica knows.
func (w *world) claim(g *gateway, name string, most int) {
	parts, err := g.rep.Assignments(name)
	if err != nil {
		return
	}
	for i := range parts.List {
		a := &parts.List[i]
		p := w.process(a.Leader)
		if p == nil {
			continue
		}
		r, _ := a.ReplicaOn(a.Leader)
		go w.claimAt(g.id, p, nodeapi.Claim{
			Topic: name, Incarnation: a.Incarnation, Takers: []nodeapi.Taker{{Max: most, MaxBytes: 1 << 20}},
			Partitions: []nodeapi.ClaimPartition{{Partition: a.Partition, DiskID: r.DiskID, Epoch: a.LeaderEpoch}},
		})
	}
}

// claimOld is a gateway that has not heard of anything for long: it asks every node
// for the life that ended last.
func (w *world) claimOld(name string) {
	w.mu.Lock()
	id := topic.Incarnation(0)
	for _, l := range w.ended {
		if l.name == name {
			id = l.id
		}
	}
	w.mu.Unlock()
	for _, m := range w.machines {
		p := w.process(m.id)
		if p == nil || id == 0 {
			continue
		}
		for i := range int32(2) {
			go w.claimAt("gateway-0", p, nodeapi.Claim{
				Topic: name, Incarnation: id, Takers: []nodeapi.Taker{{Max: 3, MaxBytes: 1 << 20}},
				Partitions: []nodeapi.ClaimPartition{{Partition: i, DiskID: m.disk, Epoch: 1}},
			})
		}
	}
}

func (w *world) claimAt(gateway string, p *process, c nodeapi.Claim) {
	w.work.Add(1)
	defer w.work.Done()
	asked := c.Incarnation // whoever serves it may change the request
	over := p.m.rep.Ended(asked)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	res, err := p.node.Claim(ctx, &nodeapi.ClaimRequest{Gateway: gateway, Claims: []nodeapi.Claim{c}})
	if err != nil || p.dead.Load() {
		return
	}
	for _, list := range res.Claims[0].Deliveries {
		for _, d := range list {
			got := payloadOf(d.Body)
			if lifeOf(got) != asked.String() {
				w.violate("%s: a claim of life %s of %s got record %s", p.m.id, asked, c.Topic, got)
			}
			if over {
				w.violate("%s: record %s was delivered after the node had applied the end of its life", p.m.id, got)
			}
			w.mu.Lock()
			w.handles = append(w.handles, handle{p.m.id, topic.Ref{Topic: c.Topic, Incarnation: asked, Partition: d.Partition}, d})
			w.sum.deliveries++
			w.mu.Unlock()
		}
	}
}

// settle acks with a handle, as that handle says or (forged) as one of the life that
// has the name now.
func (w *world) settle(h handle, forged topic.Incarnation) {
	w.work.Add(1)
	defer w.work.Done()
	p := w.process(h.node)
	if p == nil {
		return
	}
	op := nodeapi.SettleOp{Ref: h.ref, Kind: nodeapi.SettleAck, Offset: h.d.Offset, Epoch: h.d.Epoch, Nonce: h.d.Nonce}
	over := p.m.rep.Ended(h.ref.Incarnation)
	if forged != 0 {
		op.Incarnation = forged
	} else {
		w.mu.Lock()
		if w.acks[h.ref] == nil {
			w.acks[h.ref] = map[int64]bool{}
		}
		w.acks[h.ref][h.d.Offset] = true
		w.mu.Unlock()
	}
	res, err := p.node.Settle(context.Background(), &nodeapi.SettleRequest{Ops: []nodeapi.SettleOp{op}})
	if err != nil || p.dead.Load() || res.Statuses[0] != nodeapi.SettleOK {
		return
	}
	w.mu.Lock()
	w.sum.acks++
	w.mu.Unlock()
	switch {
	case forged != 0 && forged != h.ref.Incarnation:
		w.violate("%s: a handle of life %s settled offset %d of life %s", p.m.id, h.ref.Incarnation, h.d.Offset, forged)
	case over:
		w.violate("%s: a handle of %s settled something after the node had applied the end of that life", p.m.id, h.ref)
	}
}

// audit compares what a node serves of live lives with what has to be there. strict
// makes it a failure when it does not serve.
func (w *world) audit(p *process, strict bool) {
	if !strict && !p.m.rep.Latched() {
		return
	}
	for n := range w.cfg.names + len(w.gateways) { // those of goOnBehindHeld too
		t := w.leader.topic(nameOf(n))
		if t == nil {
			continue
		}
		parts, err := p.m.rep.Assignments(t.Name)
		if err != nil || parts.Incarnation != t.Incarnation {
			if strict {
				w.violate("%s does not show life %s of %s: %v", p.m.id, t.Incarnation, t.Name, err)
			}
			continue
		}
		for i := range parts.List {
			if a := &parts.List[i]; a.Leader == p.m.id {
				w.auditPartition(p, a, strict)
			}
		}
	}
}

func (w *world) auditPartition(p *process, a *topic.Assignment, strict bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	res, err := p.node.Details(ctx, &nodeapi.DetailsRequest{Topic: a.Topic, Incarnation: a.Incarnation, Partitions: []int32{a.Partition}})
	if err != nil || len(res.Partitions) != 1 || res.Partitions[0].Problem != nil {
		if strict {
			w.violate("%s does not serve %s: %+v %v", p.m.id, a, res, err)
		}
		return
	}
	w.mu.Lock()
	due := make([]string, 0, len(w.commits[a.Ref])) // before the read
	for r := range w.commits[a.Ref] {
		due = append(due, r)
	}
	w.mu.Unlock()
	frontier := res.Partitions[0].Frontier
	found := map[string]bool{}
	req := &nodeapi.ReadRequest{Target: nodeapi.Target{Ref: a.Ref, DiskID: p.m.disk, Epoch: a.LeaderEpoch}, Offset: -1, Limit: 1000, MaxBytes: 8 << 20}
	for {
		page, err := p.node.Read(ctx, req)
		if err != nil || p.dead.Load() {
			if strict {
				w.violate("%s does not read %s: %v", p.m.id, a, err)
			}
			return
		}
		w.judgePage(p, a.Ref, page, frontier, found)
		if req.Offset = page.NextOffset; page.NextOffset >= page.HighWatermark {
			break
		}
	}
	if !w.leader.live(a.Incarnation) {
		return
	}
	for _, r := range due {
		if !found[r] {
			w.violate("%s: record %s was committed to %s and is lost", p.m.id, r, a.Ref)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range found {
		w.present[r] = true
	}
	w.sum.audits++
}

func (w *world) judgePage(p *process, ref topic.Ref, page *nodeapi.ReadResult, frontier int64, found map[string]bool) {
	for _, r := range page.Records {
		got := payloadOf(r.Body)
		if lifeOf(got) != ref.Incarnation.String() {
			w.violate("%s: %s holds record %s", p.m.id, ref, got)
		}
		if found[got] {
			w.violate("%s: %s holds record %s twice", p.m.id, ref, got)
		}
		found[got] = true
		w.mu.Lock()
		acked := w.acks[ref][r.Offset]
		w.mu.Unlock()
		if r.Offset < frontier && !acked {
			w.violate("%s: the position of %s is %d, but offset %d was never acked in this life", p.m.id, ref, frontier, r.Offset)
		}
	}
}
