package store

import (
	"time"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Request identifies a call, so that a retry can be distinguished from a new call. A conversation
// stores it under ID and Method.
type Request struct {
	// ID is the client's request_id; it must not be empty.
	ID string
	// Method is the name of the RPC: "AppendMessages".
	Method string
	// Digest is a hash of the content that a retry must share with the first call. If a call has
	// the same ID and Method but another Digest, it fails with ErrRequestReused.
	Digest [32]byte
}

// Create describes a conversation to create.
type Create struct {
	// Tenant that the conversation belongs to.
	Tenant string
	// Conversation contains the id, which must not be empty, and the fields that the client may
	// choose: title, labels, agent, system_prompt, retention, forked_from. All other fields are
	// ignored.
	Conversation *parleyv1.Conversation
	// Messages are the first messages of a fork, in wire form, with their sequences and times.
	Messages Frames
	// RecordsOf is the id of a conversation of the tenant whose records are copied, in the same commit, as they are then.
	// The copies get version 1 as their revision. If it does not exist, there is nothing to copy. If they are more than
	// MaxCopiedRecords, or larger than MaxCopiedRecordBytes, the error is CopyTooLargeError; if they are larger than
	// Options.MaxRecordBytes, it is RecordsFullError. Empty copies none.
	RecordsOf string
	// RecordsOfUID is the uid that the conversation RecordsOf must have, otherwise ErrNotFound. Empty skips the check. The
	// check follows that of the id of the new conversation.
	RecordsOfUID string
	// Request is optional.
	Request *Request
	// OrGet returns an existing conversation instead of ErrConversationExists.
	OrGet bool
}

// Import describes a conversation to import.
type Import struct {
	// Tenant that the conversation will belong to.
	Tenant string
	// Conversation is the header, with all fields that clients see. The store sets uid,
	// message_count, size_bytes, expire_time and, if unset, retention; it ignores active_turn_id.
	// Its times must be set and valid, its version at least 1, and its last_sequence at least that
	// of the newest message. The numbers of later exchanges follow that of the newest message.
	// Without messages they start at 1, because the header does not contain the number.
	Conversation *parleyv1.Conversation
	// Messages in wire form, with rising sequences. Limits apply as in any write.
	Messages Frames
	// Records of the conversation. They get its version as their revision and the time of the import.
	Records []*parleyv1.Record
	// Overwrite deletes a conversation that has the same id and imports this one in its place.
	Overwrite bool
}

// MaxHolds is the maximum number of ids of a tenant that are ephemeral at the same time. Ids whose
// delete time has passed do not count, even before they are swept.
const MaxHolds = 100_000

// Hold names ids of ephemeral conversations.
type Hold struct {
	// Tenant that the ids belong to.
	Tenant string
	// ConversationIDs lists each id once. The conversations need not exist.
	ConversationIDs []string
	// DeleteAfter is the time from the last Release to the deletion of the conversations that have
	// these ids then. In a call of Hold it applies if the process ends without a Release.
	DeleteAfter time.Duration
}

// Append appends messages to a conversation. The store makes its checks in this order; the first
// that applies decides:
//
//  1. The request was already used: return the first result, or ErrRequestReused if its digest
//     differs.
//  2. The conversation does not exist and MustExist, UID or End is set, or UID is set and differs:
//     ErrNotFound.
//  3. A turn is running and Begin or ReplaceAfter is set: BusyError.
//  4. IfVersion differs: VersionError.
//  5. End is not the running turn: ErrTurnEnded.
//  6. The conversation is new and its header is too large: HeaderTooLargeError.
//  7. ReplaceAfter would separate a tool call from its result: SeparatedError.
//  8. The conversation keeps all messages and is full: ConversationFullError; see law 16.
//  9. The conversation is new and the tenant is at its capacity: ErrFull.
type Append struct {
	// Tenant that the conversation belongs to.
	Tenant string
	// ConversationID of the conversation. If it does not exist it is created, unless MustExist is
	// set.
	ConversationID string
	// Messages in order, with their ids. The store sets sequence, exchange and create_time; an
	// unspecified status means COMPLETE. A retry should use the same message ids as the first call,
	// because Result.Appended returns the ids of the retry: for a Request, the store keeps the
	// sequences of the messages but not their ids.
	Messages []*parleyv1.Message
	// Request is optional.
	Request *Request
	// IfVersion is the version that the conversation must have; 0 means that it must not exist. Nil
	// skips the check.
	IfVersion *int32
	// MustExist fails with ErrNotFound instead of creating the conversation.
	MustExist bool
	// CreateWith contains the fields that the client may choose, as in Create, of a conversation that
	// the append creates. Its id is ignored. If the conversation exists, CreateWith has no effect. It
	// may be nil.
	CreateWith *parleyv1.Conversation
	// ReplaceAfter is the sequence of the newest message to keep: all messages after it are removed before
	// Messages are appended, see law 18. 0 removes all messages. A call that is kept must keep its result, or
	// Messages must contain a result for it. Messages may be empty. Such an append without Request, Begin
	// and End writes nothing if it removes nothing. Nil removes no message.
	ReplaceAfter *int32
	// UID that the conversation must have, otherwise ErrNotFound. Empty skips the check.
	UID string
	// Begin starts this turn. The caller sets id, request_id, agent, optionally create_time and, if
	// there are no Messages, input_sequence. The store sets the other fields.
	Begin *parleyv1.Turn
	// End ends this turn; Messages are its answer. The caller sets id, state and error.
	End *parleyv1.Turn
	// Events are stored with the turn that Begin starts or End ends. Nil keeps the events that are
	// already stored. The store sets turn_id and conversation_version in its copy and does not
	// interpret the other fields.
	Events *storev1.TurnEvents
	// Records are written or deleted in the same commit, see [WriteRecords]. Records of the conversation get its
	// version after the append as their revision. An append that only deletes records which do not exist, without
	// Messages, Request, Begin and End, writes nothing.
	Records []*parleyv1.RecordWrite
	// Queued, if not nil, is called once, when the place of the append among those to the conversation is
	// fixed, at the latest before a successful Append returns. An append that starts after that is
	// applied later; see law 17. If Append fails, Queued may not have been called. Queued must return
	// quickly and must not call the store.
	Queued func()
}

// OnlyRemoves reports whether the append adds neither messages nor records and removes some, if the conversation
// exists. Then it succeeds above the limits of space, also if its Request takes more bytes than it removes; see law 16.
func (a *Append) OnlyRemoves() bool {
	return (a.ReplaceAfter != nil || len(a.Records) > 0) && len(a.Messages) == 0 && a.Begin == nil && a.End == nil &&
		onlyDeletes(a.Records)
}

// MayExceed reports whether the append succeeds above the limit of bytes of its tenant, see law 16: it only removes, or
// ends a turn and writes no records.
func (a *Append) MayExceed() bool { return a.OnlyRemoves() || a.End != nil && onlyDeletes(a.Records) }

// Update changes a conversation. Parts that are nil or empty stay as they are.
type Update struct {
	// Tenant that the conversation belongs to.
	Tenant string
	// ConversationID of the conversation.
	ConversationID string
	// IfVersion is the version that the conversation must have, otherwise VersionError. Nil skips
	// the check.
	IfVersion *int32
	// Values contains the new values of Fields.
	Values *parleyv1.Conversation
	// Fields to copy from Values: any of title, labels, agent, system_prompt,
	// retention.max_messages, retention.ttl, retention.keep_all, retention.no_expiry,
	// retention.no_eviction. An unset retention value means the store's default.
	Fields []string
	// Lease sets the routing lease. If its agent is empty, it ends the lease.
	Lease *Lease
	// KeepThrough removes all messages after this sequence. It fails with BusyError while a turn is
	// running. It is ignored if Sequences is not empty.
	KeepThrough *int32
	// Sequences are those of messages to remove, in any order. Sequences of messages that are not kept are
	// ignored. It fails with BusyError while a turn is running, and with SeparatedError if a tool call would be
	// removed without its result, or a result without its call.
	Sequences []int32
	// Request is optional. It is checked before everything else. An update with a Request that is not a retry
	// is always a change, because the conversation stores the request.
	Request *Request
}

// OnlyRemoves reports whether the update removes messages and changes nothing else. Then it succeeds above the limits
// of space, also if its Request takes more bytes than it removes; see law 16.
func (u *Update) OnlyRemoves() bool {
	return (u.KeepThrough != nil || len(u.Sequences) > 0) && len(u.Fields) == 0 && u.Lease == nil
}

// Lease is a routing lease to set.
type Lease struct {
	// Agent that should answer the next message. Empty ends the current lease.
	Agent string
	// Reason is free text.
	Reason string
	// Duration of the lease; 0 means as long as the conversation lives.
	Duration time.Duration
}

// Delete names a conversation to delete.
type Delete struct {
	// Tenant that the conversation belongs to.
	Tenant string
	// ConversationID of the conversation.
	ConversationID string
	// IfVersion is the version that the conversation must have, otherwise VersionError. Nil skips
	// the check.
	IfVersion *int32
}

// Purge says which conversations to delete.
type Purge struct {
	// Tenant that the conversations belong to.
	Tenant string
	// InactiveFor is the minimum time since last_append_time.
	InactiveFor time.Duration
	// DryRun counts the conversations but does not delete them.
	DryRun bool
}

// Read says which parts of a conversation to read.
type Read struct {
	// Tenant that the conversation belongs to.
	Tenant string
	// ConversationID of the conversation.
	ConversationID string
	// After and Before restrict the messages to those with a higher sequence than After and a lower one than Before. 0
	// does not restrict them.
	After, Before int32
	// Newest is the number of newest messages to return; a negative number returns all, 0 none.
	Newest int
	// MaxBytes is the maximum size of the messages as frames, in bytes: the newest that fit are returned, but at least
	// one. 0 means no limit.
	MaxBytes int
	// Oldest returns the oldest messages instead of the newest: Newest and MaxBytes then count from the oldest on.
	Oldest bool
	// WithOldestSequence also returns Snapshot.OldestSequence.
	WithOldestSequence bool
	// Shared says that the caller does not change the messages of the snapshot. They may then be in
	// memory that the store shares with other readers, and the store may keep them in its cache. It is
	// for callers that read often.
	Shared bool
	// Turns also returns the newest turns and their events.
	Turns bool
	// RecordPrefixes also returns the records of the conversation whose keys begin with one of these texts; "" means
	// all. At most MaxReadRecordBytes of them, encoded, but at least one.
	RecordPrefixes []string
	// Request checks whether the conversation has stored this request. If it has stored the same id
	// and method with another digest, Read fails with ErrRequestReused.
	Request *Request
	// Known is a state that the caller has already read. If the conversation is still in that
	// state, the store reads nothing else and the snapshot is Unchanged. The zero value means that
	// the caller knows no state.
	Known Known
}

// Known is a state of a conversation that a caller has read.
type Known struct {
	// Version of the conversation; 0 means no conversation.
	Version int32
	// UID of the conversation. If empty, another conversation with the same id and version counts
	// as the same.
	UID string
}

// Is reports whether a conversation that is now in state now is still in state k.
func (k Known) Is(now Known) bool {
	return k.Version != 0 && k.Version == now.Version && (k.UID == "" || k.UID == now.UID)
}

// List says which conversations to list.
type List struct {
	// Tenant that the conversations belong to.
	Tenant string
	// Labels that a conversation must have, all of them.
	Labels map[string]string
	// Text that the id or the title of a conversation must contain, whatever the case of its letters. Empty skips the
	// filter.
	Text string
	// StructuredDataType that the kept messages must include. Empty skips the filter.
	StructuredDataType string
	// Order of the list. The unspecified order is by create time, newest first.
	Order parleyv1.ListOrder
	// OldestFirst reverses the order by create time; the order by update time ignores it. A page
	// token is valid for one direction only.
	OldestFirst bool
	// PageSize is the maximum number of entries to return, at least 1.
	PageSize int
	// PageToken is Page.NextPageToken of the previous page.
	PageToken string
}

// Limits of one List call. When a limit is reached, the page ends early. It may be short or even
// empty, and still have a token.
const (
	// MaxListHeaders is the maximum number of headers that a filtered or sorted call reads.
	MaxListHeaders = 10_000
	// MaxListHeaderBytes is the maximum size of what one call reads: the encoded headers and, in a
	// list by type of structured data, the indexes of types.
	MaxListHeaderBytes = 32 << 20
	// MaxListBytes is the maximum encoded size of the entries that one call returns. A reply must
	// be able to contain them.
	MaxListBytes = MaxMessageBytes
)

// MaxReadRecordBytes is the maximum encoded size of the records that one Read returns.
const MaxReadRecordBytes = 512 << 10

// RequestTTL is how long a store remembers a request of a write of the tenant's records.
const RequestTTL = time.Hour

// MaxHeaderBytes is the maximum size of a conversation's header in encoded form, its system prompt
// included. A header that follows the rules of the API has at most 135 KiB.
const MaxHeaderBytes = 256 << 10

// MaxSampleIDs is the maximum number of ids that Purge returns.
const MaxSampleIDs = 100

// DefaultMaxTurns is the number of turns that a conversation keeps if max_turns of its retention is 0.
const DefaultMaxTurns = 32

// ListTurns describes a page of a list of turns.
type ListTurns struct {
	Tenant string
	// ConversationID selects the turns of one conversation. If empty, the list is that of the tenant.
	ConversationID string
	// States selects turns in one of these states. If empty, turns in any state.
	States []parleyv1.TurnState
	// Before is the id of a turn, usually TurnPage.Next of the previous page. The page begins after this turn, in the
	// order of the list. If empty, the page begins with the newest turn. A list of the tenant accepts any UUID of version
	// 7 in its canonical form. A list of a conversation that does not keep the turn is empty: it has dropped all older
	// turns.
	Before string
	// Limit is the maximum number of turns to return, at least 1.
	Limit int
}

// FindTurn names a turn.
type FindTurn struct {
	Tenant string
	// ConversationID limits the search to one conversation. If empty, the turn may belong to any conversation of the
	// tenant.
	ConversationID string
	TurnID         string
}
