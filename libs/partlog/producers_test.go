package partlog

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

const minute = int64(60_000)

// feed applies batches of one record, the way a log does.
type feed struct {
	p  *producers
	at int64
}

func (f *feed) send(stream uint64, seq uint64, oldestID, oldestSeq uint64, ms int64) {
	e := entry{
		stream: streamOf(stream), last: record.Number{Seq: seq}, oldest: record.Oldest{ID: topic.ID64(oldestID), Seq: oldestSeq},
		base: f.at, end: f.at + 1, commitMS: ms, raise: true,
	}
	f.at++
	f.p.apply(&e)
}

func (f *feed) knows(stream uint64) bool {
	_, ok := f.p.streams[streamOf(stream)]
	return ok
}

func TestForgetsWhatTheWALHasPassed(t *testing.T) {
	f := feed{p: newProducers()}
	now := minute
	f.send(1, 100, 1, 90, now)
	f.send(2, 5, 1, 101, now+1) // the same gateway after a restart: identity 2, and 1 has records from 101 on
	for i := int64(1); i <= 9; i++ {
		f.send(2, 5+uint64(i), 1, 101, now+i*minute)
	}
	if !f.knows(1) {
		t.Fatal("forgotten too early: a late batch may be on its way")
	}
	for i := int64(10); i <= 13; i++ {
		f.send(2, 5+uint64(i), 1, 101, now+i*minute)
	}
	if f.knows(1) {
		t.Fatal("passed for over ten minutes and not forgotten")
	}
	if !f.knows(2) {
		t.Fatal("forgot a live stream")
	}
}

func TestForgetsAnIdentityThatTheWALHasLeft(t *testing.T) {
	f := feed{p: newProducers()}
	f.send(1, 100, 1, 90, minute)
	f.send(2, 5, 1, 95, 2*minute) // 1 still has records from 95 on: 100 may come again
	for i := int64(3); i < 60; i++ {
		f.send(2, uint64(i)+5, 1, 95, i*minute)
	}
	if !f.knows(1) {
		t.Fatal("forgot a stream whose records are still in the WAL")
	}
	for i := int64(60); i < 75; i++ {
		f.send(2, uint64(i)+5, 2, 3, i*minute)
	}
	if f.knows(1) || !f.knows(2) {
		t.Fatalf("1 known %t, 2 known %t", f.knows(1), f.knows(2))
	}
}

func TestForgetsAfterSevenIdleDays(t *testing.T) {
	f := feed{p: newProducers()}
	f.send(1, 100, 0, 0, minute)
	f.send(2, 1, 0, 0, minute+forgetIdleMS-1)
	f.send(2, 2, 0, 0, minute+forgetIdleMS-1)
	if !f.knows(1) {
		t.Fatal("forgotten a millisecond early")
	}
	f.send(2, 3, 0, 0, 2*minute+forgetIdleMS)
	if f.knows(1) {
		t.Fatal("idle for seven days and not forgotten")
	}
}

func TestStreamsAreBounded(t *testing.T) {
	f := feed{p: newProducers()}
	for i := range uint64(maxStreams + 10) {
		f.send(i, 1, 0, 0, minute)
	}
	if len(f.p.streams) > maxStreams || !f.knows(maxStreams+9) || f.knows(0) {
		t.Fatalf("%d streams", len(f.p.streams))
	}
}

// TestRebuiltEqualsBeforeCrash: whatever was appended, saved, rolled and cut,
// what a reopened log knows of its producers and epochs is what it knew before.
func TestRebuiltEqualsBeforeCrash(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fs := newFS(t)
		opt := Options{SegmentBytes: 800}
		l := lead(t, fs, opt)
		ms := int64(1000)
		next := map[uint64]uint64{}
		var bases []int64
		var b record.Builder
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "op") {
			case 0:
				save(t, l, l.LEO(), rapid.Bool().Draw(rt, "sync"))
			case 1:
				syncLog(t, l)
				begin(t, l)
			case 2:
				if _, err := l.Retain(ms, 40*minute, 0, l.LEO()); err != nil {
					rt.Fatal(err)
				}
			case 3:
				to := bases[len(bases)-min(len(bases), rapid.IntRange(0, 3).Draw(rt, "cut")):]
				if st, _ := l.State(); len(to) > 0 && to[0] >= max(st.HWM, l.track.hwm, l.LogStart()) {
					syncLog(t, l)
					if err := l.Truncate(to[0]); err != nil {
						rt.Fatal(err)
					}
					bases = bases[:len(bases)-len(to)]
					next = map[uint64]uint64{}
					for id, p := range l.track.now.streams {
						next[uint64(id.ID)] = p.highest.Seq
					}
				}
			default:
				id := rapid.Uint64Range(1, 4).Draw(rt, "stream")
				ms += rapid.Int64Range(0, 5*minute).Draw(rt, "time")
				next[id] += rapid.Uint64Range(1, 3).Draw(rt, "step")
				b.Reset(streamOf(id), 0, record.Oldest{
					ID:  topic.ID64(rapid.Uint64Range(0, 4).Draw(rt, "oldest")),
					Seq: rapid.Uint64Range(0, 20).Draw(rt, "oldest seq"),
				})
				if err := b.Add(next[id], []byte{0, 1, 2, 3}); err != nil {
					rt.Fatal(err)
				}
				bases = append(bases, app(t, l, b.Finish(record.CodecNone), ms))
			}
		}
		syncLog(t, l)
		again, err := Open(fs.CrashClone(nil), dir, opt)
		if err != nil {
			rt.Fatal(err)
		}
		before, after := l.track.now, again.track.now
		if !maps.Equal(before.streams, after.streams) || !maps.Equal(before.told, after.told) ||
			before.at != after.at && after.at != 0 || before.sweptMS != after.sweptMS || before.lastMS != after.lastMS {
			rt.Fatalf("before %+v\nafter  %+v", before, after)
		}
		if !slices.Equal(l.Epochs(), again.Epochs()) || l.LEO() != again.LEO() || l.LogStart() != again.LogStart() {
			rt.Fatalf("epochs %v and %v, LEO %d and %d, start %d and %d", l.Epochs(), again.Epochs(), l.LEO(), again.LEO(), l.LogStart(), again.LogStart())
		}
		_ = again.Close()
		_ = l.Close()
	})
}

func TestStateGolden(t *testing.T) {
	p := newProducers()
	p.at, p.lastMS, p.sweptMS = 5, 0x1000, 0x0fff
	p.streams[record.Stream{Kind: record.StreamWALPinned, ID: 0x11, A: 2, B: 3}] = producer{
		highest: record.Number{Epoch: 4, Seq: 0x99}, base: 3, lastMS: 0x1000, oldestID: 0x12, passedMS: 7,
	}
	p.told[0x12] = told{seq: 0x98, gone: true}
	snap := snapshot{producers: p, epochs: epochs{{Epoch: 1, Start: 0}, {Epoch: 3, Start: 4}}}
	st := State{CopyID: 0xa1, DiskID: 0xa2, LogID: 0xa3, HWM: 9, DroppedUnsettled: 8, PositionGeneration: 7, Position: []byte("pos")}
	got := appendSlot(nil, 2, &st, 1, appendSnapshot(nil, snap))
	const want = "4e41524144505332" + "0000000000000002" + "000000c9" +
		"00000000000000a1" + "00000000000000a2" + "00000000000000a3" + "0000000000000009" + "0000000000000001" + "0000000000000008" + "0000000000000007" +
		"00000003" + "706f73" +
		"0000000000000005" + "0000000000001000" + "0000000000000fff" +
		"00000001" + "02" + "0000000000000011" + "00000002" + "00000003" + "00000004" + "0000000000000099" +
		"0000000000000003" + "0000000000001000" + "0000000000000012" + "0000000000000007" +
		"00000001" + "0000000000000012" + "0000000000000098" + "01" +
		"00000002" + "00000001" + "0000000000000000" + "00000003" + "0000000000000004" +
		"076f277d"
	if hex.EncodeToString(got) != want {
		t.Errorf("slot\n got %x\nwant %s", got, want)
	}
	// A longer slot stood there before: what is behind the checksum is not looked at.
	generation, st2, snap2, err := parseSlot(append(bytes.Clone(got), "older bytes"...))
	snap.start = 1
	if err != nil || generation != 2 || !reflect.DeepEqual(st2, st) || !reflect.DeepEqual(snap2, snap) {
		t.Errorf("read back %d, %+v, %+v, %v", generation, st2, snap2, err)
	}
	// The form before it, without a position generation.
	old := slices.Concat([]byte(slotMagic1), got[8:16], []byte{0, 0, 0, 0xc1}, got[20:68], got[76:len(got)-4])
	old = binary.BigEndian.AppendUint32(old, crc32.Checksum(old, castagnoli))
	if old[19] != got[19]-8 {
		t.Fatal("lengths")
	}
	st.PositionGeneration = 0
	if _, st3, snap3, err := parseSlot(old); err != nil || !reflect.DeepEqual(st3, st) || !reflect.DeepEqual(snap3, snap) {
		t.Errorf("the older form: %+v, %+v, %v", st3, snap3, err)
	}
	for bit := range len(got) * 8 {
		b := bytes.Clone(got)
		b[bit/8] ^= 1 << (bit % 8)
		if _, _, _, err := parseSlot(b); err == nil {
			t.Errorf("bit %d flipped and not refused", bit)
		}
	}
	for cut := range len(got) {
		if _, _, _, err := parseSlot(got[:cut]); err == nil {
			t.Errorf("cut at %d and not refused", cut)
		}
	}
}
