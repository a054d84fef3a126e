package raftnode

import (
	"os"
	"testing"
	"time"
)

// TestRestoreDoesNotWaitForASnapshot: Raft asks for a snapshot, and releases it
// only after its main loop has answered a question; while a leader's snapshot
// comes in that loop waits for the restore. So a restore that waits for a
// snapshot to be released waits for ever.
func TestRestoreDoesNotWaitForASnapshot(t *testing.T) {
	h := single(t)
	last := fill(t, []*host{h}, "t", 1, 3)
	taken, err := h.fsm.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Snapshot(); err != nil { // what comes in
		t.Fatal(err)
	}
	list, err := h.stores.snaps.List()
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	_, r, err := h.stores.snaps.Open(list[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	done := make(chan error, 1)
	go func() { done <- h.fsm.Restore(r) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience / 4):
		t.Error("the restore waits for the snapshot")
	}
	waitApplied(t, last, h)
	if _, err := h.View().Topic("t2"); err != nil {
		t.Error(err)
	}
	taken.Release()
}

// TestFailedUnpackLeavesNothing: a snapshot that cannot be unpacked leaves no
// file that takes room on a disk that may be full.
func TestFailedUnpackLeavesNothing(t *testing.T) {
	h := single(t)
	fill(t, []*host{h}, "t", 1, 1)
	tmp := h.stores.state.path + restoreSuffix
	if err := unpackSnapshot(errReader{}, 1, tmp); err == nil {
		t.Fatal("no error")
	}
	if _, err := os.Stat(tmp); !os.IsNotExist(err) {
		t.Errorf("it left %s: %v", tmp, err)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }
