package raftnode

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// BenchmarkViewReads is what every message pays: a record and its partitions.
func BenchmarkViewReads(b *testing.B) {
	s, err := openState(filepath.Join(b.TempDir(), stateFile))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.close() }()
	names := make([]string, 10_000)
	err = s.update(func(tx stateTx) error {
		for i := range names {
			names[i] = fmt.Sprintf("topic-%d", i)
			if _, err := metastate.ApplyEntry(tx, createTopic(names[i], topic.Incarnation(i+1), "s1")); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	r, err := newReplica("s1", 1, s)
	if err != nil {
		b.Fatal(err)
	}
	r.setLatch()
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			name := names[i%len(names)]
			t, err := r.Topic(name)
			if err != nil {
				b.Error(err)
			}
			if p, err := r.Assignments(name); err != nil || p.Incarnation != t.Incarnation {
				b.Error(err)
			}
		}
	})
}
