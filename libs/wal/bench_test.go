package wal

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/vfs"
)

// BenchmarkAppend is 64 goroutines that each append 300 B and wait, while a
// reader reads and is done with everything.
func BenchmarkAppend(b *testing.B) {
	const workers = 64
	var mu sync.Mutex // guards syncs
	syncs := 0
	w, err := Open(vfs.OS(), filepath.Join(b.TempDir(), "wal"), Options{OnSync: func(time.Duration) {
		mu.Lock()
		syncs++
		mu.Unlock()
	}})
	must(b, err)
	read := make(chan error)
	go func() {
		for n := 0; ; n++ {
			rec, err := w.Reader().Next(b.Context())
			if err != nil {
				read <- err
				return
			}
			w.Done(rec.Position)
			if n == b.N-1 {
				read <- nil
				return
			}
		}
	}()
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for k := range workers {
		n := b.N / workers
		if k < b.N%workers {
			n++
		}
		wg.Go(func() {
			e := []Entry{{Topic: "orders", Incarnation: 7, AcceptMS: 1, Body: make([]byte, 300)}}
			for range n {
				if _, err := w.Append(e); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	must(b, <-read)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
	b.ReportMetric(float64(b.N)/float64(syncs), "appends/sync")
	must(b, w.Close())
}
