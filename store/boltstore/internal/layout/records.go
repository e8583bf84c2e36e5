package layout

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// The first byte of the scope of a tenant's records, and of a conversation's.
const (
	tenantScope       = 0
	conversationScope = 1
)

// TenantScope returns the prefix of the keys of a tenant's own records in records.
func TenantScope(tenant string) []byte { return append(TenantKey(tenant), tenantScope) }

// ConversationScope returns the prefix of the keys of a conversation's records in records.
func ConversationScope(tenant string, key InnerKey) []byte {
	return append(append(TenantKey(tenant), conversationScope), key[:]...)
}

// RecordKey is a key in records.
type RecordKey struct {
	Tenant string
	// Conversation is the inner key of the conversation. It is the zero value for a record of the tenant.
	Conversation InnerKey
	// OfTenant is true for a record of the tenant.
	OfTenant bool
	// Key of the record in its scope.
	Key []byte
}

// Scope returns the prefix of the keys of the record's scope.
func (k RecordKey) Scope() []byte {
	if k.OfTenant {
		return TenantScope(k.Tenant)
	}
	return ConversationScope(k.Tenant, k.Conversation)
}

// DecodeRecordKey decodes a key in records, or the scope with which it begins, whose Key is empty. The bool is false
// if the key is damaged.
func DecodeRecordKey(key []byte) (k RecordKey, ok bool) {
	tenant, rest, ok := CutTenant(key)
	switch {
	case !ok || len(rest) == 0:
		return RecordKey{}, false
	case rest[0] == tenantScope:
		return RecordKey{Tenant: tenant, OfTenant: true, Key: rest[1:]}, true
	case rest[0] == conversationScope && len(rest) > record.KeySize:
		return RecordKey{
			Tenant: tenant, Conversation: InnerKey(rest[1 : 1+record.KeySize]), Key: rest[1+record.KeySize:],
		}, true
	}
	return RecordKey{}, false
}

// TenantRecords is the value of an entry in scopes: the state of a tenant's own records. The zero value is that of a
// tenant that never had any.
type TenantRecords struct {
	// Revision is that of the newest write, also if its records were deleted since.
	Revision int64
	// Counts of the records.
	Counts records.Counts
	// Applied is the index of the newest operation of the journal that the records contain; 0 if there is none.
	Applied uint64
}

// tenantRecordsSize is the size of an encoded TenantRecords without its checksum.
const tenantRecordsSize = 5 * 8

// Encode returns the value of the entry with that key.
func (r TenantRecords) Encode(key []byte) []byte {
	b := make([]byte, 0, tenantRecordsSize+4)
	for _, n := range []int64{r.Revision, r.Counts.Records, r.Counts.RecordBytes, r.Counts.Bytes} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return seal(key, binary.BigEndian.AppendUint64(b, r.Applied))
}

// DecodeTenantRecords decodes the value of an entry in scopes, which may be nil. If it is damaged, the error is
// store.ErrCorrupt.
func DecodeTenantRecords(key, value []byte) (r TenantRecords, err error) {
	if value == nil {
		return r, nil
	}
	b, ok := unseal(key, value, tenantRecordsSize)
	if !ok {
		return r, fmt.Errorf("%w: state of the records of a tenant", store.ErrCorrupt)
	}
	number := func(at int) int64 { return int64(binary.BigEndian.Uint64(b[at:])) }
	return TenantRecords{
		Revision: number(0), Counts: records.Counts{Records: number(8), RecordBytes: number(16), Bytes: number(24)},
		Applied: uint64(number(32)),
	}, nil
}

// RecordEndKey returns the key of the entry in recordends of a tenant's record that expires at a nanosecond.
func RecordEndKey(nanosecond int64, tenant, key string) []byte {
	return DueKey(SecondOf(nanosecond), tenant, key)
}

// Orphan is an entry of orphans: chunks and records of a conversation that are still to be removed.
type Orphan struct {
	Tenant       string
	Conversation InnerKey
	// Before is 0 if the conversation was removed, with all its chunks and records. Otherwise only its chunks that end
	// before this sequence are to be removed, since their messages were dropped.
	Before int32
	// TurnsBefore is set if only the chunks of turns with lower ordinals are to be removed, since they were dropped.
	// Otherwise it is 0.
	TurnsBefore int64
}

// turnsMark is the last byte of the key of an orphan with TurnsBefore.
const turnsMark = 't'

// Key returns the key of the entry.
func (o Orphan) Key() []byte {
	key := ConversationScope(o.Tenant, o.Conversation)
	switch {
	case o.Before != 0:
		key = binary.BigEndian.AppendUint64(key, uint64(o.Before))
	case o.TurnsBefore != 0:
		key = append(binary.BigEndian.AppendUint64(key, uint64(o.TurnsBefore)), turnsMark)
	}
	return key
}

// EncodeOrphan returns the value of the entry with that key in orphans.
func EncodeOrphan(key []byte) []byte { return seal(key, nil) }

// DecodeOrphan decodes an entry of orphans. The bool is false if it is damaged.
func DecodeOrphan(key, value []byte) (o Orphan, ok bool) {
	if _, sound := unseal(key, value, 0); !sound {
		return Orphan{}, false
	}
	k, ok := DecodeRecordKey(key)
	o = Orphan{Tenant: k.Tenant, Conversation: k.Conversation}
	switch {
	case !ok || k.OfTenant:
		return Orphan{}, false
	case len(k.Key) == 0:
		return o, true
	case len(k.Key) == SequenceSize+1 && k.Key[SequenceSize] == turnsMark:
		o.TurnsBefore = int64(binary.BigEndian.Uint64(k.Key))
		return o, o.TurnsBefore > 0
	case len(k.Key) != SequenceSize:
		return Orphan{}, false
	}
	before := binary.BigEndian.Uint64(k.Key)
	o.Before = int32(before)
	return o, 0 < before && before <= math.MaxInt32
}
