package boltstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// Purge implements store.Store. It scans the tenant's conversations by create time, up to the first
// that is too young, or to a page that cannot be read. It continues after damaged conversations and
// returns the first such error at the end.
func (s *Store) Purge(ctx context.Context, p *store.Purge) (store.Purged, error) {
	w := purgeScan{tenant: p.Tenant, cutoff: s.options.Now().Add(-p.InactiveFor)}
	var purged store.Purged
	var damage error // the first error of damaged conversations
	for !w.done {
		keys, ids, err := s.nextInactive(ctx, &w)
		if errors.Is(err, store.ErrCorrupt) {
			damage, err, w.done = cmp.Or(damage, err), nil, true // The cursor cannot move past that page.
		}
		if err == nil && !p.DryRun && len(keys) > 0 {
			ids = nil
			err = applyBisecting(keys, func(keys []layout.InnerKey) error {
				var removed []string
				err := s.writer.do(ctx, p.Tenant, 0, func(t *txn) error {
					removed = t.purge(&w, keys, s.options.Now())
					return nil
				})
				if err == nil {
					ids = append(ids, removed...)
				}
				return err
			}, func(layout.InnerKey) { s.corruptCalls.Add(1) })
		}
		purged.Count += int64(len(ids))
		purged.SampleIDs = append(purged.SampleIDs, ids[:min(len(ids), store.MaxSampleIDs-len(purged.SampleIDs))]...)
		if err != nil && !errors.Is(err, store.ErrCorrupt) {
			return purged, fmt.Errorf("purge: %w", err)
		}
		damage = cmp.Or(damage, err)
	}
	if damage != nil {
		return purged, fmt.Errorf("purge: %w", damage)
	}
	return purged, nil
}

// purgeScan is the position of a Purge in the tenant's conversations.
type purgeScan struct {
	tenant string
	cutoff time.Time
	next   []byte // lower bound of the inner keys that were not read
	done   bool
}

// matches reports whether the conversation is to be purged.
func (p *purgeScan) matches(r *record.Record, now time.Time, s record.Ephemeral) bool {
	return !r.Conversation().GetLastAppendTime().AsTime().After(p.cutoff) && !r.Expired(now, s)
}

// nextInactive reads the next conversations and returns the keys and ids of those to be purged.
func (s *Store) nextInactive(ctx context.Context, p *purgeScan) (keys []layout.InnerKey, ids []string, err error) {
	now, mayHaveEphemeral := s.options.Now(), s.tally.mayHaveEphemeral()
	err = s.read(ctx, func(tx *bolt.Tx, r *reader) error {
		keys, ids = nil, nil
		scanned, sessions := 0, readStates(tx, s.tally.epoch, mayHaveEphemeral, p.tenant)
		var last []byte
		for key, value := range r.walk(p.tenant, p.next, ascending) {
			scanned, last = scanned+1, key
			if binary.BigEndian.Uint64(key) > uint64(layout.Nanosecond(p.cutoff)) {
				break
			}
			if r, err := record.UnmarshalHead(value); err == nil && p.matches(r, now, sessions.Of(r.Conversation().GetId())) {
				keys, ids = append(keys, layout.InnerKey(key)), append(ids, r.Conversation().GetId())
			}
			if scanned == maxStep {
				break
			}
		}
		if r.err != nil {
			return r.err
		}
		if last != nil {
			p.next = append(bytes.Clone(last), 0) // the least key after it
		}
		p.done = scanned < maxStep
		return nil
	})
	return keys, ids, err
}

// purge removes those of the conversations that still match, and returns their ids.
func (t *txn) purge(p *purgeScan, keys []layout.InnerKey, now time.Time) []string {
	var ids []string
	for _, key := range keys {
		s, err := t.loadAt(p.tenant, key)
		if err != nil || !p.matches(s.record, now, s.ephemeral) {
			continue
		}
		t.remove(s)
		t.changes = append(t.changes, s.record.RemovalChange(p.tenant, parleyv1.ChangeKind_CHANGE_KIND_DELETED, now))
		ids = append(ids, s.id)
	}
	return ids
}
