package boltstore

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
	metaBucket          = "meta"
	tenantsBucket       = "tenants"
	conversationsBucket = "conversations"
	idsBucket           = "ids"
	expiryBucket        = "expiry"
	turnsBucket         = "turns"
	sessionsBucket      = "sessions"
	endsBucket          = "ends"
)

// maxNames is the maximum length of tenant and conversation id together, in bytes. bbolt accepts
// all keys with such names.
const maxNames = 16 << 10

// innerKey is the key of a conversation within its tenant, see record.Key.
type innerKey [record.KeySize]byte

// place is the value of an entry in ids: the position of a conversation.
type place struct {
	key    innerKey
	minute uint32
}

func (p place) encode(key []byte) []byte {
	return seal(key, binary.BigEndian.AppendUint32(p.key[:len(p.key):len(p.key)], p.minute))
}

func decodePlace(key, value []byte) (place, error) {
	b, ok := unseal(key, value, record.KeySize+4)
	if !ok {
		return place{}, fmt.Errorf("%w: entry of its id", store.ErrCorrupt)
	}
	return place{key: innerKey(b), minute: binary.BigEndian.Uint32(b[record.KeySize:])}, nil
}

// seal appends a checksum of key and value to a value. The key is included so that a value cannot
// pass for that of another key.
func seal(key, b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, record.Checksum(key, b))
}

// unseal checks and removes the checksum of a value, which must have size bytes without it.
func unseal(key, value []byte, size int) (b []byte, ok bool) {
	if len(value) != size+4 {
		return nil, false
	}
	b = value[:size]
	return b, record.Checksum(key, b) == binary.BigEndian.Uint32(value[size:])
}

// tenantKey returns the prefix of all keys of a tenant.
func tenantKey(tenant string) []byte {
	b := make([]byte, 0, binary.MaxVarintLen32+len(tenant)+record.KeySize)
	return append(binary.AppendUvarint(b, uint64(len(tenant))), tenant...)
}

// cutTenant splits a key after its tenantKey.
func cutTenant(key []byte) (tenant string, rest []byte, ok bool) {
	size, n := binary.Uvarint(key)
	if n <= 0 || size > uint64(len(key)-n) {
		return "", nil, false
	}
	end := n + int(size)
	return string(key[n:end]), key[end:], true
}

// idKey returns the key of an id in ids, turns and sessions.
func idKey(tenant, id string) []byte { return append(tenantKey(tenant), id...) }

// conversationKey returns the key of a conversation in conversations.
func conversationKey(tenant string, key innerKey) []byte { return append(tenantKey(tenant), key[:]...) }

// expiryKey returns the key of an entry in expiry.
func expiryKey(minute uint32, tenant string, key innerKey) []byte {
	return dueKey(minute, tenant, string(key[:]))
}

// endKey returns the key of an entry in ends.
func endKey(nanosecond int64, tenant, id string) []byte {
	return dueKey(secondOf(nanosecond), tenant, id)
}

// dueKey returns the key of an entry in expiry or ends.
func dueKey(slot uint32, tenant, name string) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 4+binary.MaxVarintLen32+len(tenant)+len(name)), slot)
	b = append(binary.AppendUvarint(b, uint64(len(tenant))), tenant...)
	return append(b, name...)
}

// dueEntry is an entry of expiry or ends.
type dueEntry struct {
	slot   uint32 // minute in expiry, second in ends
	tenant string
	name   string // inner key in expiry, conversation id in ends
	at     int64  // nanosecond
}

// innerKey returns the inner key of an entry in expiry.
func (e dueEntry) innerKey() (key innerKey, ok bool) {
	if len(e.name) != record.KeySize {
		return innerKey{}, false
	}
	return innerKey([]byte(e.name)), true
}

func encodeDue(key []byte, nanosecond int64) []byte {
	return seal(key, binary.BigEndian.AppendUint64(nil, uint64(nanosecond)))
}

func decodeDue(key, value []byte) (dueEntry, bool) {
	b, ok := unseal(key, value, 8)
	if len(key) < 4 || !ok {
		return dueEntry{}, false
	}
	tenant, rest, ok := cutTenant(key[4:])
	if !ok {
		return dueEntry{}, false
	}
	return dueEntry{
		slot: binary.BigEndian.Uint32(key), tenant: tenant, name: string(rest),
		at: int64(binary.BigEndian.Uint64(b)),
	}, true
}

// nanosecond returns the form of a time in expiry: nanoseconds since 1970. Times before 1970 or
// after the year 2261 become the least or the greatest value.
func nanosecond(t time.Time) int64 {
	switch year := t.Year(); {
	case year < 1970:
		return 0
	case year > 2261:
		return math.MaxInt64
	}
	return t.UnixNano()
}

// minuteOf returns the minute that a nanosecond falls into.
func minuteOf(nanosecond int64) uint32 { return uint32(nanosecond / int64(time.Minute)) }

// secondOf returns the second that a nanosecond falls into. Times after the year 2105 become the
// last second.
func secondOf(nanosecond int64) uint32 {
	return uint32(min(nanosecond/int64(time.Second), math.MaxUint32-1)) // dueQueue.nextSlot may be one more.
}

// ephemeralEntry is the value of an entry in sessions.
type ephemeralEntry struct {
	deleteAfter time.Duration // DeleteAfter of the latest Hold
	deleteAt    int64         // nanosecond, or -n while a process that opened the file at transaction n holds the id
}

// held reports whether a process holds the id, or held it when the process ended.
func (e ephemeralEntry) held() bool { return e.deleteAt <= 0 }

// release returns the entry after the last release.
func (e ephemeralEntry) release(now time.Time, after time.Duration) ephemeralEntry {
	e.deleteAt = max(1, nanosecond(now.Add(after)))
	return e
}

// epoch identifies this opening of the file. It separates the holds of this process from those of
// ended processes.
type epoch struct {
	tx int // the newest transaction at that time, or a later one; no earlier process had the same number
	at time.Time
}

// newHold returns the entry of an id that this process holds.
func (o epoch) newHold(after time.Duration) ephemeralEntry {
	return ephemeralEntry{deleteAfter: after, deleteAt: -int64(o.tx)}
}

// releaseStale returns the released form of the entry of an id that an ended process held. The bool
// is false if the entry is of another kind.
func (o epoch) releaseStale(entry ephemeralEntry) (ephemeralEntry, bool) {
	return entry.release(o.at, entry.deleteAfter), entry.held() && entry.deleteAt != -int64(o.tx)
}

// state returns the state on which package record decides. A stale hold counts as released, whether
// that was written or not.
func (o epoch) state(entry ephemeralEntry) record.Session {
	if released, ok := o.releaseStale(entry); ok {
		entry = released
	}
	if entry.held() {
		return record.Session{Held: true}
	}
	return record.Session{DeleteTime: time.Unix(0, entry.deleteAt)}
}

// stateOf returns the state of an id from its key and value in sessions. If there is no value, or if
// it is damaged, the id is not ephemeral.
func (o epoch) stateOf(key, value []byte) record.Session {
	if entry, ok := decodeEphemeral(key, value); ok {
		return o.state(entry)
	}
	return record.Session{}
}

func (e ephemeralEntry) encode(key []byte) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 20), uint64(e.deleteAfter))
	return seal(key, binary.BigEndian.AppendUint64(b, uint64(e.deleteAt)))
}

func decodeEphemeral(key, value []byte) (ephemeralEntry, bool) {
	b, ok := unseal(key, value, 16)
	if !ok {
		return ephemeralEntry{}, false
	}
	return ephemeralEntry{deleteAfter: time.Duration(binary.BigEndian.Uint64(b)), deleteAt: int64(binary.BigEndian.Uint64(b[8:]))}, true
}

// counts is the value of an entry in tenants.
type counts struct {
	conversations, messages, bytes int64
}

func (c counts) plus(d counts) counts {
	return counts{c.conversations + d.conversations, c.messages + d.messages, c.bytes + d.bytes}
}

func (c counts) minus(d counts) counts {
	return counts{c.conversations - d.conversations, c.messages - d.messages, c.bytes - d.bytes}
}

func (c counts) encode(key []byte) []byte {
	b := make([]byte, 0, 28)
	for _, n := range []int64{c.conversations, c.messages, c.bytes} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return seal(key, b)
}

func decodeCounts(key, value []byte) (counts, bool) {
	b, ok := unseal(key, value, 24)
	if !ok {
		return counts{}, false
	}
	number := func(at int) int64 { return int64(binary.BigEndian.Uint64(b[at:])) }
	return counts{conversations: number(0), messages: number(8), bytes: number(16)}, true
}
