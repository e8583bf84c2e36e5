package store

// Inspector is implemented by stores that keep a file of their own and can report its state.
type Inspector interface {
	// State returns the state of the store at this instant, in constant time. It works after a failure
	// of the store, too.
	State() State
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
}

// Commit describes a transaction that a store has committed.
type Commit struct {
	// Seconds is the time from the first operation to the end of the sync.
	Seconds float64
	// Operations is the number of writes in the transaction.
	Operations int
	// WaitSeconds is how long the write that waited longest had waited for the transaction.
	WaitSeconds float64
}
