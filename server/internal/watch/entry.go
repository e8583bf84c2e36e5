package watch

import (
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// The fields of parleyv1.WatchConversationsResponse and ConversationChange that are written
// by hand.
const (
	changeField  protowire.Number = 1
	cursorField  protowire.Number = 1
	messageField protowire.Number = 7
)

// entryBytes is about what an entry takes beside what it tells of.
const entryBytes = 512

// entry is something that has happened. It is encoded once, by whoever sends it first, and
// then shared by all.
type entry struct {
	of       conversation
	position uint64 // in its feed
	size     int    // about what it takes in memory

	event bool   // of a turn, else a committed change
	after uint64 // position of the newest change when the event came

	once    sync.Once
	change  *parleyv1.ConversationChange // but its cursor and message; nil once encoded
	message store.Frame                  // likewise
	encoded []byte                       // of an event
	whole   *parleyv1.WatchConversationsResponse
	err     error
}

// changeEntry makes an entry of a committed change, whose memory it shares.
func changeEntry(c *store.Change) *entry {
	e := &entry{
		of: conversation{c.Tenant, c.ConversationID}, message: c.Message,
		size: entryBytes + len(c.Message) + proto.Size(c.Conversation),
		change: &parleyv1.ConversationChange{
			Kind: c.Kind, ConversationId: c.ConversationID, Version: c.Version, Time: timestamppb.New(c.Time),
		},
	}
	if c.Conversation != nil {
		e.change.Payload = &parleyv1.ConversationChange_Conversation{Conversation: c.Conversation}
	}
	return e
}

// eventEntry makes an entry of a turn's event, which came after the change at that position.
func eventEntry(tenant, conversationID string, event *parleyv1.TurnEvent, after uint64, now time.Time) *entry {
	return &entry{
		after: after,
		of:    conversation{tenant, conversationID}, event: true, size: entryBytes + proto.Size(event),
		change: &parleyv1.ConversationChange{
			Kind: parleyv1.ChangeKind_CHANGE_KIND_TURN, ConversationId: conversationID, Time: timestamppb.New(now),
			Payload: &parleyv1.ConversationChange_TurnEvent{TurnEvent: event},
		},
	}
}

// response is the entry as it is sent. A change has the cursor of its own place, and all
// send the same response; an event has that of the change before it, and so of each reader.
func (e *entry) response(h *Hub, at uint64) (*parleyv1.WatchConversationsResponse, error) {
	e.once.Do(func() {
		if e.encoded, e.err = proto.Marshal(e.change); e.err != nil {
			e.err = fmt.Errorf("conversation %q: encode a change: %w", e.of.id, e.err)
		}
		if len(e.message) > 0 { // A frame is a tag of one byte, the length, the message.
			e.encoded = append(protowire.AppendTag(e.encoded, messageField, protowire.BytesType), e.message[1:]...)
		}
		if !e.event {
			e.whole, e.encoded = respond(h.cursor(e.position), e.encoded), nil
		}
		e.change, e.message = nil, nil
	})
	if e.event && e.err == nil {
		return respond(h.cursor(at), e.encoded), nil
	}
	return e.whole, e.err
}

// respond makes a response of an encoded change, to which it adds the cursor.
func respond(cursor string, change []byte) *parleyv1.WatchConversationsResponse {
	b := make([]byte, 0, len(change)+len(cursor)+16)
	b = protowire.AppendTag(b, changeField, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(protowire.SizeTag(cursorField)+protowire.SizeBytes(len(cursor))+len(change)))
	b = protowire.AppendTag(b, cursorField, protowire.BytesType)
	b = append(protowire.AppendString(b, cursor), change...)
	r := new(parleyv1.WatchConversationsResponse)
	r.ProtoReflect().SetUnknown(protoreflect.RawFields(b))
	return r
}
