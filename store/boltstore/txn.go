package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/boltstore/internal/overlay"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// txn is a transaction of the writer. An operation first decides, and may fail then without a
// change. Then it writes, and must not fail: the writing methods return no error. The first error
// of bbolt stays in err and ends the transaction for all its operations.
//
// For a batch of the journal, the transaction of bbolt is read-only: operations only decide, see logAppend.
type txn struct {
	reader
	meta, expiry, turns, tenants, sessions, ends *bolt.Bucket
	recordEnds, orphans, chunks                  *bolt.Bucket // nil in a file without records and chunks

	options  *store.Options
	tally    *tally
	released int // number of tally.staleHolds that the transaction released

	counts                  map[string]layout.Counts   // new counts, only of changed tenants
	evictFrom               map[string]layout.InnerKey // the same, see evictionStart
	ephemeralCounts         map[string]int             // the same, number of ids in sessions
	holders                 map[string]int             // new number of holders, by layout.IDKey, only of changed ids
	versions                map[string]version         // by layout.IDKey, only of changed conversations
	edited                  map[string]editedRecord    // by cachedRecordKey
	changes                 []store.Change
	expired, evicted        int64
	dirty                   bool
	mutations               int                      // number of started changes to the file or to memory
	writtenBytes            int                      // bytes of written values
	refuseFrom, spaceNeeded int                      // see checkSpace
	lowSpace                func() bool              // result of boltfile.IsLow, computed once, on first use
	inJournal               bool                     // the journal may have operations that the file does not contain
	removed, removedBytes   int                      // chunks and records removed with their conversations
	chunkSize               int                      // see Options.chunkSize
	logged                  []journaledOperation     // of a batch of the journal, decided
	folded                  []string                 // keys of conversations whose operations the file then contains
	endsGeneration          bool                     // see endGeneration
	foldedThrough           uint64                   // the same
	unfolded                map[string]layout.Counts // by how much the transaction reduces tally.pendingCounts
	err                     error

	commit store.Commit // set after the commit; the zero value if the transaction changed nothing
}

func newTxn(tx *bolt.Tx, o *store.Options, tl *tally, j journaled) *txn {
	tl.resetDueIndexes()
	bucket := func(name string) *bolt.Bucket { return tx.Bucket([]byte(name)) }
	t := &txn{
		reader: newReader(tx, j), chunkSize: defaultChunkSize,
		expiry: bucket(layout.ExpiryBucket), turns: bucket(layout.TurnsBucket),
		tenants: bucket(layout.TenantsBucket), meta: bucket(layout.MetaBucket),
		options: o, tally: tl, counts: map[string]layout.Counts{},
		evictFrom: map[string]layout.InnerKey{}, ephemeralCounts: map[string]int{}, holders: map[string]int{},
		versions: map[string]version{}, edited: map[string]editedRecord{},
		unfolded: map[string]layout.Counts{}, inJournal: tl.journaled,
		refuseFrom: math.MaxInt, spaceNeeded: math.MaxInt,
		lowSpace: sync.OnceValue(func() bool { return boltfile.IsLow(tx.DB()) }),
	}
	t.openRecordBuckets(tx)
	if !tx.Writable() {
		t.staged = map[string]*overlay.Entry{}
		t.sessions = bucket(layout.SessionsBucket)
		return t
	}
	for name, b := range map[string]**bolt.Bucket{layout.SessionsBucket: &t.sessions, layout.EndsBucket: &t.ends} {
		var err error
		*b, err = tx.CreateBucketIfNotExists([]byte(name)) // Files of the first versions have none.
		t.fail(err)
	}
	return t
}

// stored is a conversation as the transaction sees it: with its operations in the journal.
type stored struct {
	tenant, id string
	place      layout.Place
	record     *record.Record // nil if it is damaged
	ephemeral  record.Ephemeral
	pending    *overlay.Entry // its operations that the file does not contain; nil if there are none
	values     []pendingValue // its records that the file does not contain; only of load with all

	// Values before the operation, which may change the record.
	size     int
	records  records.Counts
	messages int32
	turn     string
	expire   time.Time
	pinned   bool // not record.Record.Evictable
}

func (t *txn) newStored(tenant, id string, f found) *stored {
	s := &stored{
		tenant: tenant, id: id, place: f.place, record: f.record, ephemeral: t.ephemeralState(tenant, id), size: f.size,
		pending: f.pending,
	}
	if f.record != nil {
		c := f.record.Conversation()
		s.messages, s.turn, s.expire = c.GetMessageCount(), c.GetActiveTurnId(), f.record.ExpireTime()
		s.pinned, s.records = !f.record.Evictable(), f.record.RecordCounts()
	} else if t.records != nil {
		s.records = t.countRecords(s.scope())
	}
	return s
}

// scope returns the records of the conversation. If s is nil, there are none.
func (s *stored) scope() scope {
	if s == nil {
		return scope{}
	}
	return conversationScope(s.tenant, s.place.Key, s.pending, s.records)
}

// live returns the record, or nil if there is none or it has expired.
func (s *stored) live(now time.Time) *record.Record {
	if s == nil || s.record.Expired(now, s.ephemeral) {
		return nil
	}
	return s.record
}

// expiresEarlier reports whether the entry in expiry must move because the changed record r expires
// earlier. If it expires later, the sweeper moves the entry. Within the minute of the entry, its
// nanosecond is too late only if the expiry moved forward.
func (s *stored) expiresEarlier(r *record.Record) bool {
	expire := r.ExpireTime()
	minute := layout.MinuteOf(layout.Nanosecond(expire))
	return minute < s.place.Minute || minute == s.place.Minute && expire.Before(s.expire)
}

// load returns the conversation with that id, whether it has expired or not, or nil if there is
// none. With store.ErrCorrupt it returns what is known of the conversation, for Delete, or nil if
// its record cannot be found.
func (t *txn) load(tenant, id string, p parts) (s *stored, err error) {
	err = t.tally.guard.Do(func() error {
		f, err := t.find(tenant, id, p)
		if f.exists {
			s = t.newStored(tenant, id, f)
		}
		if err == nil && p == all {
			s.values, err = t.pendingValues(s.scope())
		}
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil //nolint:nilnil // No conversation is a valid result.
	}
	return s, err
}

// loadAt returns the head of the conversation with an inner key, or store.ErrNotFound.
func (t *txn) loadAt(tenant string, key layout.InnerKey) (s *stored, err error) {
	err = t.tally.guard.Do(func() error {
		f, err := t.findAt(tenant, key)
		if f.exists {
			s = t.newStored(tenant, f.record.Conversation().GetId(), f)
		}
		return err
	})
	return s, err
}

// create adds a conversation with the edits of records. If its id is in sessions and not held, that entry belongs to an
// earlier conversation and is removed.
func (t *txn) create(
	tenant string, r *record.Record, e *encoded, own *tenantRecords, edits *records.Edits,
) {
	c, key := r.Conversation(), layout.InnerKey(r.Key())
	if !t.ephemeralState(tenant, c.GetId()).Held {
		t.deleteEphemeral(tenant, c.GetId())
	}
	s := &stored{tenant: tenant, id: c.GetId(), place: layout.Place{Key: key}}
	t.putConversation(tenant, r, e)
	t.setExpiry(s, r.ExpireTime())
	t.syncTurn(s, r)
	t.recordVersion(tenant, r)
	t.markEvictable(tenant, key)
	t.addCounts(tenant, layout.Counts{Conversations: 1, Messages: int64(c.GetMessageCount()), Bytes: int64(e.Size)})
	t.editConversation(s, own, edits)
	t.noteEdits(tenant, c, edits)
}

// editConversation makes the edits of records of a write of a conversation.
func (t *txn) editConversation(s *stored, own *tenantRecords, edits *records.Edits) {
	if edits.Any() {
		t.editRecords(conversationScope(s.tenant, s.place.Key, nil, records.Counts{}), own, edits)
		t.addCounts(s.tenant, layout.OfRecords(edits.Conversation))
	}
}

// replace writes the changed record of a conversation and the edits of records.
func (t *txn) replace(
	s *stored, r *record.Record, e *encoded, own *tenantRecords, edits *records.Edits,
) {
	t.dropPending(s)
	t.putRecords(s.scope(), s.values)
	t.putConversation(s.tenant, r, e)
	if s.expiresEarlier(r) {
		t.deleteExpiry(s)
		t.setExpiry(s, r.ExpireTime())
	}
	t.syncTurn(s, r)
	t.recordVersion(s.tenant, r)
	messages := int64(r.Conversation().GetMessageCount())
	t.addCounts(s.tenant, layout.Counts{Messages: messages - int64(s.messages), Bytes: int64(e.Size - s.size)})
	t.editConversation(s, own, edits)
	t.noteEdits(s.tenant, r.Conversation(), edits)
}

// remove removes a conversation from every bucket. If its id is not held, it stops being ephemeral. Chunks and records
// that are too many for the transaction stay for the sweep: no key leads to them, and none is used again.
func (t *txn) remove(s *stored) {
	c := t.contentsOf(s)
	t.dropPending(s)
	t.del(t.conversations, layout.ConversationKey(s.tenant, s.place.Key))
	t.del(t.ids, layout.IDKey(s.tenant, s.id))
	t.versions[string(layout.IDKey(s.tenant, s.id))] = version{}
	t.deleteExpiry(s)
	if !s.ephemeral.Held {
		t.deleteEphemeral(s.tenant, s.id)
	}
	if s.turn != "" || s.record == nil || s.pending != nil {
		t.del(t.turns, layout.IDKey(s.tenant, s.id))
	}
	t.removeContents(c)
	removed := layout.Counts{Conversations: 1, Messages: int64(s.messages), Bytes: int64(s.size)}
	t.addCounts(s.tenant, layout.Counts{}.Minus(removed.Plus(layout.OfRecords(s.records))))
}

// end removes a conversation that has expired or ended, or that is evicted.
func (t *txn) end(s *stored, now time.Time) {
	if s.ephemeral.HasEnded(now) {
		t.endEphemeral(s.tenant, s.id, now)
		return
	}
	kind := parleyv1.ChangeKind_CHANGE_KIND_EVICTED
	if s.record.Expired(now, s.ephemeral) {
		kind = parleyv1.ChangeKind_CHANGE_KIND_EXPIRED
		t.expired++
	} else {
		t.evicted++
	}
	t.remove(s)
	t.changes = append(t.changes, s.record.RemovalChange(s.tenant, kind, now))
}

// setExpiry adds the entry of a conversation in expiry, and writes its minute to ids.
func (t *txn) setExpiry(s *stored, at time.Time) {
	ns := layout.Nanosecond(at)
	s.place.Minute = layout.MinuteOf(ns)
	t.putExpiryEntry(s.tenant, s.place.Key, ns)
	entry := layout.IDKey(s.tenant, s.id)
	t.put(t.ids, entry, s.place.Encode(entry))
}

// moveExpiry moves the entry of a conversation in expiry.
func (t *txn) moveExpiry(s *stored, at time.Time) {
	t.fold(s)
	t.deleteExpiry(s)
	t.setExpiry(s, at)
}

func (t *txn) putExpiryEntry(tenant string, key layout.InnerKey, ns int64) {
	entry := layout.ExpiryKey(layout.MinuteOf(ns), tenant, key)
	t.put(t.expiry, entry, layout.EncodeDue(entry, ns))
	if s := t.tally.dueIndex(tenant); s != nil {
		s.expiry.add(layout.DueEntry{Slot: layout.MinuteOf(ns), Tenant: tenant, Name: string(key[:]), At: ns})
	}
}

func (t *txn) deleteExpiry(s *stored) {
	t.del(t.expiry, layout.ExpiryKey(s.place.Minute, s.tenant, s.place.Key))
}

// countsOf returns the counts of a tenant within the transaction.
func (t *txn) countsOf(tenant string) layout.Counts {
	if c, ok := t.counts[tenant]; ok {
		return c
	}
	return t.tally.tenants[tenant] // Without its lock: only the writer changes it.
}

func (t *txn) addCounts(tenant string, delta layout.Counts) {
	c := t.countsOf(tenant).Plus(delta)
	if c.Conversations <= 0 { // Those of damaged conversations may be too high.
		c = layout.Counts{}
		if own, err := t.tenantRecords(tenant); err == nil {
			c = layout.OfRecords(own.state.Counts)
		}
	}
	t.counts[tenant] = c
}

func (t *txn) put(b *bolt.Bucket, key, value []byte) {
	t.dirty, t.mutations, t.writtenBytes = true, t.mutations+1, t.writtenBytes+len(value)
	t.fail(b.Put(key, value))
}

func (t *txn) del(b *bolt.Bucket, key []byte) {
	t.dirty, t.mutations = true, t.mutations+1
	t.fail(b.Delete(key))
}

// number returns the number of a new conversation.
func (t *txn) number() (uint32, error) {
	t.mutations++
	n, err := t.conversations.NextSequence()
	return uint32(n), err
}

// fail keeps the first error.
func (t *txn) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// finish writes the values that are written once in each transaction: counts, schema version, and the
// entry of the journal. It returns boltfile.ErrUnchanged if there is nothing to commit.
func (t *txn) finish() error {
	if !t.dirty && t.err == nil {
		return boltfile.ErrUnchanged
	}
	for tenant := range t.unfolded {
		t.counts[tenant] = t.countsOf(tenant)
	}
	for _, tenant := range slices.Sorted(maps.Keys(t.counts)) {
		key := layout.TenantKey(tenant)
		// The counts in the file do not include the operations that are only in the journal.
		c := t.counts[tenant]
		inFile := c.Minus(t.tally.pendingCounts[tenant].Minus(t.unfolded[tenant]))
		if c == (layout.Counts{}) && inFile == c {
			t.del(t.tenants, key)
		} else {
			t.put(t.tenants, key, inFile.Encode(key))
		}
	}
	schemaKey := []byte(boltfile.SchemaKey)
	schema := boltfile.EncodeSchema(boltfile.SchemaOf(t.inJournal, t.records != nil, t.turnIDs != nil))
	if !bytes.Equal(t.meta.Get(schemaKey), schema) {
		t.put(t.meta, schemaKey, schema)
	}
	if t.tally.journaled {
		e, key := t.tally.journalEntry, []byte(boltfile.JournalKey)
		e.Folded = max(e.Folded, t.foldedThrough)
		t.put(t.meta, key, e.Encode(key))
	}
	t.tally.versions.remove(t.versions)
	t.tally.cache.Block(t.changedKeys())
	return t.err
}

// checkSpace is called by an operation that writes a new value of size bytes and may not use the
// reserve. It returns store.ErrNoSpace if only the reserve is left. It also does so if such an
// operation with a value no larger was alone in a transaction and found no space. So of a batch
// that does not fit, few operations try: after each failure bbolt reads its list of free pages
// again. The size of the value does not determine the space that a write needs, because bbolt
// writes complete pages, so checkSpace may refuse a value that would fit. Operations that end or
// delete do not call checkSpace, and their failures do not affect it.
func (t *txn) checkSpace(size int) error {
	t.spaceNeeded = size
	if size >= t.refuseFrom {
		return fmt.Errorf("%w: a write that is not larger found no space", store.ErrNoSpace)
	}
	if t.lowSpace() {
		return fmt.Errorf("%w: the rest is reserved for answers and deletes", store.ErrNoSpace)
	}
	return nil
}

// checkFold returns store.ErrNoSpace if a fold of size bytes needs more than space, see boltfile.SpaceToFold.
func (t *txn) checkFold(size, space int64) error {
	if int64(t.writtenBytes)+size > space {
		return fmt.Errorf("%w: the rest is reserved for deletes: %w", store.ErrNoSpace, syscall.ENOSPC)
	}
	return nil
}
