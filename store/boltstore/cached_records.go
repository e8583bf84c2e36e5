package boltstore

import (
	"context"
	"iter"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/cache"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// maxCachedRecord is the maximum size of a record in the cache, in bytes. Larger records would push out many others,
// and a copy of them takes longer than a transaction.
const maxCachedRecord = 64 << 10

// cachedRecordKey returns the key of a record in the cache. uid is that of its conversation, or empty for a record of
// the tenant. The records of a conversation that has ended are not found, because no later conversation has its uid.
//
// The prefix separates records from conversations. The key of a conversation begins with the length of the tenant,
// which is never that large.
func cachedRecordKey(tenant, uid, key string) string {
	const prefix = "\xff\xff\xff\xff\xff"
	if uid == "" {
		return prefix + "t" + string(layout.TenantKey(tenant)) + key
	}
	return prefix + "c" + uid + "\x00" + key
}

// getRecord is GetRecords of one key. If the cache has a record whose conversation has not ended, it has the newest
// version of the record. So if the cache has the record, and its conversation was live when the call began, getRecord
// returns the record of the cache.
func (s *Store) getRecord(ctx context.Context, g *store.GetRecords) (found store.RecordFrames, err error) {
	tenant, id, key, now := g.Tenant, g.ConversationID, g.Keys[0], s.options.Now()
	uid, known, err := s.liveUID(ctx, tenant, id, now)
	if err != nil {
		return nil, err
	}
	var fill *cache.Fill
	if known {
		cached := cachedRecordKey(tenant, uid, key)
		if state, ok := s.tally.cache.Get(cached); ok {
			if expired(state, now) {
				return nil, nil
			}
			return state.Head, nil
		}
		fill = s.tally.cache.Fill(cached)
		defer fill.Drop()
	}
	err = s.readRecords(ctx, tenant, id, now, func(r *reader, of scope) error {
		value, err := r.recordValue(of, key)
		if err != nil || value == nil {
			found = nil
			return err
		}
		state := cache.State{}
		if state.Head, state.Expires, err = records.Frame(id, key, value); err != nil {
			return err
		}
		if len(state.Head) <= maxCachedRecord && of.uid == uid {
			fill.Put(state)
		}
		if found = state.Head; expired(state, now) {
			found = nil
		}
		return nil
	})
	return found, err
}

// expired reports whether a record in the cache has expired.
func expired(s cache.State, now time.Time) bool { return !s.Expires.IsZero() && !now.Before(s.Expires) }

// liveUID returns the uid of a conversation that is live, if that is known without reading the conversation in the
// file. For the tenant, whose id is empty, it returns an empty uid.
func (s *Store) liveUID(ctx context.Context, tenant, id string, now time.Time) (uid string, known bool, err error) {
	if id == "" {
		return "", true, ctx.Err()
	}
	ephemeral, err := s.ephemeralState(ctx, tenant, id)
	if err != nil {
		return "", false, err
	}
	key := string(layout.IDKey(tenant, id))
	if v := s.tally.versions.get(key); v.known.UID != "" {
		return v.known.UID, !ephemeral.Expired(now, v.expires, v.running), nil
	}
	state, ok := s.tally.cache.Get(key)
	if !ok {
		return "", false, nil
	}
	rec, err := record.UnmarshalHead(state.Head)
	if err != nil {
		return "", false, err
	}
	uid = rec.Conversation().GetUid()
	return uid, uid != "" && !rec.Expired(now, ephemeral), nil
}

// ephemeralState returns the state of the id of a conversation. The caller reads the conversation after that. If the id
// has not ended at the first read, and the conversation has not expired at the second, it was live between the two.
func (s *Store) ephemeralState(ctx context.Context, tenant, id string) (state record.Ephemeral, err error) {
	if !s.tally.mayHaveEphemeral() {
		return state, ctx.Err()
	}
	err = s.view(ctx, func(tx *bolt.Tx) error {
		state = readState(tx.Bucket([]byte(layout.SessionsBucket)), s.tally.epoch, tenant, id)
		return nil
	})
	return state, err
}

// editedRecord is a record that a transaction or a batch of the journal edits.
type editedRecord struct {
	conversationID, key string
	value               []byte // encoded; nil if the record is deleted
}

// noteEdits adds the records that edits change to t.edited, so that the cache drops or replaces them. c is their
// conversation. It may be nil if all of them are records of the tenant.
func (t *txn) noteEdits(tenant string, c *parleyv1.Conversation, edits *records.Edits) {
	if !edits.Any() {
		return
	}
	for _, e := range edits.All {
		uid, id := "", ""
		if !e.TenantScope {
			uid, id = c.GetUid(), c.GetId()
		}
		if records.IsHidden(e.Key) || !e.TenantScope && uid == "" {
			continue // No read puts it into the cache.
		}
		t.edited[cachedRecordKey(tenant, uid, e.Key)] = editedRecord{id, e.Key, e.Value}
	}
}

// changedKeys returns the keys in the cache of what the transaction changes.
func (t *txn) changedKeys() iter.Seq[string] {
	return func(yield func(string) bool) {
		for key := range t.versions {
			if !yield(key) {
				return
			}
		}
		for key := range t.edited {
			if !yield(key) {
				return
			}
		}
	}
}

// replaceCachedRecords replaces the edited records that the cache has. The caller has blocked them. Records that the
// cache does not have are not added: a caller that only writes records would push out those that are read.
func (t *tally) replaceCachedRecords(edited map[string]editedRecord) {
	for cached, e := range edited {
		if !t.cache.Has(cached) {
			continue
		}
		var state cache.State
		var err error
		if e.value != nil && len(e.value) <= maxCachedRecord {
			state.Head, state.Expires, err = records.Frame(e.conversationID, e.key, e.value)
		}
		if state.Head == nil || err != nil {
			t.cache.Remove(slices.Values([]string{cached}))
		} else {
			t.cache.Replace(cached, state)
		}
	}
}
