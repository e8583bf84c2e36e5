package store

import (
	"time"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

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

// Import describes a conversation to take over.
type Import struct {
	// Tenant that it is to belong to.
	Tenant string
	// Conversation is its header with all fields that clients see. The store sets uid,
	// message_count, size_bytes, expire_time and an unset retention; active_turn_id is
	// ignored. Its times must be set and valid, its version at least 1, and its
	// last_sequence not below that of the newest message. Exchanges go on from that of the
	// newest message, and from the start where there is none: the header does not say.
	Conversation *parleyv1.Conversation
	// Messages in wire form, sequences rising. Limits are kept as by any write.
	Messages Frames
	// Overwrite replaces a conversation that has the id: that one is deleted.
	Overwrite bool
}

// MaxHolds is how many ids of a tenant may be session memory at once. Those whose time is
// over do not count, swept or not.
const MaxHolds = 100_000

// Hold names session memory.
type Hold struct {
	// Tenant that the ids belong to.
	Tenant string
	// ConversationIDs, each once. There may be no such conversations, yet or any more.
	ConversationIDs []string
	// DeleteAfter is how long after the last Release the conversations that they have then
	// are deleted. In a Hold it is for when the process ends without a Release.
	DeleteAfter time.Duration
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

// Read says what to read of a conversation.
type Read struct {
	// Tenant that the conversation belongs to.
	Tenant string
	// ConversationID names it.
	ConversationID string
	// Newest is how many messages to return; negative is all, 0 none.
	Newest int
	// Buffer is memory for the messages, for callers that read again and again: those of the
	// snapshot are in it, if they fit. Nil is new memory.
	Buffer []byte
	// Turns asks for the turns and their events too.
	Turns bool
	// Request asks whether the conversation has seen it; ErrRequestReused when it has seen
	// the same id with other content.
	Request *Request
	// Known is what the caller knows already: if the conversation is still so, nothing else
	// is looked at, and the snapshot is Unchanged. The zero value knows nothing.
	Known Known
}

// Known is a state of a conversation that a caller has seen.
type Known struct {
	// Version that it had; 0 is that of no conversation.
	Version int32
	// UID that it had; empty: whichever, so that another one of the same id and version counts
	// as the same.
	UID string
}

// Is reports whether a conversation in state now is in the known one.
func (k Known) Is(now Known) bool {
	return k.Version != 0 && k.Version == now.Version && (k.UID == "" || k.UID == now.UID)
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
	// OldestFirst turns the order of create time around; the other order ignores it. A token
	// of one direction is none of the other.
	OldestFirst bool
	// PageSize is the most rows to return; at least 1.
	PageSize int
	// PageToken is Page.NextPageToken of the page before.
	PageToken string
}

// The bounds of one List call. A page may be short, even empty, and have a token.
const (
	// MaxListHeaders is how many headers a filtered or sorted call looks at.
	MaxListHeaders = 10_000
	// MaxListHeaderBytes is another limit that ends a page before it is full: the encoded bytes of
	// the headers that were read and, for a list by type of structured data, of the indexes of
	// types.
	MaxListHeaderBytes = 32 << 20
	// MaxListBytes is how many encoded bytes of rows it returns: a reply must hold them.
	MaxListBytes = 3 << 20
)

// MaxHeaderBytes is the maximum size of a conversation's header in encoded form, its system prompt
// included. A header that follows the rules of the API has at most 135 KiB.
const MaxHeaderBytes = 256 << 10

// MaxSampleIDs is how many ids a Purge returns.
const MaxSampleIDs = 100
