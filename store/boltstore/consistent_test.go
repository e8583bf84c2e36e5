package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store/boltstore/internal/cache"
	"github.com/parleyhq/parley/store/boltstore/internal/fsck"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// wantConsistent fails the test unless all buckets and the tally agree with each other.
func wantConsistent(t *testing.T, s *Store) {
	t.Helper()
	if err := consistent(s); err != nil {
		t.Fatalf("the file is not consistent:\n%v", err)
	}
}

// consistent checks a store. The writer waits, because bbolt cannot check a file that changes.
func consistent(s *Store) error {
	s.writer.working.Lock()
	defer s.writer.working.Unlock()
	return s.db.View(func(tx *bolt.Tx) error { return checkBuckets(tx, s) })
}

// checkBuckets checks the file alone, and then with the operations in the journal.
func checkBuckets(tx *bolt.Tx, s *Store) error {
	tl := s.tally
	faults := []error{}
	for err := range tx.Check() {
		faults = append(faults, err)
	}
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	fsck.CheckRecords(tx, tl.epoch, func(text string) { fault("%s", text) })
	want, inFile := map[string]layout.Counts{}, map[string]layout.Counts{}
	j, done := s.journaled()
	defer done()
	all := newReader(tx, j)
	_ = tx.Bucket([]byte(layout.ConversationsBucket)).ForEach(func(key, value []byte) error {
		tenant, rest, _ := layout.CutTenant(key)
		base, err := record.Unmarshal(value)
		if err != nil {
			return nil //nolint:nilerr // The checker has reported it.
		}
		inFile[tenant] = inFile[tenant].Plus(layout.Counts{
			Conversations: 1, Messages: int64(base.Conversation().GetMessageCount()), Bytes: int64(base.Size()),
		}).Plus(layout.OfRecords(base.RecordCounts()))
		r, size, err := readAll(all, tenant, layout.InnerKey(rest), value)
		if err != nil {
			fault("conversation %q of %q: %v", base.Conversation().GetId(), tenant, err)
			return nil
		}
		if err := checkCached(tl.cache, tenant, r); err != nil {
			fault("conversation %q of %q in the cache: %v", base.Conversation().GetId(), tenant, err)
		}
		want[tenant] = want[tenant].Plus(layout.Counts{
			Conversations: 1, Messages: int64(r.Conversation().GetMessageCount()), Bytes: int64(size),
		}).Plus(layout.OfRecords(r.RecordCounts()))
		e, _ := all.entry(key)
		of := conversationScope(tenant, layout.InnerKey(rest), e, r.RecordCounts())
		if _, err := all.pendingValues(of); err != nil {
			fault("records of conversation %q of %q: %v", base.Conversation().GetId(), tenant, err)
		}
		if got := all.countRecords(of); got != r.RecordCounts() {
			fault("conversation %q of %q has records %+v, counts %+v", base.Conversation().GetId(), tenant, got, r.RecordCounts())
		}
		if err := checkCachedRecords(&all, of, tl.cache, tenant, r.Conversation()); err != nil {
			fault("conversation %q of %q: %v", base.Conversation().GetId(), tenant, err)
		}
		start := tl.evictFrom[tenant]
		state := readState(tx.Bucket([]byte(layout.SessionsBucket)), tl.epoch, tenant, r.Conversation().GetId())
		if bytes.Compare(rest, start[:]) < 0 && !r.Running() && !state.Held && r.Evictable() {
			fault("conversation %q of %q cannot be evicted", r.Conversation().GetId(), tenant)
		}
		return nil
	})
	got := map[string]layout.Counts{}
	_ = tx.Bucket([]byte(layout.TenantsBucket)).ForEach(func(key, value []byte) error {
		tenant, _, _ := layout.CutTenant(key)
		c, ok := layout.DecodeCounts(key, value)
		if !ok {
			fault("counts of %q are damaged", tenant)
		}
		mergeChanged(got, map[string]layout.Counts{tenant: c}) // All may be 0 if only the journal has records.
		return nil
	})
	tenants := maps.Clone(got) // Tenants without anything in memory may have records that the journal deletes.
	maps.Copy(tenants, tl.tenants)
	for tenant := range tenants {
		inFileOnly := newReader(tx, journaled{})
		for sum, r := range map[*map[string]layout.Counts]*reader{&inFile: &inFileOnly, &want: &all} {
			own, err := r.tenantRecords(tenant)
			if err != nil {
				fault("records of %q: %v", tenant, err)
			} else if _, err := r.pendingValues(own.scope); err != nil {
				fault("records of %q: %v", tenant, err)
			} else if got := r.countRecords(own.scope); got != own.state.Counts {
				fault("%q has records %+v, counts %+v", tenant, got, own.state.Counts)
			} else if err := checkCachedRecords(&all, own.scope, tl.cache, tenant, nil); r == &all && err != nil {
				fault("%q: %v", tenant, err)
			} else {
				mergeChanged(*sum, map[string]layout.Counts{tenant: (*sum)[tenant].Plus(layout.OfRecords(got))})
			}
		}
	}
	if !maps.Equal(got, inFile) || !maps.Equal(tl.tenants, want) {
		fault("counts are %v in the file and %v in memory, want %v and %v", got, tl.tenants, inFile, want)
	}
	for tenant := range tl.evictFrom {
		if want[tenant] == (layout.Counts{}) {
			fault("%q has an eviction start, but no conversations", tenant)
		}
	}
	total := layout.Counts{}
	for _, c := range want {
		total = total.Plus(c)
	}
	if tl.total != total {
		fault("total is %v, want %v", tl.total, total)
	}
	return errors.Join(slices.Concat(faults, checkEphemeral(tx, tl), checkVersions(all, tl), checkDueIndexes(tx, tl))...)
}

// checkCached checks that the cache has a conversation as it is, or not at all.
func checkCached(c *cache.Cache, tenant string, r *record.Record) error {
	state, ok := c.Get(string(layout.IDKey(tenant, r.Conversation().GetId())))
	if !ok {
		return nil
	}
	head, err := r.MarshalHead()
	if err != nil {
		return err
	}
	if !bytes.Equal(state.Head, head) || !bytes.Equal(state.Messages, r.Messages) {
		return fmt.Errorf("head of %d bytes and %d bytes of messages, want %d and %d", len(state.Head), len(state.Messages),
			len(head), len(r.Messages))
	}
	return nil
}

// readAll returns a conversation after its operations in the journal, and the size that the store counts for it. The head
// alone, and the record that is made from the file and the operations, must be the same.
func readAll(r reader, tenant string, key layout.InnerKey, base []byte) (*record.Record, int, error) {
	rec, size, e, err := r.decode(tenant, key, base, all)
	if err != nil || e == nil {
		return rec, size, err
	}
	value, err := rec.Marshal()
	if err != nil {
		return nil, 0, err
	}
	replayed, err := r.replay(layout.ConversationKey(tenant, key), base, e)
	if err != nil {
		return nil, 0, err
	}
	other, err := replayed.Marshal()
	if err != nil {
		return nil, 0, err
	}
	if !bytes.Equal(value, other) {
		return nil, 0, fmt.Errorf("replayed as %v, want %v", replayed.Header, rec.Header)
	}
	if len(value) != rec.ValueSize() || rec.Size() != size {
		return nil, 0, fmt.Errorf("has %d bytes of %d, counted as %d of %d", len(value), rec.Size(), rec.ValueSize(), size)
	}
	return rec, size, nil
}

// checkDueIndexes checks that the due indexes have all entries of the slots that they have read.
func checkDueIndexes(tx *bolt.Tx, tl *tally) (faults []error) {
	for tenant, s := range tl.dueIndexes {
		for name, q := range map[string]dueQueue{layout.ExpiryBucket: s.expiry, layout.EndsBucket: s.ends} {
			if q.nextSlot == 0 {
				continue
			}
			for e := range entriesOf(tx.Bucket([]byte(name)), tenant, 0, q.nextSlot-1) {
				if !q.entries.Has(e) {
					faults = append(faults, fmt.Errorf("%s has %+v, which is not in the due index", name, e))
				}
			}
		}
	}
	return faults
}

// checkEphemeral compares the entries of ephemeral conversations with each other and with the
// tally.
func checkEphemeral(tx *bolt.Tx, tl *tally) (faults []error) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	ends := tx.Bucket([]byte(layout.EndsBucket))
	want, held, released := map[string]int{}, 0, 0
	_ = tx.Bucket([]byte(layout.SessionsBucket)).ForEach(func(key, value []byte) error {
		tenant, id, ok := layout.CutTenant(key)
		m, sound := layout.DecodeEphemeral(key, value)
		if !ok || !sound {
			fault("sessions: key %x is %x", key, value)
			return nil
		}
		want[tenant]++
		if holders := tl.holders[string(key)]; holders < 0 || (holders > 0) != tl.epoch.State(m).Held {
			fault("ephemeral %q of %q ends at %d, and has %d holders", id, tenant, m.DeleteAt, holders)
		}
		if _, stale := tl.epoch.ReleaseStale(m); stale {
			if !slices.Contains(tl.staleHolds, string(key)) {
				fault("ephemeral %q of %q will never be released", id, tenant)
			}
			return nil
		}
		if m.Held() {
			held++
			return nil
		}
		released++
		if tx.Bucket([]byte(layout.IDsBucket)).Get(key) == nil {
			fault("ephemeral %q of %q has no conversation and no holder", id, tenant)
		}
		entry := layout.EndKey(m.DeleteAt, tenant, string(id))
		if e, ok := layout.DecodeDue(entry, ends.Get(entry)); !ok || e.At != m.DeleteAt {
			fault("ephemeral %q of %q is deleted at %d, but swept at %d", id, tenant, m.DeleteAt, e.At)
		}
		return nil
	})
	if n := countEntries(tx, layout.EndsBucket); n != released {
		fault("ends has %d entries for %d", n, released)
	}
	if len(tl.holders) != held || !maps.Equal(tl.ephemeralCounts, want) || tl.hasEphemeral.Load() != (len(want) > 0) {
		fault("tally has holders %v, counts %v, hasEphemeral %v; want %d held, counts %v", tl.holders, tl.ephemeralCounts,
			tl.hasEphemeral.Load(), held, want)
	}
	return faults
}

func countEntries(tx *bolt.Tx, bucket string) int {
	n := 0
	_ = tx.Bucket([]byte(bucket)).ForEach(func(_, _ []byte) error {
		n++
		return nil
	})
	return n
}
