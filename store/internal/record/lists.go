package record

import (
	"bytes"
	"fmt"
	"iter"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// maxRemembered is the maximum number of turns that a conversation stores, and of requests of each kind; see
// isRecordsOnly.
const maxRemembered = 32

// recordsMethod is the method of the requests that write only records.
const recordsMethod = "WriteRecords"

// These are the fields of the items in storev1.Requests and storev1.Turns, and of the id in every item,
// which is its first field and has the same number in all of them. The events follow their turn.
var (
	requestsField = store.FieldNumber(new(storev1.Requests), "requests")
	turnsField    = store.FieldNumber(new(storev1.Turns), "turns")
	eventsField   = store.FieldNumber(new(storev1.Turns), "events")
	idField       = store.FieldNumber(new(storev1.Request), "id")
	methodField   = store.FieldNumber(new(storev1.Request), "method")
)

type storedRequest = storev1.Request

// findRequest returns the stored request with the id and method of q, or nil. It returns
// store.ErrRequestReused if the content differs.
func (r *Record) findRequest(q *store.Request) (*storedRequest, error) {
	if q == nil {
		return nil, nil //nolint:nilnil // No request is a valid argument.
	}
	for item := range itemsOf(r.Requests, requestsField) {
		if itemID(item) != q.ID {
			continue
		}
		first := new(storedRequest)
		if err := proto.Unmarshal(item, first); err != nil {
			return nil, store.ErrCorrupt
		}
		if first.GetMethod() != q.Method {
			continue
		}
		if !bytes.Equal(first.GetDigest(), q.Digest[:]) {
			return nil, store.ErrRequestReused
		}
		return first, nil
	}
	return nil, nil //nolint:nilnil // A new request is a valid result.
}

// Seen returns the value of store.Snapshot.Seen for a request.
func (r *Record) Seen(q *store.Request) (*store.Seen, error) {
	first, err := r.findRequest(q)
	if first == nil {
		return nil, err
	}
	return &store.Seen{Created: first.GetCreated(), TurnID: first.GetTurnId()}, nil
}

// rememberRequest stores a request, if there is one. Requests that write only records do not push out others: an agent
// may write a record for each of its steps, and a retry of a message must still be found.
func (r *Record) rememberRequest(q *store.Request, effect requestEffect) (err error) {
	if q != nil {
		revision, tenantRevision := effect.records.Revisions()
		recordsOnly := q.Method == recordsMethod
		r.Requests, err = appendBounded(r.Requests, requestsField, &storedRequest{
			Id: q.ID, Method: q.Method, Digest: q.Digest[:], FirstSequence: effect.firstSequence,
			Exchange: effect.exchange, Time: timestamppb.New(effect.time), Created: effect.created, TurnId: effect.turnID,
			Revision: revision, TenantRevision: tenantRevision,
		}, func(other []byte) bool { return isRecordsOnly(other) == recordsOnly })
	}
	return err
}

// isRecordsOnly reports whether an encoded request writes only records.
func isRecordsOnly(request []byte) bool {
	for number, whole := range fields(request) {
		if number == methodField {
			return string(itemOf(whole)) == recordsMethod
		}
	}
	return false
}

// applyTurn begins or ends a turn as the append requires, and returns the turn after that.
func (r *Record) applyTurn(a *store.Append, appended []*parleyv1.AppendedMessage,
	now time.Time,
) (*parleyv1.Turn, error) {
	c := r.Conversation()
	var t *parleyv1.Turn
	switch {
	case a.Begin != nil:
		t = &parleyv1.Turn{
			Id: a.Begin.GetId(), ConversationId: c.GetId(), RequestId: a.Begin.GetRequestId(), Agent: a.Begin.GetAgent(),
			State: parleyv1.TurnState_TURN_STATE_RUNNING, InputSequence: a.Begin.GetInputSequence(),
			CreateTime: proto.CloneOf(a.Begin.GetCreateTime()),
		}
		if t.CreateTime == nil {
			t.CreateTime = timestamppb.New(now)
		}
		if len(appended) > 0 {
			t.InputSequence = appended[len(appended)-1].GetSequence()
		}
		c.ActiveTurnId = t.GetId()
	case a.End != nil:
		t = r.findTurn(a.End.GetId())
		if t == nil {
			t = &parleyv1.Turn{Id: a.End.GetId(), ConversationId: c.GetId()}
		}
		t.State, t.Error, t.FinishTime = a.End.GetState(), proto.CloneOf(a.End.GetError()), timestamppb.New(now)
		if len(appended) > 0 {
			t.FirstAnswerSequence, t.LastAnswerSequence = appended[0].GetSequence(), appended[len(appended)-1].GetSequence()
		}
		c.ActiveTurnId = ""
	default:
		return nil, nil //nolint:nilnil // The append neither begins nor ends a turn.
	}
	return t, r.putTurn(t, a.Events)
}

// putTurn stores a turn as the newest one in place of its earlier form. Its events follow it, so
// that they are dropped together with it. If events is nil, the earlier events stay.
func (r *Record) putTurn(t *parleyv1.Turn, events *storev1.TurnEvents) error {
	encoded := findItem(r.Turns, eventsField, t.GetId())
	if events != nil {
		own := proto.CloneOf(events)
		own.TurnId, own.ConversationVersion = t.GetId(), r.Conversation().GetVersion()
		var err error
		if encoded, err = proto.Marshal(own); err != nil {
			return fmt.Errorf("encode events: %w", err)
		}
	}
	all := func([]byte) bool { return true }
	turns, err := appendBounded(removeItem(r.Turns, t.GetId()), turnsField, t, all)
	if err != nil {
		return err
	}
	if encoded != nil {
		turns = appendItem(turns, eventsField, encoded)
	}
	r.Turns = turns
	return nil
}

// findTurn returns the stored turn with that id, or nil.
func (r *Record) findTurn(id string) *parleyv1.Turn {
	item, t := findItem(r.Turns, turnsField, id), new(parleyv1.Turn)
	if item == nil || proto.Unmarshal(item, t) != nil {
		return nil
	}
	return t
}

// Events returns the stored events of a turn, or nil.
func (r *Record) Events(turnID string) *storev1.TurnEvents {
	item, events := findItem(r.Turns, eventsField, turnID), new(storev1.TurnEvents)
	if item == nil || proto.Unmarshal(item, events) != nil {
		return nil
	}
	return events
}

// AllTurns decodes the stored turns and their events, oldest first.
func (r *Record) AllTurns() (*storev1.Turns, error) {
	turns := new(storev1.Turns)
	if err := proto.Unmarshal(r.Turns, turns); err != nil {
		return nil, store.ErrCorrupt
	}
	return turns, nil
}

// fields yields the fields of a message in wire form, each with its tag.
func fields(message []byte) iter.Seq2[protowire.Number, []byte] {
	return func(yield func(protowire.Number, []byte) bool) {
		for len(message) > 0 {
			number, _, n := protowire.ConsumeField(message)
			if n < 0 || !yield(number, message[:n]) {
				return
			}
			message = message[n:]
		}
	}
}

// itemsOf yields the items of a list without their tags. field is the field number of the items.
func itemsOf(list []byte, field protowire.Number) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for number, whole := range fields(list) {
			if number == field && !yield(itemOf(whole)) {
				return
			}
		}
	}
}

// itemOf returns the bytes in a field, or nil if the field is not a message.
func itemOf(field []byte) []byte {
	_, kind, n := protowire.ConsumeTag(field)
	if n < 0 || kind != protowire.BytesType {
		return nil
	}
	item, _ := protowire.ConsumeBytes(field[n:])
	return item
}

// itemID returns the id of an item, which is its first field.
func itemID(item []byte) string {
	number, _, n := protowire.ConsumeField(item)
	if n < 0 || number != idField {
		return ""
	}
	return string(itemOf(item[:n]))
}

// findItem returns the item with that id, or nil.
func findItem(list []byte, field protowire.Number, id string) []byte {
	for item := range itemsOf(list, field) {
		if id != "" && itemID(item) == id {
			return item
		}
	}
	return nil
}

// appendBounded returns a copy of a list with another item. Above maxRemembered items of the same kind it drops the
// oldest of them, each with the fields up to the next item.
func appendBounded(
	list []byte, field protowire.Number, item proto.Message, sameKind func(item []byte) bool,
) ([]byte, error) {
	encoded, err := proto.Marshal(item)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", item.ProtoReflect().Descriptor().Name(), err)
	}
	excess := 1 - maxRemembered
	for other := range itemsOf(list, field) {
		if sameKind(other) {
			excess++
		}
	}
	out, drops := make([]byte, 0, len(list)+len(encoded)+4), false
	for number, whole := range fields(list) {
		if number == field {
			if drops = excess > 0 && sameKind(itemOf(whole)); drops {
				excess--
			}
		}
		if !drops {
			out = append(out, whole...)
		}
	}
	return appendItem(out, field, encoded), nil
}

// appendItem appends an encoded item to a list.
func appendItem(list []byte, field protowire.Number, item []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(list, field, protowire.BytesType), item)
}

// removeItem returns a copy of the list without the fields that have that id.
func removeItem(list []byte, id string) []byte {
	out := make([]byte, 0, len(list))
	for _, whole := range fields(list) {
		if itemID(itemOf(whole)) != id {
			out = append(out, whole...)
		}
	}
	return out
}
