package batches_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/narad-mq/narad/apps/storage-node/internal/batches"
	"github.com/narad-mq/narad/libs/record"
)

func encoded(base int64, payloads ...string) []byte { return made(record.CodecZstd, base, payloads...) }

func made(codec record.Codec, base int64, payloads ...string) []byte {
	var b record.Builder
	b.Reset(record.Stream{Kind: record.StreamWAL, ID: 7}, 0, record.Oldest{})
	for i, p := range payloads {
		m := record.Message{Payload: []byte(p)}
		if err := b.Add(uint64(base)+uint64(i), record.AppendBody(nil, &m)); err != nil {
			panic(err)
		}
	}
	raw := append([]byte(nil), b.Finish(codec)...)
	record.Place(raw, base, 3, 1234)
	return raw
}

func decode(t *testing.T, c *batches.Cache, raw []byte) *batches.Batch {
	t.Helper()
	b, err := c.Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A batch owns its bytes: decoding the next one, compressed or not, changes nothing in it.
func TestBatchOwnsItsBytes(t *testing.T) {
	c := batches.NewCache(1 << 20)
	long := strings.Repeat("abc", 1000)
	raw := encoded(40, "x", long, "z")
	b := decode(t, c, raw)
	decode(t, c, encoded(50, strings.Repeat("def", 2000)))
	for i := range raw {
		raw[i] = 0
	}
	var got []string
	for off := b.Base; off < b.End(); off++ {
		v, err := record.ParseBody(b.Body(off))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(v.Payload))
	}
	if !slices.Equal(got, []string{"x", long, "z"}) || b.Base != 40 || b.CommitMS != 1234 || b.Epoch != 3 ||
		b.MessageID(41) != "0000000000000007-41" {
		t.Fatalf("%+v", b)
	}
	if control := decode(t, c, record.AppendLeaderChange(nil, 3)); !control.Control || control.Count != 1 {
		t.Fatalf("%+v", control)
	}
}

func TestCacheIsBounded(t *testing.T) {
	const limit = 1 << 20
	c := batches.NewCache(limit)
	body := strings.Repeat("0123456789", 100)
	kept := 0
	for part := range uint64(32) {
		for i := range int64(100) {
			c.Put(part, decode(t, c, made(record.CodecNone, i, fmt.Sprint(part, i, body))))
		}
	}
	for part := range uint64(32) {
		for i := range int64(100) {
			if b := c.Get(part, i); b != nil {
				kept += len(body)
				if !strings.Contains(string(b.Body(i)), fmt.Sprint(part, i)) {
					t.Fatalf("partition %d offset %d holds another batch", part, i)
				}
			}
		}
		// Partitions 16 and up share their shards with those below and came later.
		if part >= 16 && c.Get(part, 99) == nil {
			t.Fatalf("the batch used last of partition %d is gone", part)
		}
	}
	if kept == 0 || kept > limit {
		t.Fatalf("%d bytes are kept, the limit is %d", kept, limit)
	}
	c.Forget(19)
	if c.Get(19, 99) != nil {
		t.Fatal("a forgotten partition is still there")
	}
}

func TestCacheConcurrently(t *testing.T) {
	c := batches.NewCache(64 << 10)
	var wg sync.WaitGroup
	for g := range uint64(4) {
		wg.Go(func() {
			for i := range int64(300) {
				b, err := c.Decode(encoded(i*3, "a", "b", "c"))
				if err != nil {
					t.Error(err)
					return
				}
				c.Put(g%2, b)
				if got := c.Get(g%2, i*3+1); got != nil && (got.Base > i*3+1 || got.End() <= i*3+1) {
					t.Errorf("offset %d answered by %d..%d", i*3+1, got.Base, got.End())
				}
			}
		})
	}
	wg.Wait()
}
