package memstore

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/google/btree"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// item is a record under its key. It never changes: a write replaces it.
type item struct {
	key   string
	value []byte
	state records.State
}

// scope contains the records of a conversation or of a tenant. A nil scope has none. Store.mu guards it. Reads that
// last longer than the lock use a copy.
type scope struct {
	byKey        *btree.BTreeG[item]
	byExpireTime *btree.BTreeG[item] // those that have one
}

func newScope() *scope {
	return &scope{
		byKey: btree.NewG(degree, func(a, b item) bool { return a.key < b.key }),
		byExpireTime: btree.NewG(degree, func(a, b item) bool {
			return cmp.Or(a.state.ExpireTime.Compare(b.state.ExpireTime), cmp.Compare(a.key, b.key)) < 0
		}),
	}
}

// get returns the record with a key; the zero value if there is none.
func (c *scope) get(key string) item {
	if c == nil {
		return item{}
	}
	found, _ := c.byKey.Get(item{key: key})
	return found
}

// edit makes an edit.
func (c *scope) edit(e records.Edit) {
	if old, ok := c.byKey.Delete(item{key: e.Key}); ok {
		c.byExpireTime.Delete(old)
	}
	if e.Value == nil {
		return
	}
	i := item{key: e.Key, value: e.Value, state: e.After}
	c.byKey.ReplaceOrInsert(i)
	if !i.state.ExpireTime.IsZero() {
		c.byExpireTime.ReplaceOrInsert(i)
	}
}

// copied returns a copy that can be read without a lock.
func (c *scope) copied() *scope {
	if c == nil {
		return newScope()
	}
	return &scope{byKey: c.byKey.Clone()}
}

// ascend implements records.Ascend.
func (c *scope) ascend(from string) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		c.byKey.AscendGreaterOrEqual(item{key: from}, func(i item) bool { return yield(i.key, i.value) })
	}
}

// descend implements records.Descend.
func (c *scope) descend(before string) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		visit := func(i item) bool { return i.key == before || yield(i.key, i.value) }
		if before == "" {
			c.byKey.Descend(visit)
		} else {
			c.byKey.DescendLessOrEqual(item{key: before}, visit)
		}
	}
}

// copies returns the edits that make the records those of a new conversation too.
func (c *scope) copies(now time.Time) (*records.Edits, error) {
	if c == nil {
		return nil, nil //nolint:nilnil // A nil *Edits changes nothing.
	}
	edits := &records.Edits{Revision: 1}
	var err error
	c.byKey.Ascend(func(i item) bool {
		edit := records.Edit{Key: i.key}
		edit.Value, edit.After, err = records.Copy(i.key, i.value, edits.Revision, now)
		edits.Add(edit)
		return err == nil
	})
	return edits, err
}

// recordInput looks up what a decision about writes needs. own are the records of the conversation; nil if there are
// none. If tenantOnly is set, all writes are of the tenant's records. limit is the maximum size of these; 0 means none.
// A nil tenant has no records.
func (t *tenant) recordInput(
	own *scope, tenantOnly bool, writes []*parleyv1.RecordWrite, limit int64,
) (*records.Input, error) {
	in := records.Tenant{Limit: limit}
	if t != nil {
		in.Revision, in.Bytes = t.revision, t.recordBytes
	}
	return records.NewInput(writes, tenantOnly, in, func(tenantScope bool, key string) (records.State, error) {
		if tenantScope {
			return t.commonRecords().get(key).state, nil
		}
		return own.get(key).state, nil
	})
}

// commonRecords returns the records of the tenant; nil if there are none.
func (t *tenant) commonRecords() *scope {
	if t == nil {
		return nil
	}
	return t.records
}

// editRecords makes edits of the records of a tenant and of a conversation, and counts those of the tenant. e is nil
// without a conversation.
func (s *Store) editRecords(t *tenant, e *entry, edits *records.Edits) {
	if !edits.Any() {
		return
	}
	for _, edit := range edits.All {
		own := &t.records
		if !edit.TenantScope {
			own = &e.records
		}
		if *own == nil {
			*own = newScope()
		}
		(*own).edit(edit)
	}
	if edits.TenantRevision != 0 {
		t.revision = edits.TenantRevision
	}
	t.recordBytes += edits.Tenant.Bytes
	s.countRecords(t, edits.Tenant, 1)
	s.tenants[t.name] = t
}

// countRecords adds records to the counts of a tenant and of the store, or subtracts them if sign is -1.
func (s *Store) countRecords(t *tenant, n records.Counts, sign int64) {
	for _, stats := range []*store.Stats{&t.stats, &s.stats} {
		stats.Records += sign * n.Records
		stats.RecordBytes += sign * n.RecordBytes
		stats.Bytes += sign * n.Bytes
	}
}

// sweepRecord removes a record of the tenant that has expired, and reports whether there was one.
func (s *Store) sweepRecord(t *tenant, now time.Time) bool {
	if t.records == nil {
		return false
	}
	i, ok := t.records.byExpireTime.Min()
	if !ok || !i.state.Expired(now) {
		return false
	}
	t.records.edit(records.Edit{Key: i.key})
	t.recordBytes -= i.state.Counts.Bytes
	s.countRecords(t, i.state.Counts, -1)
	return true
}

// WriteRecords implements store.Store.
func (s *Store) WriteRecords(ctx context.Context, w *store.WriteRecords) (*store.WrittenRecords, error) {
	if w.ConversationID != "" {
		return s.writeConversation(ctx, w)
	}
	var result *store.WrittenRecords
	err := s.write(ctx, func(now time.Time) ([]store.Change, error) {
		t := s.tenants[w.Tenant]
		if t == nil {
			t = newTenant(w.Tenant)
		}
		in, err := t.recordInput(nil, true, w.Writes, s.options.Limits(w.Tenant).MaxRecordBytes)
		if err != nil {
			return nil, err
		}
		var first []byte
		if w.Request != nil {
			first = t.records.get(records.RequestKey(w.Request)).value
		}
		var edits *records.Edits
		if result, edits, err = records.WriteTenant(w, in, first, now); err != nil || !edits.Any() {
			return nil, err
		}
		if !w.OnlyRemoves() {
			if err := s.options.Limits(w.Tenant).CheckBytes(t.stats.Bytes, edits.Tenant.Bytes); err != nil {
				return nil, err
			}
		}
		s.editRecords(t, nil, edits)
		return nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("records of the tenant: %w", err)
	}
	return result, nil
}

// writeConversation is WriteRecords with a conversation.
func (s *Store) writeConversation(ctx context.Context, w *store.WriteRecords) (*store.WrittenRecords, error) {
	var out *record.Outcome
	a := record.AppendOf(w)
	decide := func(old *record.Record, in *records.Input, now time.Time) (_ *record.Outcome, err error) {
		out, err = record.Append(old, a, nil, in, "", now, &s.options)
		return out, err
	}
	if _, err := s.writeOne(ctx, w.Tenant, w.ConversationID, w.Writes, w.OnlyRemoves(), decide); err != nil {
		return nil, err
	}
	return record.Written(out), nil
}

// GetRecords implements store.Store.
func (s *Store) GetRecords(ctx context.Context, g *store.GetRecords) (store.RecordFrames, []string, error) {
	now := s.options.Now()
	values, err := s.values(ctx, g, now)
	if err != nil {
		return nil, nil, recordsError(g.ConversationID, err)
	}
	found, omitted, err := records.Get(g, now, func(key string) ([]byte, error) { return values[key], nil })
	if err != nil {
		return nil, nil, recordsError(g.ConversationID, err)
	}
	return found, omitted, nil
}

// values returns the values under the keys of g, all of one instant.
func (s *Store) values(ctx context.Context, g *store.GetRecords, now time.Time) (map[string][]byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	c, err := s.scope(ctx, g.Tenant, g.ConversationID, now)
	values := make(map[string][]byte)
	for _, key := range g.Keys {
		values[key] = c.get(key).value
	}
	return values, err
}

// ListRecords implements store.Store.
func (s *Store) ListRecords(ctx context.Context, l *store.ListRecords) ([]*parleyv1.Record, bool, error) {
	now := s.options.Now()
	all, err := s.copiedScope(ctx, l, now)
	if err != nil {
		return nil, false, recordsError(l.ConversationID, err)
	}
	found, more, err := records.List(l, now, all.ascend, all.descend)
	if err != nil {
		return nil, false, recordsError(l.ConversationID, err)
	}
	return found, more, nil
}

// copiedScope returns the records of l, of one instant.
func (s *Store) copiedScope(ctx context.Context, l *store.ListRecords, now time.Time) (*scope, error) {
	s.mu.Lock() // A read lock is not enough, see all.
	defer s.mu.Unlock()
	c, err := s.scope(ctx, l.Tenant, l.ConversationID, now)
	return c.copied(), err
}

// scope returns the records of a conversation, or of the tenant if id is empty; nil if there are none. It returns
// store.ErrNotFound if there is no such conversation. The caller holds mu.
func (s *Store) scope(ctx context.Context, tenantName, id string, now time.Time) (*scope, error) {
	if s.closed {
		return nil, store.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t := s.tenants[tenantName]
	if id == "" {
		return t.commonRecords(), nil
	}
	e := t.live(id, now)
	if e == nil {
		return nil, store.ErrNotFound
	}
	return e.records, nil
}

func recordsError(id string, err error) error {
	if id == "" {
		return fmt.Errorf("records of the tenant: %w", err)
	}
	return fmt.Errorf("records of conversation %q: %w", id, err)
}
