package storage_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// answerPieces answers for a leader that is asked for damaged bytes, or has it answer.
type answerPieces func(req *nodeapi.PiecesRequest, leader func() (*nodeapi.PiecesResult, error)) (*nodeapi.PiecesResult, error)

// asker is a node as another one asks it about its copies.
type asker struct {
	nodeapi.Candidate
	c *trio
}

func (a *asker) Pieces(ctx context.Context, req *nodeapi.PiecesRequest) (*nodeapi.PiecesResult, error) {
	a.c.mu.Lock()
	instead := a.c.pieces
	a.c.mu.Unlock()
	leader := func() (*nodeapi.PiecesResult, error) { return a.Candidate.Pieces(ctx, req) }
	if instead == nil {
		return leader()
	}
	return instead(req, leader)
}

func (c *trio) onPieces(f answerPieces) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pieces = f
}

// scribble writes over bytes of a file.
func (m *member) scribble(segment string, at int64, n int) {
	m.t.Helper()
	f, err := m.fs.Open(segment)
	if err != nil {
		m.t.Fatal(err)
	}
	_, err = f.WriteAt(bytes.Repeat([]byte{0xee}, n), at)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		m.t.Fatal(err)
	}
}

// pieces reads what is kept of damaged bytes in a partition's directory.
func pieces(t *testing.T, fs vfs.FS, dir string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	in, err := fs.ReadDir(path.Join(dir, "damaged"))
	if err != nil {
		return out
	}
	for _, e := range in {
		f, err := fs.OpenRead(path.Join(dir, "damaged", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		size, err := f.Size()
		b := make([]byte, size)
		if err == nil && size > 0 {
			_, err = f.ReadAt(b, 0)
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = b
	}
	return out
}

// contents are the bytes of pieces, whatever they are called.
func contents(of map[string][]byte) []string {
	var out []string
	for b := range maps.Values(of) {
		out = append(out, string(b))
	}
	slices.Sort(out)
	return out
}

// spoilt commits 200 records, writes over the middle of one sealed segment and over
// the head of another one, and returns what can be read of them.
func (m *mover) spoilt() []string {
	m.t.Helper()
	for m.next <= 200 {
		m.commitNext()
	}
	s1 := m.nodes[m.from]
	all := s1.segments()
	s1.scribble(all[1], 2000, 300)
	s1.scribble(all[3], 0, 200)
	had, err := m.read(m.from)
	if err != nil || len(had) < 190 || len(had) > 197 {
		m.t.Fatalf("of 200 records %d can be read, %v", len(had), err)
	}
	return had
}

// finish lets the move end, and returns what the partition holds then.
func (m *mover) finish(had []string) (want []string) {
	m.t.Helper()
	goal := m.next + 10
	m.until("it is moved", func() bool { m.tick(); return m.phase() == finished && m.next > goal })
	return append(slices.Clone(had), ordered(201, int(m.next-1))...)
}

// finishUnjudged lets the move end while nobody says who holds the partition: what the
// source has left stays, in later processes too, until judged.
func (m *mover) finishUnjudged(had []string) {
	m.t.Helper()
	m.holdersDown.Store(true)
	m.finish(had)
}

// judged waits until the source has judged the copy that it has left.
func (m *mover) judged() (reclaimed bool) {
	m.t.Helper()
	m.holdersDown.Store(false)
	s := m.nodes[m.from]
	m.until("the old copy is judged", func() bool {
		pass(time.Second)
		return s.count("narad_superseded_copies_quarantined_total")+s.count("narad_superseded_copies_reclaimed_total") == 1
	})
	return s.count("narad_superseded_copies_reclaimed_total") == 1
}

// inDamagedMove runs a test with a partition of one copy whose segments are small.
func inDamagedMove(t *testing.T, test func(m *mover)) {
	t.Helper()
	inMove(t, 1, test, func(m *mover) { onDisk(m.trio) })
}

// TestMoveOfDamage: the only copy of a partition has sealed segments that its disk has
// spoiled. What can be read moves, each record at its offset; the bytes of what cannot
// move as they are, so that the old copy has nothing that the new one has not, and goes.
// The new one tells of the damage as the old one did, in every process.
func TestMoveOfDamage(t *testing.T) {
	inDamagedMove(t, func(m *mover) {
		had := m.spoilt()
		s1, s9 := m.nodes["s1"], m.nodes["s9"]
		spoiled := pieces(t, s1.fs, s1.dir())
		if len(spoiled) != 3 { // one is the header of a segment
			t.Fatalf("%d damaged ranges were kept: %q", len(spoiled), slices.Collect(maps.Keys(spoiled)))
		}
		if n := s1.gauge("narad_damaged_partitions"); n != 1 {
			t.Errorf("the source tells of %v damaged partitions", n)
		}
		m.begin()
		want := m.finish(had)
		m.wantRead("s9", want)
		if !slices.Equal(contents(pieces(t, s9.fs, s9.dir())), contents(spoiled)) {
			t.Fatalf("the destination keeps %q of %q; %s", slices.Collect(maps.Keys(pieces(t, s9.fs, s9.dir()))), slices.Collect(maps.Keys(spoiled)), s9.logs.all())
		}
		if s9.count("narad_damage_gap_offsets_total") != float64(200-len(had)) || s9.logs.says("offsets are missing") == 0 {
			t.Errorf("the destination says nothing of what it did not get: %s", s9.logs.all())
		}
		if !m.judged() {
			t.Errorf("set aside: %q; %s", s1.aside(), s1.logs.all())
		}
		for range 2 {
			if n := s9.gauge("narad_damaged_partitions"); n != 1 {
				t.Errorf("the destination tells of %v damaged partitions", n)
			}
			s9.powerCut()
			s9.start()
			m.until("it serves again", func() bool { m.tick(); _, err := m.read("s9"); return err == nil })
		}
		m.wantRead("s9", append(slices.Clone(had), ordered(201, int(m.next-1))...))
		if !slices.Equal(contents(pieces(t, s9.fs, s9.dir())), contents(spoiled)) {
			t.Fatal("the damaged bytes did not outlive a power cut")
		}
		if strings.Contains(s9.logs.all(), "is repaired from another one") {
			t.Error(s9.logs.all())
		}
	})
}

// TestOldCopyGoesAfterTheNewOneBeganAgain: what a copy never got, because it was damaged
// where it came from, is nothing that the copy has lost. So it vouches for the old copy,
// whose damaged bytes it has, in later processes too: after a crash, which makes it read
// its log again, and of a partition to which nothing is sent any more.
func TestOldCopyGoesAfterTheNewOneBeganAgain(t *testing.T) {
	for how, end := range map[string]func(*member){"crashed": (*member).powerCut, "stopped": (*member).shutDown} {
		inDamagedMove(t, func(m *mover) {
			had := m.spoilt()
			m.begin()
			m.finishUnjudged(had)
			m.beginAgain(end)
			if !m.judged() {
				t.Errorf("%s: set aside: %q; %s", how, m.nodes["s1"].aside(), m.nodes["s9"].logs.all())
			}
		})
	}
}

// TestOldCopyOfWhatTheNewOneLostStays: a disk loses the end of what the only copy had
// committed. It goes on, and vouches for no copy that may have that.
func TestOldCopyOfWhatTheNewOneLostStays(t *testing.T) {
	for what, again := range map[string]int{"in the process that found it": 0, "in a later one": 1} {
		inDamagedMove(t, func(m *mover) {
			m.begin()
			m.finishUnjudged(nil)
			m.beginAgain(func(s9 *member) {
				s9.shutDown() // the high watermark is stored
				all := s9.segments()
				f, err := s9.fs.Open(all[len(all)-1])
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(f.Truncate(seglog.HeaderSize), f.Sync(), f.Close()); err != nil {
					t.Fatal(err)
				}
			})
			for range 3 {
				m.commitNext()
			}
			for range again {
				m.beginAgain((*member).shutDown)
			}
			if m.judged() {
				t.Errorf("%s: the only copy of what was committed is gone; %s", what, m.nodes["s9"].logs.all())
			}
		})
	}
}

// beginAgain ends the destination while the source is down, and starts both; nothing is
// committed meanwhile.
func (m *mover) beginAgain(end func(*member)) {
	m.t.Helper()
	from, to := m.nodes[m.from], m.nodes[m.to]
	from.kill()
	end(to)
	to.start()
	m.until("it serves again", func() bool { m.lead(); pass(time.Second); _, err := m.read(m.to); return err == nil })
	from.start()
}

// came tells whether the destination keeps these very bytes.
func (m *mover) came(spoiled map[string][]byte) bool {
	to := m.nodes[m.to]
	return slices.Equal(contents(pieces(m.t, to.fs, to.dir())), contents(spoiled))
}

// TestMoveOfDamageInterrupted: whoever dies while the damaged bytes are on their way, and
// wherever, they come, each of those that have come is not asked for again, and the move
// waits for them.
func TestMoveOfDamageInterrupted(t *testing.T) {
	for _, victim := range []string{"s1", "s9"} {
		for how, fault := range faults {
			for _, at := range []int{0, 2, 4} { // questions that were answered
				inDamagedMove(t, func(m *mover) {
					had := m.spoilt()
					spoiled := pieces(t, m.nodes["s1"].fs, m.nodes["s1"].dir())
					asked, whole, stuck := 0, map[string]bool{}, false
					m.onPieces(func(req *nodeapi.PiecesRequest, leader func() (*nodeapi.PiecesResult, error)) (*nodeapi.PiecesResult, error) {
						m.mu.Lock()
						defer m.mu.Unlock()
						if asked++; asked > at {
							stuck = true
							return nil, errNoRoute
						}
						if whole[req.Name] {
							t.Errorf("%s was asked for again", req.Name)
						}
						m.mu.Unlock()
						res, err := leader()
						m.mu.Lock()
						whole[req.Name] = err == nil && req.Name != ""
						return res, err
					})
					m.begin()
					m.until("the questions are not answered", func() bool { m.tick(); m.mu.Lock(); defer m.mu.Unlock(); return stuck })
					if m.phase() != copying {
						t.Fatalf("it is %s without the damaged bytes", phaseNames[m.phase()])
					}
					over := fault(m, victim)
					for range 30 {
						m.tick()
					}
					m.mu.Lock()
					asked = -1 << 30
					m.mu.Unlock()
					over()
					want := m.finish(had)
					m.wantRead("s9", want)
					if !m.came(spoiled) {
						t.Fatalf("the destination keeps %d of %d; %s", len(pieces(t, m.nodes["s9"].fs, m.nodes["s9"].dir())), len(spoiled), m.nodes["s9"].logs.all())
					}
					if !m.judged() {
						t.Errorf("%s %s at %d: set aside; %s", victim, how, at, m.nodes["s1"].logs.all())
					}
				})
			}
		}
	}
}

// TestGarbageInsteadOfDamage: a leader that does not know the question, or answers what no
// honest one does, gets nothing written; the move waits for a minute, goes on without, and
// the old copy is set aside with what it has.
func TestGarbageInsteadOfDamage(t *testing.T) {
	list := func(change func(list []nodeapi.Piece) []nodeapi.Piece) answerPieces {
		return func(req *nodeapi.PiecesRequest, leader func() (*nodeapi.PiecesResult, error)) (*nodeapi.PiecesResult, error) {
			res, err := leader()
			if err == nil && req.Name == "" && len(res.Pieces) > 0 {
				res.Pieces = change(res.Pieces)
			}
			return res, err
		}
	}
	body := func(change func(b []byte) []byte) answerPieces {
		return func(req *nodeapi.PiecesRequest, leader func() (*nodeapi.PiecesResult, error)) (*nodeapi.PiecesResult, error) {
			res, err := leader()
			if err == nil && req.Name != "" {
				res.Bytes = change(res.Bytes)
			}
			return res, err
		}
	}
	renamed := func(name string) answerPieces {
		return list(func(list []nodeapi.Piece) []nodeapi.Piece { list[0].Name = name; return list })
	}
	sized := func(size int64) answerPieces {
		return list(func(list []nodeapi.Piece) []nodeapi.Piece { list[0].Size = size; return list })
	}
	for name, c := range map[string]struct {
		answer answerPieces
		honest bool
	}{
		"a release that does not know it": {func(*nodeapi.PiecesRequest, func() (*nodeapi.PiecesResult, error)) (*nodeapi.PiecesResult, error) {
			return nil, problem.New(problem.RouteNotFound, "no such operation")
		}, true},
		"other bytes":      {body(func(b []byte) []byte { b[0] ^= 1; return b }), false},
		"fewer bytes":      {body(func([]byte) []byte { return nil }), false},
		"more bytes":       {body(func(b []byte) []byte { return append(b, 0) }), false},
		"other checksum":   {list(func(list []nodeapi.Piece) []nodeapi.Piece { list[0].CRC++; return list }), false},
		"nothing":          {sized(0), false},
		"less than none":   {sized(-1), false},
		"more than may be": {sized(65 << 20), false},
		"a path":           {renamed("../../../state.0"), false},
		"no name":          {renamed(""), false},
		"twice":            {list(func(list []nodeapi.Piece) []nodeapi.Piece { return append([]nodeapi.Piece{list[0]}, list...) }), false},
		"too many": {list(func(list []nodeapi.Piece) []nodeapi.Piece {
			return slices.Repeat(list[:1], nodeapi.MaxPieceList+1)
		}), false},
	} {
		t.Run(name, func(t *testing.T) {
			inDamagedMove(t, func(m *mover) {
				had := m.spoilt()
				m.onPieces(c.answer)
				m.begin()
				m.until("it is near", func() bool { m.tick(); v := m.vouch(); c, ok := v.Copy("s9"); return ok && c.MissingBytes == 0 })
				for range 50 * 30 { // of 20 ms
					m.tick()
				}
				if m.phase() != copying {
					t.Fatalf("it is %s without the damaged bytes", phaseNames[m.phase()])
				}
				m.until("it is moved", func() bool { m.tick(); return m.phase() == finished })
				s9 := m.nodes["s9"]
				if got := pieces(t, s9.fs, s9.dir()); len(got) != 1 || got["awaited"] == nil {
					t.Errorf("it wrote %q", slices.Collect(maps.Keys(got)))
				}
				if n := s9.count("narad_bad_fetches_total"); (n == 0) != c.honest {
					t.Errorf("%v bad answers counted", n)
				}
				m.wantRead("s9", append(slices.Clone(had), ordered(201, int(m.next-1))...))
				if m.judged() || len(m.nodes["s1"].aside()) != 1 {
					t.Fatalf("the old copy has gone with what nobody else has: %s", m.nodes["s1"].logs.all())
				}
			})
		})
	}
}

// Damaged bytes are given to copies of the partition, and to nobody else.
func TestDamageIsForCopiesOnly(t *testing.T) {
	inDamagedMove(t, func(m *mover) {
		m.spoilt()
		m.awaitRecord() // the names of its pieces begin with its id
		s1, s9 := m.nodes["s1"], m.nodes["s9"]
		list, err := s1.fs.ReadDir(s1.dir() + "/damaged")
		if err != nil {
			m.t.Fatal(err)
		}
		m.meta.PutMember(topic.Member{ID: "s7", Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 77, BootNonce: 770})
		name := m.recorded().String() + "-" + list[0].Name()
		honest := nodeapi.PiecesRequest{From: "s9", Disk: s9.disk, Boot: s9.boot, Copy: 99, Target: m.target("s1")}
		ask := func(change func(r *nodeapi.PiecesRequest)) error {
			for _, what := range []string{"", name} {
				req := honest
				if req.Name = what; what != "" {
					req.MaxBytes = 10
				}
				change(&req)
				if res, err := s1.role.Replica().Pieces(m.t.Context(), &req); err != nil || len(res.Pieces)+len(res.Bytes) == 0 {
					return err
				}
			}
			return nil
		}
		wantProblem(m.t, ask(func(*nodeapi.PiecesRequest) {}), problem.NotPartitionLeader) // it observes nothing yet
		m.change(func(a *topic.Assignment) {
			a.Observers = []topic.Replica{{Node: "s9", DiskID: s9.disk}}
			a.ConfigVersion++
		})
		if err := ask(func(*nodeapi.PiecesRequest) {}); err != nil {
			m.t.Fatalf("an observer: %v", err)
		}
		for what, c := range map[string]struct {
			change func(r *nodeapi.PiecesRequest)
			want   problem.Code
		}{
			"a process of before":  {func(r *nodeapi.PiecesRequest) { r.Boot++ }, problem.IDInUse},
			"another disk":         {func(r *nodeapi.PiecesRequest) { r.Disk++ }, problem.IDInUse},
			"a stranger":           {func(r *nodeapi.PiecesRequest) { r.From, r.Disk, r.Boot = "s7", 77, 770 }, problem.NotPartitionLeader},
			"nobody":               {func(r *nodeapi.PiecesRequest) { r.From, r.Boot, r.Disk = "", 0, 0 }, problem.IDInUse},
			"another disk of ours": {func(r *nodeapi.PiecesRequest) { r.DiskID++ }, problem.PartitionUnavailable},
			"an epoch of before":   {func(r *nodeapi.PiecesRequest) { r.Epoch-- }, problem.StaleEpoch},
			"another life":         {func(r *nodeapi.PiecesRequest) { r.Incarnation++ }, problem.TopicChanged},
			"a path":               {func(r *nodeapi.PiecesRequest) { r.Name = "../state.0" }, problem.InvalidRequest},
			"a file of its own":    {func(r *nodeapi.PiecesRequest) { r.Name = "awaited" }, problem.InvalidRequest},
			"before the beginning": {func(r *nodeapi.PiecesRequest) { r.Name, r.Offset = name, -1 }, problem.InvalidRequest},
			"a piece of nobody":    {func(r *nodeapi.PiecesRequest) { r.Name = (m.recorded() + 1).String() + name[16:] }, problem.PartitionUnavailable},
		} {
			m.t.Log(what)
			wantProblem(m.t, ask(c.change), c.want)
		}
	})
}
