package raftnode

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"

	"github.com/narad-mq/narad/libs/topic"
)

// childDir, set in the environment, makes the test binary a node that creates
// topics from childFirst on and says of each one when it was acknowledged. With
// childAddr it is the node s1 that never votes, and says what it has applied.
const (
	childDir   = "NARAD_TEST_RAFTNODE_DIR"
	childFirst = "NARAD_TEST_RAFTNODE_FIRST"
	childAddr  = "NARAD_TEST_RAFTNODE_ADDR"
)

func runChild() error {
	if addr := os.Getenv(childAddr); addr != "" {
		return runVotelessChild(addr)
	}
	first, err := strconv.Atoi(os.Getenv(childFirst))
	if err != nil {
		return err
	}
	timing := fastTiming()
	timing.SnapshotThreshold, timing.SnapshotInterval = 16, fastTiming().Heartbeat
	n, err := Open(Config{NodeID: "v1", BootNonce: 1, Dir: os.Getenv(childDir), Bind: "127.0.0.1:0", Voter: true, Timing: timing})
	if err != nil {
		return err
	}
	if n.Empty() {
		if err := n.Bootstrap([]Server{{ID: "v1", Addr: n.Addr(), Voter: true}}); err != nil {
			return err
		}
	}
	n.Lead(context.Background(), func(ctx context.Context) {
		for i := first; err == nil; i++ {
			if _, _, err = n.Apply(ctx, createTopic(fmt.Sprint("t", i), topic.Incarnation(i+1), "s1")); err == nil {
				fmt.Println(i)
			}
		}
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	})
	return nil
}

// A process that is killed while it writes, snapshots and cuts its log keeps
// every entry that it acknowledged, and applies none twice.
func TestKillNineKeepsWhatWasAcknowledged(t *testing.T) {
	dir := t.TempDir()
	next := 0
	for round := range 3 {
		next = killedChild(t, dir, next, 40+25*round) + 1
		h := newHost(t, "v1", true)
		h.dir, h.nonce = dir, topic.ID64(round+2)
		h.start()
		leaderOf(t, h)
		all, err := h.View().Topics("", "", next+10)
		if err != nil || len(all) < next || len(all) > next+1 {
			t.Fatalf("round %d: %d topics of %d acknowledged, %v", round, len(all), next, err)
		}
		for i := range next {
			if top, err := h.View().Topic(fmt.Sprint("t", i)); err != nil || top.Version != 1 {
				t.Fatalf("round %d: topic %d: %+v, %v", round, i, top, err)
			}
		}
		h.stop()
		next = len(all)
	}
}

// killedChild starts a child, kills it after some acknowledgements and returns the last one.
func killedChild(t *testing.T, dir string, first, acks int) int {
	t.Helper()
	cmd := exec.CommandContext(within(t), os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir, fmt.Sprintf("%s=%d", childFirst, first))
	last := killedAfter(t, cmd, acks)
	if last < first {
		t.Fatalf("the child ended after topic %d", last)
	}
	return last
}

// killedAfter starts a process, kills it after some lines, of a number each, and
// returns the last of them; -1: there was none.
func killedAfter(t *testing.T, cmd *exec.Cmd, acks int) int {
	t.Helper()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last, lines := -1, bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ {
		if last, err = strconv.Atoi(lines.Text()); err != nil {
			t.Fatal(err)
		}
		if n == acks {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Fatalf("the child ended by itself after %d", last)
	}
	return last
}

func runVotelessChild(addr string) error {
	timing := fastTiming()
	timing.SnapshotThreshold, timing.SnapshotInterval = 16, fastTiming().Heartbeat
	n, err := Open(Config{NodeID: "s1", BootNonce: 1, Dir: os.Getenv(childDir), Bind: addr, NeverVotes: true, Timing: timing})
	if err != nil {
		return err
	}
	for {
		if err := n.WaitApplied(context.Background(), n.Applied()+1); err != nil {
			return err
		}
		fmt.Println(n.Applied())
	}
}

// TestKillNineOfANodeThatNeverVotes: whatever it had not written when it was
// killed, between a snapshot of its own and one that its leader sends, it becomes
// equal to the leader again.
func TestKillNineOfANodeThatNeverVotes(t *testing.T) {
	leader, h := single(t), newHost(t, "s1", false)
	addNonvoter(t, h, leader)
	var load sync.WaitGroup
	stop := make(chan struct{})
	load.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				fill(t, []*host{leader}, fmt.Sprint("t", i, "-"), topic.Incarnation(i+1), 1)
			}
		}
	})
	for round := range 8 {
		cmd := exec.CommandContext(within(t), os.Args[0])
		cmd.Env = append(os.Environ(), childDir+"="+h.dir, childAddr+"="+h.addr)
		killedAfter(t, cmd, 10+rand.IntN(80))
		if has(t, h, stateFile) {
			t.Fatal("a node that was killed left a state that a start would read")
		}
		switch round % 4 {
		case 1: // what it lacks left the leader's log
			if err := leader.Snapshot(); err != nil {
				t.Fatal(err)
			}
		case 3:
			h.start()
			waitApplied(t, leader.Applied(), h)
			h.stop()
		}
	}
	close(stop)
	load.Wait()
	h.start()
	waitApplied(t, leader.Applied(), h)
	if h.dump() != leader.dump() {
		t.Error("it differs from the leader")
	}
}
