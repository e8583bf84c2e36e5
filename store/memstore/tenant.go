package memstore

import (
	"bytes"
	"cmp"
	"time"

	"github.com/google/btree"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// tenant contains the conversations, the records and the ephemeral ids of one tenant. A nil tenant has none.
type tenant struct {
	name         string
	byID         map[string]*entry
	byCreateTime *btree.BTreeG[*entry]
	evictable    *btree.BTreeG[*entry] // by create time; see indexRemovable
	byExpireTime *btree.BTreeG[*entry] // without conversations that have a running turn or are ephemeral

	ephemeral    *btree.BTreeG[*ephemeralID] // by id
	byDeleteTime *btree.BTreeG[*ephemeralID] // without held ids; all of these have conversations

	turns   *btree.BTreeG[turnEntry] // by id: the turns of all conversations whose ids are indexed
	running *btree.BTreeG[turnEntry] // those of them that run

	records     *scope // nil if there has never been one
	revision    int64  // of the newest write of these records; 0 if there was none
	recordBytes int64  // size of these records, with the requests

	stats store.Stats // counts of the conversations and of the records
}

// entry is a conversation. Except for its records, it never changes: a write replaces it.
type entry struct {
	key               []byte
	head              []byte // see record.Record.MarshalHead
	messages          messages
	bytes             int64 // size of the conversation, see record.Record.Size
	appended, expires time.Time
	turn              string       // running turn; empty if there is none
	evictable         bool         // see record.Record.Evictable
	removal           store.Change // change to report when the conversation is removed
	records           *scope       // nil if there are none; the next entry of the conversation takes it over
	recordCounts      records.Counts
	turnChunks        turnChunks
	turnChange        record.IndexChange // to apply to tenant.turns; indexTurns clears it
}

// newEntry encodes the result of a write. The caller sets the key. old is the entry that it replaces, nil if there is
// none.
func newEntry(tenantName string, r *record.Record, old *entry) (*entry, error) {
	put := r.DivideTurns()
	head, err := r.MarshalHead()
	if err != nil {
		return nil, err
	}
	c := r.Conversation()
	e := &entry{
		head: head, bytes: int64(r.Size()), appended: c.GetLastAppendTime().AsTime(), expires: r.ExpireTime(),
		turn: c.GetActiveTurnId(), evictable: r.Evictable(), recordCounts: r.RecordCounts(),
		removal: r.RemovalChange(tenantName, parleyv1.ChangeKind_CHANGE_KIND_UNSPECIFIED, time.Time{}),
	}
	var before messages
	if old != nil {
		before = old.messages
	}
	e.messages = before.with(r)
	e.setTurns(r, old, put)
	return e, nil
}

// size returns the number of bytes of a conversation with its records. That of a nil entry is 0.
func (e *entry) size() int64 {
	if e == nil {
		return 0
	}
	return e.bytes + e.recordCounts.Bytes
}

const degree = 32 // degree of the B-trees

func newTenant(name string) *tenant {
	byKey := func(a, b *entry) bool { return bytes.Compare(a.key, b.key) < 0 }
	return &tenant{
		name:         name,
		byID:         make(map[string]*entry),
		byCreateTime: btree.NewG(degree, byKey),
		evictable:    btree.NewG(degree, byKey),
		byExpireTime: btree.NewG(degree, func(a, b *entry) bool {
			return cmp.Or(a.expires.Compare(b.expires), bytes.Compare(a.key, b.key)) < 0
		}),
		turns: newTurnIndex(), running: newTurnIndex(),
		ephemeral: btree.NewG(degree, func(a, b *ephemeralID) bool { return a.id < b.id }),
		byDeleteTime: btree.NewG(degree, func(a, b *ephemeralID) bool {
			return cmp.Or(a.deleteTime.Compare(b.deleteTime), cmp.Compare(a.id, b.id)) < 0
		}),
	}
}

// find returns the conversation with that id, nil if there is none.
func (t *tenant) find(id string) *entry {
	if t == nil {
		return nil
	}
	return t.byID[id]
}

// expired reports whether the conversation has expired or its delete time has passed, even if it
// has not been swept. s is the ephemeral state of its id.
func (e *entry) expired(now time.Time, s record.Ephemeral) bool {
	return s.Expired(now, e.expires, e.turn != "")
}

// live decodes the conversation. It returns nil if e is nil or has expired.
func (e *entry) live(
	now time.Time, s record.Ephemeral, decode func([]byte) (*record.Record, error),
) (*record.Record, error) {
	if e == nil || e.expired(now, s) {
		return nil, nil //nolint:nilnil // nil means that there is no conversation.
	}
	r, err := decode(e.head)
	if err == nil {
		r.Messages, r.TurnChunks = e.messages.all(), e.turnChunks
	}
	return r, err
}

// live returns the conversation with that id; nil if it does not exist or has expired.
func (t *tenant) live(id string, now time.Time) *entry {
	if e := t.find(id); e != nil && !e.expired(now, t.ephemeralState(id)) {
		return e
	}
	return nil
}

// ownRecords returns the records of a conversation and their counts. A nil entry has none.
func (e *entry) ownRecords() (records.Counts, *scope) {
	if e == nil {
		return records.Counts{}, nil
	}
	return e.recordCounts, e.records
}

// uid returns the uid of a conversation; empty for a nil entry.
func (e *entry) uid() string {
	if e == nil {
		return ""
	}
	return e.removal.UID
}

// victim returns the conversation that must be removed before one with this id can be created; nil
// if none must.
func (t *tenant) victim(id string, limit int, now time.Time) (*entry, error) {
	if e := t.byID[id]; e != nil {
		return e, nil // It has expired; otherwise the id would not be free.
	}
	if limit == 0 || len(t.byID) < limit {
		return nil, nil //nolint:nilnil // The tenant is below its capacity.
	}
	if e := t.expired(now); e != nil {
		return e, nil
	}
	if oldest, ok := t.evictable.Min(); ok {
		return oldest, nil
	}
	return nil, store.ErrFull
}

// excess returns the oldest conversation that may be evicted if the tenant has more conversations than
// limit, because its limit was lowered. It returns nil if there is none.
func (t *tenant) excess(limit int) *entry {
	if limit == 0 || len(t.byID) <= limit {
		return nil
	}
	oldest, _ := t.evictable.Min()
	return oldest
}

// expired returns a conversation that has expired and has not been swept; nil if there is none.
func (t *tenant) expired(now time.Time) *entry {
	if e, ok := t.byExpireTime.Min(); ok && e.expired(now, record.Ephemeral{}) {
		return e
	}
	if m, ok := t.byDeleteTime.Min(); ok && m.state().HasEnded(now) {
		return t.byID[m.id]
	}
	return nil
}

// indexRemovable adds an entry to the indexes of conversations that may be evicted or may expire.
func (t *tenant) indexRemovable(e *entry) {
	s := t.ephemeralState(e.removal.ConversationID)
	if e.turn == "" && !s.Held && e.evictable {
		t.evictable.ReplaceOrInsert(e)
	}
	if e.turn == "" && s.IsZero() {
		t.byExpireTime.ReplaceOrInsert(e)
	}
}

// unindexRemovable removes an entry from these indexes.
func (t *tenant) unindexRemovable(e *entry) {
	t.evictable.Delete(e)
	t.byExpireTime.Delete(e)
}

// index adds an entry to all indexes and counts.
func (s *Store) index(t *tenant, e *entry) {
	s.tenants[t.name] = t
	t.byID[e.removal.ConversationID] = e
	t.byCreateTime.ReplaceOrInsert(e)
	t.indexRemovable(e)
	if id, ok := record.ParseTurnID(e.turn); ok {
		t.running.ReplaceOrInsert(turnEntry{id: id, conversation: e.removal.ConversationID})
	}
	t.indexTurns(e)
	s.count(t, e, 1)
}

// unindex removes an entry from all indexes and counts. The turns stay in their index until the next entry of the
// conversation is added, or unindexTurns is called.
func (s *Store) unindex(t *tenant, e *entry) {
	delete(t.byID, e.removal.ConversationID)
	t.byCreateTime.Delete(e)
	t.unindexRemovable(e)
	if id, ok := record.ParseTurnID(e.turn); ok {
		t.running.Delete(turnEntry{id: id})
	}
	s.count(t, e, -1)
}

// remove removes a conversation. Its id becomes an ordinary one, unless it is held.
func (s *Store) remove(t *tenant, e *entry) {
	s.unindex(t, e)
	t.unindexTurns(e)
	if !t.ephemeralState(e.removal.ConversationID).Held {
		t.deleteEphemeral(e.removal.ConversationID)
	}
	s.deleteIfEmpty(t)
}

// deleteIfEmpty deletes a tenant that has neither conversations nor ephemeral ids. A tenant that has written records
// stays, because its revisions must not be used again.
func (s *Store) deleteIfEmpty(t *tenant) {
	if len(t.byID) == 0 && t.ephemeral.Len() == 0 && t.records == nil {
		delete(s.tenants, t.name)
	}
}

// count adds a conversation to the counts of its tenant and of the store, or subtracts it if sign is -1.
func (s *Store) count(t *tenant, e *entry, sign int64) {
	for _, stats := range []*store.Stats{&t.stats, &s.stats} {
		stats.Conversations += sign
		stats.Messages += sign * int64(e.removal.Count)
		stats.Bytes += sign * e.bytes
	}
	s.countRecords(t, e.recordCounts, sign)
}

// removeAndReport removes a conversation that has expired, whose delete time has passed, or that is
// evicted. It returns the change.
func (s *Store) removeAndReport(t *tenant, e *entry, now time.Time) store.Change {
	change, ephemeral := e.removal, t.ephemeralState(e.removal.ConversationID)
	change.Time = now
	switch {
	case ephemeral.HasEnded(now):
		change.Kind, change.EphemeralEnded = parleyv1.ChangeKind_CHANGE_KIND_DELETED, true
	case e.expired(now, ephemeral):
		change.Kind, change.ExpireTime = parleyv1.ChangeKind_CHANGE_KIND_EXPIRED, e.expires
		s.stats.Expired++
	default:
		change.Kind = parleyv1.ChangeKind_CHANGE_KIND_EVICTED
		s.stats.Evicted++
	}
	s.remove(t, e)
	return change
}
