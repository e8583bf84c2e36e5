package boltstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/fairqueue"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/records"
)

// maxRemoved and maxRemovedBytes are the maximum number and size of the chunks and records that a transaction removes
// with their conversations. The conversations of the others become orphans.
const maxRemoved, maxRemovedBytes = 1000, 4 << 20

// contents are the chunks and records of a conversation that a transaction removes.
type contents struct {
	orphan          []byte   // key in orphans of the conversation
	chunks, records [][]byte // their keys
	all             bool     // the conversation has no others
}

// contentsOf returns the contents of a conversation that is removed. It reads and changes nothing, so that an operation
// can call it before its first change.
func (t *txn) contentsOf(s *stored) contents {
	hasRecords := s.record == nil || s.records != (records.Counts{}) || s.pending != nil && s.pending.Records != nil
	return t.takeContents(s.tenant, s.place.Key, hasRecords)
}

// takeContents returns the contents of a conversation, as many as the transaction may still remove, and counts them as
// removed. If hasRecords is false, the conversation has no records.
func (t *txn) takeContents(tenant string, key layout.InnerKey, hasRecords bool) contents {
	c := contents{orphan: layout.ConversationScope(tenant, key), all: true}
	if t.records == nil {
		return c
	}
	c.chunks, c.all = t.takeKeys(t.chunks, layout.ConversationKey(tenant, key))
	if c.all && hasRecords {
		c.records, c.all = t.takeKeys(t.records, c.orphan)
	}
	return c
}

// takeKeys returns the keys with a prefix in a bucket, as many as the transaction may still remove. all is false if
// there are more.
func (t *txn) takeKeys(b *bolt.Bucket, prefix []byte) (keys [][]byte, all bool) {
	c := b.Cursor()
	for k, v := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, v = c.Next() {
		if t.removed >= maxRemoved || t.removedBytes >= maxRemovedBytes {
			return keys, false
		}
		keys, t.removed, t.removedBytes = append(keys, bytes.Clone(k)), t.removed+1, t.removedBytes+len(v)
	}
	return keys, true
}

// removeContents removes contents. If the conversation has others, they stay for the sweep.
func (t *txn) removeContents(c contents) {
	for _, key := range c.chunks {
		t.del(t.chunks, key)
	}
	for _, key := range c.records {
		t.del(t.records, key)
	}
	switch orphan := t.orphans != nil && t.orphans.Get(c.orphan) != nil; {
	case c.all && orphan:
		t.del(t.orphans, c.orphan)
	case !c.all && !orphan:
		t.put(t.orphans, c.orphan, layout.EncodeOrphan(c.orphan))
	}
}

// sweepOrphans removes chunks and records of conversations that were removed, in steps of at most maxRemoved and
// maxRemovedBytes, each of which counts as one towards the limit. It returns what remains of the limit. Orphans that
// fail because of damage are deferred.
func (s *Store) sweepOrphans(ctx context.Context, limit int) (remaining int, damage error) {
	for ; limit > 0; limit-- {
		orphans, err := s.nextOrphans(ctx)
		if err != nil || len(orphans) == 0 {
			return limit, cmp.Or(damage, err)
		}
		err = applyBisecting(orphans, func(orphans []layout.Orphan) error {
			return s.writer.do(ctx, fairqueue.Upkeep, 0, func(t *txn) error {
				t.removeOrphans(orphans)
				return nil
			})
		}, func(o layout.Orphan) {
			s.corruptCalls.Add(1)
			s.deferred.add(layout.OrphansBucket+string(o.Key()), s.options.Now().Add(deferPeriod))
		})
		damage = cmp.Or(damage, err)
		if err != nil && !errors.Is(err, store.ErrCorrupt) {
			return limit, damage
		}
	}
	return limit, damage
}

// removeOrphans removes the contents of orphans, as many as the transaction may remove. It reads all of them before it
// changes anything.
func (t *txn) removeOrphans(orphans []layout.Orphan) {
	var all []contents
	for _, o := range orphans {
		c := t.takeContents(o.Tenant, o.Conversation, true)
		all = append(all, c)
		if !c.all {
			break
		}
	}
	for _, c := range all {
		t.removeContents(c)
	}
}

// nextOrphans returns the first orphans that are not deferred, at most maxStep. It skips damaged entries.
func (s *Store) nextOrphans(ctx context.Context) (orphans []layout.Orphan, err error) {
	now := s.options.Now()
	err = s.view(ctx, func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(layout.OrphansBucket))
		if b == nil {
			return nil
		}
		c := b.Cursor()
		for k, v := c.First(); k != nil && len(orphans) < maxStep; k, v = c.Next() {
			o, ok := layout.DecodeOrphan(k, v)
			if ok && !s.deferred.contains(layout.OrphansBucket+string(k), now) {
				orphans = append(orphans, o)
			}
		}
		return nil
	})
	return orphans, err
}
