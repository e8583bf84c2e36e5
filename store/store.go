// Package store is the contract between Parley's service and whatever keeps its
// conversations. Begin with [Store]; package storetest holds the law below as tests, and
// memstore and boltstore obey it.
//
// A conversation is a header, its kept messages, its newest turns and the request ids it
// has seen. Every method is one atomic step on one conversation, or a bounded step over
// several, and names its tenant: a conversation of another tenant does not exist. No
// method takes a function to run inside a transaction and none assumes that this process
// is the only one, so that a store behind a network can obey the law as well.
//
// # The law
//
//  1. Concurrency: all methods may be called from many goroutines at once.
//  2. No shared memory: what was passed in may be changed after the call, what came out
//     may be changed at any time; neither reaches the store.
//  3. Durability: a write that returned without an error survives Close and, in stores
//     that write to disk, kill -9 and power loss. A batch is wholly there or not at all.
//  4. Cancellation: a write whose context had ended before it was begun writes nothing
//     and returns the context's error. A write that was begun is completed. A list ends
//     with its context.
//  5. Expiry: from the instant of its expire_time a conversation is not found, swept or
//     not; while a turn runs, or it is session memory, it does not expire. Reads prolong
//     nothing.
//  6. Order: writes of a conversation happen one after the other; sequences and versions
//     rise in the order of commit, and a read sees all writes that returned before it.
//  7. Observation: [Options.Observe] is given each committed change once, in the order of
//     commit, after the commit, before the write returns, and outside any transaction. A
//     store that other processes write to as well gives their changes too, as they arrive;
//     the order then holds for each conversation.
//  8. Pages: a list goes on from its token although conversations come, go and change
//     meanwhile: none that stays is skipped, none comes twice. In the order of update time
//     this holds for those that do not change in the meantime: the others move to the front. One
//     that is made or imported after the list began may be in the list or not.
//  9. Requests: a [Request] that a conversation has seen writes nothing and returns the
//     first result, however many callers send it at once; it is remembered by the same
//     commit as its effect. The newest 32 of a conversation are remembered.
//  10. End: after Close every method returns [ErrClosed]; Close waits for writes that were
//     begun, and closing again is no error.
//  11. Capacity: a tenant never has more conversations than Options.MaxConversations, once
//     a limit that was lowered has been swept. What has expired makes room first, then the
//     one with the oldest create time; those with a running turn and those that are held
//     are passed over, and if no other is left the answer is [ErrFull].
//  12. Isolation: the conversations, lists, counts and evictions of one tenant do not
//     depend on those of another.
//  13. Sessions: an id is session memory from [Store.Hold] on, and is held, whether it has a
//     conversation or not, until as many Releases have followed as there were Holds. If it
//     has a conversation then, it stays session memory until that is removed or the
//     DeleteAfter of the last Release is over. From that instant the conversation, a running
//     turn or not, is not found, swept or not, and the id is like any other; without one it
//     is so at once. A Hold within that time keeps it. What a process held when it ended,
//     however it did, counts as released at the next start, with the DeleteAfter of its
//     latest Hold.
//  14. Identity: every new conversation has a uid that no conversation had before, whether
//     Create, Append or Import makes it, and also in place of another one of its id. The store
//     chooses the uid, whatever the caller's header says. A uid and a version together name one
//     state of one history, unless a backup was restored: versions after the backup come again.
//  15. Headers: Create, Update and Import refuse a header that has more than [MaxHeaderBytes]
//     with [HeaderTooLargeError]. Appends add only numbers, times and the id of a turn to it.
//     So a reply has space for a header besides [MaxListBytes] of rows or 3 MiB of messages.
package store

import (
	"context"
	"time"
)

// Store keeps conversations. Errors are the sentinels and types of this package, wrapped
// with context. A method that fails has written nothing, unless it says otherwise or the
// error is ErrFailed, after which nobody can tell.
type Store interface {
	// Create makes a conversation. It returns ErrConversationExists when the id is taken,
	// unless c.OrGet is set, and ErrFull when there is no room.
	Create(ctx context.Context, c *Create) (*Result, error)
	// Append adds messages, begins or ends a turn, or both, in one step. See [Append] for
	// what is checked, in which order.
	Append(ctx context.Context, a *Append) (*Result, error)
	// Update changes the header, the routing lease, or removes messages. An update that
	// changes nothing writes nothing. ErrNotFound when there is no such conversation.
	Update(ctx context.Context, u *Update) (*Result, error)
	// Delete removes a conversation. ErrNotFound when there is none.
	Delete(ctx context.Context, d *Delete) error
	// Purge removes the conversations of a tenant that have been inactive, in bounded
	// steps; it is not atomic as a whole. When ctx ends on the way it returns what was
	// purged so far and the context's error.
	Purge(ctx context.Context, p *Purge) (Purged, error)

	// Import stores a conversation of another server with its versions and times, but
	// under a new uid. It evicts nothing. It returns ErrConversationExists when the id is taken, unless
	// i.Overwrite is set, then BusyError when a turn runs there; ErrExpired when the
	// conversation would not live here, and ErrFull when there is no room.
	Import(ctx context.Context, i *Import) (*Result, error)

	// Hold makes ids session memory, all or none, see the law. Conversations of these ids
	// that are no more are removed first, lest they come back. ErrTooManyHolds beyond
	// MaxHolds ids of a tenant.
	Hold(ctx context.Context, h *Hold) error
	// Release takes a Hold of the same ids back; those that nobody holds are left as they
	// are. With a DeleteAfter of 0 the conversations that nobody else holds are deleted by
	// this call.
	Release(ctx context.Context, h *Hold) error

	// Read returns a conversation as it was at one version. ErrNotFound when there is none.
	Read(ctx context.Context, r *Read) (*Snapshot, error)
	// List returns a page of a tenant's live conversations; none is no error.
	// ErrPageToken when the token is not from a list with the same filter and order.
	List(ctx context.Context, l *List) (*Page, error)

	// SaveProgress keeps the answer of a running turn as far as it has arrived, for
	// Abandoned to find after a crash. It changes neither version nor times. Ending the
	// turn removes it. ErrTurnEnded when the turn is not the running one, also when there
	// is no such conversation.
	SaveProgress(ctx context.Context, p *Progress) error
	// Abandoned returns the running turns that no live server answers any more, with what
	// was saved of their answers: in a store of one process, all that ran when it was opened.
	// Whoever asks ends them with Append. One call returns some of them, by size, at least one
	// if there is one, behind the place after: empty is the start, else it is next of another
	// call, and next is empty when there are no more. What ends meanwhile moves no other turn.
	// A string that is no such place gives ErrPageToken or any of the turns.
	Abandoned(ctx context.Context, after string) (turns []Progress, next string, err error)

	// Sweep removes conversations that have expired or are over capacity, at most limit of
	// them, and reports whether there may be more to do.
	Sweep(ctx context.Context, limit int) (more bool, err error)
	// Stats counts what is kept, over all tenants, in constant time.
	Stats(ctx context.Context) (Stats, error)
	// Close ends the store.
	Close() error
}

// Options are common to all stores. The zero value is usable.
type Options struct {
	// Now is the clock; nil is time.Now. Each write reads it once.
	Now func() time.Time
	// Observe is given committed changes, see the law. It must not block for long, must not
	// call the store, and must not change what it is given. Nil: nobody wants to know.
	Observe func(changes []Change)
	// MaxMessages is kept of a conversation that does not say otherwise; 0 is 20.
	MaxMessages int
	// TTL is the life after the last append of a conversation that does not say otherwise;
	// 0 is 1 h.
	TTL time.Duration
	// MaxConversations is the capacity of each tenant; 0 is without bound.
	MaxConversations int
	// MaxConversationBytes bounds the encoded messages of a conversation; the oldest are
	// dropped first, the newest is kept whatever its size; 0 is 3 MiB, which fits a reply.
	MaxConversationBytes int
}

// WithDefaults returns the options with every zero replaced as their comments say.
func (o Options) WithDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Observe == nil {
		o.Observe = func([]Change) {}
	}
	if o.MaxMessages == 0 {
		o.MaxMessages = 20
	}
	if o.TTL == 0 {
		o.TTL = time.Hour
	}
	if o.MaxConversationBytes == 0 {
		o.MaxConversationBytes = 3 << 20
	}
	return o
}
