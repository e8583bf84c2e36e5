package store

import (
	"time"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

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

// Purged is what a purge removed, or would have.
type Purged struct {
	// Count of conversations.
	Count int64
	// SampleIDs are up to MaxSampleIDs of them.
	SampleIDs []string
}

// Snapshot is a conversation as it was at one version.
type Snapshot struct {
	// Unchanged: it is as Read.Known says, and all else is left empty.
	Unchanged bool
	// Conversation is its header.
	Conversation *parleyv1.Conversation
	// Messages asked for, oldest first.
	Messages Frames
	// DroppedBytes is the size of all messages that were dropped, as the oldest, to stay
	// within limits; those not asked for do not count. A fork or an import begins at 0.
	DroppedBytes int64
	// Turns, oldest first, 32 at most.
	Turns []*parleyv1.Turn
	// Events of these turns, oldest first; a turn may have none.
	Events []*storev1.TurnEvents
	// Seen is set when Read.Request was seen: what the first call did.
	Seen *Seen
}

// Offsets returns for each message of a snapshot that has all of them how many encoded
// bytes of messages come before it, dropped ones too, and last how many there are in all. A
// message keeps its offset as long as it is kept.
func (s *Snapshot) Offsets() []int64 {
	offset := s.DroppedBytes
	offsets := []int64{offset}
	for frame := range s.Messages.All() {
		offset += int64(len(frame.Body()))
		offsets = append(offsets, offset)
	}
	return offsets
}

// Seen is what a request did when it came first.
type Seen struct {
	// Created: it made the conversation.
	Created bool
	// TurnID of the turn that it began.
	TurnID string
}

// Page is a page of conversations.
type Page struct {
	// Entries without system prompts.
	Entries []*parleyv1.ConversationEntry
	// NextPageToken is empty on the last page.
	NextPageToken string
	// Total is how many conversations the tenant has, whatever the filter; expired ones
	// count until they are swept.
	Total int64
	// Damaged is how many conversations were left out that the call met: their records are
	// damaged, so nobody can tell whether they belong on the page.
	Damaged int
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
	// Corrupt counts the calls that ErrCorrupt was the answer to, since the store was opened.
	Corrupt int64
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
	// SessionEnded: with DELETED, the conversation was session memory whose time was over.
	SessionEnded bool
}
