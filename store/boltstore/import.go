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
	"github.com/parleyhq/parley/store/internal/record"
)

// Import implements store.Store. A conversation whose record is damaged can be overwritten,
// as it can be deleted.
func (s *Store) Import(ctx context.Context, i *store.Import) (*store.Result, error) {
	id := i.Conversation.GetId()
	if n := len(i.Tenant) + len(id); n > maxNames {
		return nil, fmt.Errorf("tenant and conversation id are %d bytes long, %d at most", n, maxNames)
	}
	history, err := record.NewHistory(i.Messages)
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", id, err)
	}
	uid := uuid.NewString()
	var result *store.Result
	err = s.do(ctx, proto.Size(i.Conversation)+len(i.Messages), func(t *txn) error {
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

// takeIn writes what record.Import decided. Old is what lies under the id, nil for nothing:
// a conversation that is overwritten, or one that has expired.
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
	if overwritten {
		t.remove(old)
		if old.record == nil { // Damaged: record.Import knew of nothing.
			t.changes = append(t.changes, store.Change{
				Tenant: tenant, Kind: parleyv1.ChangeKind_CHANGE_KIND_DELETED, ConversationID: old.id, Time: now,
			})
		}
	} else {
		gone, err := t.victimsForImport(tenant, old, now)
		if err != nil {
			return err
		}
		for _, g := range gone {
			t.end(g, now)
		}
	}
	t.create(tenant, out.Record, value)
	t.changes = append(t.changes, out.Changes...)
	return nil
}

// findRoom says which conversations must go so that the tenant can have one more: the
// expired one whose id is taken again, then others that have expired. None that lives goes,
// as it would in makeRoom.
func (t *txn) victimsForImport(tenant string, again *stored, now time.Time) ([]*stored, error) {
	var gone []*stored
	if again != nil {
		gone = append(gone, again)
	}
	limit := int64(t.options.MaxConversations)
	excess := t.countsOf(tenant).conversations + 1 - limit
	if limit == 0 || excess <= int64(len(gone)) {
		return gone, nil
	}
	if gone = t.appendExpired(gone, tenant, int(min(excess, maxStep)), now); int64(len(gone)) < excess {
		return nil, store.ErrFull
	}
	return gone, nil
}
