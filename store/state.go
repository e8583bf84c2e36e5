package store

import (
	"context"
	"time"
)

// Inspector is implemented by stores that keep a file of their own and can report its state.
type Inspector interface {
	// State returns the state of the store at this instant, in constant time. It works after a failure
	// of the store, too.
	State() State
}

// Pinger is implemented by stores whose data is in another system.
type Pinger interface {
	// Ping returns nil if the system answers, and ErrUnavailable if it does not within some seconds.
	Ping(ctx context.Context) error
}

// State is the state of a store with a file. Sizes are in bytes.
type State struct {
	// QueuedWrites and QueuedBytes are the number and the size of the writes that wait for a transaction.
	QueuedWrites, QueuedBytes int
	// FreePages is the number of pages of the file that contain nothing.
	FreePages int
	// DiskFreeBytes is the free space of the disk with the file, and DiskBytes the size of that disk. Both
	// are 0 if the file system does not report them.
	DiskFreeBytes, DiskBytes int64
	// Failed is true after a permanent failure: every later write returns ErrFailed.
	Failed bool
	// Journal is the state of the journal; the zero value if the store has none.
	Journal JournalState
	// Cache is the state of the cache; the zero value if the store has none.
	Cache CacheState
}

// JournalState is the state of the journal of a store: files to which the store writes operations before it folds them
// into its file. Counts begin when the store is opened.
type JournalState struct {
	// BudgetBytes is the size of the operations at which a fold begins. At twice this size, operations are written to the
	// file of the store.
	BudgetBytes int64
	// WaitingBytes is the size in bytes of the operations that wait for the next fold, and FoldingBytes that of the
	// operations that the running fold has taken.
	WaitingBytes, FoldingBytes int64
	// Age is the time since the first of these operations was written or read by the opening of the store; 0 if there
	// are none.
	Age time.Duration
	// FileBytes is the size of the files of the journal.
	FileBytes int64
	// Folds is the number of folds that have ended, without those that had nothing to fold. FoldTime is the sum of their
	// times from begin to end. FoldedConversations is the number of conversations that folds have written to the file,
	// also those that are folded alone because they are large.
	Folds, FoldedConversations int64
	FoldTime                   time.Duration
	// BypassedFull is the number of operations that were written to the file because the journal was at twice its budget.
	// BypassedDisk is the number of those for which no further file of the journal could be created.
	BypassedFull, BypassedDisk int64
}

// CacheState is the state of a store's cache of conversations and records.
type CacheState struct {
	// LimitBytes is the maximum memory of the conversations and records, and Bytes their memory.
	LimitBytes, Bytes int64
	// Hits is the number of lookups that have found a conversation or a record since the store was opened, and Misses
	// the number of those that have not. A read whose version is known makes no lookup.
	Hits, Misses int64
}

// Commit describes a transaction of the file or a batch of the journal that a store has committed.
type Commit struct {
	// Journal is true if the operations were written to the journal, and false if to the file.
	Journal bool
	// Seconds is the time from the first operation to the end of the sync.
	Seconds float64
	// Operations is the number of writes in the commit.
	Operations int
	// WaitSeconds is how long the write that waited longest had waited for the commit.
	WaitSeconds float64
}
