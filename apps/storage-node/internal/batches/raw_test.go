package batches_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/narad-mq/narad/apps/storage-node/internal/batches"
	"github.com/narad-mq/narad/libs/record"
)

func putRaw(t *testing.T, c *batches.Cache, part uint64, raw []byte) {
	t.Helper()
	h, err := record.ParseHeader(raw)
	if err != nil {
		t.Fatal(err)
	}
	c.PutRaw(part, &h, raw)
}

// Whoever asks for a batch that was put in encoded gets one and the same object.
func TestRawIsDecodedOnce(t *testing.T) {
	c := batches.NewCache(16 << 20)
	putRaw(t, c, 1, encoded(10, "a", "b", strings.Repeat("c", 5000)))
	var got [8]*batches.Batch
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() { got[i] = c.Get(1, 10+int64(i%3)) })
	}
	wg.Wait()
	for _, b := range got {
		if b == nil || b != got[0] || string(b.Body(11)[1:]) != "b" {
			t.Fatalf("%+v", b)
		}
	}
}

// Compressed batches are put in by the dozen and grow a hundredfold when they are
// asked for: the one in use stays, and the memory is bounded all the same.
func TestTheBatchInUseStays(t *testing.T) {
	const limit = 16 * 64 << 10 // 64 KiB per shard
	c := batches.NewCache(limit)
	large := strings.Repeat("x", 50<<10)
	for i := range int64(20) {
		putRaw(t, c, 3, encoded(i, large))
	}
	for i := range int64(20) {
		first := c.Get(3, i)
		if first == nil {
			t.Fatalf("batch %d is gone before it was asked for", i)
		}
		if c.Get(3, i) != first {
			t.Fatalf("batch %d is decoded again for its next record", i)
		}
	}
	decoded := 0
	for i := range int64(20) {
		if c.Get(3, i) != nil {
			decoded++
		}
	}
	if decoded > 1 {
		t.Fatalf("%d batches of 50 KiB are kept in 64 KiB", decoded)
	}
	huge := decode(t, c, made(record.CodecNone, 100, strings.Repeat("y", 100<<10)))
	c.Put(3, huge)
	if c.Get(3, 100) != huge {
		t.Fatal("a batch larger than the shard is decoded for each record of it")
	}
}

// A batch that cannot be decoded is no batch: the disk is asked, which knows why.
func TestRawThatCannotBeDecodedLeaves(t *testing.T) {
	c := batches.NewCache(1 << 20)
	raw := encoded(0, strings.Repeat("abc", 1000))
	h, err := record.ParseHeader(raw)
	if err != nil {
		t.Fatal(err)
	}
	c.PutRaw(1, &h, raw[:len(raw)-1])
	for range 2 {
		if b := c.Get(1, 0); b != nil {
			t.Fatalf("%+v", b)
		}
	}
	c.Put(1, decode(t, c, raw))
	if c.Get(1, 0) == nil {
		t.Fatal("the place is taken")
	}
}

// What has left while it was being decoded costs nothing.
func TestForgetWhileDecoding(t *testing.T) {
	c := batches.NewCache(1 << 20)
	for i := range int64(200) {
		putRaw(t, c, 1, encoded(i, fmt.Sprint(i)))
		var wg sync.WaitGroup
		wg.Go(func() { c.Get(1, i) })
		wg.Go(func() { c.Forget(1) })
		wg.Wait()
		c.Forget(1)
		if c.Get(1, i) != nil {
			t.Fatal("forgotten and there")
		}
	}
}
