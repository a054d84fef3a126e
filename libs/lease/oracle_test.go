package lease_test

import (
	"encoding/binary"
	"sort"
	"testing"

	"github.com/narad-mq/narad/libs/lease"
	"pgregory.net/rapid"
)

// cell is what the oracle knows of one offset.
type cell struct {
	settled, skipped bool
	leased, delayed  bool
	nonce            lease.Nonce
	due              int64
	count            int
}

type handle struct {
	off   int64
	nonce lease.Nonce
	ended string // operation that ended it; "" while it may live
	at    int64
}

// oracle does everything by looking at every offset.
type oracle struct {
	cells   []cell
	start   int64 // log start
	hwm     int64
	now     int64
	dropped int64
}

func (o *oracle) frontier() int64 {
	f := o.start
	for f < int64(len(o.cells)) && o.cells[f].settled {
		f++
	}
	return f
}

func (o *oracle) expire() {
	for i := range o.cells {
		c := &o.cells[i]
		if (c.leased || c.delayed) && c.due <= o.now {
			c.leased, c.delayed = false, false
		}
	}
}

func (o *oracle) counts() (leased, delayed, ahead, capped int) {
	f := o.frontier()
	for i := f; i < int64(len(o.cells)); i++ {
		c := o.cells[i]
		switch {
		case c.settled:
			ahead++
			if !c.skipped {
				capped++
			}
		case c.leased:
			leased++
		case c.delayed:
			delayed++
		}
	}
	return leased, delayed, ahead, capped + delayed
}

// reserve returns the offsets to hand out and what is left.
func (o *oracle) reserve(n int, lim lease.Limits) ([]int64, lease.Left) {
	o.expire()
	var got []int64
	for range n {
		f := o.frontier()
		leased, _, _, capped := o.counts()
		off := int64(-1)
		for i := f; i < o.hwm; i++ {
			if c := o.cells[i]; !c.settled && !c.leased && !c.delayed {
				off = i
				break
			}
		}
		switch {
		case off < 0:
			return got, lease.Empty
		case leased >= lim.MaxInFlight, off != f && capped >= lim.MaxAckedAhead:
			return got, lease.Capped
		}
		c := &o.cells[off]
		c.leased, c.count = true, c.count+1
		got = append(got, off)
	}
	return got, lease.More
}

func TestAgainstOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{
			t: t, table: lease.New(0), o: oracle{now: 1_800_000_000_000},
			lim: lease.Limits{
				MaxInFlight:   rapid.IntRange(1, 12).Draw(t, "max in flight"),
				MaxAckedAhead: rapid.IntRange(1, 20).Draw(t, "max acked ahead"),
			},
		}
		t.Repeat(map[string]func(*rapid.T){
			"append": m.grow, "reserve": m.reserve, "settle": m.settle, "tick": m.tick,
			"skip": m.skip, "retention": m.retention, "restart": m.restart, "": m.check,
		})
	})
}

type model struct {
	t       *rapid.T
	table   *lease.Table
	o       oracle
	lim     lease.Limits
	handles []handle
	drawn   uint64
}

func (m *model) grow(t *rapid.T) {
	n := rapid.IntRange(1, 30).Draw(t, "n")
	m.o.cells = append(m.o.cells, make([]cell, n)...)
	m.o.hwm += int64(n)
}

func (m *model) reserve(t *rapid.T) {
	n := rapid.IntRange(1, 8).Draw(t, "n")
	vis := rapid.SampledFrom([]int64{0, 1, 1000, 30_000}).Draw(t, "visibility")
	want, wantLeft := m.o.reserve(n, m.lim)
	draw := func(nc *lease.Nonce) {
		m.drawn++
		binary.BigEndian.PutUint64(nc[:], m.drawn)
	}
	got, left := m.table.Reserve(m.o.now, m.o.hwm, n, vis, m.lim, draw, nil)
	if len(got) != len(want) || left != wantLeft {
		t.Fatalf("reserved %v (%d), want %v (%d)", got, left, want, wantLeft)
	}
	for i, l := range got {
		c := &m.o.cells[want[i]]
		if l.Offset != want[i] || l.Count != c.count {
			t.Fatalf("lease %+v, want offset %d delivery %d", l, want[i], c.count)
		}
		c.nonce, c.due = l.Nonce, m.o.now+vis
		m.handles = append(m.handles, handle{off: l.Offset, nonce: l.Nonce})
	}
}

func (m *model) settle(t *rapid.T) {
	if len(m.handles) == 0 {
		t.Skip("no handles")
	}
	h := &m.handles[rapid.IntRange(0, len(m.handles)-1).Draw(t, "handle")]
	op := rapid.SampledFrom([]string{"ack", "ack", "nack", "extend", "release", "undo"}).Draw(t, "op")
	arg := rapid.SampledFrom([]int64{0, 1, 500, 60_000}).Draw(t, "arg")
	c := &m.o.cells[h.off]
	live := c.leased && c.nonce == h.nonce && c.due > m.o.now
	want := lease.Lost
	switch {
	case live:
		want = lease.OK
	case h.ended == op && m.o.now-h.at < lease.RememberMS-1000:
		want = lease.Repeat
	case h.ended == op && m.o.now-h.at < lease.RememberMS+1000:
		t.Skip("within the second in which it is forgotten")
	}
	now := m.o.now
	got := lease.Lost
	switch op {
	case "ack":
		got = m.table.Ack(now, h.off, h.nonce)
	case "nack":
		got = m.table.Nack(now, h.off, h.nonce, arg)
	case "extend":
		got = m.table.Extend(now, h.off, h.nonce, arg)
	case "release":
		got = m.table.Release(now, h.off, h.nonce)
	case "undo":
		m.table.Undo(now, h.off, h.nonce)
		got = want
	}
	if got != want {
		t.Fatalf("%s of offset %d answered %d, want %d", op, h.off, got, want)
	}
	if !live {
		return
	}
	switch op {
	case "ack":
		c.settled, c.leased = true, false
	case "nack":
		c.leased, c.delayed, c.due = false, arg > 0, now+arg
	case "extend":
		c.due = now + arg
		return
	case "release", "undo":
		c.leased = false
		c.count--
	}
	h.ended, h.at = op, now
}

func (m *model) tick(t *rapid.T) {
	m.o.now += rapid.SampledFrom([]int64{1, 499, 1000, 30_000, lease.RememberMS + 1000}).Draw(t, "ms")
	if rapid.Bool().Draw(t, "expire") {
		m.table.Expire(m.o.now)
		m.o.expire()
	}
}

func (m *model) skip(t *rapid.T) {
	f := m.o.frontier()
	if m.o.hwm == f {
		t.Skip("nothing above the frontier")
	}
	lo := rapid.Int64Range(f, m.o.hwm-1).Draw(t, "lo")
	hi := min(m.o.hwm, lo+rapid.Int64Range(1, 20).Draw(t, "length"))
	m.table.Skip(lo, hi)
	for i := lo; i < hi; i++ {
		c := &m.o.cells[i]
		c.settled, c.skipped, c.leased, c.delayed = true, true, false, false
	}
}

func (m *model) retention(t *rapid.T) {
	if m.o.hwm == m.o.start {
		t.Skip("nothing to remove")
	}
	to := rapid.Int64Range(m.o.start, min(m.o.hwm, m.o.start+15)).Draw(t, "log start")
	lost := int64(0)
	f := m.o.frontier()
	for i := m.o.start; i < to; i++ {
		c := &m.o.cells[i]
		if i >= f && !c.settled {
			lost++
		}
		for k := range m.handles {
			h := &m.handles[k]
			if h.off == i && c.leased && c.nonce == h.nonce && c.due > m.o.now {
				h.ended, h.at = "ack", m.o.now
			}
		}
		c.settled, c.leased, c.delayed = true, false, false
	}
	m.o.start, m.o.dropped = to, m.o.dropped+lost
	if got := m.table.Advance(m.o.now, to); got != lost {
		t.Fatalf("Advance(%d) dropped %d, want %d", to, got, lost)
	}
}

func (m *model) restart(t *rapid.T) {
	data := m.table.AppendSnapshot(nil, 1<<20)
	table, err := lease.Restore(data, m.o.now, m.o.start, m.o.hwm)
	if err != nil {
		t.Fatal(err)
	}
	m.table = table
	for i := range m.o.cells {
		c := &m.o.cells[i]
		c.leased = false
		if c.count < 2 && !c.delayed {
			c.count = 0
		}
	}
	m.o.expire()
	for k := range m.handles { // what was remembered is gone
		m.handles[k].ended = ""
	}
}

func (m *model) check(t *rapid.T) {
	if err := m.table.Check(); err != nil {
		t.Fatal(err)
	}
	leased, delayed, ahead, _ := m.o.counts()
	if got, want := m.table.Frontier(), m.o.frontier(); got != want || got > m.o.hwm {
		t.Fatalf("frontier %d, want %d (high watermark %d)", got, want, m.o.hwm)
	}
	if m.table.InFlight() != leased || m.table.Delayed() != delayed || m.table.SettledAhead() != int64(ahead) {
		t.Fatalf("in flight %d delayed %d ahead %d, want %d %d %d",
			m.table.InFlight(), m.table.Delayed(), m.table.SettledAhead(), leased, delayed, ahead)
	}
	if m.table.Dropped() != m.o.dropped {
		t.Fatalf("dropped %d, want %d", m.table.Dropped(), m.o.dropped)
	}
	var dues []int64
	for _, c := range m.o.cells {
		if !c.settled && (c.leased || c.delayed) {
			dues = append(dues, c.due)
		}
	}
	sort.Slice(dues, func(i, j int) bool { return dues[i] < dues[j] })
	if at, ok := m.table.NextDeadline(); ok != (len(dues) > 0) || ok && at != dues[0] {
		t.Fatalf("next deadline %d %t, want %v", at, ok, dues)
	}
}
