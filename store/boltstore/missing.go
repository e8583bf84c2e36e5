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
// the damaged key, or between keys that are out of order, as long as only one key on its way is damaged. Where a page
// refers to another page than it should, only [Check] finds it.

// checkAbsent returns store.ErrCorrupt if the file may have a record that [bolt.Bucket.Get] did not find.
func (r *reader) checkAbsent(s scope, key []byte) error {
	if s.counts == (records.Counts{}) {
		return nil
	}
	if k, _ := r.records.Cursor().Seek(key); bytes.Equal(k, key) { // It is in another page than Get looked into.
		return errOutOfOrder()
	}
	return r.checkPlace(s, key)
}

// checkStart checks a list of records of a scope that begins at a key, or goes down from it.
func (r *reader) checkStart(s scope, key string) {
	if r.err == nil && s.counts != (records.Counts{}) {
		r.err = r.checkPlace(s, append(bytes.Clone(s.prefix), key...))
	}
}

// checkPlace checks the place where a search for a key of a scope ends.
func (r *reader) checkPlace(s scope, key []byte) error {
	c, sound := r.records.Cursor(), true
	k, v := c.Seek(key)
	if !r.isSound(s, k, v) {
		sound = false
		if k, _ = c.Next(); k != nil && bytes.Compare(k, key) <= 0 {
			return errOutOfOrder()
		}
		k, _ = c.Seek(key)
	}
	if k != nil && bytes.Compare(k, key) < 0 {
		return errOutOfOrder()
	}
	if k == nil {
		k, v = c.Last()
	} else {
		k, v = c.Prev()
	}
	if k != nil && bytes.Compare(k, key) >= 0 {
		return errOutOfOrder()
	}
	if !r.isSound(s, k, v) {
		sound = false
		if k, _ = c.Prev(); k != nil && bytes.Compare(k, key) >= 0 {
			return errOutOfOrder()
		}
	}
	if sound {
		return nil
	}
	return r.checkCounts(s)
}

// checkEnd checks a list of records of a scope that ended at an entry of another scope, or at an end of the bucket.
// next moves the cursor of the list on.
func (r *reader) checkEnd(s scope, key, value []byte, next func() (key, value []byte), d direction) {
	if r.err != nil || s.counts == (records.Counts{}) || key == nil {
		return
	}
	switch below := bytes.Compare(key, s.prefix) < 0; {
	case below != (d == descending):
		r.err = errOutOfOrder()
	case !r.isSound(s, key, value):
		if k, _ := next(); bytes.HasPrefix(k, s.prefix) {
			r.err = errOutOfOrder()
		} else {
			r.err = r.checkCounts(s)
		}
	}
}

// checkNoRecords returns store.ErrCorrupt if a tenant has records, but no entry in scopes.
func (r *reader) checkNoRecords(s scope) error {
	if k, _ := r.records.Cursor().Seek(s.prefix); !bytes.HasPrefix(k, s.prefix) {
		return nil
	}
	return fmt.Errorf("%w: a tenant has records, but no counts of them", store.ErrCorrupt)
}

// checkCounts returns store.ErrCorrupt if a scope does not have the records that it counts. It reads all of them.
func (r *reader) checkCounts(s scope) error {
	got, want := r.countRecords(s), s.counts
	if got == want {
		return nil
	}
	return fmt.Errorf("%w: records are missing: %d of %d bytes are left of %d of %d bytes", store.ErrCorrupt, got.Records,
		got.Bytes, want.Records, want.Bytes)
}

func errOutOfOrder() error {
	return fmt.Errorf("%w: keys of records are out of order", store.ErrCorrupt)
}

// isSound reports whether the key of an entry beside a place of a scope is certainly as it was written: the checksum
// contains the record's key, and its scope exists. A key of nil means that there is no entry.
func (r *reader) isSound(s scope, key, value []byte) bool {
	if key == nil {
		return true
	}
	if own, ok := bytes.CutPrefix(key, s.prefix); ok {
		return records.CheckHead(own, value) == nil
	}
	k, ok := layout.DecodeRecordKey(key)
	if !ok || records.CheckHead(k.Key, value) != nil {
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
