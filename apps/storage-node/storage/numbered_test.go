package storage_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// numbered makes the one record of a client's producer; its payload says which.
func numbered(id uint64, seq uint64) []byte {
	return of(record.Stream{Kind: record.StreamClient, ID: topic.ID64(id), A: 7, B: 8}, seq)
}

func of(s record.Stream, seqs ...uint64) []byte {
	var b record.Builder
	b.Reset(s, 0, record.Oldest{})
	for _, seq := range seqs {
		m := record.Message{Payload: []byte(record.MessageID(s, record.Number{Seq: seq}))}
		if err := b.Add(seq, record.AppendBody(nil, &m)); err != nil {
			panic(err)
		}
	}
	return append([]byte(nil), b.Finish(record.CodecNone)...)
}

// placed commits a client's number and expects its offset.
func (p *process) placed(id, seq uint64, offset int64, again bool) {
	p.t.Helper()
	res, err := p.commit("orders", 0, numbered(id, seq))
	if err != nil || res.BaseOffset != offset || (res.Duplicates == 1) != again || (res.Appended == 0) != again || res.HighWatermark <= offset {
		p.t.Errorf("number %d of %d: %+v, %v; want offset %d, again %t", seq, id, res, err, offset, again)
	}
}

// misplaced expects the refusal of a number, and what is expected instead.
func (p *process) misplaced(id, seq uint64, expected int64) {
	p.t.Helper()
	_, err := p.commit("orders", 0, numbered(id, seq))
	var refusal *problem.Problem
	if !errors.As(err, &refusal) || refusal.Code != problem.OutOfSequence || refusal.Applied != problem.AppliedNo || refusal.Members["expected"] != expected {
		p.t.Errorf("number %d of %d: %v, want out_of_sequence with %d", seq, id, err, expected)
	}
}

// TestNumbersOfClients: from 0, each the last plus one; the last one again gets the
// first answer, also after a stop and after a crash; a gap and an older one are
// refused with what is expected, and nothing of them is appended.
func TestNumbersOfClients(t *testing.T) {
	fs := vfs.NewMem()
	c, p := startOrders(t, fs)
	p.misplaced(1, 1, 0)
	p.placed(1, 0, 0, false)
	p.placed(1, 0, 0, true)
	p.placed(2, 0, 1, false) // another producer has numbers of its own
	p.placed(1, 1, 2, false)
	p.placed(1, 1, 2, true)
	p.misplaced(1, 0, 2)
	p.misplaced(1, 3, 2)
	if _, err := p.commit("orders", 0, of(record.Stream{Kind: record.StreamClient, ID: 1}, 0, 1)); !problem.HasCode(err, problem.DamagedBatch) {
		t.Errorf("two numbers in one batch: %v", err)
	}
	p.shutDown()
	p = c.start()
	p.placed(1, 1, 2, true)
	p.misplaced(1, 0, 2)
	_ = p.stop() // no Close: the process dies
	c.fs = fs.CrashClone(nil)
	p = c.start()
	defer p.shutDown()
	p.placed(1, 1, 2, true)
	p.misplaced(2, 2, 1)
	p.placed(2, 1, 4, false) // the leader change of this epoch has an offset too
	if got := p.replay("orders", 0); len(got) != 4 {
		t.Errorf("replay: %v", got)
	}
}

// TestStreamsWithoutOrder: batches of one gateway overtake each other, and all of
// them are stored.
func TestStreamsWithoutOrder(t *testing.T) {
	_, p := startOrders(t, vfs.NewMem())
	defer p.shutDown()
	once := record.Stream{Kind: record.StreamOnce, ID: 5}
	for i, first := range []uint64{20, 10, 30} {
		res := p.mustCommit("orders", 0, of(once, first, first+1))
		if res.BaseOffset != int64(2*i) || res.Appended != 2 || res.Duplicates != 0 {
			t.Errorf("numbers from %d: %+v", first, res)
		}
	}
	want := []string{"0000000000000005.6-20", "0000000000000005.6-21", "0000000000000005.6-10", "0000000000000005.6-11", "0000000000000005.6-30", "0000000000000005.6-31"}
	if got := p.replay("orders", 0); !slices.Equal(got, want) {
		t.Errorf("replay %v", got)
	}
}

// TestNumbersWaitForTheHighWatermark: neither a repeat nor a refusal is answered by
// what is not committed.
func TestNumbersWaitForTheHighWatermark(t *testing.T) {
	disk := newHeldSyncs()
	_, p := startOrders(t, vfs.NewFault(vfs.NewMem(), disk.rule))
	defer p.shutDown()
	p.placed(1, 0, 0, false)
	disk.held.Store(true)
	first := make(chan error, 1)
	go func() {
		_, err := p.commit("orders", 0, numbered(1, 1))
		first <- err
	}()
	<-disk.reached
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for seq, want := range map[uint64]problem.Code{1: problem.OutcomeUnknown, 0: problem.PartitionUnavailable, 9: problem.PartitionUnavailable} {
		_, err := p.node.Commit(ended, &nodeapi.CommitRequest{Target: p.target("orders", 0), Batch: numbered(1, seq)})
		if !problem.HasCode(err, want) {
			t.Errorf("number %d while 1 is not on disk: %v, want %s", seq, err, want)
		}
	}
	disk.release()
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	p.placed(1, 1, 1, true)
	p.misplaced(1, 9, 2)
}
