package storage_test

import (
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// end is what a node's copy ends at, as a promise for the current epoch or a newer
// one would say; it is read from the leader's details.
func (c *trio) ends() map[string]int64 {
	out := map[string]int64{}
	for id, r := range c.replicas(c.assignment().Leader) {
		out[id] = r.LogEnd
	}
	return out
}

// Fetches that no honest replica sends: each is refused, counted, logged at most once
// a second, and changes nothing.
func TestForgedFetches(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.mustCommit("s1", batch(1, seqs(1, 10)...))
		c.inSync("s1", "s2", "s3")
		a := c.assignment()
		end := c.ends()["s1"]
		own, _ := a.ReplicaOn("s2")
		honest := nodeapi.FetchPartition{
			Target: nodeapi.Target{Ref: a.Ref, DiskID: 1, Epoch: a.LeaderEpoch}, Copy: own.CopyID, Offset: end, LastEpoch: a.LeaderEpoch, MaxBytes: 1 << 20,
		}
		send := func(change func(q *nodeapi.FetchRequest)) (*nodeapi.FetchResult, error) {
			q := &nodeapi.FetchRequest{From: "s2", Disk: 2, Boot: c.nodes["s2"].boot, MaxBytes: 1 << 20, Partitions: []nodeapi.FetchPartition{honest}}
			change(q)
			return c.nodes["s1"].role.Replica().Fetch(t.Context(), q)
		}
		c.meta.PutTopic(topic.Topic{Name: "bills", Incarnation: 6, Version: 1, Config: onePartition()}, nil)
		c.meta.DeleteTopic("bills")
		for name, tc := range map[string]struct {
			change  func(q *nodeapi.FetchRequest)
			want    nodeapi.FetchStatus
			counted bool
		}{
			"an older epoch":         {func(q *nodeapi.FetchRequest) { q.Partitions[0].Epoch-- }, nodeapi.FetchStaleEpoch, false},
			"a newer epoch":          {func(q *nodeapi.FetchRequest) { q.Partitions[0].Epoch++ }, nodeapi.FetchNotLeader, false},
			"beyond the end":         {func(q *nodeapi.FetchRequest) { q.Partitions[0].Offset += 1000 }, nodeapi.FetchUnavailable, true},
			"below zero":             {func(q *nodeapi.FetchRequest) { q.Partitions[0].Offset = -5 }, nodeapi.FetchUnavailable, true},
			"a last epoch to come":   {func(q *nodeapi.FetchRequest) { q.Partitions[0].LastEpoch += 7 }, nodeapi.FetchUnavailable, true},
			"no last epoch":          {func(q *nodeapi.FetchRequest) { q.Partitions[0].LastEpoch = 0 }, nodeapi.FetchUnavailable, true},
			"the leader's own name":  {func(q *nodeapi.FetchRequest) { q.From, q.Disk, q.Boot = "s1", 1, c.nodes["s1"].boot }, nodeapi.FetchNotReplica, true},
			"another disk of leader": {func(q *nodeapi.FetchRequest) { q.Partitions[0].DiskID = 77 }, nodeapi.FetchNotLeader, true},
			"a disk of before":       {func(q *nodeapi.FetchRequest) { q.Partitions[0].DiskID = 77; q.Partitions[0].Epoch-- }, nodeapi.FetchNotLeader, false},
			"another incarnation":    {func(q *nodeapi.FetchRequest) { q.Partitions[0].Incarnation = 8 }, nodeapi.FetchGone, true},
			"one that has ended":     {func(q *nodeapi.FetchRequest) { q.Partitions[0].Incarnation = 6 }, nodeapi.FetchGone, false},
			"another topic":          {func(q *nodeapi.FetchRequest) { q.Partitions[0].Topic = "bills" }, nodeapi.FetchNotLeader, false},
			"a member that has no replica": {func(q *nodeapi.FetchRequest) {
				c.meta.PutMember(topic.Member{ID: "s9", Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 9, BootNonce: 900})
				q.From, q.Disk, q.Boot = "s9", 9, 900
			}, nodeapi.FetchNotReplica, true},
		} {
			before := c.nodes["s1"].count("narad_bad_fetches_total")
			res, err := send(tc.change)
			if err != nil || len(res.Partitions) != 1 || res.Partitions[0].Status != tc.want || len(res.Partitions[0].Batches) > 0 {
				t.Errorf("%s: %+v, %v; want status %d", name, res, err, tc.want)
			}
			if counted := c.nodes["s1"].count("narad_bad_fetches_total") > before; counted != tc.counted {
				t.Errorf("%s: counted %v", name, counted)
			}
		}
		for name, change := range map[string]func(q *nodeapi.FetchRequest){
			"another process of that name": func(q *nodeapi.FetchRequest) { q.Boot = 4711 },
			"another disk of that name":    func(q *nodeapi.FetchRequest) { q.Disk = 4711 },
			"a stranger":                   func(q *nodeapi.FetchRequest) { q.From = "s7" },
		} {
			before := c.nodes["s1"].count("narad_bad_fetches_total")
			_, err := send(change)
			wantProblem(t, err, problem.IDInUse)
			if c.nodes["s1"].count("narad_bad_fetches_total") != before+1 {
				t.Errorf("%s: not counted", name)
			}
		}
		if n := c.nodes["s1"].logs.says("refused a fetch") + c.nodes["s1"].logs.says("not registered under its node id"); n == 0 || n > 2 {
			t.Errorf("logged %d times", n)
		}
		pass(2 * time.Second)
		const line = "another life or another disk partition=orders/0@0000000000000008 from=s2"
		before := c.nodes["s1"].logs.says(line)
		if _, err := send(func(q *nodeapi.FetchRequest) { q.Partitions[0].Incarnation = 8 }); err != nil || c.nodes["s1"].logs.says(line) != before+1 {
			t.Errorf("another life: %v, logged: %s", err, c.nodes["s1"].logs.all())
		}
		// Nothing of it counted: with one honest follower gone the HWM needs the other.
		c.sever("s1", "s2")
		c.sever("s1", "s3")
		_, err := c.commit("s1", batch(1, 11))
		wantProblem(t, err, problem.OutcomeUnknown)
		for _, id := range []string{"s2", "s3"} {
			c.heal("s1", id)
		}
		c.inSync("s1", "s2", "s3")
		c.mustCommit("s1", batch(1, 12))
		c.wantRead("s1", ordered(1, 12))
	})
}

// Another copy of a replica's node erases what the replica had reported, and the
// replica itself is refused from then on: nothing is committed by its old word.
func TestForgedCopyCountsForNothing(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.mustCommit("s1", batch(1, 1))
		c.inSync("s1", "s2", "s3")
		c.sever("s1", "s3")
		a := c.assignment()
		q := &nodeapi.FetchRequest{From: "s2", Disk: 2, Boot: c.nodes["s2"].boot, MaxBytes: 1 << 20, Partitions: []nodeapi.FetchPartition{{
			Target: nodeapi.Target{Ref: a.Ref, DiskID: 1, Epoch: a.LeaderEpoch}, Copy: 4711, MaxBytes: 1 << 20,
		}}}
		if _, err := c.nodes["s1"].role.Replica().Fetch(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		_, err := c.commit("s1", batch(1, 2))
		wantProblem(t, err, problem.OutcomeUnknown)
	})
}

// A leader that sends what is no continuation: nothing is appended, it is counted.
func TestForgedAnswers(t *testing.T) {
	for name, spoil := range map[string]func(a *nodeapi.FetchAnswer){
		"a wrong checksum":     func(a *nodeapi.FetchAnswer) { a.Batches[len(a.Batches)-1] ^= 1 },
		"half of a batch":      func(a *nodeapi.FetchAnswer) { a.Batches = a.Batches[:len(a.Batches)-3] },
		"the same batch twice": func(a *nodeapi.FetchAnswer) { a.Batches = append(append([]byte(nil), a.Batches...), a.Batches...) },
		"no batch at all":      func(a *nodeapi.FetchAnswer) { a.Batches = []byte("these are no batches, whatever the length says") },
		"a snapshot that is none": func(a *nodeapi.FetchAnswer) {
			a.Status, a.Batches, a.LogStart, a.Snapshot = nodeapi.FetchBelowStart, nil, a.HWM, []byte("none")
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTrio(t, func(c *trio) {
				c.mustCommit("s1", batch(1, 1))
				c.inSync("s1", "s2", "s3")
				before := c.ends()["s2"]
				c.mu.Lock()
				c.spoil = func(_, to string, q *nodeapi.FetchRequest, res *nodeapi.FetchResult) {
					if to != "s1" || q.From != "s2" {
						return
					}
					for i := range res.Partitions {
						if a := &res.Partitions[i]; len(a.Batches) > 0 {
							a.Batches = append([]byte(nil), a.Batches...)
							spoil(a)
						}
					}
				}
				c.mu.Unlock()
				c.mustCommit("s1", batch(1, 2)) // s3 is honest
				c.until("it is counted", func() bool { return c.nodes["s2"].count("narad_bad_fetches_total") > 0 })
				if now := c.ends()["s2"]; now != before {
					t.Fatalf("the end of its log went from %d to %d", before, now)
				}
				c.until("it is logged", func() bool { return c.nodes["s2"].logs.says("could not take over") > 0 })
				c.mu.Lock()
				c.spoil = nil
				c.mu.Unlock()
				c.inSync("s1", "s2")
				c.mustElect("s2")
				c.wantRead("s2", ordered(1, 2))
			})
		})
	}
}

// A leader that asks a follower to cut what is committed is not obeyed: the copy
// stops, which is reported.
func TestNobodyMakesACopyCutWhatIsCommitted(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.mustCommit("s1", batch(1, seqs(1, 10)...))
		c.inSync("s1", "s2", "s3")
		pass(nodeapi.MaxFetchWaitMS * 2e6) // the high watermark reaches the followers
		c.mu.Lock()
		c.spoil = func(_, to string, q *nodeapi.FetchRequest, res *nodeapi.FetchResult) {
			for i := range res.Partitions {
				if q.From == "s2" && to == "s1" {
					res.Partitions[i] = nodeapi.FetchAnswer{Index: res.Partitions[i].Index, Status: nodeapi.FetchDiverging, Epoch: q.Partitions[0].Epoch, Diverge: 0, DivergeEnd: 0}
				}
			}
		}
		c.mu.Unlock()
		c.mustCommit("s1", batch(1, 11))
		c.until("it stops", func() bool { return c.nodes["s2"].logs.says("below its high watermark") > 0 })
		c.mu.Lock()
		c.spoil = nil
		c.mu.Unlock()
		if got := c.ends()["s2"]; got < 11 {
			t.Fatalf("cut to %d", got)
		}
		c.nodes["s2"].shutDown()
		c.nodes["s2"].start()
		c.inSync("s1", "s2")
	})
}

// A fetch of many partitions with large positions: an answer that is full has none of
// those that are left, which get them with the next one. A reply beyond its bound would
// be refused, and asked for again, for ever.
func TestPositionsOfManyFitIntoAnAnswer(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.mustCommit("s1", batch(1, 1))
		c.inSync("s1", "s2", "s3")
		a := c.assignment()
		own, _ := a.ReplicaOn("s2")
		q := nodeapi.FetchPartition{Target: nodeapi.Target{Ref: a.Ref, DiskID: 1, Epoch: a.LeaderEpoch}, Copy: own.CopyID, MaxBytes: 1 << 20}
		fetch := func(list ...nodeapi.FetchPartition) []nodeapi.FetchAnswer {
			res, err := c.nodes["s1"].role.Replica().Fetch(t.Context(), &nodeapi.FetchRequest{
				From: "s2", Disk: 2, Boot: c.nodes["s2"].boot, MaxBytes: 1, Partitions: list,
			})
			if err != nil || len(res.Partitions) != len(list) {
				t.Fatalf("%+v, %v", res, err)
			}
			return res.Partitions
		}
		both := fetch(q, q)
		if both[0].Position == nil || both[1].Position != nil || len(both[1].Batches) > 0 {
			t.Errorf("two in one answer with room for none: positions %t, then %t and %d bytes", both[0].Position != nil, both[1].Position != nil, len(both[1].Batches))
		}
		if one := fetch(q); one[0].Position == nil {
			t.Error("alone it has its positions")
		}
	})
}
