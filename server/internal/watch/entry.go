package watch

import (
	"encoding/binary"
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
	changeField       protowire.Number = 1
	cursorField       protowire.Number = 1
	conversationField protowire.Number = 6
	messageField      protowire.Number = 7
	turnEventField    protowire.Number = 8
)

// entryBytes is about the memory of an entry besides its payload, as measured.
const entryOverheadBytes = 320

// entry is a change or an event. Its payload is retained in encoded form, and its counted size is
// the size that it takes. A decoded header or value takes up to twenty times as much. The watcher
// that first sends the entry encodes the rest, and all watchers share it.
type entry struct {
	conversation conversation
	position     uint64 // in its feed
	size         int    // about what it takes in memory

	event       bool   // of a turn, else a committed change
	afterChange uint64 // position of the newest change when the event came

	kind    parleyv1.ChangeKind
	version int32
	time    time.Time

	once     sync.Once
	payload  []byte      // the encoded payload field of the change; nil after encoding
	message  store.Frame // the message of the change; nil after encoding
	encoded  []byte      // the change without its cursor; for an event, from the start
	response *parleyv1.WatchConversationsResponse
	err      error
}

// changeEntry makes an entry of a committed change and shares its message.
func changeEntry(c *store.Change) *entry {
	e := &entry{
		conversation: conversation{c.Tenant, c.ConversationID}, message: c.Message,
		kind: c.Kind, version: c.Version, time: c.Time,
	}
	if c.Conversation != nil {
		e.setPayload(conversationField, c.Conversation)
	}
	e.size = entryOverheadBytes + len(c.Message) + len(e.payload)
	return e
}

// eventEntry makes an entry of a turn's event, which came after the change at that position.
func eventEntry(tenant, conversationID string, event *parleyv1.TurnEvent, after uint64, now time.Time) *entry {
	e := &entry{
		conversation: conversation{tenant, conversationID}, event: true, afterChange: after,
		kind: parleyv1.ChangeKind_CHANGE_KIND_TURN, time: now,
	}
	e.setPayload(turnEventField, event)
	e.size = entryOverheadBytes + len(e.payload)
	return e
}

// carry encodes the payload of a change.
func (e *entry) setPayload(field protowire.Number, payload proto.Message) {
	size := proto.Size(payload)
	e.payload = protowire.AppendTag(make([]byte, 0, size+2*binary.MaxVarintLen32), field, protowire.BytesType)
	e.payload = protowire.AppendVarint(e.payload, uint64(size))
	if e.payload, e.err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(e.payload, payload); e.err != nil {
		e.err = fmt.Errorf("encode a change of conversation %q: %w", e.conversation.id, e.err)
	}
}

// response is the entry as it is sent. A change has the cursor of its own place, and all
// send the same response; an event has that of the change before it, and so of each reader.
func (e *entry) encodeOnce(h *Hub, at uint64) (*parleyv1.WatchConversationsResponse, error) {
	e.once.Do(func() {
		if e.err != nil {
			return
		}
		e.encoded, e.err = proto.Marshal(&parleyv1.ConversationChange{
			Kind: e.kind, ConversationId: e.conversation.id, Version: e.version, Time: timestamppb.New(e.time),
		})
		if e.err != nil {
			e.err = fmt.Errorf("conversation %q: encode a change: %w", e.conversation.id, e.err)
			return
		}
		e.encoded = append(e.encoded, e.payload...)
		if len(e.message) > 0 { // A frame is a tag of one byte, the length, the message.
			e.encoded = append(protowire.AppendTag(e.encoded, messageField, protowire.BytesType), e.message[1:]...)
		}
		if !e.event {
			e.response, e.encoded = respond(h.cursor(e.position), e.encoded), nil
		}
		e.payload, e.message = nil, nil
	})
	if e.event && e.err == nil {
		return respond(h.cursor(at), e.encoded), nil
	}
	return e.response, e.err
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
