package partition

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// loneSet is a set with s1 as the only replica.
func loneSet(epoch topic.Epoch, observers ...string) Set {
	s := Set{Leadership: quorum.Leadership{Epoch: epoch, Leader: "s1"}}
	s.Version, s.Replicas, s.Observers = uint64(epoch), []quorum.Replica{{Node: "s1", Disk: 1}}, observers
	return s
}

func openLone(t *testing.T, fs vfs.FS, set Set) *Partition {
	t.Helper()
	s, _ := sharedOn(t, fs)
	p, err := Open(s, topic.Ref{Topic: "t", Incarnation: 1}, "/p", set)
	if err == nil {
		err = p.Assume(set)
	}
	if err != nil {
		t.Fatal(err)
	}
	if p.Epoch() != set.Epoch {
		t.Fatalf("it leads epoch %d, not %d", p.Epoch(), set.Epoch)
	}
	return p
}

func commitOne(t *testing.T, p *Partition, seq uint64, payload string) {
	t.Helper()
	var b record.Builder
	b.Reset(record.Stream{Kind: record.StreamWAL, ID: 5}, 0, record.Oldest{})
	if err := b.Add(seq, record.AppendBody(nil, &record.Message{Payload: []byte(payload)})); err != nil {
		t.Fatal(err)
	}
	batch := b.Finish(record.CodecNone)
	h, err := record.ParseHeader(batch)
	if err != nil {
		t.Fatal(err)
	}
	in := &Incoming{Epoch: p.Epoch(), Batch: batch, Header: &h, Recheck: func() *problem.Problem { return nil }}
	if _, err := p.Commit(t.Context(), in); err != nil {
		t.Fatal(err)
	}
}

// A copy that was always alone, and so has no fence, gets an observer before anybody
// has opened it: it goes on, and is one that can be recorded.
func TestAloneUntilAnObserverComes(t *testing.T) {
	fs := vfs.NewMem()
	p := openLone(t, fs, loneSet(1))
	commitOne(t, p, 1, "a")
	if err := p.SavePositions(nil, true); err != nil {
		t.Fatal(err)
	}
	id := p.state.CopyID
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p = openLone(t, fs, loneSet(2, "s2"))
	commitOne(t, p, 2, "b")
	if got, err := p.Identity(); err != nil || got != id {
		t.Errorf("it is copy %s by now, not %s: %v", got, id, err)
	}
	if _, valid := p.fenceFile.Promised(); !valid {
		t.Error("it has no fence, and could be recorded")
	}
}

// The tail behind damage is committed when nobody else has the partition, whoever
// observes it: it is not cut.
func TestDamageOfTheOnlyReplicaIsNoReasonToCut(t *testing.T) {
	fs := vfs.NewMem()
	p := openLone(t, fs, loneSet(1))
	commitOne(t, p, 1, "first")
	if err := p.SavePositions(nil, true); err != nil { // the high watermark that a kill leaves on disk
		t.Fatal(err)
	}
	commitOne(t, p, 2, "spoiled")
	commitOne(t, p, 3, "last")
	left := fs.Copy()
	spoil(t, left, "spoiled")
	p = openLone(t, left, loneSet(2, "s2"))
	if b, err := p.Batch(2); err != nil || b.Base != 2 {
		t.Fatalf("what was committed behind the damage is gone: %v", err)
	}
}

// The only replica goes on from the high watermark that it had told of, whoever
// observes it: an offset that was consumed is not given to another record.
func TestOnlyReplicaBelowItsHighWatermark(t *testing.T) {
	for name, observers := range map[string][]string{"alone": nil, "observed": {"s2"}} {
		fs := vfs.NewMem()
		p := openLone(t, fs, loneSet(1))
		commitOne(t, p, 1, "first")
		size := logSize(t, fs)
		commitOne(t, p, 2, "second")
		if err := p.SavePositions(nil, true); err != nil {
			t.Fatal(err)
		}
		left := fs.Copy()
		cutLog(t, left, size)
		p = openLone(t, left, loneSet(2, observers...))
		if start := p.leader.Start(); start != 2 {
			t.Errorf("%s: it goes on from %d, and had committed up to 2", name, start)
		}
	}
}

const onlySegment = "/p/00000000000000000000.log"

func logSize(t *testing.T, fs vfs.FS) int64 {
	t.Helper()
	st, err := fs.Stat(onlySegment)
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

func cutLog(t *testing.T, fs vfs.FS, size int64) {
	t.Helper()
	f, err := fs.Open(onlySegment)
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Sync(), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// spoil changes a byte of a payload.
func spoil(t *testing.T, fs vfs.FS, payload string) {
	t.Helper()
	f, err := fs.Open(onlySegment)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, logSize(t, fs))
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	at := bytes.Index(b, []byte(payload))
	if at < 0 {
		t.Fatalf("%q is not in the log", payload)
	}
	if _, err := f.WriteAt([]byte{'X'}, int64(at)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// A copy of a set that has damage above its high watermark is another one before that
// is cut: a crash in between must not leave one that counts with less than it said.
func TestDamagedTailIsCutByAnotherCopy(t *testing.T) {
	fs := vfs.NewMem()
	p := openLone(t, fs, loneSet(1))
	commitOne(t, p, 1, "first")
	if err := p.SavePositions(nil, true); err != nil {
		t.Fatal(err)
	}
	id, err := p.Identity()
	if err != nil {
		t.Fatal(err)
	}
	commitOne(t, p, 2, "spoiled")
	commitOne(t, p, 3, "last")
	set := setOfThree(2, "s2", 0)
	set.Replicas[0].Copy = id
	left := fs.Copy()
	spoil(t, left, "spoiled")
	full := vfs.NewFault(left, func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpWrite && strings.Contains(op.Path, "state") {
			return vfs.Fault{Err: io.ErrShortWrite}
		}
		return vfs.Fault{}
	})
	ref := topic.Ref{Topic: "t", Incarnation: 1}
	s, _ := sharedOn(t, full)
	if _, err := Open(s, ref, "/p", set); err == nil {
		t.Fatal("it was opened without an identity")
	}
	s, _ = sharedOn(t, left)
	s.Random(make([]byte, 8)) // its sequence begins anew, with the id that the copy has
	if p, err = Open(s, ref, "/p", set); err != nil {
		t.Fatal(err)
	}
	if p.state.CopyID == id || p.log.LEO() != 1 {
		t.Errorf("it is copy %s, as before: %v; its log ends at %d", p.state.CopyID, p.state.CopyID == id, p.log.LEO())
	}
}
