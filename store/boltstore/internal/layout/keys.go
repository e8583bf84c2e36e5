// Package layout encodes and decodes the keys and entries of a store's file. It does not read or write
// the file.
//
// # The file
//
// A conversation is one value, and a value for each chunk of its older messages. Its key begins with its
// create time, so the order of the keys is the order of lists and evictions. All other entries are small:
// they lead to that key or contain counts. Buckets and entries:
//
//	meta
//	├── "schema"                      → version of this layout, 4 bytes
//	├── "journal"                     → see Journal, CRC-32C
//	└── "closed"                      → number of the transaction that wrote this, 8 bytes
//	tenants
//	└── <tenant>                      → number of conversations, messages, bytes, and, unless both are 0, records and
//	                                    bytes of records, CRC-32C
//	conversations
//	└── <tenant><inner key>           → the conversation, see package record
//	chunks
//	└── <tenant><inner key><sequence> → a chunk of the conversation, see record.Chunk
//	ids
//	└── <tenant><conversation id>     → inner key, minute, CRC-32C
//	expiry
//	└── <minute><tenant><inner key>   → nanosecond, CRC-32C
//	turns
//	└── <tenant><conversation id>     → the answer so far and its events, see package record
//	sessions
//	└── <tenant><conversation id>     → DeleteAfter in ns, delete time in ns or holder, CRC-32C
//	ends
//	└── <second><tenant><conversation id> → nanosecond, CRC-32C
//	records
//	├── <tenant>0<record key>            → record of the tenant, see package records
//	└── <tenant>1<inner key><record key> → record of the conversation
//	scopes
//	└── <tenant>                      → revision and counts of the tenant's own records, see TenantRecords, CRC-32C
//	recordends
//	└── <second><tenant><record key>  → nanosecond, CRC-32C
//	orphans
//	├── <tenant>1<inner key>           → CRC-32C
//	├── <tenant>1<inner key><sequence> → CRC-32C
//	└── <tenant>1<inner key><ordinal>t → CRC-32C
//	turnids
//	└── <tenant><turn id>              → inner key, CRC-32C
//	turnchunks
//	└── <tenant><inner key><ordinal>   → a chunk of turns of the conversation, see record.TurnChunk, CRC-32C
//
//	<tenant>     length as a uvarint, name: no tenant's keys begin with those of another
//	<inner key>  create time in ns, 8 bytes; a number that separates equal times, 4 bytes
//	<sequence>   of the last message in the chunk, 8 bytes; in orphans see Orphan.Before
//	<ordinal>    of a chunk of turns, 8 bytes; in orphans see Orphan.TurnsBefore
//	<turn id>    a UUID of version 7 in binary form, 16 bytes
//	<minute>     since 1970, 4 bytes; <second> likewise
//	<nanosecond> since 1970, 8 bytes
//	0, 1, t      one byte; with what precedes it, and the inner key, it is the scope of a record
//
// Integers are big-endian. Checksums cover key and value. The bucket sessions contains the ids of
// ephemeral conversations, ends contains the times at which they are deleted. Files of the first
// versions have schema 1 and neither of these two buckets: the first write adds both and sets
// schema 2. While a journal may have operations that the file does not contain, the schema is 3. The
// first write of a record, of a chunk, or of a conversation with keep_all, no_expiry or no_eviction adds the buckets
// records, scopes, recordends, orphans and chunks. From then on the schema is 4, or 5 with such a journal. The first
// write to the file of a turn whose id is a UUID of version 7, or of a chunk of turns, adds these five buckets, turnids
// and turnchunks. From then on the schema is 6, or 7 with such a journal.
//
// # Invariants
//
// These rules hold for every committed state:
//
//   - A conversation has one entry in ids and one in expiry. The entry in ids names the minute of
//     the entry in expiry.
//   - The nanosecond in expiry falls into its minute and is not later than the conversation's
//     expire_time, unless a turn runs or the conversation is ephemeral. It may be earlier: an
//     append does not change the entry, and the sweeper moves it at that nanosecond. If the
//     conversation does not expire, the sweeper moves it to the greatest nanosecond.
//   - A conversation has an entry in turns exactly while a turn runs on it.
//   - The id of an ephemeral conversation has an entry in sessions until it is swept or used again.
//     While a process holds the id, the entry has in place of a delete time the negated number of
//     the transaction at which that process opened the file. After the release the id has a
//     conversation, and one entry in ends with the same nanosecond.
//   - A chunk has a conversation, and retains at least one message of it, or has an orphan. Number and size of
//     the messages that the chunks of a conversation retain are in its header. They are older than all others.
//     An orphan with a sequence has only chunks that retain no message.
//   - The counts in tenants agree with conversations and records. A tenant without both has no entry, unless
//     operations that only the journal contains give it records: then its entry may have nothing but zeros. Bytes
//     include the bytes of records.
//   - The header of a conversation has the number and the size of its records. The entry of a tenant in scopes
//     has those of its own records. It stays when the tenant has no records, so that no revision is used again.
//   - A record of a tenant that expires has one entry in recordends.
//   - A scope in orphans without a sequence is that of a conversation that was removed. Its chunks and records
//     count nowhere, and are removed in steps. Inner keys are not used again. All other records of conversations
//     belong to one that exists.
//   - The header of a conversation has the first and the next ordinal of its chunks of turns, and their size. Chunks
//     below the first have an orphan with an ordinal. Chunks of turns without a conversation have an orphan without
//     one.
//   - If turns_indexed is set in the header of a conversation, each of its turns whose id is a UUID of version 7 has an
//     entry in turnids, which leads to the conversation. The turns in chunks that have an orphan have entries, too.
//     There are no other entries. Without turns_indexed, the turns of a conversation have no entries: versions before
//     schema 6 did not write them.
//
// Start at [Place].
package layout

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// The buckets, described in the package comment.
const (
	MetaBucket          = "meta"
	TenantsBucket       = "tenants"
	ConversationsBucket = "conversations"
	IDsBucket           = "ids"
	ExpiryBucket        = "expiry"
	TurnsBucket         = "turns"
	SessionsBucket      = "sessions"
	EndsBucket          = "ends"
	ChunksBucket        = "chunks"
	RecordsBucket       = "records"
	ScopesBucket        = "scopes"
	RecordEndsBucket    = "recordends"
	OrphansBucket       = "orphans"
)

// MaxNames is the maximum length of tenant and conversation id together, in bytes. bbolt accepts
// all keys with such names.
const MaxNames = 16 << 10

// InnerKey is the key of a conversation within its tenant, see record.Key.
type InnerKey [record.KeySize]byte

// Place is the value of an entry in ids: the position of a conversation.
type Place struct {
	Key    InnerKey
	Minute uint32
}

// Encode returns the value of the entry with that key.
func (p Place) Encode(key []byte) []byte {
	return seal(key, binary.BigEndian.AppendUint32(p.Key[:len(p.Key):len(p.Key)], p.Minute))
}

// DecodePlace decodes an entry of ids. If it is damaged, the error is store.ErrCorrupt.
func DecodePlace(key, value []byte) (Place, error) {
	b, ok := unseal(key, value, record.KeySize+4)
	if !ok {
		return Place{}, fmt.Errorf("%w: entry of its id", store.ErrCorrupt)
	}
	return Place{Key: InnerKey(b), Minute: binary.BigEndian.Uint32(b[record.KeySize:])}, nil
}

// seal appends a checksum of key and value to a value. The key is included so that a value cannot
// pass for that of another key.
func seal(key, b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, record.Checksum(key, b))
}

// unseal checks and removes the checksum of a value, which must have size bytes without it.
func unseal(key, value []byte, size int) (b []byte, ok bool) {
	if size < 0 || len(value) != size+4 {
		return nil, false
	}
	b = value[:size]
	return b, record.Checksum(key, b) == binary.BigEndian.Uint32(value[size:])
}

// TenantKey returns the prefix of all keys of a tenant.
func TenantKey(tenant string) []byte {
	b := make([]byte, 0, binary.MaxVarintLen32+len(tenant)+record.KeySize)
	return append(binary.AppendUvarint(b, uint64(len(tenant))), tenant...)
}

// CutTenant splits a key after its TenantKey.
func CutTenant(key []byte) (tenant string, rest []byte, ok bool) {
	size, n := binary.Uvarint(key)
	if n <= 0 || size > uint64(len(key)-n) {
		return "", nil, false
	}
	end := n + int(size)
	return string(key[n:end]), key[end:], true
}

// IDKey returns the key of an id in ids, turns and sessions.
func IDKey(tenant, id string) []byte { return append(TenantKey(tenant), id...) }

// ConversationKey returns the key of a conversation in conversations.
func ConversationKey(tenant string, key InnerKey) []byte { return append(TenantKey(tenant), key[:]...) }

// SequenceSize is the length of the sequence in the key of a chunk.
const SequenceSize = 8

// ChunkKey returns the key of the chunk that ends with a sequence, so that the least key from that of a sequence on is
// the key of the chunk with that message. conversation is its key in conversations.
func ChunkKey(conversation []byte, sequence int32) []byte {
	b := append(make([]byte, 0, len(conversation)+SequenceSize), conversation...)
	return binary.BigEndian.AppendUint64(b, uint64(sequence))
}

// SequenceOf returns the sequence in the key of a chunk.
func SequenceOf(chunkKey []byte) int32 {
	return int32(binary.BigEndian.Uint64(chunkKey[len(chunkKey)-SequenceSize:]))
}

// ExpiryKey returns the key of an entry in expiry.
func ExpiryKey(minute uint32, tenant string, key InnerKey) []byte {
	return DueKey(minute, tenant, string(key[:]))
}

// EndKey returns the key of an entry in ends.
func EndKey(nanosecond int64, tenant, id string) []byte {
	return DueKey(SecondOf(nanosecond), tenant, id)
}

// DueKey returns the key of an entry in expiry, ends or recordends.
func DueKey(slot uint32, tenant, name string) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 4+binary.MaxVarintLen32+len(tenant)+len(name)), slot)
	b = append(binary.AppendUvarint(b, uint64(len(tenant))), tenant...)
	return append(b, name...)
}

// DueEntry is an entry of expiry, ends or recordends.
type DueEntry struct {
	Slot   uint32 // minute in expiry, second in the others
	Tenant string
	Name   string // inner key in expiry, conversation id in ends, record key in recordends
	At     int64  // nanosecond
}

// InnerKey returns the inner key of an entry in expiry.
func (e DueEntry) InnerKey() (key InnerKey, ok bool) {
	if len(e.Name) != record.KeySize {
		return InnerKey{}, false
	}
	return InnerKey([]byte(e.Name)), true
}

// EncodeDue returns the value of the entry with that key in expiry, ends or recordends.
func EncodeDue(key []byte, nanosecond int64) []byte {
	return seal(key, binary.BigEndian.AppendUint64(nil, uint64(nanosecond)))
}

// DecodeDue decodes an entry of expiry, ends or recordends. The bool is false if it is damaged.
func DecodeDue(key, value []byte) (DueEntry, bool) {
	b, ok := unseal(key, value, 8)
	if len(key) < 4 || !ok {
		return DueEntry{}, false
	}
	tenant, rest, ok := CutTenant(key[4:])
	if !ok {
		return DueEntry{}, false
	}
	return DueEntry{
		Slot: binary.BigEndian.Uint32(key), Tenant: tenant, Name: string(rest),
		At: int64(binary.BigEndian.Uint64(b)),
	}, true
}

// Nanosecond returns the form of a time in expiry: nanoseconds since 1970. Times before 1970 or
// after the year 2261 become the least or the greatest value.
func Nanosecond(t time.Time) int64 {
	switch year := t.Year(); {
	case year < 1970:
		return 0
	case year > 2261:
		return math.MaxInt64
	}
	return t.UnixNano()
}

// MinuteOf returns the minute that a nanosecond falls into.
func MinuteOf(nanosecond int64) uint32 { return uint32(nanosecond / int64(time.Minute)) }

// SecondOf returns the second that a nanosecond falls into. Times after the year 2105 become the
// last second.
func SecondOf(nanosecond int64) uint32 {
	return uint32(min(nanosecond/int64(time.Second), math.MaxUint32-1)) // dueQueue.nextSlot may be one more.
}

// EphemeralEntry is the value of an entry in sessions.
type EphemeralEntry struct {
	deleteAfter time.Duration // DeleteAfter of the latest Hold
	DeleteAt    int64         // nanosecond, or -n while a process that opened the file at transaction n holds the id
}

// Held reports whether a process holds the id, or held it when the process ended.
func (e EphemeralEntry) Held() bool { return e.DeleteAt <= 0 }

// Release returns the entry after the last release.
func (e EphemeralEntry) Release(now time.Time, after time.Duration) EphemeralEntry {
	e.DeleteAt = max(1, Nanosecond(now.Add(after)))
	return e
}

// Epoch identifies this opening of the file. It separates the holds of this process from those of
// ended processes.
type Epoch struct {
	Tx int // the newest transaction at that time, or a later one; no earlier process had the same number
	At time.Time
}

// NewHold returns the entry of an id that this process holds.
func (o Epoch) NewHold(after time.Duration) EphemeralEntry {
	return EphemeralEntry{deleteAfter: after, DeleteAt: -int64(o.Tx)}
}

// ReleaseStale returns the released form of the entry of an id that an ended process held. The bool
// is false if the entry is of another kind.
func (o Epoch) ReleaseStale(entry EphemeralEntry) (EphemeralEntry, bool) {
	return entry.Release(o.At, entry.deleteAfter), entry.Held() && entry.DeleteAt != -int64(o.Tx)
}

// State returns the state on which package record decides. A stale hold counts as released, whether
// that was written or not.
func (o Epoch) State(entry EphemeralEntry) record.Ephemeral {
	if released, ok := o.ReleaseStale(entry); ok {
		entry = released
	}
	if entry.Held() {
		return record.Ephemeral{Held: true}
	}
	return record.Ephemeral{DeleteTime: time.Unix(0, entry.DeleteAt)}
}

// StateOf returns the state of an id from its key and value in sessions. If there is no value, or if
// it is damaged, the id is not ephemeral.
func (o Epoch) StateOf(key, value []byte) record.Ephemeral {
	if entry, ok := DecodeEphemeral(key, value); ok {
		return o.State(entry)
	}
	return record.Ephemeral{}
}

// Encode returns the value of the entry with that key.
func (e EphemeralEntry) Encode(key []byte) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 20), uint64(e.deleteAfter))
	return seal(key, binary.BigEndian.AppendUint64(b, uint64(e.DeleteAt)))
}

// DecodeEphemeral decodes an entry of sessions. The bool is false if it is damaged.
func DecodeEphemeral(key, value []byte) (EphemeralEntry, bool) {
	b, ok := unseal(key, value, 16)
	if !ok {
		return EphemeralEntry{}, false
	}
	return EphemeralEntry{
		deleteAfter: time.Duration(binary.BigEndian.Uint64(b)), DeleteAt: int64(binary.BigEndian.Uint64(b[8:])),
	}, true
}
