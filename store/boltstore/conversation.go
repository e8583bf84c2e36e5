package boltstore

import (
	"bytes"
	"fmt"
	"iter"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// reader reads conversations in one transaction of bbolt. The store reads all values of conversations with
// value and walk, so a source of newer values than those in the file belongs into these two methods. Only
// package fsck reads the file without them.
type reader struct {
	conversations, ids *bolt.Bucket
}

func newReader(tx *bolt.Tx) reader {
	return reader{conversations: tx.Bucket([]byte(layout.ConversationsBucket)), ids: tx.Bucket([]byte(layout.IDsBucket))}
}

// value returns the value of a conversation, or nil if there is none. It is valid until the transaction
// ends or writes.
func (r reader) value(tenant string, key layout.InnerKey) []byte {
	return r.conversations.Get(layout.ConversationKey(tenant, key))
}

// direction is the order in which walk yields conversations.
type direction bool

const (
	ascending  direction = true  // oldest first
	descending direction = false // newest first
)

// walk yields the inner keys and values of a tenant's conversations. Ascending, it yields those from
// bound on, descending those below bound. If bound is nil, it yields all. It skips keys of the wrong
// length. Keys and values are valid until the transaction ends or writes.
func (r reader) walk(tenant string, bound []byte, d direction) iter.Seq2[[]byte, []byte] {
	return func(yield func([]byte, []byte) bool) {
		prefix := layout.TenantKey(tenant)
		c := r.conversations.Cursor()
		seek, next := seekFrom, c.Next
		if d == descending {
			seek, next = seekBelow, c.Prev
		}
		k, v := seek(c, prefix, bound)
		for ; bytes.HasPrefix(k, prefix); k, v = next() {
			if len(k) == len(prefix)+record.KeySize && !yield(k[len(prefix):], v) {
				return
			}
		}
	}
}

// seekFrom moves a cursor to the first key from prefix and bound on.
func seekFrom(c *bolt.Cursor, prefix, bound []byte) (key, value []byte) {
	return c.Seek(append(bytes.Clone(prefix), bound...))
}

// seekBelow moves a cursor to the last key with the prefix that is below prefix and bound. If bound is
// nil, it moves to the last key with the prefix.
func seekBelow(c *bolt.Cursor, prefix, bound []byte) (key, value []byte) {
	if bound == nil {
		bound = bytes.Repeat([]byte{0xff}, record.KeySize+1)
	}
	if k, _ := c.Seek(append(bytes.Clone(prefix), bound...)); k == nil {
		return c.Last()
	}
	return c.Prev()
}

// place returns the position of the conversation with that id. The bool is false if the id has no entry
// in ids.
func (r reader) place(tenant, id string) (p layout.Place, ok bool, err error) {
	entry := layout.IDKey(tenant, id)
	value := r.ids.Get(entry)
	if value == nil {
		return p, false, nil
	}
	p, err = layout.DecodePlace(entry, value)
	return p, true, err
}

// found is a conversation that was read. If its record is damaged, record is nil. The zero value means that
// no conversation was found.
type found struct {
	place  layout.Place
	value  []byte
	record *record.Record
}

// find returns the conversation with that id, whether it has expired or not, or store.ErrNotFound. With
// store.ErrCorrupt it returns the place and value if these are certainly those of the conversation, and
// otherwise the zero value.
func (r reader) find(tenant, id string, decode func([]byte) (*record.Record, error)) (found, error) {
	p, ok, err := r.place(tenant, id)
	if !ok {
		return found{}, store.ErrNotFound
	}
	if err != nil {
		return found{}, err
	}
	value := r.value(tenant, p.Key)
	if value == nil {
		return found{}, fmt.Errorf("%w: its id has no record", store.ErrCorrupt)
	}
	rec, err := decode(value)
	if err != nil {
		return found{place: p, value: value}, err
	}
	if other := rec.Conversation().GetId(); other != id {
		return found{}, fmt.Errorf("%w: its id leads to conversation %q", store.ErrCorrupt, other)
	}
	return found{place: p, value: value, record: rec}, nil
}

// findAt returns the head of the conversation with that inner key, or store.ErrNotFound.
func (r reader) findAt(tenant string, key layout.InnerKey) (found, error) {
	value := r.value(tenant, key)
	if value == nil {
		return found{}, store.ErrNotFound
	}
	rec, err := record.UnmarshalHead(value)
	if err != nil {
		return found{}, err
	}
	id := rec.Conversation().GetId()
	p, ok, err := r.place(tenant, id)
	if !ok || err != nil || p.Key != key {
		return found{}, fmt.Errorf("%w: conversation %q is not where its id leads", store.ErrCorrupt, id)
	}
	return found{place: p, value: value, record: rec}, nil
}
