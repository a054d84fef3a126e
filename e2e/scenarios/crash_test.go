//go:build e2e

package scenarios

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// killPeriod is the time between two kills: long enough for the killed program
// to come back (it starts again after a second), short enough that many happen.
const killPeriod = 3 * time.Second

// crashDuration of a crash proof; NARAD_E2E_CRASH_SECONDS makes it longer by hand.
func crashDuration(t *testing.T, usual time.Duration) time.Duration {
	t.Helper()
	s := os.Getenv("NARAD_E2E_CRASH_SECONDS")
	if s == "" {
		return usual
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(n) * time.Second
}

func TestGatewaysAndVotersKilledWithoutADuplicate(t *testing.T) {
	crashProof(t, []string{harness.Voter, harness.Gateway}, 1, 25*time.Second)
}

func TestEverythingKilledWithoutALoss(t *testing.T) {
	crashProof(t, []string{harness.Voter, harness.Storage, harness.Gateway}, 1, 25*time.Second)
}

// With three copies a partition whose leader is killed is elected anew, while the
// killed node comes back, cuts its uncommitted tail and follows.
func TestReplicasKilledWithoutALoss(t *testing.T) {
	crashProof(t, []string{harness.Storage}, 3, 20*time.Second)
}

// crashProof kills nodes of the given roles, each in turn and in random order,
// under a steady load, and then lets the ledger judge.
func crashProof(t *testing.T, roles []string, factor int, usual time.Duration) {
	t.Parallel()
	d := crashDuration(t, usual)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 3, Gateways: 2})
	// A batch in flight through a gateway that is killed has an unknown outcome:
	// the client must not repeat it, and by default it does not.
	cl, err := client.New(client.Config{URLs: c.URLs()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), d+4*time.Minute)
	defer cancel()
	create(ctx, t, cl, client.TopicSpec{Name: "orders", Partitions: 6, ReplicationFactor: factor, VisibilityTimeoutMS: 60_000})

	w := harness.Load{Client: cl, Topic: "orders", Ledger: harness.NewLedger()}
	running := w.Start(ctx, t, 4, 20*time.Millisecond, 4)
	defer running.End()
	leaders := startWatch(ctx, t, cl, "orders")
	storageKills := killInTurn(t, c, random, roles, d)
	running.Drain(ctx, t, 2*time.Minute)
	// What would come twice has had its chance: redeliveries are due at once after
	// a restart, not only after the visibility timeout.
	quiet, cancelQuiet := context.WithTimeout(ctx, 3*time.Second)
	<-quiet.Done()
	cancelQuiet()
	running.End()
	leaders.end()
	w.Ledger.JudgeRepeats(t, func(r harness.Repeat) string {
		for _, k := range storageKills {
			// Since it was accepted its node was down: restarted with leases in flight, or
			// passed by in a reroute that a gateway killed after it no longer remembers.
			if k.till.After(r.Since.Add(-2*time.Second)) && k.at.Before(r.At) {
				return "a storage node was killed"
			}
		}
		return leaders.reason("orders", r) // a leadership goes back to a node that has come back
	})
	w.Ledger.Stored(ctx, t, cl, "orders")
}

// killInTurn kills every node of the roles, round by round in random order, each
// ready again before the next of its role, and returns how storage nodes were down.
func killInTurn(t *testing.T, c *harness.Cluster, random *rand.Rand, roles []string, d time.Duration) (storageKills []crash) {
	var ids []string
	isStorage := map[string]bool{}
	for _, r := range roles {
		for _, id := range c.IDs(r) {
			ids = append(ids, id)
			isStorage[id] = r == harness.Storage
		}
	}
	end := time.Now().Add(d)
	kills := 0
	for time.Now().Before(end) {
		random.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		for _, id := range ids {
			if !time.Now().Before(end) {
				break
			}
			begin := time.Now()
			old := c.Node(id).PID
			c.Kill(id)
			kills++
			c.WaitReady(id, old)
			if isStorage[id] {
				storageKills = append(storageKills, crash{node: id, at: begin, till: time.Now()})
			}
			if rest := killPeriod - time.Since(begin); rest > 0 {
				<-time.After(rest)
			}
		}
	}
	t.Logf("%d kills, %d of them of storage nodes", kills, len(storageKills))
	return storageKills
}
