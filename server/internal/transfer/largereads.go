package transfer

import (
	"context"
	"sync"

	"github.com/parleyhq/parley/store"
)

// MaxLargeExports is the maximum number of conversations with more than maxSmallBytes of messages that all exports have
// in memory at a time. An export has one of them until its client has received it.
const MaxLargeExports = 4

// LargeReads limits the memory of calls that need a complete conversation.
type LargeReads struct {
	slots chan struct{} // one element for each conversation with more than maxSmallBytes of messages
}

// NewLargeReads returns a LargeReads that allows n large conversations at a time.
func NewLargeReads(n int) *LargeReads { return &LargeReads{slots: make(chan struct{}, n)} }

// Read reads a conversation with all its messages; q says which, and what else to read. If the conversation is large,
// Read waits until one of the others is done. The caller must call done as soon as it does not need the messages any
// more; further calls have no effect. Errors: those of the store, and the cause of ctx if it ends while Read waits.
func (l *LargeReads) Read(ctx context.Context, s store.Store, q *store.Read) (
	snapshot *store.Snapshot, done func(), err error,
) {
	all := *q
	all.Newest, all.MaxBytes = -1, maxSmallBytes
	if snapshot, err = s.Read(ctx, &all); err != nil || !snapshot.MoreMessages {
		return snapshot, func() {}, err
	}
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	done = sync.OnceFunc(func() { <-l.slots })
	all.MaxBytes = 0
	if snapshot, err = s.Read(ctx, &all); err != nil {
		done()
		return nil, nil, err
	}
	return snapshot, done, nil
}
