package boltstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// Create implements store.Store.
func (s *Store) Create(ctx context.Context, c *store.Create) (*store.Result, error) {
	history, err := record.NewHistory(c.Messages)
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", c.Conversation.GetId(), err)
	}
	uid := uuid.NewString()
	size := proto.Size(c.Conversation) + len(c.Messages)
	w := &change{tenant: c.Tenant, id: c.Conversation.GetId(), size: size, guards: guards{disk: true, bytes: true}}
	w.decide = func(t *txn, old *stored, now time.Time) (*record.Outcome, *tenantRecords, error) {
		if w.copied = (scope{}); old.live(now) == nil {
			if w.copied, err = t.recordsToCopy(c, now); err != nil {
				return nil, nil, err
			}
		}
		out, err := record.Create(old.live(now), c, history, w.copied.counts, uid, now, &s.options.Options)
		return out, nil, err
	}
	return resultOf(s.change(ctx, w))
}

// resultOf returns the result of an outcome.
func resultOf(out *record.Outcome, err error) (*store.Result, error) {
	if err != nil {
		return nil, err
	}
	return out.Result, nil
}

// Append implements store.Store.
func (s *Store) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	return resultOf(s.append(ctx, a))
}

// append makes the writer apply an append, also that of record.AppendOf.
func (s *Store) append(ctx context.Context, a *store.Append) (*record.Outcome, error) {
	drafts, err := record.NewDrafts(a.Messages)
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", a.ConversationID, err)
	}
	uid, size := uuid.NewString(), proto.Size(a.Events)+proto.Size(a.CreateWith)+recordsSize(a.Records)
	for _, m := range a.Messages {
		size += proto.Size(m)
	}
	decide := func(t *txn, old *stored, now time.Time) (*record.Outcome, *tenantRecords, error) {
		var own *tenantRecords
		if records.HasTenantScope(a.Records) {
			if own, err = t.loadTenantRecords(a.Tenant); err != nil {
				return nil, nil, err
			}
		}
		live, of := old.live(now), scope{}
		if live != nil {
			of = old.scope()
		}
		in, err := t.recordInput(a.Records, of, own, false)
		if err != nil {
			return nil, nil, err
		}
		out, err := record.Append(live, a, drafts, in, uid, now, &s.options.Options)
		return out, own, err
	}
	log := func(t *txn) (*record.Outcome, error) { return t.logAppend(a, drafts) }
	mayExceed := a.MayExceed()
	return s.change(ctx, &change{
		tenant: a.Tenant, id: a.ConversationID, size: size, decide: decide, log: log, onQueued: a.Queued,
		guards: guards{disk: !mayExceed, bytes: !mayExceed},
	})
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, u *store.Update) (*store.Result, error) {
	decide := func(_ *txn, old *stored, now time.Time) (*record.Outcome, *tenantRecords, error) {
		out, err := record.Update(old.live(now), u, now, &s.options.Options)
		return out, nil, err
	}
	return resultOf(s.change(ctx, &change{
		tenant: u.Tenant, id: u.ConversationID, size: proto.Size(u.Values), guards: guards{bytes: !u.OnlyRemoves()},
		decide: decide,
	}))
}

// guards are checks of a write that adds bytes. Writes that must not fail have none.
type guards struct {
	disk  bool // the write is refused while the disk is nearly full
	bytes bool // the write is refused if the tenant would have more bytes than its limit
}

// change is a write to one conversation.
type change struct {
	tenant, id string
	size       int // bytes in memory while the write is queued
	guards     guards
	// decide decides the write. old is nil if there is no such conversation; it may have expired. own are the tenant's
	// records if the write edits them.
	decide   func(t *txn, old *stored, now time.Time) (out *record.Outcome, own *tenantRecords, err error)
	copied   scope                               // records of a new conversation, which decide sets
	log      func(*txn) (*record.Outcome, error) // see operation; may be nil
	onQueued func()                              // see operation; may be nil
}

// change makes the writer apply a change.
func (s *Store) change(ctx context.Context, c *change) (out *record.Outcome, err error) {
	if n := len(c.tenant) + len(c.id); n > layout.MaxNames {
		return nil, fmt.Errorf("tenant and conversation id are %d bytes long, %d at most", n, layout.MaxNames)
	}
	op := &operation{
		ctx: ctx, tenant: c.tenant, size: c.size, conversation: string(layout.IDKey(c.tenant, c.id)), onQueued: c.onQueued,
	}
	if c.log != nil {
		op.log = func(t *txn) (err error) {
			out, err = c.log(t)
			return err
		}
	}
	op.apply = func(t *txn) error {
		now := s.options.Now()
		old, err := t.load(c.tenant, c.id, all)
		if err != nil {
			return err
		}
		var own *tenantRecords
		if out, own, err = c.decide(t, old, now); err != nil {
			return err
		}
		return t.write(c, old, out, own, now)
	}
	if err := s.countCorrupt(s.writer.await(op)); err != nil {
		return nil, fmt.Errorf("conversation %q: %w", c.id, err)
	}
	return out, nil
}

// write writes the outcome of a change. old is the conversation with that id, expired or not, or nil. own are the
// tenant's records, or nil if the outcome does not edit them. Records are copied after all checks: they may be large.
func (t *txn) write(c *change, old *stored, out *record.Outcome, own *tenantRecords, now time.Time) error {
	if out.Record == nil {
		return nil
	}
	if out.Result.Created {
		number, err := t.number()
		if err != nil {
			return err
		}
		out.Record.SetNumber(number)
	}
	e, err := t.encode(c.tenant, out.Record)
	if err != nil {
		return err
	}
	if c.guards.disk || out.Result.Created { // Also a removal may create a conversation.
		if err := t.checkSpace(e.Written + editSize(out.Records) + int(c.copied.counts.Bytes)); err != nil {
			return err
		}
	}
	var replaced []*stored
	added := int64(e.Size) + out.Records.Bytes() + c.copied.counts.Bytes
	if !out.Result.Created {
		added -= int64(old.size)
	} else if replaced, err = t.victimsForCreate(c.tenant, old, now); err != nil {
		return err
	}
	if c.guards.bytes || out.Result.Created {
		if err := t.checkBytes(c.tenant, added, replaced...); err != nil {
			return err
		}
	}
	if c.copied.counts.Records > 0 {
		if out.Records, err = t.copyRecords(c.copied, now); err != nil {
			return err
		}
	}
	if !out.Result.Created {
		t.replace(old, out.Record, e, own, out.Records)
		if old.pinned && out.Record.Evictable() {
			t.markEvictable(c.tenant, old.place.Key)
		}
	} else {
		for _, victim := range replaced {
			t.end(victim, now)
		}
		t.create(c.tenant, out.Record, e, own, out.Records)
	}
	t.changes = append(t.changes, out.Changes...)
	return nil
}

// Delete implements store.Store. It deletes a conversation whose record is damaged, too, unless a
// version is required, since that is unknown. If the entry in ids is damaged or has no record,
// Delete returns store.ErrCorrupt, because the record cannot be found.
func (s *Store) Delete(ctx context.Context, d *store.Delete) error {
	err := s.do(ctx, d.Tenant, 0, func(t *txn) error {
		now := s.options.Now()
		old, err := t.load(d.Tenant, d.ConversationID, head)
		if old != nil && errors.Is(err, store.ErrCorrupt) && d.IfVersion == nil {
			t.remove(old)
			t.changes = append(t.changes, store.Change{
				Tenant: d.Tenant, Kind: parleyv1.ChangeKind_CHANGE_KIND_DELETED, ConversationID: d.ConversationID, Time: now,
			})
			return nil
		}
		if err != nil {
			return err
		}
		out, err := record.Delete(old.live(now), d, now)
		if err != nil {
			return err
		}
		t.remove(old)
		t.changes = append(t.changes, out.Changes...)
		return nil
	})
	if err != nil {
		return fmt.Errorf("conversation %q: %w", d.ConversationID, err)
	}
	return nil
}

// SaveProgress implements store.Store.
func (s *Store) SaveProgress(ctx context.Context, p *store.Progress) error {
	value, err := record.MarshalProgress(p)
	if err != nil {
		return fmt.Errorf("conversation %q: %w", p.ConversationID, err)
	}
	err = s.do(ctx, p.Tenant, len(value), func(t *txn) error {
		now := s.options.Now()
		old, err := t.load(p.Tenant, p.ConversationID, head)
		if err != nil {
			return err
		}
		if old.live(now) == nil || old.turn == "" || old.turn != p.TurnID {
			return store.ErrTurnEnded
		}
		t.fold(old)
		t.put(t.turns, layout.IDKey(p.Tenant, p.ConversationID), value)
		return nil
	})
	if err != nil {
		return fmt.Errorf("conversation %q: turn %q: %w", p.ConversationID, p.TurnID, err)
	}
	return nil
}

// syncTurn makes the entry in turns match the conversation's running turn.
func (t *txn) syncTurn(s *stored, r *record.Record) {
	turn := r.Conversation().GetActiveTurnId()
	if turn != s.turn || s.pending != nil {
		t.writeTurn(s, turn)
	}
	if turn == "" && s.turn != "" {
		t.markEvictable(s.tenant, s.place.Key)
	}
}

// writeTurn writes the entry in turns of a conversation with that running turn, which is empty if none
// runs. It keeps what was saved of the turn.
func (t *txn) writeTurn(s *stored, turn string) {
	key := layout.IDKey(s.tenant, s.id)
	if turn == "" {
		t.del(t.turns, key)
		return
	}
	if saved, err := record.UnmarshalProgress(t.turns.Get(key)); err == nil && saved.TurnID == turn {
		return
	}
	value, err := record.MarshalProgress(&store.Progress{TurnID: turn})
	if err != nil {
		t.fail(err)
		return
	}
	t.put(t.turns, key, value)
}

// Import implements store.Store. It can overwrite a conversation whose record is damaged.
func (s *Store) Import(ctx context.Context, i *store.Import) (*store.Result, error) {
	id := i.Conversation.GetId()
	if n := len(i.Tenant) + len(id); n > layout.MaxNames {
		return nil, fmt.Errorf("tenant and conversation id are %d bytes long, %d at most", n, layout.MaxNames)
	}
	history, err := record.NewHistory(i.Messages)
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", id, err)
	}
	uid := uuid.NewString()
	var result *store.Result
	size := proto.Size(i.Conversation) + len(i.Messages)
	for _, r := range i.Records {
		size += proto.Size(r)
	}
	err = s.do(ctx, i.Tenant, size, func(t *txn) error {
		now := s.options.Now()
		old, err := t.load(i.Tenant, id, head)
		damaged := old != nil && errors.Is(err, store.ErrCorrupt)
		if err != nil && (!damaged || !i.Overwrite) {
			return err
		}
		var live *record.Record
		if !damaged {
			live = old.live(now)
		}
		out, err := record.Import(live, i, history, uid, now, t.ephemeralState(i.Tenant, id).Held, &s.options.Options)
		if err != nil {
			return err
		}
		result = out.Result
		return t.writeImport(i.Tenant, old, damaged || live != nil, out, now)
	})
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", id, err)
	}
	return result, nil
}

// writeImport writes the outcome of record.Import. old is the conversation with that id, which
// is overwritten or has expired; nil if there is none.
func (t *txn) writeImport(tenant string, old *stored, overwritten bool, out *record.Outcome, now time.Time) error {
	number, err := t.number()
	if err != nil {
		return err
	}
	out.Record.SetNumber(number)
	e, err := t.encode(tenant, out.Record)
	if err != nil {
		return err
	}
	if err := t.checkSpace(e.Written + editSize(out.Records)); err != nil {
		return err
	}
	var victims []*stored
	if overwritten {
		victims = append(victims, old)
	} else if victims, err = t.victimsForImport(tenant, old, now); err != nil {
		return err
	}
	if err := t.checkBytes(tenant, int64(e.Size)+out.Records.Bytes(), victims...); err != nil {
		return err
	}
	if overwritten {
		t.remove(old)
		if old.record == nil { // The record is damaged, so record.Import did not get it.
			t.changes = append(t.changes, store.Change{
				Tenant: tenant, Kind: parleyv1.ChangeKind_CHANGE_KIND_DELETED, ConversationID: old.id, Time: now,
			})
		}
	} else {
		for _, victim := range victims {
			t.end(victim, now)
		}
	}
	t.create(tenant, out.Record, e, nil, out.Records)
	t.changes = append(t.changes, out.Changes...)
	return nil
}

// victimsForImport returns the conversations to remove so that the tenant can have one more: first
// expired, which may be nil and is the expired conversation whose id is used again, then other
// expired ones. Unlike victimsForCreate it returns no live conversation.
func (t *txn) victimsForImport(tenant string, expired *stored, now time.Time) ([]*stored, error) {
	var victims []*stored
	if expired != nil {
		victims = append(victims, expired)
	}
	limit := int64(t.options.Limits(tenant).MaxConversations)
	excess := t.countsOf(tenant).Conversations + 1 - limit
	if limit == 0 || excess <= int64(len(victims)) {
		return victims, nil
	}
	if victims = t.appendExpired(victims, tenant, int(min(excess, maxStep)), now); int64(len(victims)) < excess {
		return nil, store.ErrFull
	}
	return victims, nil
}
