package metastate

import (
	"fmt"

	"github.com/narad-mq/narad/libs/topic"
)

// RefoundStep is how far ahead a refounded cluster goes on with everything that
// is numbered, where the clock is of no help: more than anything that was numbered
// and lost can have grown since a copy of the state was made, within reason.
const RefoundStep = 1 << 16

// Ahead is the number with which a refounded cluster goes on after n: above every
// number that the lost cluster can have given after the copy was made, and above
// what an earlier attempt from the same copy gave. None of what is numbered so
// (leaderships, changes of a topic, Raft terms) happens once per second for long,
// so the seconds since 1970 are above it. A clock that stands in the past costs
// only the second half.
func Ahead(n uint64, nowMS int64) uint64 {
	return max(n+RefoundStep, uint64(max(nowMS, 0)/1000))
}

// Refounded counts what Refound changed.
type Refounded struct {
	Members, Topics, Partitions int
}

// Refound makes the state of a cluster that is gone the first state of the same
// cluster's next life, in which no process has registered yet, and which may have
// forgotten what was committed last:
//
//   - members are dead, and no process start of them is known, so that everybody
//     registers again and nobody takes that for another process under its id; what
//     somebody gave up with one that was dead in the copy may live, so it has to be
//     given up again;
//   - leader epochs go ahead of what the logs on storage nodes may have seen, so
//     that they can be led again;
//   - versions of topics go ahead, so that none that a client remembers from the
//     lost end names another content.
//
// What it does not know of is left alone by everybody: it is neither live nor ended.
func Refound(tx Tx, nowMS int64) (done Refounded, err error) {
	members, err := AllMembers(tx)
	if err != nil {
		return done, err
	}
	for i := range members {
		m := &members[i]
		m.Status, m.BootNonce, m.LossAcceptedBy = topic.StatusDead, 0, ""
		if err := put(tx, BucketMembers, []byte(m.ID), m); err != nil {
			return done, err
		}
	}
	topics, err := AllTopics(tx)
	if err != nil {
		return done, err
	}
	for i := range topics {
		n, err := refoundTopic(tx, &topics[i], nowMS)
		if err != nil {
			return done, err
		}
		done.Partitions += n
	}
	last, err := endedVersion(tx)
	if err != nil {
		return done, err
	}
	done.Members, done.Topics = len(members), len(topics)
	return done, put(tx, BucketMeta, []byte(keyEndedVersion), Ahead(last, nowMS))
}

func refoundTopic(tx Tx, t *topic.Topic, nowMS int64) (partitions int, err error) {
	t.Version = Ahead(t.Version, nowMS)
	if err := put(tx, BucketTopics, []byte(t.Name), t); err != nil {
		return 0, err
	}
	list, err := AssignmentsByName(tx, t.Name)
	if err != nil {
		return 0, err
	}
	for i := range list {
		a := &list[i]
		next := Ahead(uint64(a.LeaderEpoch), nowMS)
		if uint64(topic.Epoch(next)) != next {
			return 0, fmt.Errorf("%s: no leader epoch is left above %d", a.Ref, a.LeaderEpoch)
		}
		a.LeaderEpoch = topic.Epoch(next)
		if err := put(tx, BucketAssignments, assignmentKey(t.Name, a.Partition), a); err != nil {
			return 0, err
		}
	}
	return len(list), nil
}

// Counts are the numbers of records of a state, by which one that lost some is told.
type Counts struct {
	Topics      int `json:"topics"`
	Assignments int `json:"assignments"`
	Members     int `json:"members"`
	Ended       int `json:"ended"`
	Tombstones  int `json:"tombstones"`
}

// Count counts the records without reading their values.
func Count(r Reader) Counts {
	n := func(b Bucket) (n int) {
		r.Scan(b, nil, func(_, _ []byte) bool { n++; return true })
		return n
	}
	return Counts{n(BucketTopics), n(BucketAssignments), n(BucketMembers), n(BucketEnded), n(BucketTombstones)}
}
