package store

import (
	"time"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Result describes what a write did.
type Result struct {
	// Conversation is the header after the write. Only Create returns it with the system prompt.
	Conversation *parleyv1.Conversation
	// Appended has one entry for each appended message.
	Appended []*parleyv1.AppendedMessage
	// Turn that the write started or ended, in its present state. If Replayed, the turn that the
	// first call started; nil if it is not among the newest turns, which Read returns.
	Turn *parleyv1.Turn
	// TenantRevision is the revision of the tenant's records that an append wrote or deleted; 0 if there were none.
	TenantRevision int64
	// Created reports whether the write created the conversation.
	Created bool
	// Replayed reports that the request was already used and that nothing was written. All fields
	// are then those of the first result, except Conversation, which is the present header.
	Replayed bool
}

// Purged reports what a purge deleted. After a dry run it reports what a purge would delete.
type Purged struct {
	// Count is the number of conversations.
	Count int64
	// SampleIDs contains up to MaxSampleIDs of their ids.
	SampleIDs []string
}

// Snapshot is a conversation at one version.
type Snapshot struct {
	// Unchanged reports that the conversation is in the state of Read.Known. All other fields are
	// then empty.
	Unchanged bool
	// Conversation is the header.
	Conversation *parleyv1.Conversation
	// Messages that were requested, oldest first.
	Messages Frames
	// MoreMessages reports that Read.Newest or Read.MaxBytes left out messages.
	MoreMessages bool
	// OldestSequence is the sequence of the oldest kept message, also if it was not requested; 0 if there is none.
	// Only of a read with WithOldestSequence that asks for messages.
	OldestSequence int32
	// DroppedBytes is the encoded size of the messages that were dropped to stay within limits, or removed
	// one by one, while they were the oldest. A fork or an import starts at 0. Of a read with MaxBytes
	// and without Before and Oldest, it includes the kept messages before the first of Messages.
	DroppedBytes int64
	// Turns are the newest turns of the conversation, oldest first. If the conversation keeps more than DefaultMaxTurns,
	// there are at least DefaultMaxTurns and at most 63 more. Store.ListTurns returns all.
	Turns []*parleyv1.Turn
	// Events of these turns, oldest first. A turn may have no entry.
	Events []*storev1.TurnEvents
	// Records that Read.RecordPrefixes selects, in the order of their keys. MoreRecords reports that there are more.
	Records     []*parleyv1.Record
	MoreRecords bool
	// Seen describes what the first call with Read.Request did; nil if there was none.
	Seen *Seen
}

// Offsets returns the offset of each message: the encoded bytes of all messages before it, dropped
// ones included. The last element is the number of bytes of all messages. The snapshot must be that of
// a read of all messages, or of the newest with MaxBytes. The offset of a retained message changes only
// if a message before it is removed while an older one is retained.
func (s *Snapshot) Offsets() []int64 {
	offset := s.DroppedBytes
	offsets := []int64{offset}
	for frame := range s.Messages.All() {
		offset += int64(len(frame.Body()))
		offsets = append(offsets, offset)
	}
	return offsets
}

// Seen describes what the first call with a request did.
type Seen struct {
	// Created reports whether it created the conversation.
	Created bool
	// TurnID of the turn that it started; empty if none.
	TurnID string
}

// Page is a page of a list of conversations.
type Page struct {
	// Entries do not contain system prompts.
	Entries []*parleyv1.ConversationEntry
	// NextPageToken is empty on the last page.
	NextPageToken string
	// Total is the number of conversations of the tenant, regardless of the filter. Expired
	// conversations count until they are swept.
	Total int64
	// Damaged is the number of conversations that the call left out because their records are
	// damaged. Whether they belong on the page is unknown.
	Damaged int
}

// Progress is the part of a running turn's answer that has arrived so far.
type Progress struct {
	// Tenant that the conversation belongs to.
	Tenant string
	// ConversationID of the conversation.
	ConversationID string
	// TurnID of the running turn.
	TurnID string
	// Messages of the answer. The last one may be incomplete.
	Messages []*parleyv1.Message
	// Events of the turn that match Messages, stored without changes. Abandoned returns the events
	// with which the turn started if no others were saved.
	Events *storev1.TurnEvents
}

// Stats contains counts of a store.
type Stats struct {
	// Conversations is the number of stored conversations. Expired conversations count until they
	// are swept.
	Conversations int64
	// Messages is the number of messages in these conversations.
	Messages int64
	// Bytes is the encoded size of conversations, messages and records.
	Bytes int64
	// Records is the number of records of conversations and of tenants, and RecordBytes their size; see [RecordBytes].
	// Expired records count until they are swept.
	Records, RecordBytes int64
	// FileBytes is the size of the store's file, without a journal, and FileBytesInUse the part that is in use.
	// Both are 0 if the store has no file.
	FileBytes, FileBytesInUse int64
	// Expired and Evicted are the numbers of conversations that expired or were evicted since the
	// store was opened.
	Expired, Evicted int64
	// Corrupt is the number of calls that failed with ErrCorrupt since the store was opened.
	Corrupt int64
}

// Change is one committed change of a conversation. Observers must not modify it.
type Change struct {
	// Tenant that the conversation belongs to.
	Tenant string
	// Kind is one of CREATED, UPDATED, MESSAGE_APPENDED, CLEARED, DELETED, EXPIRED, EVICTED, RECORD. A change of kind GAP
	// says that the store may have missed changes of other processes, of any tenant. It has no other field.
	Kind parleyv1.ChangeKind
	// Elsewhere reports that another process made the change.
	Elsewhere bool
	// Place is the place of the change in the order of all changes of its tenant. The zero value means that the store has
	// no order that other processes know, or does not know the place of the change at present.
	Place Place
	// ConversationID and UID identify the conversation.
	ConversationID, UID string
	// Version after the change. If the change deletes the conversation, its last version.
	Version int32
	// Time of the commit.
	Time time.Time
	// Conversation is the header after the write, without its system prompt. Set for CREATED,
	// UPDATED and CLEARED.
	Conversation *parleyv1.Conversation
	// Message that was appended. Set for MESSAGE_APPENDED.
	Message Frame
	// Count is the number of kept messages after the change. For CLEARED and for changes that
	// delete the conversation, it is the number of messages that were removed.
	Count int
	// Record is the record that was written or deleted. Set for RECORD. The store reports such a change for each record
	// of a conversation, after the other changes of its version, of which there is at least one. It reports none for
	// records of the tenant, and none for those that are created or removed together with their conversation.
	Record *parleyv1.RecordChange
	// Removal says which messages were removed. Set for CLEARED.
	Removal *Removal
	// Trimmed is the number of old messages that the write dropped to stay within limits. It is set only
	// in the last change of a write, apart from those of records.
	Trimmed int
	// ExpireTime is set for EXPIRED. It is the expire_time of the conversation, from which on the conversation was not
	// found. Time is the time of the sweep, which may be later.
	ExpireTime time.Time
	// EphemeralEnded is set for DELETED if the conversation was ephemeral and its delete time has
	// passed.
	EphemeralEnded bool
}

// Removal says which messages a CLEARED change removed.
type Removal struct {
	// After is the sequence after which all kept messages were removed; 0 if all were. It has no meaning if
	// Sequences is not empty.
	After int32
	// Sequences of messages that were removed one by one, rising. Empty if all after After were removed.
	Sequences []int32
}

// TurnPage is a page of a list of turns.
type TurnPage struct {
	// Turns, newest first.
	Turns []*parleyv1.Turn
	// Next is ListTurns.Before of the next page; empty on the last page.
	Next string
}

// FoundTurn is the result of Store.FindTurn: a turn and its events.
type FoundTurn struct {
	Turn *parleyv1.Turn
	// Events of the turn; nil if it has none.
	Events *storev1.TurnEvents
}
