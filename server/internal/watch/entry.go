package watch

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// These are the fields of a response and of a change that this file encodes.
var (
	changeField       = store.FieldNumber(new(parleyv1.WatchConversationsResponse), "change")
	cursorField       = store.FieldNumber(new(parleyv1.ConversationChange), "cursor")
	conversationField = store.FieldNumber(new(parleyv1.ConversationChange), "conversation")
	messageField      = store.FieldNumber(new(parleyv1.ConversationChange), "message")
	turnEventField    = store.FieldNumber(new(parleyv1.ConversationChange), "turn_event")
	recordField       = store.FieldNumber(new(parleyv1.ConversationChange), "record")
	removedField      = store.FieldNumber(new(parleyv1.ConversationChange), "removed")
)

// entryOverheadBytes is the approximate memory of an entry without its payload, as measured.
const entryOverheadBytes = 336

// entry is a change or an event. Its payload is retained in encoded form, so that its counted size
// is its real size; a decoded header or value needs up to twenty times as much memory. The first
// watcher that sends the entry encodes the rest, and all watchers share the result.
type entry struct {
	conversationID string
	position       uint64 // in its feed, from 1
	size           int    // approximate memory in bytes
	// shared is the place of a change in the store; zero if the store has none, and for events.
	shared store.Place

	event bool // an event of a turn; otherwise a committed change
	gap   bool // a GAP, for all readers
	// elsewhere is set for an event of a turn of another server, and for a GAP of such events.
	elsewhere bool
	// afterChange is the position of the newest change before an event or a record, and afterRecord that of the newest
	// record before a change.
	afterChange, afterRecord uint64

	kind    parleyv1.ChangeKind
	version int32
	time    time.Time

	once     sync.Once
	payload  []byte      // the encoded payload field, removed and record; nil after encodeOnce
	message  store.Frame // the message of a change; nil after encodeOnce
	encoded  []byte      // the encoded change without its cursor; of an event only
	response *parleyv1.WatchConversationsResponse
	err      error
}

// changeEntry returns the entry of a committed change. It shares the message of the change. after is the position of
// the newest entry before it: for the change of a record in the feed of changes, otherwise in the feed of records.
func changeEntry(c *store.Change, after uint64) *entry {
	e := &entry{
		conversationID: c.ConversationID, message: c.Message, kind: c.Kind, version: c.Version, time: c.Time, shared: c.Place,
	}
	if isRecord(c) {
		e.afterChange = after
		e.addPayload(recordField, c.Record)
	} else {
		e.afterRecord = after
	}
	if c.Conversation != nil {
		e.addPayload(conversationField, c.Conversation)
	}
	if c.Removal != nil {
		e.addPayload(removedField, &parleyv1.RemovedMessages{
			Count: int32(c.Count), AfterSequence: c.Removal.After, Sequences: c.Removal.Sequences,
		})
	}
	e.size = entryOverheadBytes + len(c.Message) + len(e.payload)
	return e
}

// gapEntry returns an entry for a GAP: changes up to a place of the store were missed. after is the position of the
// newest record.
func gapEntry(after uint64, through store.Place, now time.Time) *entry {
	return &entry{
		gap: true, kind: parleyv1.ChangeKind_CHANGE_KIND_GAP, time: now, afterRecord: after, shared: through,
		size: entryOverheadBytes,
	}
}

// eventEntry returns the entry of a turn's event that came after the change at this position.
func eventEntry(conversationID string, event *parleyv1.TurnEvent, after uint64, now time.Time) *entry {
	e := &entry{
		conversationID: conversationID, event: true, afterChange: after,
		kind: parleyv1.ChangeKind_CHANGE_KIND_TURN, time: now,
	}
	e.addPayload(turnEventField, event)
	e.size = entryOverheadBytes + len(e.payload)
	return e
}

// addPayload encodes a field of a change and appends it to the payload.
func (e *entry) addPayload(field protowire.Number, payload proto.Message) {
	size := proto.Size(payload)
	e.payload = slices.Grow(e.payload, size+2*binary.MaxVarintLen32)
	e.payload = protowire.AppendTag(e.payload, field, protowire.BytesType)
	e.payload = protowire.AppendVarint(e.payload, uint64(size))
	var err error
	if e.payload, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(e.payload, payload); err != nil {
		e.err = fmt.Errorf("encode a change of conversation %q: %w", e.conversationID, err)
	}
}

// place returns the place directly after a change.
func (e *entry) place() place {
	if e.kind == parleyv1.ChangeKind_CHANGE_KIND_RECORD {
		return place{e.afterChange, e.position, e.shared}
	}
	return place{e.position, e.afterRecord, e.shared}
}

// encodeOnce returns the response for a watcher. A change has the cursor of its own place, so
// all watchers of its tenant t share one response. An event has the cursor of the last change that the watcher
// received, whose place is at.
func (e *entry) encodeOnce(t *tenant, at place) (*parleyv1.WatchConversationsResponse, error) {
	e.once.Do(func() {
		if e.err != nil {
			return
		}
		e.encoded, e.err = proto.Marshal(&parleyv1.ConversationChange{
			Kind: e.kind, ConversationId: e.conversationID, Version: e.version, Time: timestamppb.New(e.time),
		})
		if e.err != nil {
			e.err = fmt.Errorf("conversation %q: encode a change: %w", e.conversationID, e.err)
			return
		}
		e.encoded = append(e.encoded, e.payload...)
		if len(e.message) > 0 { // A frame consists of a tag of one byte, the length and the message.
			e.encoded = append(protowire.AppendTag(e.encoded, messageField, protowire.BytesType), e.message[1:]...)
		}
		if !e.event {
			e.response, e.encoded = respond(t.cursor(e.place()), e.encoded), nil
		}
		e.payload, e.message = nil, nil
	})
	if e.event && e.err == nil {
		return respond(t.cursor(at), e.encoded), nil
	}
	return e.response, e.err
}

// respond returns a response with an encoded change and this cursor.
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
