package boltstore

import (
	"maps"
	"slices"
	"sync"
)

// The tail of a conversation is its messages that are not in chunks. These sizes of tails are in multiples of
// Options.chunkSize. A fold leaves 2 at most.
const (
	// maxTail is the size above which a tail is long: the folder divides it.
	maxTail = 4
	// urgentTail is the size of one long tail, and urgentTails that of all, from which the folder divides them all as soon
	// as possible. Several in one transaction cost less: it writes the list of free pages and syncs once.
	urgentTail  = 2 * maxTail
	urgentTails = foldBytes / defaultChunkSize
	// limitTail is the size above which the next append is a transaction, which divides the tail: the folder has not kept
	// up.
	limitTail = 4 * maxTail
)

// longTails are the conversations with long tails. The writer adds and removes them, and the folder takes them.
type longTails struct {
	chunkSize int
	urgent    chan struct{} // has an element if the folder should divide them

	mu    sync.Mutex
	sizes map[string]int // sizes of tails in bytes, by layout.ConversationKey
	sum   int
}

func newLongTails(chunkSize int) longTails {
	return longTails{chunkSize: chunkSize, urgent: make(chan struct{}, 1), sizes: map[string]int{}}
}

// note is called after an append, with the size of the tail of the conversation in bytes.
func (l *longTails) note(key string, size int) {
	if size <= maxTail*l.chunkSize {
		return
	}
	l.mu.Lock()
	l.sum += size - l.sizes[key]
	l.sizes[key] = size
	urgent := size >= urgentTail*l.chunkSize || l.sum >= urgentTails*l.chunkSize
	l.mu.Unlock()
	if !urgent {
		return
	}
	select {
	case l.urgent <- struct{}{}:
	default:
	}
}

// remove removes conversations that a transaction has folded.
func (l *longTails) remove(keys []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range keys {
		l.sum -= l.sizes[key]
		delete(l.sizes, key)
	}
}

// take removes all conversations and returns their keys, in order.
func (l *longTails) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := slices.Sorted(maps.Keys(l.sizes))
	clear(l.sizes)
	l.sum = 0
	return keys
}

// divide folds the conversations with long tails, which divides them. Those that are left after an error return with
// their next append.
func (f *folder) divide() {
	for keys := f.tails.take(); len(keys) > 0; {
		var step foldedKeys
		if f.do(func(t *txn) (err error) {
			step, err = t.foldKeys(keys)
			return err
		}) != nil {
			return
		}
		keys = keys[step.keys:]
		f.store.journalCounts.foldedConversations.Add(int64(step.conversations))
	}
}
