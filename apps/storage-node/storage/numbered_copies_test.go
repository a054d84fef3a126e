package storage_test

import (
	"errors"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/problem"
)

// placed commits a client's number at a node and expects its offset.
func (c *trio) placed(id string, producer, seq uint64, offset int64, again bool) {
	c.t.Helper()
	res, err := c.commit(id, numbered(producer, seq))
	if err != nil || res.BaseOffset != offset || (res.Duplicates == 1) != again {
		c.t.Fatalf("number %d at %s: %+v, %v; want offset %d, again %t", seq, id, res, err, offset, again)
	}
}

func (c *trio) misplaced(id string, producer, seq uint64, expected int64) {
	c.t.Helper()
	_, err := c.commit(id, numbered(producer, seq))
	var refusal *problem.Problem
	if !errors.As(err, &refusal) || refusal.Code != problem.OutOfSequence || refusal.Members["expected"] != expected {
		c.t.Fatalf("number %d at %s: %v, want out_of_sequence with %d", seq, id, err, expected)
	}
}

// TestNumbersSurviveAnElection: every replica knows the offsets to answer a repeat with,
// and a truncation takes numbers back, so that they are new once more.
func TestNumbersSurviveAnElection(t *testing.T) {
	inTrio(t, func(c *trio) {
		first := c.mustCommit("s1", numbered(1, 0)).BaseOffset
		c.placed("s1", 1, 1, first+1, false)
		c.inSync("s1", "s2", "s3")
		c.sever("s1", "s2")
		c.sever("s1", "s3")
		_, err := c.commit("s1", numbered(1, 2)) // stays with s1
		wantProblem(t, err, problem.OutcomeUnknown)
		_, err = c.commit("s1", numbered(1, 2)) // its first copy is not committed
		wantProblem(t, err, problem.OutcomeUnknown)
		c.sever("voter", "s1")
		c.mustElect("s2")
		c.placed("s2", 1, 1, first+1, true)
		c.misplaced("s2", 1, 3, 2)
		c.misplaced("s2", 1, 0, 2)
		for _, id := range []string{"s2", "s3", "voter"} {
			c.heal("s1", id)
		}
		c.inSync("s2", "s1", "s3")
		c.mustElect("s1") // it has cut number 2
		c.placed("s1", 1, 1, first+1, true)
		c.misplaced("s1", 1, 3, 2)
		third := c.mustCommit("s1", numbered(1, 2))
		if third.Duplicates != 0 || third.BaseOffset <= first+1 {
			t.Fatalf("a number that was cut came again: %+v", third)
		}
		c.inSync("s1", "s2", "s3")
		c.nodes["s1"].kill()
		c.mustElect("s3")
		c.placed("s3", 1, 2, third.BaseOffset, true)
		c.nodes["s1"].start() // so that all can stop in order
	})
}

// TestALeaderThatWasReplacedJudgesNoNumbers: it may know an end that is long past, and
// must not tell a client that what others have committed is missing.
func TestALeaderThatWasReplacedJudgesNoNumbers(t *testing.T) {
	inTrio(t, func(c *trio) {
		first := c.mustCommit("s1", numbered(1, 0)).BaseOffset
		c.inSync("s1", "s2", "s3")
		c.misplaced("s1", 1, 2, 1)
		c.sever("s1", "s2")
		c.sever("s1", "s3")
		pass(3200 * time.Millisecond) // a majority may have promised itself to another one since
		if _, err := c.read("s1"); err == nil {
			t.Fatal("it serves without a majority")
		}
		_, err := c.commit("s1", numbered(1, 2))
		wantProblem(t, err, problem.PartitionUnavailable)
		c.heal("s1", "s2")
		c.heal("s1", "s3")
		c.until("it serves again", func() bool { _, err := c.read("s1"); return err == nil })
		c.misplaced("s1", 1, 2, 1)
		c.placed("s1", 1, 0, first, true)
	})
}
