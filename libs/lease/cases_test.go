package lease_test

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/lease"
)

const t0 = int64(1_800_000_000_000)

var wide = lease.Limits{MaxInFlight: 100_000, MaxAckedAhead: 1_000_000}

// counter draws nonces 1, 2, 3...
func counter() func(*lease.Nonce) {
	var n uint64
	return func(nc *lease.Nonce) {
		n++
		binary.BigEndian.PutUint64(nc[4:], n)
	}
}

func one(t *testing.T, tb *lease.Table, now, hwm, vis int64, draw func(*lease.Nonce)) lease.Lease {
	t.Helper()
	got, _ := tb.Reserve(now, hwm, 1, vis, wide, draw, nil)
	if len(got) != 1 {
		t.Fatalf("nothing to lease at %d", now)
	}
	return got[0]
}

// Case 102: the holder of an ended lease can do nothing to the next holder's.
func TestStaleHandleTouchesNobodyElse(t *testing.T) {
	tb, draw := lease.New(0), counter()
	a := one(t, tb, t0, 1, 1000, draw)
	now := t0 + 1200
	b := one(t, tb, now, 1, 1000, draw)
	if b.Offset != a.Offset || b.Count != 2 {
		t.Fatalf("second delivery is %+v", b)
	}
	stale := func() {
		t.Helper()
		for name, st := range map[string]lease.Status{
			"ack": tb.Ack(now, a.Offset, a.Nonce), "nack": tb.Nack(now, a.Offset, a.Nonce, 0),
			"extend": tb.Extend(now, a.Offset, a.Nonce, 1000), "release": tb.Release(now, a.Offset, a.Nonce),
		} {
			if st != lease.Lost {
				t.Errorf("%s with the ended lease: %d", name, st)
			}
		}
	}
	stale()
	for range 2 {
		if st := tb.Extend(now, b.Offset, b.Nonce, 5000); st != lease.OK {
			t.Fatalf("extend of the live lease: %d", st)
		}
	}
	stale()
	if st := tb.Ack(now, b.Offset, b.Nonce); st != lease.OK {
		t.Fatalf("ack: %d", st)
	}
	if st := tb.Ack(now, b.Offset, b.Nonce); st != lease.Repeat {
		t.Fatalf("second ack: %d", st)
	}
	if st := tb.Nack(now, b.Offset, b.Nonce, 0); st != lease.Lost {
		t.Fatalf("nack after ack: %d", st)
	}
	stale()
}

// Case 102: around the expiry an ack either settles or the record comes again, never both.
func TestAckAroundExpiry(t *testing.T) {
	for at := int64(995); at <= 1005; at++ {
		for _, expireFirst := range []bool{true, false} {
			tb, draw := lease.New(0), counter()
			l := one(t, tb, t0, 1, 1000, draw)
			if expireFirst {
				tb.Expire(t0 + at)
			}
			acked := tb.Ack(t0+at, l.Offset, l.Nonce) == lease.OK
			again, _ := tb.Reserve(t0+at+2000, 1, 1, 1000, wide, draw, nil)
			if acked == (len(again) == 1) || acked != (at < 1000) {
				t.Fatalf("at %d ms: acked %t, delivered again %t", at, acked, len(again) == 1)
			}
		}
	}
}

// Case 103: after a restart the same offset has another nonce, and guesses around it fail.
func TestHandleOfEarlierLifeIsLost(t *testing.T) {
	tb := lease.New(0)
	random := rand.NewChaCha8([32]byte{1})
	draw := func(n *lease.Nonce) { _, _ = random.Read(n[:]) }
	old := one(t, tb, t0, 10, 30_000, draw)
	tb, err := lease.Restore(tb.AppendSnapshot(nil, 1<<16), t0, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	now := one(t, tb, t0, 10, 30_000, draw)
	if now.Offset != old.Offset || now.Nonce == old.Nonce {
		t.Fatalf("old %+v, new %+v", old, now)
	}
	if st := tb.Ack(t0, old.Offset, old.Nonce); st != lease.Lost {
		t.Fatalf("ack with the old handle: %d", st)
	}
	base := binary.BigEndian.Uint64(now.Nonce[4:])
	for d := uint64(1); d <= 1000; d++ {
		for _, v := range []uint64{base + d, base - d} {
			guess := now.Nonce
			binary.BigEndian.PutUint64(guess[4:], v)
			if tb.Ack(t0, now.Offset, guess) != lease.Lost {
				t.Fatal("a guessed nonce settled a lease")
			}
		}
	}
	for _, off := range []int64{-1, 1, 9, 10, math.MaxInt64} {
		if tb.Ack(t0, off, now.Nonce) != lease.Lost {
			t.Fatalf("nonce of offset %d settled offset %d", now.Offset, off)
		}
	}
	if tb.Ack(t0, now.Offset, now.Nonce) != lease.OK {
		t.Fatal("the true handle is lost")
	}
}

// Case 109: every lease ends by itself, whatever visibility was asked for.
func TestExtremeVisibilities(t *testing.T) {
	for _, vis := range []int64{math.MinInt64, -1, 0, 1, 1000, 1 << 31, lease.MaxVisibilityMS, math.MaxInt64} {
		tb, draw := lease.New(0), counter()
		got, _ := tb.Reserve(t0, 1000, 1000, vis, wide, draw, nil)
		for _, l := range got {
			tb.Extend(t0, l.Offset, l.Nonce, vis)
		}
		at, ok := tb.NextDeadline()
		if !ok || at < t0 || at > t0+lease.MaxVisibilityMS {
			t.Fatalf("visibility %d ends at %d", vis, at)
		}
		tb.Expire(t0 + lease.MaxVisibilityMS)
		if _, ok := tb.NextDeadline(); tb.InFlight() != 0 || ok {
			t.Fatalf("visibility %d: %d in flight after the longest time", vis, tb.InFlight())
		}
		if again, _ := tb.Reserve(t0, 1000, 1000, 1, wide, draw, nil); len(again) != 1000 {
			t.Fatalf("visibility %d: %d of 1000 delivered again", vis, len(again))
		}
	}
}

// Case 115: one held record; the cap bounds what is settled above it, acks of
// live leases are still taken, the blocking record goes first, and a restart
// repeats nothing that was settled.
func TestOneHoleInTheAcks(t *testing.T) {
	const ackedAhead = 10_000
	lim := lease.Limits{MaxInFlight: 100, MaxAckedAhead: ackedAhead}
	tb, draw := lease.New(0), counter()
	held, _ := tb.Reserve(t0, 1<<20, 1, 3_600_000, lim, draw, nil)
	settled := 0
	var left lease.Left
	for {
		var got []lease.Lease
		got, left = tb.Reserve(t0, 1<<20, 50, 30_000, lim, draw, nil)
		for i := len(got) - 1; i >= 0; i-- {
			if tb.Ack(t0, got[i].Offset, got[i].Nonce) != lease.OK {
				t.Fatal("an ack of a live lease was refused")
			}
			settled++
		}
		if left != lease.More {
			break
		}
	}
	if left != lease.Capped || settled < ackedAhead || settled > ackedAhead+lim.MaxInFlight || tb.Frontier() != 0 {
		t.Fatalf("left %d, settled %d, frontier %d", left, settled, tb.Frontier())
	}
	snap := tb.AppendSnapshot(nil, 1<<20)
	tb, err := lease.Restore(snap, t0, 0, 1<<20)
	if err != nil || len(snap) > 100 {
		t.Fatalf("snapshot of %d bytes: %v", len(snap), err)
	}
	got, _ := tb.Reserve(t0, 1<<20, 10, 30_000, lim, draw, nil)
	if len(got) != 1 || got[0].Offset != held[0].Offset {
		t.Fatalf("at the cap the partition hands out %v", got)
	}
	tb.Ack(t0, got[0].Offset, got[0].Nonce)
	if tb.Frontier() != int64(settled)+1 || tb.Left(1<<20, lim) != lease.More {
		t.Fatalf("frontier %d after the hole was settled", tb.Frontier())
	}
}

func TestRememberedAreBounded(t *testing.T) {
	tb, draw := lease.New(0), counter()
	got, _ := tb.Reserve(t0, 10_000, 10_000, 30_000, wide, draw, nil)
	for _, l := range got {
		tb.Ack(t0, l.Offset, l.Nonce)
	}
	for i, l := range got {
		want := lease.Lost
		if i >= len(got)-lease.MaxRemembered {
			want = lease.Repeat
		}
		if st := tb.Ack(t0+lease.RememberMS-1000, l.Offset, l.Nonce); st != want {
			t.Fatalf("repeat of ack %d: %d, want %d", i, st, want)
		}
	}
	last := got[len(got)-1]
	if st := tb.Ack(t0+lease.RememberMS, last.Offset, last.Nonce); st != lease.Lost {
		t.Fatalf("remembered for too long: %d", st)
	}
}

// The bytes are on disks: this changes only with a new magic.
func TestSnapshotGolden(t *testing.T) {
	tb, draw := lease.New(0), counter()
	got, _ := tb.Reserve(t0, 20, 8, 30_000, wide, draw, nil)
	tb.Ack(t0, 0, got[0].Nonce)
	tb.Ack(t0, 2, got[2].Nonce)
	tb.Ack(t0, 3, got[3].Nonce)
	tb.Skip(6, 7)
	tb.Nack(t0, 4, got[4].Nonce, 0)
	again, _ := tb.Reserve(t0, 20, 1, 30_000, wide, draw, nil)
	tb.Nack(t0, 5, got[5].Nonce, 60_000)
	if again[0].Offset != 4 || again[0].Count != 2 {
		t.Fatalf("%+v", again)
	}
	const want = "4e4c5331" + "0000000000000001" + "0000000000000000" +
		"010200" + "020101" + "00" + "040200" + "0101e0f4f4c2b134" + "00"
	snap := hex.EncodeToString(tb.AppendSnapshot(nil, 1<<16))
	if !strings.HasPrefix(snap, want) || len(snap) != len(want)+8 {
		t.Fatalf("snapshot %s\nwant     %s + CRC", snap, want)
	}
}

func TestSnapshotKeepsItsLimit(t *testing.T) {
	tb, draw := lease.New(0), counter()
	got, _ := tb.Reserve(t0, 20_000, 20_000, 30_000, wide, draw, nil)
	for i, l := range got {
		if i%2 == 1 {
			tb.Ack(t0, l.Offset, l.Nonce)
		} else if i%4 == 2 {
			tb.Nack(t0, l.Offset, l.Nonce, 50_000)
		}
	}
	for _, limit := range []int{lease.MinSnapshot + 64, 1000, 10_000, 1 << 20} {
		snap := tb.AppendSnapshot([]byte("prefix"), limit)[len("prefix"):]
		back, err := lease.Restore(snap, t0, 0, 20_000)
		if err != nil || len(snap) > limit {
			t.Fatalf("limit %d: %d bytes, %v", limit, len(snap), err)
		}
		if err := back.Check(); err != nil {
			t.Fatal(err)
		}
		if back.SettledAhead() > tb.SettledAhead() || limit == 1<<20 && (back.SettledAhead() != 10_000 || back.Delayed() != 5000) {
			t.Fatalf("limit %d: %d settled, %d delayed", limit, back.SettledAhead(), back.Delayed())
		}
	}
}

func TestDamagedSnapshotIsRefused(t *testing.T) {
	tb := lease.New(7)
	tb.Skip(9, 12)
	snap := tb.AppendSnapshot(nil, 1<<16)
	for i := range snap {
		for bit := range 8 {
			bad := append([]byte(nil), snap...)
			bad[i] ^= 1 << bit
			if _, err := lease.Restore(bad, t0, 0, 100); err == nil {
				t.Fatalf("bit %d of byte %d flipped, and nobody noticed", bit, i)
			}
		}
		if _, err := lease.Restore(snap[:i], t0, 0, 100); err == nil {
			t.Fatalf("cut at %d, and nobody noticed", i)
		}
	}
}

func FuzzRestore(f *testing.F) {
	tb, draw := lease.New(0), counter()
	got, _ := tb.Reserve(t0, 20, 8, 30_000, wide, draw, nil)
	tb.Ack(t0, 2, got[2].Nonce)
	tb.Nack(t0, 4, got[4].Nonce, 1000)
	f.Add(tb.AppendSnapshot(nil, 1<<16), int64(0), int64(20))
	f.Fuzz(func(t *testing.T, data []byte, start, hwm int64) {
		if start < 0 || hwm < start || hwm > 1<<62 {
			t.Skip("not an offset range that a log can have")
		}
		for _, d := range [][]byte{data, lease.Sealed(data)} {
			tb, err := lease.Restore(d, t0, start, hwm)
			if err != nil {
				continue
			}
			if err := tb.Check(); err != nil {
				t.Fatal(err)
			}
			if tb.Frontier() > hwm || tb.Frontier() < start {
				t.Fatalf("frontier %d outside of %d..%d", tb.Frontier(), start, hwm)
			}
			if _, err := lease.Restore(tb.AppendSnapshot(nil, 1<<24), t0, start, hwm); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func BenchmarkReserveAck(b *testing.B) {
	tb, draw := lease.New(0), counter()
	var got []lease.Lease
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		got, _ = tb.Reserve(t0, math.MaxInt64, 64, 30_000, wide, draw, got[:0])
		for _, l := range got {
			tb.Ack(t0, l.Offset, l.Nonce)
		}
	}
}

// BenchmarkHole acks in a scattered order above a held record.
func BenchmarkHole(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		tb, draw := lease.New(0), counter()
		got, _ := tb.Reserve(t0, math.MaxInt64, 100_000, 30_000, wide, draw, nil)
		for i := range got[1:] {
			l := got[1+(i*7919)%(len(got)-1)]
			tb.Ack(t0, l.Offset, l.Nonce)
		}
	}
}
