package wirecodec

import (
	"sync"

	"google.golang.org/grpc/mem"
)

// Capacities of the buffers of a Pool, in bytes.
const (
	// minBuffer is enough for a few messages. gRPC returns no buffer of 1 KiB or less to its pool.
	minBuffer = 4 << 10
	// maxBuffer is enough for the newest 20 messages of most conversations. A caller that does not read holds as many
	// buffers as it has calls, so they must not be large.
	maxBuffer = 64 << 10
)

// Pool is a pool of buffers into which a store reads frames. It does not clear them, as gRPC's pools do. The zero value
// is an empty pool. Its buffers have different capacities: a reader that needs a larger one returns that in its place.
type Pool struct{ buffers sync.Pool } // of *[]byte

var _ mem.BufferPool = (*Pool)(nil)

// Get returns a buffer of this length with undefined content.
func (p *Pool) Get(length int) *[]byte {
	if b, ok := p.buffers.Get().(*[]byte); ok && cap(*b) >= length {
		*b = (*b)[:length]
		return b
	}
	b := make([]byte, length, max(length, minBuffer))
	return &b
}

// Put returns a buffer to the pool. A large one is left to the garbage collector.
func (p *Pool) Put(b *[]byte) {
	if cap(*b) >= minBuffer && cap(*b) <= maxBuffer {
		p.buffers.Put(b)
	}
}
