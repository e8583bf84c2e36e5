// Package record decides what a write does to one conversation, for the stores that keep
// a conversation as one value. It is pure: it reads no clock, touches no disk, and knows
// nothing of other conversations; capacity, indexes and durability are the store's.
//
// A store loads a [Record] with [Unmarshal] (nil when there is none or it has expired),
// asks [Create], [Append], [Update] or [Delete] what is to become of it, writes the
// [Outcome] with [Record.Marshal], and hands on its changes.
package record

import (
	"time"
	"unicode/utf8"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// previewRunes is the length of ConversationEntry.preview in characters.
const previewRunes = 120

// Record is a conversation with all that is kept of it.
type Record struct {
	Header *storev1.Header
	// Requests and Turns are storev1.Requests and storev1.Turns in wire form: an append
	// hands them on without decoding them.
	Requests, Turns []byte
	// Prompt is the system prompt.
	Prompt []byte
	// Data is the index of the structured data of the messages, see type Data.
	Data []byte
	// Messages are those kept, but for what was appended since the record was decoded:
	// that is in appended, so that all are copied once, by Marshal. Data works the same way.
	Messages    store.Frames
	newMessages store.Frames
	newData     []byte
}

// Outcome is what a write is to do. A nil Record means that there is nothing to write.
type Outcome struct {
	Record  *Record
	Result  *store.Result
	Changes []store.Change
}

// Conversation is the header that clients see.
func (r *Record) Conversation() *parleyv1.Conversation { return r.Header.GetConversation() }

// Running reports whether a turn runs.
func (r *Record) Running() bool { return r.Conversation().GetActiveTurnId() != "" }

// ExpireTime is when the conversation ends, running turns and session memory aside.
func (r *Record) ExpireTime() time.Time { return r.Conversation().GetExpireTime().AsTime() }

// Expired reports whether the conversation is no more at this instant; s is what its id is
// as session memory.
func (r *Record) Expired(now time.Time, s Session) bool {
	return s.Expired(now, r.ExpireTime(), r.Running())
}

// Matches reports whether a list with this filter has the conversation.
func (r *Record) Matches(l *store.List) bool {
	for key, value := range l.Labels {
		if v, ok := r.Conversation().GetLabels()[key]; !ok || v != value {
			return false
		}
	}
	return l.StructuredDataType == "" || hasType(r.Data, l.StructuredDataType)
}

// Entry is the conversation's row in a list.
func (r *Record) Entry() *parleyv1.ConversationEntry {
	return &parleyv1.ConversationEntry{Conversation: r.Conversation(), Preview: r.Header.GetPreview()}
}

// Gone is the change that tells of the conversation's end.
func (r *Record) Gone(tenant string, kind parleyv1.ChangeKind, now time.Time) store.Change {
	c := r.change(tenant, kind, now)
	c.Conversation = nil
	return c
}

// endLapsedLease takes a routing lease away that has run out. That is no change: the lease
// has been no more since its lease_expire_time.
func (r *Record) removeExpiredLease(now time.Time) {
	lease := r.Conversation().GetActiveAgent()
	if end := lease.GetLeaseExpireTime(); end != nil && !now.Before(end.AsTime()) {
		r.Conversation().ActiveAgent = nil
	}
}

// clamp is the time of a write: the clock's, but never before the write ahead of it, so
// that a clock that is set back lets nothing expire early.
func (r *Record) writeTime(now time.Time) time.Time {
	if last := r.Conversation().GetUpdateTime().AsTime(); now.Before(last) {
		return last
	}
	return now
}

// begin makes the record of a new conversation.
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

// withPrompt is the header with the system prompt, for whoever asked for the conversation.
func (r *Record) withPrompt() *parleyv1.Conversation {
	c := r.Conversation()
	c.SystemPrompt = string(r.Prompt)
	return c
}

// withDefaults fills what is unset.
func withDefaults(in *parleyv1.Retention, o *store.Options) *parleyv1.Retention {
	out := &parleyv1.Retention{MaxMessages: in.GetMaxMessages(), Ttl: in.GetTtl()}
	if out.MaxMessages == 0 {
		out.MaxMessages = int32(o.MaxMessages)
	}
	if out.Ttl == nil {
		out.Ttl = durationpb.New(o.TTL)
	}
	return out
}

// touch notes a change of the header.
func (r *Record) bumpVersion(now time.Time) {
	c := r.Conversation()
	c.Version++
	c.UpdateTime = timestamppb.New(now)
}

// renew lets the ttl count from now on.
func (r *Record) renewExpiry(now time.Time) {
	r.Conversation().LastAppendTime = timestamppb.New(now)
	r.setExpireTime()
}

// setExpireTime derives expire_time.
func (r *Record) setExpireTime() {
	c := r.Conversation()
	c.ExpireTime = timestamppb.New(c.GetLastAppendTime().AsTime().Add(c.GetRetention().GetTtl().AsDuration()))
}

// trim drops the oldest messages until the limits are kept, and says how many.
func (r *Record) dropOldest(o *store.Options) int {
	limit, count := int(r.Conversation().GetRetention().GetMaxMessages()), int(r.Conversation().GetMessageCount())
	dropped := 0
	for _, frames := range []*store.Frames{&r.Messages, &r.newMessages} {
		for frame := range frames.All() {
			left := count - dropped
			if left <= limit && (len(r.Messages)+len(r.newMessages) <= o.MaxConversationBytes || left == 1) {
				break
			}
			*frames = (*frames)[len(frame):]
			r.Header.DroppedBytes += int64(len(frame.Body()))
			dropped++
		}
	}
	if dropped > 0 {
		r.setMessageCount(count - dropped)
		r.dropData()
	}
	return dropped
}

// recount notes how many messages are kept, of those that were.
func (r *Record) setMessageCount(count int) {
	c := r.Conversation()
	c.MessageCount, c.SizeBytes = int32(count), int32(len(r.Messages)+len(r.newMessages))
}

// change describes the record as it is now.
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

// preview is the first characters of a text.
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
