//go:build e2e

package scenarios

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

const (
	// spoiltMessages of spoiltSize fill two segments and begin a third one.
	spoiltMessages = 136
	spoiltSize     = 1 << 20
	spoiltTopic    = "spoilt"
)

// TestMoveOfACorruptSealedSegment: the only copy of a partition has sealed segments of
// which the disk has spoiled the middle and the head. It moves: each record that can be
// read is read from the destination, at its offset; what cannot is counted there too, also
// by its next process; the spoiled bytes are there as they were, and so the old copy goes.
func TestMoveOfACorruptSealedSegment(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 2, Gateways: 1})
	cl, err := client.New(client.Config{URLs: c.URLs()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	create(ctx, t, cl, client.TopicSpec{Name: spoiltTopic, Partitions: 1, ReplicationFactor: 1})
	sent := produceSpoilt(ctx, t, cl)
	from := ""
	if err := harness.Until(ctx, moveLimit, func() bool { _, from = replicasOf(ctx, cl, spoiltTopic, 0); return from != "" }); err != nil {
		t.Fatal("nobody leads it")
	}
	files := spoil(t, partitionDir(t, c, from))
	_, to, _, _ := moveLeader(ctx, t, c, cl, spoiltTopic)
	left := replaySpoilt(ctx, t, cl, sent)
	mustKeep(t, partitionDir(t, c, to), files)
	for range 2 {
		// One that nobody uses is looked at in a pass, which comes each half minute.
		if err := harness.Until(ctx, sweptLimit, func() bool { return gauge(c, to, "narad_damaged_partitions") == 1 }); err != nil {
			t.Errorf("the destination does not tell that the partition is damaged; logs in %s", c.Dir)
		}
		pid := c.Node(to).PID
		c.Kill(to)
		c.WaitReady(to, pid)
	}
	if again := replaySpoilt(ctx, t, cl, sent); again != left {
		t.Errorf("%d records could be read, and then %d", left, again)
	}
	pid := c.Node(from).PID
	c.Terminate(from) // it looks at its old copies when it starts
	c.WaitReady(from, pid)
	// Whichever process did it: on a slow machine the pass of each minute comes before the start.
	var old []string
	if err := harness.Until(ctx, sweptLimit, func() bool {
		old, err = filepath.Glob(partitionDir(t, c, from) + "*")
		return err == nil && len(old) == 0
	}); err != nil {
		t.Errorf("the old copy has not gone: %q; logs in %s", old, c.Dir)
	}
	t.Logf("%d of %d records were left", left, spoiltMessages)
}

// produceSpoilt commits the messages, and answers their payloads: a number, and what
// cannot be compressed.
func produceSpoilt(ctx context.Context, t *testing.T, cl *client.Client) [][]byte {
	t.Helper()
	sent := make([][]byte, spoiltMessages)
	for i := range sent {
		src := rand.NewChaCha8([32]byte{byte(i)})
		sent[i] = make([]byte, spoiltSize)
		_, _ = src.Read(sent[i])
		binary.BigEndian.PutUint64(sent[i], uint64(i))
	}
	next := make(chan int)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range next {
				if _, err := cl.Produce(ctx, spoiltTopic, client.Message{Payload: sent[i]}, client.ProduceOptions{Committed: true, Timeout: 20 * time.Second}); err != nil {
					t.Errorf("produce: %v", err)
				}
			}
		})
	}
	for i := range sent {
		next <- i
	}
	close(next)
	all.Wait()
	return sent
}

func partitionDir(t *testing.T, c *harness.Cluster, node string) string {
	t.Helper()
	return filepath.Join(c.Dir, node, "topics", spoiltTopic, "p00000")
}

// spoil writes over the middle of the first segment and the head of the second one, and
// answers what their files hold then, by base.
func spoil(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*.log"))
	slices.Sort(list)
	if err != nil || len(list) < 3 {
		t.Fatalf("segments %q, %v", list, err)
	}
	out := map[string][]byte{}
	for i, at := range []int64{30 << 20, 0} {
		f, err := os.OpenFile(list[i], os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt(bytes.Repeat([]byte{0xee}, 300), at)
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(list[i])
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimSuffix(filepath.Base(list[i]), ".log")] = b
	}
	return out
}

// mustKeep fails unless a directory keeps bytes of both spoiled segments, the head with
// its header, as they stood there.
func mustKeep(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	var kept []os.DirEntry
	var err error
	if harness.Until(t.Context(), 20*time.Second, func() bool { // the note that some are awaited may go last
		kept, err = os.ReadDir(filepath.Join(dir, "damaged"))
		return err == nil && len(kept) == 3
	}) != nil {
		t.Fatalf("%d damaged ranges are kept: %v, %v", len(kept), kept, err)
	}
	seen := map[string]int{}
	for _, e := range kept {
		b, err := os.ReadFile(filepath.Join(dir, "damaged", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		name := strings.Split(e.Name(), "-")
		at, err := strconv.Atoi(name[len(name)-1])
		whole := files[name[len(name)-2]]
		if err != nil || at+len(b) > len(whole) || !bytes.Equal(b, whole[at:at+len(b)]) || !bytes.Contains(b, bytes.Repeat([]byte{0xee}, 64)) {
			t.Errorf("%s of %d bytes is not what stood there", e.Name(), len(b))
		}
		seen[name[len(name)-2]]++
	}
	if len(seen) != 2 {
		t.Errorf("kept of %v", seen)
	}
}

// replaySpoilt reads the partition, and answers how many records there are: each is one
// that was sent, no two are the same, and at most what lies in the spoiled batches lacks.
func replaySpoilt(ctx context.Context, t *testing.T, cl *client.Client, sent [][]byte) int {
	t.Helper()
	var seen map[uint64]bool
	var last error
	if err := harness.Until(ctx, 30*time.Second, func() bool {
		seen, last = map[uint64]bool{}, nil
		for r, err := range cl.Replay(ctx, spoiltTopic, client.ReplayOptions{}) {
			if err != nil {
				last = err
				return false // it is being served again
			}
			n := binary.BigEndian.Uint64(r.Payload)
			if n >= spoiltMessages || seen[n] || !bytes.Equal(r.Payload, sent[n]) {
				t.Errorf("offset %d holds another record", r.Offset)
			}
			seen[n] = true
		}
		return true
	}); err != nil {
		t.Fatalf("it cannot be read: %v", last)
	}
	if len(seen) >= spoiltMessages || len(seen) < spoiltMessages-16 {
		t.Errorf("%d of %d records can be read", len(seen), spoiltMessages)
	}
	return len(seen)
}
