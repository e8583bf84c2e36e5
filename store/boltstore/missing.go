package boltstore

import (
	"bytes"
	"fmt"

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
	if own, ok := bytes.CutPrefix(n.key, s.prefix); ok {
		return records.CheckHead(own, n.value) == nil
	}
	k, ok := layout.DecodeRecordKey(n.key)
	if !ok || records.CheckHead(k.Key, n.value) != nil {
		return false
	}
	if k.OfTenant {
		return r.scopes.Get(layout.TenantKey(k.Tenant)) != nil
	}
	if r.conversations.Get(layout.ConversationKey(k.Tenant, k.Conversation)) != nil {
		return true
	}
	removed := layout.Orphan{Tenant: k.Tenant, Conversation: k.Conversation}
	orphans := r.tx.Bucket([]byte(layout.OrphansBucket))
	return orphans != nil && orphans.Get(removed.Key()) != nil
}

// around returns the entries below a key and from it on.
func (r *reader) around(key []byte) (before, after neighbor) {
	c := r.records.Cursor()
	if after.key, after.value = c.Seek(key); after.key == nil {
		before.key, before.value = c.Last()
	} else {
		before.key, before.value = c.Prev()
	}
	return before, after
}

// checkAbsent returns store.ErrCorrupt if the file may have a record that [bolt.Bucket.Get] did not find.
func (r *reader) checkAbsent(s scope, key []byte) error {
	if s.counts == (records.Counts{}) {
		return nil
	}
	before, after := r.around(key)
	if bytes.Equal(after.key, key) { // It is in another page than Get looked into.
		return fmt.Errorf("%w: keys of records are out of order", store.ErrCorrupt)
	}
	return r.checkMissed(s, key, before, after)
}

// checkStart checks a list of records of a scope that begins at a key, or goes down from it.
func (r *reader) checkStart(s scope, key string) {
	if r.err != nil || s.counts == (records.Counts{}) {
		return
	}
	at := append(bytes.Clone(s.prefix), key...)
	before, after := r.around(at)
	r.err = r.checkMissed(s, at, before, after)
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
