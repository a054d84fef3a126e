package rpc

import (
	"math/bits"
	"sync"
)

// Sizes of pooled buffers: powers of two from 4 KiB, which holds any small call,
// to 16 MiB, above which an allocation costs less than keeping it.
const (
	minBufferBits = 12
	maxBufferBits = 24
)

// buffers recycles byte slices by capacity. The zero value is ready. What is in
// it is bounded by the garbage collector, which empties pools.
type buffers struct {
	pools [maxBufferBits - minBufferBits + 1]sync.Pool // of *[]byte with at least 1<<(minBufferBits+i) bytes
}

// get returns a slice of length 0 and at least n bytes of capacity.
func (p *buffers) get(n int) []byte {
	class := max(bits.Len(uint(max(n, 1)-1)), minBufferBits)
	if class > maxBufferBits {
		return make([]byte, 0, n)
	}
	if b, ok := p.pools[class-minBufferBits].Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, 1<<class)
}

// put takes a slice back that nobody uses any more.
func (p *buffers) put(b []byte) {
	class := bits.Len(uint(cap(b))) - 1
	if class < minBufferBits || class > maxBufferBits {
		return
	}
	b = b[:0]
	p.pools[class-minBufferBits].Put(&b)
}
