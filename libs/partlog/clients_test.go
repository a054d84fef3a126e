package partlog

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

const hour = 60 * minute

func client(id uint64) record.Stream {
	return record.Stream{Kind: record.StreamClient, ID: topic.ID64(id), A: 1, B: 2}
}

func (f *feed) produce(id, seq uint64, ms int64) {
	e := entry{stream: client(id), last: record.Number{Seq: seq}, base: f.at, end: f.at + 1, commitMS: ms, raise: true}
	f.at++
	f.p.apply(&e)
}

func (f *feed) remembers(id uint64) bool {
	_, ok := f.p.streams[client(id)]
	return ok
}

// TestTheLongestIdleClientGoesFirst: one at a time, and what gateways and clients
// number does not push each other out.
func TestTheLongestIdleClientGoesFirst(t *testing.T) {
	f := feed{p: newProducers()}
	for i := range uint64(MaxClients) {
		f.produce(i, 0, minute)
	}
	for i := range uint64(maxStreams) {
		f.send(i, 1, 0, 0, minute)
	}
	if f.p.clients.n != MaxClients || !f.knows(0) || !f.remembers(0) {
		t.Fatalf("%d clients, the first %t, the first WAL %t", f.p.clients.n, f.remembers(0), f.knows(0))
	}
	f.produce(0, 1, minute) // used again: 1 is the longest idle now
	f.produce(MaxClients, 0, minute)
	f.produce(MaxClients+1, 0, minute)
	if f.remembers(1) || f.remembers(2) || !f.remembers(0) || !f.remembers(3) || f.p.clients.n != MaxClients || !f.knows(0) {
		t.Fatalf("known: 0 %t, 1 %t, 2 %t, 3 %t; %d in all", f.remembers(0), f.remembers(1), f.remembers(2), f.remembers(3), f.p.clients.n)
	}
	f.send(maxStreams, 1, 0, 0, minute)
	if f.p.clients.n != MaxClients || !f.remembers(3) || f.knows(0) || len(f.p.streams) > MaxClients+maxStreams {
		t.Fatal("a WAL's stream pushed a client out")
	}
	for range 100_000 {
		f.produce(5, 1, minute)
	}
	if n := len(f.p.clients.uses); n > 2*MaxClients+fewUses {
		t.Fatalf("%d uses are kept of %d clients", n, MaxClients)
	}
}

// TestACloneGoesItsOwnWay: what is at the written end and what is at the HWM share
// nothing that one of them changes.
func TestACloneGoesItsOwnWay(t *testing.T) {
	f := feed{p: newProducers()}
	for i := range uint64(5) { // some room is left behind them
		f.produce(i, 0, minute)
	}
	g := feed{p: f.p.clone(), at: f.at}
	f.produce(100, 0, minute)
	g.produce(200, 0, minute)
	if last := f.p.clients.uses[len(f.p.clients.uses)-1]; last.stream != client(100) || g.remembers(100) || f.remembers(200) {
		t.Errorf("the last use is %v", last)
	}
}

func TestAClientIsForgottenAfterADay(t *testing.T) {
	f := feed{p: newProducers()}
	f.produce(1, 7, minute)
	f.produce(2, 0, minute+24*hour-1)
	if !f.remembers(1) {
		t.Fatal("forgotten a millisecond early")
	}
	f.produce(2, 1, minute+24*hour)
	if f.remembers(1) || !f.remembers(2) {
		t.Fatal("idle for a day and not forgotten")
	}
	f.produce(1, 0, minute+24*hour) // begins again
	if s := f.p.streams[client(1)]; s.highest.Seq != 0 || f.p.clients.n != 2 {
		t.Fatalf("%+v of %d", s, f.p.clients.n)
	}
}

// TestAllCopiesForgetTheSameClients: whoever has the whole log, a snapshot at some
// offset and what follows, or only an exported start and what follows, remembers the
// same at the end, also where more clients came than are remembered and time passed.
func TestAllCopiesForgetTheSameClients(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 1))
		var log []entry
		ms := minute
		for at := range int64(30_000) {
			if r.IntN(1000) == 0 {
				ms += r.Int64N(hour)
			}
			id := uint64(r.IntN(12_000))
			if seed%2 == 0 { // a few that are busy, and many that come once
				id = uint64(at)
				if r.IntN(3) == 0 {
					id = uint64(r.IntN(5))
				}
			}
			log = append(log, entry{stream: client(id), last: record.Number{Seq: uint64(at)}, base: at, end: at + 1, commitMS: ms, raise: true})
		}
		whole := newProducers()
		cut, start := r.IntN(len(log)), 0
		var snap []byte
		for i := range log {
			if i == cut {
				snap = appendSnapshot(nil, snapshot{producers: whole})
			}
			whole.apply(&log[i])
		}
		c := cursor{b: snap}
		resumed := c.snapshot().producers
		for i := range log[cut:] {
			resumed.apply(&log[cut+i])
		}
		start = r.IntN(len(log))
		replaced := whole.before(int64(start))
		replaced.lastMS = log[start].commitMS
		for i := range log[start:] {
			replaced.apply(&log[start+i])
		}
		if c.bad || !maps.Equal(whole.streams, resumed.streams) || !maps.Equal(whole.streams, replaced.streams) {
			t.Fatalf("seed %d: %d clients in the whole log, %d from a snapshot at %d, %d from a start at %d",
				seed, len(whole.streams), len(resumed.streams), cut, len(replaced.streams), start)
		}
		if whole.clients.n != len(whole.streams) || resumed.clients.n != whole.clients.n || replaced.clients.n != whole.clients.n {
			t.Fatalf("seed %d: counted %d, %d and %d of %d", seed, whole.clients.n, resumed.clients.n, replaced.clients.n, len(whole.streams))
		}
	}
}

// TestOffsetsOfClientsSurvive: what a repeat is answered with is in the log and the
// snapshot; a truncation takes it back; streams without order leave nothing.
func TestOffsetsOfClientsSurvive(t *testing.T) {
	fs := newFS(t)
	l := lead(t, fs, Options{})
	app(t, l, batch(t, client(1), 0, 1, 20), 1000)
	app(t, l, batch(t, client(2), 0, 1, 20), 1000)
	app(t, l, batch(t, record.Stream{Kind: record.StreamOnce, ID: 9}, 5, 2, 20), 1000)
	app(t, l, batch(t, client(1), 1, 1, 20), 1000)
	at := func(l *Log, id uint64, nowMS int64, wantSeq uint64, wantBase int64, want bool) {
		t.Helper()
		seq, base, ok := l.Client(client(id), nowMS)
		if seq != wantSeq || base != wantBase || ok != want {
			t.Errorf("client %d: %d at %d, %t; want %d at %d, %t", id, seq, base, ok, wantSeq, wantBase, want)
		}
	}
	at(l, 1, 1000, 1, 4, true)
	at(l, 2, 1000+ForgetClientMS-1, 0, 1, true)
	at(l, 2, 1000+ForgetClientMS, 0, 0, false)
	if n := len(l.track.now.streams); n != 2 {
		t.Errorf("%d streams are remembered", n)
	}
	syncLog(t, l)
	save(t, l, 2, true)
	again := open(t, fs.CrashClone(nil), Options{})
	at(again, 1, 1000, 1, 4, true)
	at(again, 2, 1000, 0, 1, true)
	_ = again.Close()
	if err := l.Truncate(4); err != nil {
		t.Fatal(err)
	}
	at(l, 1, 1000, 0, 0, true)
}
