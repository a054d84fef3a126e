package storage_test

import (
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/partlog"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
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

// BenchmarkFarCopy is what a MiB costs the leader and the copy together that is far
// behind, over a connection and without syncs: one operation is one batch of a MiB,
// fetched, judged and written.
func BenchmarkFarCopy(b *testing.B) {
	const count, size = 64, 1 << 20
	c := newCluster(b, vfs.OS(), b.TempDir())
	t := c.put("orders", 1, onePartition())
	p := c.start()
	defer p.shutDown()
	from := topic.Member{ID: "storage-2", Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 2, BootNonce: 3}
	c.meta.PutMember(from)
	c.meta.PutTopic(t, []topic.Assignment{{
		Ref: p.target("orders", 0).Ref, Leader: nodeID, LeaderEpoch: c.epoch, ConfigVersion: 1,
		Replicas: []topic.Replica{{Node: nodeID, DiskID: diskID}}, Observers: []topic.Replica{{Node: from.ID, DiskID: from.DiskID}},
	}})
	for i := range uint64(count) {
		if _, err := p.commit("orders", 0, large(1, i+1, size)); err != nil {
			b.Fatal(err)
		}
	}
	server := rpc.NewServer(rpc.ServerConfig{NodeID: nodeID, ClusterID: c.meta.ClusterID, Log: slog.New(slog.DiscardHandler)})
	nodeapi.ServeReplica(server, p.role.Replica())
	client := rpc.NewClient(rpc.ClientConfig{NodeID: from.ID, ClusterID: c.meta.ClusterID})
	defer client.Close()
	leader := nodeapi.NewReplicaClient(client.Peer(nodeID, testkit.Serve(b, server)))
	copied, err := partlog.Open(vfs.OS(), b.TempDir()+"/p00000", partlog.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer copied.Close()
	if err := copied.BeginFollow(c.epoch); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		if copied.WrittenEnd() >= count/2 { // what it lacks then is not far
			if err := copied.Truncate(0); err != nil {
				b.Fatal(err)
			}
		}
		at := copied.WrittenEnd()
		for copied.WrittenEnd() == at { // it may have to wait for its share
			res, err := leader.Fetch(b.Context(), &nodeapi.FetchRequest{
				From: from.ID, Disk: from.DiskID, Boot: from.BootNonce, WaitMS: nodeapi.MaxFetchWaitMS, MaxBytes: 8 << 20,
				Partitions: []nodeapi.FetchPartition{{Target: p.target("orders", 0), Copy: 4, Offset: at, LastEpoch: copied.LastEpoch(), MaxBytes: size, Observer: true}},
			})
			if err != nil {
				b.Fatal(err)
			}
			for i := range res.Partitions {
				if a := &res.Partitions[i]; a.Status != nodeapi.FetchOK {
					b.Fatalf("status %d", a.Status)
				} else if _, err := copied.AppendCopied(a.Batches, a.HWM, 0); err != nil {
					b.Fatal(err)
				}
			}
			res.Release()
		}
	}
}
