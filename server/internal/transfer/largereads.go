package transfer

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/parleyhq/parley/store"
)

// MaxLargeExportBytes is the maximum size, in bytes, of the messages of conversations with more than maxSmallBytes that
// all exports have in memory at a time. An export has one of them until its client has received it. A larger
// conversation is exported alone.
const MaxLargeExportBytes = 256 << 20

// LargeReads limits the memory of calls that need a complete conversation.
type LargeReads struct {
	maxBytes int64
	bytes    *semaphore.Weighted // of conversations with more than maxSmallBytes of messages
}

// NewLargeReads returns a LargeReads that allows large conversations with that many bytes of messages together, or one
// that is larger.
func NewLargeReads(maxBytes int64) *LargeReads {
	return &LargeReads{maxBytes: maxBytes, bytes: semaphore.NewWeighted(maxBytes)}
}

// Read reads a conversation with all its messages; q says which, and what else to read. If the conversation is large,
// Read waits until enough of the others are done. The caller must call done as soon as it does not need the messages
// any more; further calls have no effect. Errors: those of the store, and the cause of ctx if it ends while Read waits.
func (l *LargeReads) Read(ctx context.Context, s store.Store, q *store.Read) (
	snapshot *store.Snapshot, done func(), err error,
) {
	all := *q
	all.Newest, all.MaxBytes = -1, maxSmallBytes
	if snapshot, err = s.Read(ctx, &all); err != nil || !snapshot.MoreMessages {
		return snapshot, func() {}, err
	}
	size := min(int64(snapshot.Conversation.GetSizeBytes()), l.maxBytes)
	if err := l.bytes.Acquire(ctx, size); err != nil {
		return nil, nil, context.Cause(ctx)
	}
	done = sync.OnceFunc(func() { l.bytes.Release(size) })
	all.MaxBytes = 0
	if snapshot, err = s.Read(ctx, &all); err != nil {
		done()
		return nil, nil, err
	}
	return snapshot, done, nil
}
