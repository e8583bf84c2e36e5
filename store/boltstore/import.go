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
)

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
	err = s.do(ctx, i.Tenant, proto.Size(i.Conversation)+len(i.Messages), func(t *txn) error {
		now := s.options.Now()
		old, err := t.load(i.Tenant, id, record.UnmarshalHead)
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
	value, err := out.Record.Marshal()
	if err != nil {
		return err
	}
	if err := t.checkSpace(len(value)); err != nil {
		return err
	}
	var victims []*stored
	if overwritten {
		victims = append(victims, old)
	} else if victims, err = t.victimsForImport(tenant, old, now); err != nil {
		return err
	}
	if err := t.checkBytes(tenant, len(value), victims...); err != nil {
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
	t.create(tenant, out.Record, value)
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
