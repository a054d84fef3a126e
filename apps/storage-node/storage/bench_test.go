package storage_test

import (
	"sync/atomic"
	"testing"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

func filled(id int, from uint64, n int) []byte {
	var b record.Builder
	b.Reset(stream(id), 0, record.Oldest{})
	body := record.AppendBody(nil, &record.Message{Payload: make([]byte, 256)})
	for i := range uint64(n) {
		_ = b.Add(from+i, body)
	}
	return append([]byte(nil), b.Finish(record.CodecNone)...)
}

// BenchmarkCommit: batches of 64 records of 256 B from many gateways into one
// partition, on real files with real fsyncs.
func BenchmarkCommit(b *testing.B) {
	c := newCluster(b, vfs.OS(), b.TempDir())
	c.put("orders", 1, onePartition())
	p := c.start()
	defer p.shutDown()
	var streams atomic.Int64
	b.SetParallelism(16)
	b.SetBytes(64 * 256)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		id, seq := int(streams.Add(1)), uint64(1)
		for pb.Next() {
			if _, err := p.commit("orders", 0, filled(id, seq, 64)); err != nil {
				b.Error(err)
				return
			}
			seq += 64
		}
	})
	b.ReportMetric(float64(b.N)*64/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkClaimSettle drains a backlog: claims of 1, and of 100, and an ack of each.
func BenchmarkClaimSettle(b *testing.B) {
	for name, n := range map[string]int{"one": 1, "hundred": 100} {
		b.Run(name, func(b *testing.B) {
			c := newCluster(b, vfs.OS(), b.TempDir())
			cfg := topic.DefaultConfig()
			c.put("orders", 1, cfg)
			p := c.start()
			defer p.shutDown()
			seq := uint64(1)
			left := 0
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				if left < n {
					b.StopTimer()
					for range 20 {
						for part := range int32(3) {
							p.mustCommit("orders", part, filled(int(part)+1, seq, 64))
							left += 64
						}
						seq += 64
					}
					b.StartTimer()
				}
				var ds []nodeapi.Delivery
				for len(ds) < n {
					ds = append(ds, p.take("orders", n-len(ds))...)
				}
				p.ack("orders", ds...)
				left -= n
			}
			b.ReportMetric(float64(b.N)*float64(n)/b.Elapsed().Seconds(), "records/s")
		})
	}
}
