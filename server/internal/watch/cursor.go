package watch

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"

	"github.com/parleyhq/parley/store"
)

// place is a place in the order of commits: the positions of the newest change and of the newest record before it, and
// the place in the store. A position of 0 means none. The place in the store is zero if the store has no places that
// other servers know.
type place struct {
	change, record uint64
	shared         store.Place
}

// end returns the place after the newest commit. If a commit is added during the call, the place may precede it in one
// feed only. A watcher that resumes from the place then receives only a part of the commit, but misses nothing.
func (t *tenant) end() place {
	change, shared := t.changes.endPlace()
	record, ofRecord := t.records.endPlace()
	if ofRecord.Epoch == shared.Epoch && ofRecord.Compare(shared) > 0 {
		shared = ofRecord
	}
	return place{change, record, shared}
}

// later returns the later one of two places in the store. If their epochs differ, it returns b.
func later(a, b store.Place) store.Place {
	if a.Epoch == b.Epoch && a.Compare(b) > 0 {
		return a
	}
	return b
}

func (t *tenant) cursor(at place) string { return encodeCursor(t.origin, t.name, at) }

// Cursors with positions, without base64: the origin, the position of a change, and that of a record unless it is 0.
const (
	originSize          = 8
	positionSize        = originSize + 8
	recordPositionSize  = positionSize + 8
	sharedCursorVersion = 1
)

// Cursors with a place in the store, without base64: the version, the number of places, which is 1, their sum, and the
// number and the index of the place, encrypted.
const (
	sumSize          = 8
	sharedPlaceSize  = 12
	sharedCursorSize = 2 + sumSize + sharedPlaceSize
)

// encodeCursor encodes a place. If it has no place in the store, the cursor is valid only at this server.
func encodeCursor(origin [originSize]byte, name string, at place) string {
	if at.shared != (store.Place{}) {
		return base64.RawURLEncoding.EncodeToString(encodeShared(name, at.shared))
	}
	b := binary.BigEndian.AppendUint64(origin[:len(origin):len(origin)], at.change)
	if at.record > 0 {
		b = binary.BigEndian.AppendUint64(b, at.record)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// place decodes a cursor. known is false if the cursor is of another order: of an earlier start of a server whose store
// has no places, of an earlier epoch of the store, or of another tenant.
func (t *tenant) place(cursor string) (at place, known bool, err error) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	switch {
	case err != nil:
		return place{}, false, ErrCursor
	case len(b) == sharedCursorSize && b[0] == sharedCursorVersion && b[1] == 1:
		at.shared, known = t.decodeShared(b)
		return at, known, nil
	case len(b) != positionSize && len(b) != recordPositionSize:
		return place{}, false, ErrCursor
	}
	if [originSize]byte(b) != t.origin {
		return place{}, false, nil
	}
	positions := b[originSize:]
	at.change = binary.BigEndian.Uint64(positions)
	if len(positions) > 8 {
		at.record = binary.BigEndian.Uint64(positions[8:])
	}
	if at.change > t.changes.end() || at.record > t.records.end() {
		return place{}, false, ErrCursor
	}
	return at, true, nil
}

// encodeShared encodes a place in the store. Clients must not see the numbers, because these also count the commits of
// other tenants. The numbers are encrypted with a key of the epoch and the tenant. Their sum makes the encryption
// different for each place, and shows whether a cursor was made with this key.
func encodeShared(name string, at store.Place) []byte {
	key := cursorKey(at.Epoch, name)
	b := append(make([]byte, 0, sharedCursorSize), sharedCursorVersion, 1)
	var plain [sharedPlaceSize]byte
	binary.BigEndian.PutUint64(plain[:], at.Number)
	binary.BigEndian.PutUint32(plain[8:], at.Index)
	sum := sumOf(key, plain)
	b = append(b, sum[:]...)
	crypt(key, sum, &plain)
	return append(b, plain[:]...)
}

// decodeShared decodes a cursor with a place in the store. ok is false if it was made with another key.
func (t *tenant) decodeShared(b []byte) (at store.Place, ok bool) {
	_, newest := t.changes.endPlace()
	key := cursorKey(newest.Epoch, t.name)
	sum, plain := [sumSize]byte(b[2:]), [sharedPlaceSize]byte(b[2+sumSize:])
	crypt(key, sum, &plain)
	at = store.Place{
		Epoch: newest.Epoch, Number: binary.BigEndian.Uint64(plain[:]), Index: binary.BigEndian.Uint32(plain[8:]),
	}
	return at, newest.Epoch != "" && sumOf(key, plain) == sum
}

// cursorKey returns the key of the cursors of a tenant in an epoch.
func cursorKey(epoch, name string) [sha256.Size]byte { return sha256.Sum256([]byte(epoch + name)) }

// sumOf returns the sum of a place. The sum cannot be computed without the key.
func sumOf(key [sha256.Size]byte, plain [sharedPlaceSize]byte) [sumSize]byte {
	sum := sha256.Sum256(append(key[:len(key):len(key)], plain[:]...))
	return [sumSize]byte(sum[:])
}

// crypt encrypts a place, or decrypts it, with a key and the sum of the place.
func crypt(key [sha256.Size]byte, sum [sumSize]byte, text *[sharedPlaceSize]byte) {
	stream := sha256.Sum256(append(key[:len(key):len(key)], sum[:]...))
	for i := range text {
		text[i] ^= stream[i]
	}
}
