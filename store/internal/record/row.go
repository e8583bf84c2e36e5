package record

import (
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// These are the fields that a row reads.
var (
	conversationField = store.FieldNumber(new(storev1.Header), "conversation")
	tenantField       = store.FieldNumber(new(storev1.Header), "tenant")
	numberField       = store.FieldNumber(new(storev1.Header), "number")

	conversationIDField = store.FieldNumber(new(parleyv1.Conversation), "id")
	titleField          = store.FieldNumber(new(parleyv1.Conversation), "title")
	labelsField         = store.FieldNumber(new(parleyv1.Conversation), "labels")
	retentionField      = store.FieldNumber(new(parleyv1.Conversation), "retention")
	activeTurnField     = store.FieldNumber(new(parleyv1.Conversation), "active_turn_id")
	createTimeField     = store.FieldNumber(new(parleyv1.Conversation), "create_time")
	updateTimeField     = store.FieldNumber(new(parleyv1.Conversation), "update_time")
	expireTimeField     = store.FieldNumber(new(parleyv1.Conversation), "expire_time")

	noExpiryField = store.FieldNumber(new(parleyv1.Retention), "no_expiry")
	secondsField  = store.FieldNumber(new(timestamppb.Timestamp), "seconds")
	nanosField    = store.FieldNumber(new(timestamppb.Timestamp), "nanos")
)

// The fields of an entry of a map.
const (
	mapKey   protowire.Number = 1
	mapValue protowire.Number = 2
)

// row is what a list must know of a conversation to filter and sort it. It is read without decoding the header: a call
// may read store.MaxListHeaders rows and return few of them, and decoding costs ten times as much. The bytes are those
// of the value.
type row struct {
	tenant, conversation, id, title []byte
	data                            []byte // as in Record; read only on request
	number                          uint32
	created, updated, expires       time.Time
	running, noExpiry               bool
}

// readRow reads and checks the parts of a value that a list needs, and its data only if they are asked for. It also
// returns the number of bytes that it read.
func readRow(b []byte, data bool) (r row, size int, err error) {
	v, header, err := split(b)
	if err != nil {
		return row{}, 0, err
	}
	size = v.headSize
	if data {
		if err := v.checkData(); err != nil {
			return row{}, 0, err
		}
		r.data, size = v.Data, size+len(v.Data)
	}
	epoch := timeOf(nil) // of a time that is not set
	r.created, r.updated, r.expires = epoch, epoch, epoch
	for field, whole := range fields(header) {
		switch field {
		case conversationField:
			r.readConversation(itemOf(whole))
		case tenantField:
			r.tenant = itemOf(whole)
		case numberField:
			r.number = uint32(numberOf(whole))
		}
	}
	if r.conversation == nil {
		return row{}, 0, fmt.Errorf("%w: no header", store.ErrCorrupt)
	}
	return r, size, nil
}

func (r *row) readConversation(conversation []byte) {
	r.conversation = conversation
	for field, whole := range fields(conversation) {
		switch field {
		case conversationIDField:
			r.id = itemOf(whole)
		case titleField:
			r.title = itemOf(whole)
		case retentionField:
			for field, whole := range fields(itemOf(whole)) {
				r.noExpiry = r.noExpiry || field == noExpiryField && numberOf(whole) != 0
			}
		case activeTurnField:
			r.running = len(itemOf(whole)) > 0
		case createTimeField:
			r.created = timeOf(itemOf(whole))
		case updateTimeField:
			r.updated = timeOf(itemOf(whole))
		case expireTimeField:
			r.expires = timeOf(itemOf(whole))
		}
	}
}

// expired is Record.Expired.
func (r *row) expired(now time.Time, s Ephemeral) bool {
	expires := r.expires
	if r.noExpiry {
		expires = time.Unix(0, math.MaxInt64)
	}
	return s.Expired(now, expires, r.running)
}

// matches reports whether the filter of a list includes the conversation. text is List.Text in lower case.
func (r *row) matches(l *store.List, text string) bool {
	for key, value := range l.Labels {
		if !r.hasLabel(key, value) {
			return false
		}
	}
	if text != "" && !contains(r.id, text) && !contains(r.title, text) {
		return false
	}
	return l.StructuredDataType == "" || hasType(r.data, l.StructuredDataType)
}

func (r *row) hasLabel(key, value string) bool {
	for field, whole := range fields(r.conversation) {
		if field != labelsField {
			continue
		}
		var k, v []byte
		for field, whole := range fields(itemOf(whole)) {
			switch field {
			case mapKey:
				k = itemOf(whole)
			case mapValue:
				v = itemOf(whole)
			}
		}
		if string(k) == key {
			return string(v) == value
		}
	}
	return false
}

// contains reports whether a name contains a text in lower case, if its own letters are taken as lower case, too.
func contains(name []byte, text string) bool {
	return strings.Contains(strings.ToLower(string(name)), text)
}

// key is Record.Key.
func (r *row) key() []byte { return Key(r.created, r.number) }

// numberOf returns the number in a field, or 0 if the field has none.
func numberOf(field []byte) uint64 {
	_, kind, n := protowire.ConsumeTag(field)
	if n < 0 || kind != protowire.VarintType {
		return 0
	}
	v, _ := protowire.ConsumeVarint(field[n:])
	return v
}

// timeOf returns the time of an encoded timestamp.
func timeOf(timestamp []byte) time.Time {
	var seconds, nanos int64
	for field, whole := range fields(timestamp) {
		switch field {
		case secondsField:
			seconds = int64(numberOf(whole))
		case nanosField:
			nanos = int64(numberOf(whole))
		}
	}
	return time.Unix(seconds, nanos)
}
