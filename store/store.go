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
//     and returns the context's error. A write that was begun is seen through.
//  5. Expiry: from the instant of its expire_time a conversation is not found, swept or
//     not; while a turn runs it does not expire. Reads prolong nothing.
//  6. Order: writes of a conversation happen one after the other; sequences and versions
//     rise in the order of commit, and a read sees all writes that returned before it.
//  7. Observation: [Options.Observe] is given each committed change once, in the order of
//     commit, after the commit, before the write returns, and outside any transaction. A
//     store that other processes write to as well gives their changes too, as they arrive;
//     the order then holds for each conversation.
//  8. Pages: a list goes on from its token although conversations come, go and change
//     meanwhile: none that stays is skipped, none comes twice. In the order of update time
//     that holds for those that do not change meanwhile: the others move to the front.
//  9. Requests: a [Request] that a conversation has seen writes nothing and returns the
//     first result, however many callers send it at once; it is remembered by the same
//     commit as its effect. The newest 32 of a conversation are remembered.
//  10. End: after Close every method returns [ErrClosed]; Close waits for writes that were
//     begun, and closing again is no error.
//  11. Capacity: a tenant never has more conversations than Options.MaxConversations, once
//     a limit that was lowered has been swept. What has expired makes room first, then the
//     one with the oldest create time; those with a running turn are passed over, and if
//     all have one the answer is [ErrFull].
//  12. Isolation: the conversations, lists, counts and evictions of one tenant do not
//     depend on those of another.
package store

import (
	"context"
	"time"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
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

// Request tells a retry from a new call. A conversation remembers it by ID and Method.
type Request struct {
	// ID is the client's request_id, not empty.
	ID string
	// Method is the RPC: "AppendMessages".
	Method string
	// Digest is of what a retry must have in common with the first call; another digest
	// under the same ID and Method is ErrRequestReused.
	Digest [32]byte
}

// Create describes a conversation to make.
type Create struct {
	// Tenant that it belongs to.
	Tenant string
	// Conversation holds its id, which must not be empty, and what the client chose: title,
	// labels, agent, system_prompt, retention, forked_from. The rest is ignored.
	Conversation *parleyv1.Conversation
	// Messages that it begins with, in wire form, sequences and times included; a fork's.
	Messages Frames
	// Request is optional.
	Request *Request
	// OrGet returns the conversation that is there instead of ErrConversationExists.
	OrGet bool
}

// Append adds messages to a conversation. Checks are made in this order: the request was
// seen (the first result), the conversation is missing and MustExist, UID or End is set, or
// it is not the one of UID (ErrNotFound), a turn runs and Begin is set (BusyError), IfVersion differs
// (VersionError), End is not the running turn (ErrTurnEnded), no room for a new
// conversation (ErrFull).
type Append struct {
	// Tenant that the conversation belongs to.
	Tenant string
	// ConversationID names it; it is made when it does not exist, unless MustExist.
	ConversationID string
	// Messages in order, ids filled in. Sequence, exchange and create_time are set by the
	// store, whatever they hold; an unspecified status is COMPLETE. A retry had better fill
	// in the same ids, for it is they that Result.Appended returns: the store remembers how
	// it numbered the messages of a Request, not what they were called.
	Messages []*parleyv1.Message
	// Request is optional.
	Request *Request
	// IfVersion that the conversation must have; 0: it must not exist.
	IfVersion *int32
	// MustExist forbids making the conversation.
	MustExist bool
	// UID of the conversation that it must be, else ErrNotFound; empty: any.
	UID string
	// Begin opens this turn: id, request_id, agent, create_time if it is set and, without
	// Messages, input_sequence are the caller's; the store sets the rest.
	Begin *parleyv1.Turn
	// End closes this turn, whose answer Messages are: id, state and error are the caller's.
	End *parleyv1.Turn
	// Events are kept with the turn that Begin opens or End closes; nil keeps those before. The
	// store sets turn_id and conversation_version in what it keeps, and heeds no more of it.
	Events *storev1.TurnEvents
}

// Update changes a conversation. A nil or empty part is left as it is.
type Update struct {
	// Tenant that the conversation belongs to.
	Tenant string
	// ConversationID names it.
	ConversationID string
	// IfVersion is the version that it must have, else VersionError.
	IfVersion *int32
	// Values hold what Fields name.
	Values *parleyv1.Conversation
	// Fields to take from Values: any of title, labels, agent, system_prompt,
	// retention.max_messages, retention.ttl. An unset retention is the store's default.
	Fields []string
	// Lease gives the routing lease, or ends it when its agent is empty.
	Lease *Lease
	// KeepThrough removes all messages after this sequence. BusyError while a turn runs.
	KeepThrough *int32
}

// Lease is a routing lease to give.
type Lease struct {
	// Agent that is to get the next message; empty ends the lease that there is.
	Agent string
	// Reason is free text.
	Reason string
	// Duration of the lease; 0 is as long as the conversation lives.
	Duration time.Duration
}

// Delete names a conversation to remove.
type Delete struct {
	// Tenant that the conversation belongs to.
	Tenant string
	// ConversationID names it.
	ConversationID string
	// IfVersion is the version that it must have, else VersionError.
	IfVersion *int32
}

// Purge says which conversations to remove.
type Purge struct {
	// Tenant that they belong to.
	Tenant string
	// InactiveFor is how long ago their last_append_time must be, at least.
	InactiveFor time.Duration
	// DryRun counts only.
	DryRun bool
}

// Purged is what a purge removed, or would have.
type Purged struct {
	// Count of conversations.
	Count int64
	// SampleIDs are up to MaxSampleIDs of them.
	SampleIDs []string
}

// Result is what a write did.
type Result struct {
	// Conversation is the header after the write; with its system prompt from Create only.
	Conversation *parleyv1.Conversation
	// Appended has one entry for each message that was appended.
	Appended []*parleyv1.AppendedMessage
	// Turn that was begun or ended, as it is now; with Replayed, the one that the first
	// call began, nil when it is no longer kept.
	Turn *parleyv1.Turn
	// Created: the write made the conversation.
	Created bool
	// Replayed: the request had been seen; nothing was written, and all of this is the
	// first result but for Conversation, which is as it is now.
	Replayed bool
}

// Read says what to read of a conversation.
type Read struct {
	// Tenant that the conversation belongs to.
	Tenant string
	// ConversationID names it.
	ConversationID string
	// Newest is how many messages to return; negative is all, 0 none.
	Newest int
	// Turns asks for the turns and their events too.
	Turns bool
	// Request asks whether the conversation has seen it; ErrRequestReused when it has seen
	// the same id with other content.
	Request *Request
}

// Snapshot is a conversation as it was at one version.
type Snapshot struct {
	// Conversation is its header.
	Conversation *parleyv1.Conversation
	// Messages asked for, oldest first.
	Messages Frames
	// Turns, oldest first, 32 at most.
	Turns []*parleyv1.Turn
	// Events of these turns, oldest first; a turn may have none.
	Events []*storev1.TurnEvents
	// Seen is set when Read.Request was seen: what the first call did.
	Seen *Seen
}

// Seen is what a request did when it came first.
type Seen struct {
	// Created: it made the conversation.
	Created bool
	// TurnID of the turn that it began.
	TurnID string
}

// List says which conversations to list.
type List struct {
	// Tenant that they belong to.
	Tenant string
	// Labels that they must carry, all of them.
	Labels map[string]string
	// StructuredDataType that their kept history must have; empty: any.
	StructuredDataType string
	// Order; unspecified is by create time, newest first.
	Order parleyv1.ListOrder
	// PageSize is the most rows to return; at least 1.
	PageSize int
	// PageToken is Page.NextPageToken of the page before.
	PageToken string
}

// The bounds of one List call. A page may be short, even empty, and have a token.
const (
	// MaxListHeaders is how many headers a filtered or sorted call looks at.
	MaxListHeaders = 10_000
	// MaxListBytes is how many encoded bytes of rows it returns: a reply must hold them.
	MaxListBytes = 3 << 20
)

// MaxSampleIDs is how many ids a Purge returns.
const MaxSampleIDs = 100

// Page is a page of conversations.
type Page struct {
	// Entries without system prompts.
	Entries []*parleyv1.ConversationEntry
	// NextPageToken is empty on the last page.
	NextPageToken string
	// Total is how many conversations the tenant has, whatever the filter; expired ones
	// count until they are swept.
	Total int64
}

// Progress is the answer of a running turn as far as it has arrived.
type Progress struct {
	// Tenant that the conversation belongs to.
	Tenant string
	// ConversationID names it.
	ConversationID string
	// TurnID is the running turn.
	TurnID string
	// Messages of the answer, the last one perhaps cut off.
	Messages []*parleyv1.Message
	// Events as far as they are told by Messages, kept as they are; from Abandoned, where none
	// were saved, those that the turn began with.
	Events *storev1.TurnEvents
}

// Stats count what a store keeps.
type Stats struct {
	// Conversations kept; expired ones count until they are swept.
	Conversations int64
	// Messages kept in them.
	Messages int64
	// Bytes of encoded conversations and messages.
	Bytes int64
	// FileBytes is the size of the store's file, and FileBytesInUse what of it is in use;
	// 0 where there is no file.
	FileBytes, FileBytesInUse int64
	// Expired and Evicted count conversations since the store was opened.
	Expired, Evicted int64
}

// Change is one committed change of a conversation. It belongs to whoever made it: an
// observer must not change it.
type Change struct {
	// Tenant that the conversation belongs to.
	Tenant string
	// Kind is one of CREATED, UPDATED, MESSAGE_APPENDED, CLEARED, DELETED, EXPIRED, EVICTED.
	Kind parleyv1.ChangeKind
	// ConversationID and UID name the conversation.
	ConversationID, UID string
	// Version after the change; the last one where the conversation is gone.
	Version int32
	// Time of the commit.
	Time time.Time
	// Conversation is the header after the change, without its system prompt; with CREATED,
	// UPDATED and CLEARED.
	Conversation *parleyv1.Conversation
	// Message that was appended; with MESSAGE_APPENDED.
	Message Frame
	// Count of messages kept after the change; how many went with it where the conversation
	// was cleared or is gone.
	Count int
	// Trimmed is how many old messages the write dropped to stay within limits; on its last
	// change only.
	Trimmed int
}
