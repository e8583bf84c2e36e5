// Package store defines the contract between the Parley server and the storage of its
// conversations and records. The implementations are in packages memstore, boltstore and redisstore. Package storetest
// tests any implementation against the law below.
//
// # Glossary
//
// These terms have the same meaning everywhere in the project.
//
//   - Tenant: a name that separates the data of different users of one server. A call sees only
//     the conversations of its own tenant.
//   - Conversation: the messages of one tenant under one id, with a header. A store also retains
//     its newest turns and its newest requests; see laws 9 and 20.
//   - Header: everything about a conversation except its messages and turns: title, labels, system
//     prompt, retention, version, times and so on. It is the message Conversation of the API.
//   - Uid: a random id that the store chooses when it creates a conversation. It distinguishes a
//     conversation from an earlier one with the same id.
//   - Message: one entry of a conversation, written by a user, an agent, a tool or the system. It
//     never changes after it has been appended.
//   - Exchange: a user's message and the messages that answer it, numbered from 1 in their
//     conversation.
//   - Turn: one run of an agent for one user message, from its start to its end. A conversation has
//     at most one running turn; others wait in a queue.
//   - Agent: a program or model that answers messages, configured under a name.
//   - Window: the newest messages of a conversation that fit the limits and are passed to an agent.
//     It starts at a user message.
//   - Sequence: the position of a message in its conversation. The first message has 1; positions
//     are never reused, so those of removed messages are missing.
//   - Version: a number that increases by one with every change of a conversation. Writes can
//     require a version.
//   - Lease: the right of one agent, the active agent, to answer the next messages of a
//     conversation. It ends at a time, after 366 days at most, or with the conversation.
//   - Ephemeral conversation: a conversation that is deleted when the connections that hold it have
//     ended. A tenant has at most [MaxHolds] of them.
//   - Retention: how many messages a conversation keeps, 1 to 1,000,000 or all, how many turns, 1 to 10,000, its ttl,
//     100 ms to 366 days or none, and whether it may be evicted.
//   - Expiry: a conversation expires when its ttl has passed since its creation, last append or
//     last turn.
//   - Eviction: when a tenant is at its capacity, its oldest conversation by create time is deleted
//     for a new one.
//   - Hold and release: a hold makes an id ephemeral for as long as a connection is open. The
//     release ends the hold.
//   - Commit: the instant at which all changes of a write take effect. A write returns after its
//     commit.
//   - Record: a value under a key, of a conversation or of a tenant. It has a revision and is written,
//     read and listed apart from the messages.
//   - Scope: the conversation or the tenant that a record belongs to. A key is unique in its scope.
//   - Revision: the number of the write that wrote a record. It rises with every write of the scope, and
//     a write can require it.
//   - Frame: one message in encoded form, as it is stored and as replies contain it. See [Frame].
//   - Interaction log: daily files with an entry for every message. Entries remain when a
//     conversation is deleted.
//
// # Data model
//
// Each method is one atomic step on one conversation, or a bounded step over several. Each method
// names a tenant, and conversations of other tenants do not exist for it. No method takes a
// function that runs inside a transaction. No method assumes that its process is the only one. A
// store that is reached over a network can therefore follow the law, too.
//
// # The law
//
//  1. Concurrency: all methods may be called from many goroutines at the same time.
//  2. No shared memory: the caller may change arguments after the call and results at any time.
//     Neither affects the store. There are two exceptions: the messages of a [Read] with Shared and the
//     records of [Store.GetRecords] may be in memory of the store. Neither the store nor the caller may
//     change them.
//  3. Durability: a write that returned without an error survives Close. In stores that write to
//     disk it also survives kill -9 and power loss. A batch is stored completely or not at all.
//  4. Cancellation: if the context of a write ends before the write starts, the write changes
//     nothing and returns the context's error. A write that has started is completed. A list stops
//     when its context ends.
//  5. Expiry: from its expire_time on a conversation is not found, even before it is swept. Until
//     the sweep, Read returns an [ExpiredError]. A conversation does not expire while a turn is
//     running or while it is ephemeral. Reads do not postpone the expiry. With no_expiry in its
//     retention it has no expire_time and does not expire. If no_expiry becomes false, the ttl
//     counts from last_append_time.
//  6. Order: the writes of a conversation happen one after the other. Sequences and versions rise
//     in the order of commit. A read sees all writes that returned before it started.
//  7. Observation: [Options.Observe] receives each committed change once, in the order of commit.
//     It is called after the commit and before the write returns, outside any transaction. If other
//     processes write to the same data, the store also passes their changes, with Elsewhere, when they
//     arrive; the order then holds for each conversation. If it may have missed some, it passes a
//     change of kind GAP.
//  8. Pages: a list may be continued from its token while conversations are created, changed and
//     deleted. A conversation that exists all the time is neither skipped nor returned twice. In
//     the order by update time this holds for conversations that do not change in the meantime; the
//     others move to the front. A conversation that is created or imported after the list started
//     may be in it or not.
//  9. Requests: a [Request] that a conversation has stored writes nothing and returns the first
//     result, even if many callers send it at the same time. It is stored in the same commit as its
//     effect. A conversation keeps its newest 32 requests of writes of records alone, whose method is
//     WriteRecords, and its newest 32 of all others.
//  10. End: after Close every method returns [ErrClosed]. Close waits for writes that have started.
//     A second Close is not an error.
//  11. Capacity: a tenant never has more conversations than [Options.Limits] allow, except
//     between lowering that limit and the next sweep. A new conversation replaces an expired one
//     first, then the one with the oldest create time. Conversations with a running turn, held
//     conversations, and those with no_eviction in their retention are skipped. If no other is left,
//     the write fails with [ErrFull].
//  12. Isolation: conversations, lists, counts and evictions of one tenant do not depend on those
//     of other tenants. A page token of one tenant is ErrPageToken for all others. [Store.Tenants]
//     lists a tenant exactly while it has conversations or records.
//  13. Ephemeral conversations: [Store.Hold] makes an id ephemeral and holds it, whether it has a conversation or
//     not. The id is held until there have been as many Releases as Holds. If it then has a
//     conversation, the id stays ephemeral until the conversation is removed or the DeleteAfter of
//     the last Release has passed. From that instant the conversation is not found, even before it
//     is swept and even if a turn is running, and the id is an ordinary one. If it has no
//     conversation at the last Release, it is an ordinary id at once. A Hold within the
//     DeleteAfter time keeps the conversation. When a process ends for any reason, all its Holds
//     count as released at the next start or, if other processes have the store open, at the first
//     sweep after its lease has ended, with the DeleteAfter of the latest Hold.
//  14. Identity: every new conversation has a uid that no conversation had before, whether Create,
//     Append or Import creates it. This also holds if it replaces a conversation with the same id.
//     The store chooses the uid and ignores the one in the caller's header. A uid and a version
//     together identify one state of one history, unless a backup was restored: versions after the
//     backup are then used again.
//  15. Headers: Create, Update, Import and appends with CreateWith reject a header that has more than
//     [MaxHeaderBytes] with [HeaderTooLargeError]. Appends add only numbers, times and the id of a turn
//     to the header of a conversation that exists. A reply therefore has space for a header besides
//     [MaxListBytes] of entries or [MaxMessageBytes] of messages.
//  16. Bytes: a write that would exceed a tenant's limit of bytes in [Options.Limits] fails with
//     [TenantBytesError]. The bytes of a tenant are the encoded sizes of its conversations and its
//     records, as in [Stats]. Three kinds of writes succeed above the limit: those that add no bytes, removals, and
//     the end of a turn that writes no records, so that no answer is lost. If a new conversation replaces others,
//     the bytes of the others are subtracted. Expired conversations count until they are swept.
//     A conversation with keep_all in its retention drops no messages. An append that would make them
//     larger than [Options.MaxConversationBytes] fails with [ConversationFullError], also if it only
//     starts a turn. Two kinds of appends succeed above this limit: the first message of a
//     conversation, and the end of a turn. Create and Import accept [MaxMessageBytes] more, or twice a
//     lower limit, which the end of a turn may have used. When keep_all becomes false, the oldest messages are dropped.
//  17. Queued appends: appends to one conversation are applied in the order of their starts if each
//     starts after the one before has called its [Append.Queued] or has returned. They may share a
//     commit. An append that fails does not stop those after it. If appends have the same context, and
//     one of them is not applied because the context ended, no later one of them is applied.
//  18. Replacing: an append with [Append.ReplaceAfter] removes messages and appends others in one commit
//     with one version: no read and no crash leaves one without the other. Sequences and exchanges
//     continue, those of removed messages are not used again. Another write is applied before it or after
//     it. The observer receives CLEARED, if messages were removed, and then MESSAGE_APPENDED for each
//     message, all with the same version. A retry with the same [Request] removes nothing, even if messages
//     were appended in the meantime; the same holds for an [Update].
//  19. Records: a record is a value under a key of a conversation or of the tenant, with a revision. All
//     records that one call writes or deletes are one commit, for [Append] together with its messages and
//     also across both scopes: no read and no crash leaves a part of it. The revision of a conversation's
//     record is the version of the conversation after the write, that of a tenant's record the next number
//     of a counter of the tenant. So it is higher than all before it in its scope, and none is used again,
//     even after a deletion. The records of a conversation end with it: from its end on they are not found,
//     even if a conversation with the same id is created. A record of a tenant is not found from its
//     expire_time on. Lists are in the order of the bytes of the keys. A record that exists during all
//     calls of a list is returned once. A write of a conversation's records counts as an append for its
//     expiry. A write that would make the records of a conversation larger than [Options.MaxRecordBytes], or
//     those of the tenant larger than its MaxRecordBytes in [Options.Limits], fails with [RecordsFullError].
//     Deletions succeed above all limits of space. The store remembers a [Request] of a write of the tenant's
//     records alone for [RequestTTL]. Their number has no limit of its own: each counts as a record in both
//     limits of bytes of the tenant, until it is swept. Above MaxRecordBytes, a call with a Request that
//     deletes no record is refused, too.
//  20. Turns: a conversation keeps its newest turns with their events. Their number is max_turns of its retention, or
//     [DefaultMaxTurns] if that is 0. If the number is above DefaultMaxTurns, the conversation may keep up to 15 more.
//     The turns end with their conversation. If the id of a turn is a UUID of version 7 in its canonical form, the turn
//     is also found by the id alone, and is in the list of its tenant. Both hold as soon as the turn is stored and as
//     long as it is kept. The caller must not use the id of a turn twice in a tenant. The list of a conversation is in
//     the order in which its turns started, the list of a tenant in the order of their ids, both newest first. A turn
//     that is kept during all calls of a list is returned once.
//  21. Processes: a store that is reached over a network may be open in any number of processes. Laws 1, 6, 9, 11, 14,
//     17, 18 and 19 hold across them, except that appends of different processes have no order but that of their
//     commits. The end and the progress of a turn are refused with [ErrTurnEnded] when another process has ended it.
//     [Store.Abandoned] returns the turns whose process has no lease, and no others. A lease ends when the store is
//     closed, or some time after its process has ended. If the system that holds the data does not answer, a method
//     fails with [ErrUnavailable], and a write that failed so was made once or not at all.
//
// Start at [Store].
package store

import (
	"context"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Store keeps conversations. Its errors are the errors of this package, wrapped with context. A
// method that fails has written nothing, unless its comment says otherwise or the error is
// ErrFailed. After ErrFailed it is unknown what was written.
type Store interface {
	// Create creates a conversation. It returns ErrConversationExists if the id is in use, unless
	// c.OrGet is set, and ErrFull if the tenant is at its capacity and nothing can be evicted.
	Create(ctx context.Context, c *Create) (*Result, error)
	// Append appends messages, starts or ends a turn, or both, in one step. [Append] lists its
	// checks and their order.
	Append(ctx context.Context, a *Append) (*Result, error)
	// Update changes the header or the routing lease, or removes messages. An update that changes
	// nothing writes nothing, unless it has a Request. It returns ErrNotFound if the conversation does not exist.
	Update(ctx context.Context, u *Update) (*Result, error)
	// Delete deletes a conversation. It returns ErrNotFound if the conversation does not exist.
	Delete(ctx context.Context, d *Delete) error
	// Purge deletes the conversations of a tenant that have been inactive, in bounded steps; it is
	// not atomic. If ctx ends before it is done, it returns what was deleted so far and
	// the context's error.
	Purge(ctx context.Context, p *Purge) (Purged, error)

	// Import stores a conversation of another server with its versions and times, but with a new
	// uid. It evicts nothing. Errors, in this order: ErrConversationExists if the id is in use and
	// i.Overwrite is not set; BusyError if a turn is running on the conversation to overwrite;
	// ErrExpired if the conversation would already be expired in this store; ErrFull if the tenant
	// is at its capacity.
	Import(ctx context.Context, i *Import) (*Result, error)

	// Hold makes all ids of h ephemeral, or none of them; see law 13. It first removes expired
	// conversations that have one of these ids, so that they do not become visible again. It
	// returns ErrTooManyHolds if the tenant would have more than MaxHolds ephemeral ids.
	Hold(ctx context.Context, h *Hold) error
	// Release undoes one Hold of the same ids. Ids that are not held stay as they are. If
	// DeleteAfter is 0, the call deletes the conversations of ids that have no other Hold.
	Release(ctx context.Context, h *Hold) error

	// Read returns a conversation at one version. It returns ErrNotFound if the conversation does
	// not exist, and an ExpiredError if it has expired and is not swept yet.
	Read(ctx context.Context, r *Read) (*Snapshot, error)
	// List returns a page of a tenant's conversations that have not expired. An empty page is not
	// an error. It returns ErrPageToken if the token is not from a list with the same filter and
	// order.
	List(ctx context.Context, l *List) (*Page, error)

	// WriteRecords writes and deletes records in one commit. [WriteRecords] lists its checks and their order.
	WriteRecords(ctx context.Context, w *WriteRecords) (*WrittenRecords, error)
	// GetRecords returns the records of keys, all of one instant, in the order of the keys, without those
	// that do not exist. It returns at least one record if there is one, and the keys of those that would
	// exceed g.MaxBytes. It returns ErrNotFound if the conversation does not exist. The records may be in memory of
	// the store: the caller must not change them.
	GetRecords(ctx context.Context, g *GetRecords) (records RecordFrames, omitted []string, err error)
	// ListRecords returns a page of records, all of one instant. It returns at least one record if there is
	// one. more reports that records follow the last one. An empty page is not an error. It returns
	// ErrNotFound if the conversation does not exist.
	ListRecords(ctx context.Context, l *ListRecords) (records []*parleyv1.Record, more bool, err error)

	// ListTurns returns a page of the turns of a tenant or of a conversation; see law 20. It checks a limited number of
	// turns and returns a limited size of them, so a page may have fewer than l.Limit, or none, and not be the last. It
	// returns ErrNotFound if l.ConversationID is set and the conversation does not exist. It returns ErrPageToken if
	// l.ConversationID is empty and l.Before is not a UUID of version 7.
	ListTurns(ctx context.Context, l *ListTurns) (*TurnPage, error)

	// FindTurn returns a turn by its id. It returns ErrNotFound if f.ConversationID is set and the conversation does not
	// exist. It returns ErrTurnNotFound if no such turn is kept, or if the turn cannot be found without
	// f.ConversationID; see law 20.
	FindTurn(ctx context.Context, f *FindTurn) (*FoundTurn, error)

	// SaveProgress stores the part of a running turn's answer that has arrived so far, so that
	// Abandoned finds it after a crash. It changes neither version nor times. The end of the turn
	// removes it. It returns ErrTurnEnded if the turn is not the running one or the conversation
	// does not exist.
	SaveProgress(ctx context.Context, p *Progress) error
	// Abandoned returns running turns that no live server answers, with the saved part of their
	// answers. In a store of one process these are the turns that were running when it was opened.
	// The caller must end them with Append. One call returns a limited number of bytes, but at
	// least one turn if there is one. It continues after the position after, which is empty at
	// first and otherwise the next of the previous call. next is empty when there are no more
	// turns. A turn that ends in the meantime does not move other turns. If after is not a valid
	// position, the call returns ErrPageToken or any of the turns.
	Abandoned(ctx context.Context, after string) (turns []Progress, next string, err error)

	// Sweep removes at most limit conversations that have expired or exceed the capacity, and records of tenants
	// that have expired. It reports whether there may be more of them.
	Sweep(ctx context.Context, limit int) (more bool, err error)
	// Tenants returns the names of tenants that have conversations or records, at most limit of them, which is at
	// least 1. It reads no conversations. The order of the names is the store's own. after is the
	// position at which the call continues: empty in the first call, then the next of the previous call.
	// next is empty when there are no more tenants. A tenant that has some all the time is
	// neither skipped nor returned twice. Expired conversations and records count until they are swept. If after is
	// not a valid position, the call returns ErrPageToken or any of the tenants.
	Tenants(ctx context.Context, after string, limit int) (tenants []string, next string, err error)
	// Stats returns counts over all tenants, in constant time.
	Stats(ctx context.Context) (Stats, error)
	// TenantStats returns the counts of one tenant, in constant time: the numbers of its conversations,
	// messages and records, and their sizes. The other fields describe the store and are 0. A tenant without
	// conversations is not an error.
	TenantStats(ctx context.Context, tenant string) (Stats, error)
	// Close closes the store.
	Close() error
}

const (
	// MaxMessageBytes is the maximum encoded size of one message, and of the messages in one reply or in one request to
	// an agent. A reply has at most 4 MiB and has space for them and for a header.
	MaxMessageBytes = 3 << 20
	// MaxConversationBytes is the largest value of [Options.MaxConversationBytes]. An export has all messages of a
	// conversation in memory, a write that removes most of them about twice their size, a fork and an import about four
	// times.
	MaxConversationBytes = 1 << 30
	// MaxMessages is the largest value of [Options.MaxMessages] and of Retention.max_messages.
	MaxMessages = 1_000_000
)

// Options are common to all stores. The zero value is valid.
type Options struct {
	// Now is the clock. If nil, time.Now. Each write reads it once.
	Now func() time.Time
	// Observe receives committed changes; see law 7. It must return quickly, must not call the
	// store and must not modify the changes. If nil, changes are not reported.
	Observe func(changes []Change)
	// MaxMessages is the number of messages that a conversation keeps if its retention does not say
	// otherwise, at most the constant [MaxMessages]. 0 means 20.
	MaxMessages int
	// TTL is the time from the last append to the expiry of a conversation if its retention does
	// not say otherwise. 0 means 1 hour.
	TTL time.Duration
	// MaxConversations is the capacity of each tenant; 0 means no limit.
	MaxConversations int
	// Limits returns the limits of a tenant. The store calls it at each write that the limits apply
	// to, so its results may change at any time. It must return quickly and must not call the
	// store. If nil, each tenant has MaxConversations and no limits of bytes.
	Limits func(tenant string) Limits
	// MaxConversationBytes is the maximum encoded size of the messages of a conversation. The
	// oldest messages are dropped first; the newest is kept even if it is larger. For conversations
	// with keep_all see law 16. At most the constant [MaxConversationBytes]; 0 means [MaxMessageBytes].
	MaxConversationBytes int
	// MaxRecordBytes is the maximum size of the records of a conversation; see [RecordBytes]. 0 means the
	// constant [MaxRecordBytes].
	MaxRecordBytes int64
}

// Limits are limits of one tenant.
type Limits struct {
	// MaxConversations is the capacity in conversations; 0 means no limit.
	MaxConversations int
	// MaxBytes is the maximum size of all conversations and records; 0 means no limit.
	MaxBytes int64
	// MaxRecordBytes is the maximum size of the tenant's own records and of the requests that the store remembers of
	// their writes; see [RecordBytes]. 0 means no limit.
	MaxRecordBytes int64
}

// CheckBytes returns a TenantBytesError if a write would change the bytes of a tenant by delta and
// exceed the limit.
func (l Limits) CheckBytes(present, delta int64) error {
	if l.MaxBytes == 0 || delta <= 0 || present+delta <= l.MaxBytes {
		return nil
	}
	return &TenantBytesError{Bytes: present + delta, Limit: l.MaxBytes}
}

// WithDefaults returns the options with every zero value replaced by its default.
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
	if o.MaxRecordBytes == 0 {
		o.MaxRecordBytes = MaxRecordBytes
	}
	if o.TTL == 0 {
		o.TTL = time.Hour
	}
	if o.MaxConversationBytes == 0 {
		o.MaxConversationBytes = MaxMessageBytes
	}
	if o.Limits == nil {
		limits := Limits{MaxConversations: o.MaxConversations}
		o.Limits = func(string) Limits { return limits }
	}
	return o
}
