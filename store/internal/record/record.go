// Package record decides what a write does to one conversation, for stores that keep a conversation
// as one value. It is pure: it reads no clock, does no I/O, and knows nothing of other
// conversations. Capacity, indexes and durability are tasks of the store.
//
// A store decodes a [Record] with [Unmarshal], and calls [Create], [Append], [Update] or [Delete]
// with it, or with nil if there is no conversation or it has expired. The result is an [Outcome]:
// the store writes its record with [Record.Marshal] and reports its changes. Start at [Append].
package record

import (
	"math"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/records"
)

// previewRunes is the maximum length of ConversationEntry.preview in characters.
const previewRunes = 120

// Record is a conversation with all its stored parts.
type Record struct {
	Header *storev1.Header
	// Requests and Turns are storev1.Requests and storev1.Turns in wire form, so that an append
	// need not decode all of them. Older turns may be in chunks, see DivideTurns.
	Requests, Turns []byte
	// Prompt is the system prompt.
	Prompt []byte
	// Data is the index of the structured data of the messages, see type Data.
	Data []byte
	// Messages are the retained messages, except those in chunks and those appended since the record was
	// decoded. These are in newMessages, so that Marshal copies all messages only once. Data and newData
	// work the same way.
	Messages store.Frames
	// Sizes describe the messages in place of Messages, which is nil then. With them, a store
	// need not read the messages for an append. Only Append without ReplaceAfter accepts a record with Sizes.
	Sizes *SizeList
	// Types are the types of structured data of the retained messages in chunks, at most maxTypes, in the form of Data:
	// each type once, in order, with the number of messages instead of a sequence.
	Types []byte
	// Chunks reads the chunks of the conversation. Writes of a record with chunks call it to drop or remove messages. It
	// may be nil for other records.
	Chunks ChunkReader
	// TurnChunks reads the chunks of turns of the conversation. Writes and reads of a record with such chunks call it. It
	// may be nil for other records.
	TurnChunks  TurnChunkReader
	newMessages store.Frames
	newData     []byte
	joined      []joinedChunk // see join
	joinedFrom  int32         // see joinAfter: the least sequence that the end of a joined chunk may have
}

// Outcome is the result of a decision. If Record is nil, there is nothing to write.
type Outcome struct {
	Record  *Record
	Result  *store.Result
	Changes []store.Change
	// Appended are the messages that an append added, also those that it dropped at once.
	Appended store.Frames
	// Records are the edits of records that the store makes in the same commit. Those of an append, an import or a
	// WriteRecords are complete. A replayed request has only revisions, those of the first call. The copies of a
	// store.Create with RecordsOf are made by the store.
	Records *records.Edits

	countBefore int32 // number of messages before the append
}

// Conversation returns the header that clients see, without its system prompt.
func (r *Record) Conversation() *parleyv1.Conversation { return r.Header.GetConversation() }

// Running reports whether a turn runs.
func (r *Record) Running() bool { return r.Conversation().GetActiveTurnId() != "" }

// ExpireTime returns the expire_time, which does not consider running turns and ephemeral
// conversations. If the conversation does not expire, it is the greatest time with a value in
// nanoseconds since 1970, in the year 2262.
func (r *Record) ExpireTime() time.Time {
	if r.Conversation().GetRetention().GetNoExpiry() {
		return time.Unix(0, math.MaxInt64)
	}
	return r.Conversation().GetExpireTime().AsTime()
}

// Evictable reports whether the retention allows to evict the conversation. It does not consider running
// turns and ephemeral conversations.
func (r *Record) Evictable() bool { return !r.Conversation().GetRetention().GetNoEviction() }

// NeedsSchemaOfRecords reports whether versions without records and chunks misread the retention: they ignore keep_all
// and no_eviction, and a conversation without expire_time has expired for them. A store must make them refuse its data.
func (r *Record) NeedsSchemaOfRecords() bool {
	retention := r.Conversation().GetRetention()
	return retention.GetKeepAll() || retention.GetNoExpiry() || retention.GetNoEviction()
}

// Expired reports whether the conversation has expired or ended at this time. s is the state of its
// id.
func (r *Record) Expired(now time.Time, s Ephemeral) bool {
	return s.Expired(now, r.ExpireTime(), r.Running())
}

// Entry returns the conversation's row in a list.
func (r *Record) Entry() *parleyv1.ConversationEntry {
	return &parleyv1.ConversationEntry{Conversation: r.Conversation(), Preview: r.Header.GetPreview()}
}

// RemovalChange returns the change that reports the removal of the conversation, of that kind.
func (r *Record) RemovalChange(tenant string, kind parleyv1.ChangeKind, now time.Time) store.Change {
	c := r.change(tenant, kind, now)
	c.Conversation = nil
	if kind == parleyv1.ChangeKind_CHANGE_KIND_EXPIRED {
		c.ExpireTime = r.ExpireTime()
	}
	return c
}

// removeExpiredLease removes a routing lease that has expired. That is not a change of the
// conversation, because the lease ended at its lease_expire_time.
func (r *Record) removeExpiredLease(now time.Time) {
	lease := r.Conversation().GetActiveAgent()
	if end := lease.GetLeaseExpireTime(); end != nil && !now.Before(end.AsTime()) {
		r.Conversation().ActiveAgent = nil
	}
}

// writeTime returns the time of a write: now, or the time of the last write if that is later. So a
// clock that is set back makes nothing expire early.
func (r *Record) writeTime(now time.Time) time.Time {
	if last := r.Conversation().GetUpdateTime().AsTime(); now.Before(last) {
		return last
	}
	return now
}

// newRecord makes the record of a new conversation.
func newRecord(tenant string, in *parleyv1.Conversation, uid string, now time.Time, o *store.Options) *Record {
	c := &parleyv1.Conversation{
		Id: in.GetId(), Title: in.GetTitle(), Labels: in.GetLabels(), Agent: in.GetAgent(),
		Retention: withDefaults(in.GetRetention(), o), ForkedFrom: in.GetForkedFrom(),
		CreateTime: timestamppb.New(now), Uid: uid,
	}
	return &Record{
		Header: &storev1.Header{Conversation: proto.CloneOf(c), Tenant: tenant},
		Prompt: []byte(in.GetSystemPrompt()),
	}
}

// withPrompt returns the header with the system prompt.
func (r *Record) withPrompt() *parleyv1.Conversation {
	c := r.Conversation()
	c.SystemPrompt = string(r.Prompt)
	return c
}

// withDefaults returns the retention with defaults for unset fields.
func withDefaults(in *parleyv1.Retention, o *store.Options) *parleyv1.Retention {
	out := &parleyv1.Retention{
		MaxMessages: in.GetMaxMessages(), Ttl: in.GetTtl(),
		KeepAll: in.GetKeepAll(), NoExpiry: in.GetNoExpiry(), NoEviction: in.GetNoEviction(),
		MaxTurns: in.GetMaxTurns(),
	}
	if out.MaxMessages == 0 {
		out.MaxMessages = int32(o.MaxMessages)
	}
	if out.Ttl == nil {
		out.Ttl = durationpb.New(o.TTL)
	}
	return out
}

// bumpVersion increments the version and sets update_time.
func (r *Record) bumpVersion(now time.Time) {
	c := r.Conversation()
	c.Version++
	c.UpdateTime = timestamppb.New(now)
}

// renewExpiry restarts the ttl at this time.
func (r *Record) renewExpiry(now time.Time) {
	r.Conversation().LastAppendTime = timestamppb.New(now)
	r.setExpireTime()
}

// setExpireTime computes expire_time from last_append_time and ttl. A conversation that does not expire has none.
func (r *Record) setExpireTime() {
	c := r.Conversation()
	if c.GetRetention().GetNoExpiry() {
		c.ExpireTime = nil
		return
	}
	c.ExpireTime = timestamppb.New(c.GetLastAppendTime().AsTime().Add(c.GetRetention().GetTtl().AsDuration()))
}

// checkFull returns a store.ConversationFullError if the conversation keeps all messages, has more than one, and
// they are larger than limit bytes.
func (r *Record) checkFull(limit int) error {
	bytes := r.MessageBytes()
	if !r.Conversation().GetRetention().GetKeepAll() || r.Conversation().GetMessageCount() <= 1 || bytes <= limit {
		return nil
	}
	return &store.ConversationFullError{Bytes: bytes, Limit: limit}
}

// checkCopy is checkFull for the messages of a fork or an import. The end of a turn may have made the source larger
// than the limit, at most by one answer, which is no larger than the limit.
func (r *Record) checkCopy(o *store.Options) error {
	return r.checkFull(o.MaxConversationBytes + min(o.MaxConversationBytes, store.MaxMessageBytes))
}

// dropOldest drops the oldest messages until the limits are met, and returns how many. A conversation that keeps all
// messages drops none.
func (r *Record) dropOldest(o *store.Options) (int, error) {
	if r.Conversation().GetRetention().GetKeepAll() {
		return 0, nil
	}
	limit, count := int(r.Conversation().GetRetention().GetMaxMessages()), int(r.Conversation().GetMessageCount())
	bytes := r.MessageBytes()
	exceeds := func(dropped, droppedBytes int) bool {
		left := count - dropped
		return left > limit || bytes-droppedBytes > o.MaxConversationBytes && left > 1
	}
	dropped, droppedBytes, err := r.dropInChunks(exceeds)
	if err != nil {
		return 0, err
	}
	inChunks, chunkBytes := dropped, droppedBytes
	for size, body := range r.frameSizes() {
		if !exceeds(dropped, droppedBytes) {
			break
		}
		r.Header.DroppedBytes += int64(body)
		dropped, droppedBytes = dropped+1, droppedBytes+size
	}
	if dropped > inChunks {
		r.drop(dropped-inChunks, droppedBytes-chunkBytes)
		r.dropData()
	}
	if dropped > 0 {
		r.setMessageCount(count - dropped)
	}
	return dropped, nil
}

// setMessageCount sets the number of retained messages and their size.
func (r *Record) setMessageCount(count int) {
	c := r.Conversation()
	c.MessageCount, c.SizeBytes = int32(count), int32(r.MessageBytes())
}

// change returns a change that describes the record in its current state.
func (r *Record) change(tenant string, kind parleyv1.ChangeKind, now time.Time) store.Change {
	c := r.Conversation()
	change := store.Change{
		Tenant: tenant, Kind: kind, ConversationID: c.GetId(), UID: c.GetUid(),
		Version: c.GetVersion(), Time: now, Count: int(c.GetMessageCount()),
	}
	switch kind {
	case parleyv1.ChangeKind_CHANGE_KIND_CREATED, parleyv1.ChangeKind_CHANGE_KIND_UPDATED,
		parleyv1.ChangeKind_CHANGE_KIND_CLEARED:
		change.Conversation = proto.CloneOf(c)
	default:
	}
	return change
}

// preview returns the first previewRunes characters of a text.
func preview(text string) string {
	end := 0
	for range previewRunes {
		if end == len(text) {
			break
		}
		_, size := utf8.DecodeRuneInString(text[end:])
		end += size
	}
	return text[:end]
}
