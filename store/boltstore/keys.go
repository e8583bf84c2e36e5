package boltstore

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// The buckets; the package comment draws them.
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

// maxNames bounds tenant and conversation id together, so that bbolt takes every key.
const maxNames = 16 << 10

// inner is the key of a conversation within its tenant, see record.Key.
type innerKey [record.KeySize]byte

// place is where ids says that a conversation lies.
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

// seal adds a checksum over the key as well, so that no key has the value of another.
func seal(key, b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, record.Checksum(key, b))
}

// unseal takes the checksum off a value that has so many bytes without it.
func unseal(key, value []byte, size int) (b []byte, ok bool) {
	if len(value) != size+4 {
		return nil, false
	}
	b = value[:size]
	return b, record.Checksum(key, b) == binary.BigEndian.Uint32(value[size:])
}

// tenantKey leads all keys of a tenant.
func tenantKey(tenant string) []byte {
	b := make([]byte, 0, binary.MaxVarintLen32+len(tenant)+record.KeySize)
	return append(binary.AppendUvarint(b, uint64(len(tenant))), tenant...)
}

// cutTenant takes a key apart that begins with a tenantKey.
func cutTenant(key []byte) (tenant string, rest []byte, ok bool) {
	size, n := binary.Uvarint(key)
	if n <= 0 || size > uint64(len(key)-n) {
		return "", nil, false
	}
	end := n + int(size)
	return string(key[n:end]), key[end:], true
}

// idKey is the key of an id in ids, turns and sessions.
func idKey(tenant, id string) []byte { return append(tenantKey(tenant), id...) }

// conversationKey is its key in conversations.
func conversationKey(tenant string, key innerKey) []byte { return append(tenantKey(tenant), key[:]...) }

// expiryKey is the key of an entry in expiry.
func expiryKey(minute uint32, tenant string, key innerKey) []byte {
	return dueKey(minute, tenant, string(key[:]))
}

// endKey is the key of an entry in ends.
func endKey(nanosecond int64, tenant, id string) []byte {
	return dueKey(secondOf(nanosecond), tenant, id)
}

// dueKey is the key of an entry in expiry or ends.
func dueKey(slot uint32, tenant, name string) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 4+binary.MaxVarintLen32+len(tenant)+len(name)), slot)
	b = append(binary.AppendUvarint(b, uint64(len(tenant))), tenant...)
	return append(b, name...)
}

// due is an entry of expiry or of ends.
type dueEntry struct {
	slot   uint32 // minute in expiry, second in ends
	tenant string
	name   string // inner key in expiry, conversation id in ends
	at     int64  // nanosecond
}

// inner returns the inner key that an entry of expiry leads to.
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

// nanosecond is an instant as expiry holds it. What lies before 1970 or after the year 2261
// is as good as the ends.
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

// secondOf returns the second that a nanosecond falls into. What lies behind the year 2105 is
// as good as in the last one.
func secondOf(nanosecond int64) uint32 {
	return uint32(min(nanosecond/int64(time.Second), math.MaxUint32-1)) // One more is a slot too.
}

// session is what sessions keeps of an id.
type ephemeralEntry struct {
	deleteAfter time.Duration // the DeleteAfter of the latest Hold
	deleteAt    int64         // nanosecond; -n while a process holds it that opened the file at transaction n
}

// held reports whether a process holds the id, or held it when it ended.
func (m ephemeralEntry) held() bool { return m.deleteAt <= 0 }

// released is the session when the last of its holders has gone.
func (m ephemeralEntry) release(now time.Time, after time.Duration) ephemeralEntry {
	m.deleteAt = max(1, nanosecond(now.Add(after)))
	return m
}

// opening is when this process opened the file.
type epoch struct {
	tx int // the newest transaction then, or a later one; no process has had the same before
	at time.Time
}

// held is the session of an id that this process holds.
func (o epoch) newHold(after time.Duration) ephemeralEntry {
	return ephemeralEntry{deleteAfter: after, deleteAt: -int64(o.tx)}
}

// left is the session of an id as the process that held it left it behind; false when that
// is not so.
func (o epoch) releaseStale(m ephemeralEntry) (ephemeralEntry, bool) {
	return m.release(o.at, m.deleteAfter), m.held() && m.deleteAt != -int64(o.tx)
}

// state is what package record decides by. What was left behind counts as released, written
// yet or not.
func (o epoch) state(m ephemeralEntry) record.Session {
	if released, ok := o.releaseStale(m); ok {
		m = released
	}
	if m.held() {
		return record.Session{Held: true}
	}
	return record.Session{DeleteTime: time.Unix(0, m.deleteAt)}
}

func (m ephemeralEntry) encode(key []byte) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 20), uint64(m.deleteAfter))
	return seal(key, binary.BigEndian.AppendUint64(b, uint64(m.deleteAt)))
}

func decodeEphemeral(key, value []byte) (ephemeralEntry, bool) {
	b, ok := unseal(key, value, 16)
	if !ok {
		return ephemeralEntry{}, false
	}
	return ephemeralEntry{deleteAfter: time.Duration(binary.BigEndian.Uint64(b)), deleteAt: int64(binary.BigEndian.Uint64(b[8:]))}, true
}

// counts is what tenants keeps.
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
