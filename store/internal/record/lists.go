package record

import (
	"bytes"
	"fmt"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	"github.com/parleyhq/parley/store"
)

// maxRemembered is the maximum number of requests of each kind that a conversation stores; see isRecordsOnly.
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
	indexedField  = store.FieldNumber(new(storev1.Header), "turns_indexed")
)

type storedRequest = storev1.Request

// findRequest returns the stored request with the id and method of q, or nil. It returns
// store.ErrRequestReused if the content differs.
func (r *Record) findRequest(q *store.Request) (*storedRequest, error) {
	if q == nil {
		return nil, nil //nolint:nilnil // No request is a valid argument.
	}
	for item := range itemsOf(r.Requests, requestsField) {
		if string(itemID(item)) != q.ID {
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
func itemID(item []byte) []byte {
	number, _, n := protowire.ConsumeField(item)
	if n < 0 || number != idField {
		return nil
	}
	return itemOf(item[:n])
}

// findItem returns the item with that id, or nil.
func findItem(list []byte, field protowire.Number, id string) []byte {
	for item := range itemsOf(list, field) {
		if id != "" && string(itemID(item)) == id {
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

// countItems returns the number of items of a list.
func countItems(list []byte, field protowire.Number) (n int) {
	for range itemsOf(list, field) {
		n++
	}
	return n
}

// sizeOfFirst returns the size in bytes of the first n turns of storev1.Turns in wire form, with the fields up to the
// next turn.
func sizeOfFirst(turns []byte, n int) (size int) {
	for number, whole := range fields(turns) {
		if number == turnsField {
			n--
		}
		if n < 0 {
			break
		}
		size += len(whole)
	}
	return size
}

// removeItem returns a copy of the list without the fields that have that id.
func removeItem(list []byte, id string) []byte {
	out := make([]byte, 0, len(list))
	for _, whole := range fields(list) {
		if string(itemID(itemOf(whole))) != id {
			out = append(out, whole...)
		}
	}
	return out
}
