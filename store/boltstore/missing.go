package boltstore

import (
	"bytes"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/records"
)

// The methods in this file find records that a read of the file missed. bbolt compares the keys of its pages and cannot
// tell a damaged one: a search may pass the key that it is for, and a list may end early. In both cases it ends beside
// the damaged key, or between keys that are out of order, as long as only one key on its way is damaged.

// neighbor is an entry of records beside the place where a search ended. The zero value means that there is none.
type neighbor struct{ key, value []byte }

// checkMissed returns store.ErrCorrupt if the file may have records of a scope that a search missed. The search for a
// key ended between before and after. Only if one of them may be a record of the scope, it counts all of them.
func (r *reader) checkMissed(s scope, key []byte, before, after neighbor) error {
	if before.key != nil && bytes.Compare(before.key, key) >= 0 || after.key != nil && bytes.Compare(after.key, key) < 0 {
		return fmt.Errorf("%w: keys of records are out of order", store.ErrCorrupt)
	}
	if r.isSound(s, before) && r.isSound(s, after) {
		return nil
	}
	got, want := r.countRecords(s), s.counts
	if got == want {
		return nil
	}
	return fmt.Errorf("%w: records are missing: %d of %d bytes are left of %d of %d bytes", store.ErrCorrupt, got.Records,
		got.Bytes, want.Records, want.Bytes)
}

// isSound reports whether the key of an entry beside a place of a scope is certainly as it was written: the checksum
// contains the record's key, and its scope exists.
func (r *reader) isSound(s scope, n neighbor) bool {
	if n.key == nil {
		return true
	}
	k, ok := layout.DecodeRecordKey(n.key)
	if !ok {
		return false
	}
	if _, err := records.StateOf(string(k.Key), n.value); err != nil {
		return false
	}
	has := func(bucket string, key []byte) bool {
		b := r.tx.Bucket([]byte(bucket))
		return b != nil && b.Get(key) != nil
	}
	switch {
	case bytes.Equal(k.Scope(), s.prefix):
		return true
	case k.OfTenant:
		return has(layout.ScopesBucket, layout.TenantKey(k.Tenant))
	}
	removed := layout.Orphan{Tenant: k.Tenant, Conversation: k.Conversation}
	return has(layout.ConversationsBucket, layout.ConversationKey(k.Tenant, k.Conversation)) ||
		has(layout.OrphansBucket, removed.Key())
}

// checkPlace checks the place of a key, where a search for it ends, whether there is a record or not.
func (r *reader) checkPlace(s scope, key string) error {
	if s.counts == (records.Counts{}) {
		return nil
	}
	c, at := r.records.Cursor(), append(bytes.Clone(s.prefix), key...)
	before := lastBelow(c, at)
	return r.checkMissed(s, at, before, firstFrom(c, at))
}

// checkAbsent returns store.ErrCorrupt if the file may have a record that [bolt.Bucket.Get] did not find.
func (r *reader) checkAbsent(s scope, key string) error {
	at := append(bytes.Clone(s.prefix), key...)
	if n := firstFrom(r.records.Cursor(), at); bytes.Equal(n.key, at) { // It is in another page than Get looked into.
		return fmt.Errorf("%w: keys of records are out of order", store.ErrCorrupt)
	}
	return r.checkPlace(s, key)
}

// checkStart checks a list of records of a scope that begins at a key, or goes down from it.
func (r *reader) checkStart(s scope, key string) {
	if r.err == nil {
		r.err = r.checkPlace(s, key)
	}
}

// checkEnd checks a list of records of a scope that ended at an entry of another scope, or at the end of the bucket.
func (r *reader) checkEnd(s scope, key, value []byte, d direction) {
	if r.err != nil || s.counts == (records.Counts{}) {
		return
	}
	if end := (neighbor{key, value}); d == ascending {
		r.err = r.checkMissed(s, append(bytes.Clone(s.prefix), 0xff), neighbor{}, end)
	} else {
		r.err = r.checkMissed(s, s.prefix, end, neighbor{})
	}
}

// checkNoRecords returns store.ErrCorrupt if a tenant has records, but no entry in scopes.
func (r *reader) checkNoRecords(s scope) error {
	if k, _ := r.records.Cursor().Seek(s.prefix); !bytes.HasPrefix(k, s.prefix) {
		return nil
	}
	return fmt.Errorf("%w: a tenant has records, but no counts of them", store.ErrCorrupt)
}

// firstFrom moves a cursor to the first key that is not below a key.
func firstFrom(c *bolt.Cursor, key []byte) neighbor {
	k, v := c.Seek(key)
	return neighbor{k, v}
}

// lastBelow moves a cursor to the last key below a key.
func lastBelow(c *bolt.Cursor, key []byte) neighbor {
	k, v := seekBelow(c, key, []byte{})
	return neighbor{k, v}
}
