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
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// maxRemoved and maxRemovedBytes are the maximum number and size of the chunks, records and entries of turns that a
// transaction removes with their conversations. The conversations of the others become orphans.
const maxRemoved, maxRemovedBytes = 1000, 4 << 20

// contents are the chunks, records and turns of an orphan that a transaction removes.
type contents struct {
	orphan            layout.Orphan
	chunks, records   [][]byte        // their keys
	turns, turnChunks [][]byte        // keys in turnids, and in turnchunks
	turnsLeft         []record.TurnID // turns in no chunk whose entries in turnids a later transaction removes
	all               bool            // the orphan has no others
}

// contentsOf returns the contents of a conversation that is removed. It reads and changes nothing, so that an operation
// can call it before its first change.
func (t *txn) contentsOf(s *stored) contents {
	hasRecords := s.record == nil || s.records != (records.Counts{}) || s.pending != nil && s.pending.Records != nil
	return t.takeContents(layout.Orphan{Tenant: s.tenant, Conversation: s.place.Key}, hasRecords)
}

// takeContents returns the contents of an orphan, as many as the transaction may still remove, and counts them as
// removed. If hasRecords is false, the conversation has no records.
func (t *txn) takeContents(o layout.Orphan, hasRecords bool) (c contents) {
	c = contents{orphan: o, all: true}
	if t.records == nil {
		return c
	}
	conversation := layout.ConversationKey(o.Tenant, o.Conversation)
	switch {
	case o.Before != 0:
		c.chunks, c.all = t.takeKeys(t.chunks, conversation, layout.ChunkKey(conversation, o.Before))
		return c
	case o.TurnsBefore != 0:
		t.takeTurnChunks(&c)
		return c
	}
	defer t.takeTurns(&c) // Last, so that chunks and records use the limits of the transaction first.
	c.chunks, c.all = t.takeKeys(t.chunks, conversation, nil)
	if c.all && hasRecords {
		c.records, c.all = t.takeKeys(t.records, o.Key(), nil)
	}
	return c
}

// takeKeys returns the keys with a prefix in a bucket, as many as the transaction may still remove. Unless end is nil,
// it returns only those before end. all is false if there are more.
func (t *txn) takeKeys(b *bolt.Bucket, prefix, end []byte) (keys [][]byte, all bool) {
	c := b.Cursor()
	for k, v := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, v = c.Next() {
		if end != nil && bytes.Compare(k, end) >= 0 {
			break
		}
		if t.removed >= maxRemoved || t.removedBytes >= maxRemovedBytes {
			return keys, false
		}
		keys, t.removed, t.removedBytes = append(keys, bytes.Clone(k)), t.removed+1, t.removedBytes+len(v)
	}
	return keys, true
}

// removeContents removes contents. If the orphan has others, they stay for the sweep.
func (t *txn) removeContents(c contents) {
	for _, key := range c.chunks {
		t.del(t.chunks, key)
	}
	for _, key := range c.records {
		t.del(t.records, key)
	}
	t.removeTurns(c)
	key := c.orphan.Key()
	switch exists := t.orphans != nil && t.orphans.Get(key) != nil; {
	case c.all && exists:
		t.del(t.orphans, key)
	case !c.all && !exists:
		t.putOrphan(c.orphan)
	}
}

func (t *txn) putOrphan(o layout.Orphan) {
	key := o.Key()
	t.put(t.orphans, key, layout.EncodeOrphan(key))
}

// sweepOrphans removes chunks and records of conversations that were removed, and dropped chunks of others, in steps of
// at most maxRemoved and maxRemovedBytes, each of which counts as one towards the limit. It returns what remains of the
// limit. Orphans that fail because of damage are deferred.
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
		c := t.takeContents(o, true)
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
