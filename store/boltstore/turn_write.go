package boltstore

import (
	"bytes"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/chunks"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// turnChunks reads the chunks of turns of one conversation in a transaction.
type turnChunks struct {
	bucket       *bolt.Bucket // nil if the file has no chunks of turns
	conversation []byte
}

var _ record.TurnChunkReader = turnChunks{}

func (c turnChunks) value(ordinal int64) (key, value []byte) {
	key = layout.TurnChunkKey(c.conversation, ordinal)
	if c.bucket != nil {
		value = c.bucket.Get(key)
	}
	return key, value
}

// Size implements record.TurnChunkReader.
func (c turnChunks) Size(ordinal int64) int {
	_, value := c.value(ordinal)
	return len(layout.TurnsOf(value))
}

// Turns implements record.TurnChunkReader. The turns are valid until the transaction ends or writes.
func (c turnChunks) Turns(ordinal int64) ([]byte, error) {
	key, value := c.value(ordinal)
	return layout.DecodeTurnChunk(key, value)
}

// turnWrite is what the write of a conversation changes in the buckets of turns.
type turnWrite struct {
	conversation   layout.InnerKey
	added, removed [][]byte       // keys in turnids
	chunks         []chunks.Entry // to put in turnchunks
	dropped        [][]byte       // keys in turnchunks
	before         int64          // layout.Orphan.TurnsBefore of chunks that are too many for the transaction; 0 for none
}

// encodeTurns divides the turns of a record, and returns what its write changes in the buckets of turns. It changes
// nothing in the file, so that an operation can call it before its first change.
func (t *txn) encodeTurns(tenant string, r *record.Record) (w turnWrite) {
	key := layout.InnerKey(r.Key())
	conversation := layout.ConversationKey(tenant, key)
	put := r.DivideTurns()
	change := r.ChangeOfIndex(record.IndexedTurns(t.conversations.Get(conversation)), put)
	w.conversation, w.removed = key, t.turnKeys(tenant, key, change.Dropped)
	for _, id := range change.Added {
		w.added = append(w.added, layout.TurnKey(tenant, id))
	}
	for _, c := range put {
		key := layout.TurnChunkKey(conversation, c.Ordinal)
		w.chunks = append(w.chunks, chunks.Entry{Key: key, Value: layout.EncodeTurnChunk(key, c.Turns)})
	}
	if first := r.Header.GetTurnChunks().GetFirst(); first > 0 && t.turnChunks != nil {
		c := contents{orphan: layout.Orphan{Tenant: tenant, Conversation: key, TurnsBefore: first}, all: true}
		t.takeTurnChunks(&c)
		w.removed, w.dropped = append(w.removed, c.turns...), c.turnChunks
		if !c.all {
			w.before = first
		}
	}
	return w
}

// size returns the size of the values that the write puts, in bytes.
func (w *turnWrite) size() (size int) {
	for _, c := range w.chunks {
		size += len(c.Value)
	}
	return size + len(w.added)*turnEntrySize
}

// turnEntrySize is the size of a value in turnids.
const turnEntrySize = record.KeySize + 4

// writeTurns makes the changes of the buckets of turns.
func (t *txn) writeTurns(tenant string, w turnWrite) {
	if len(w.added)+len(w.chunks) > 0 {
		t.makeTurnBuckets()
		if t.err != nil {
			return
		}
	}
	for _, key := range w.removed {
		t.del(t.turnIDs, key)
	}
	for _, key := range w.dropped {
		t.del(t.turnChunks, key)
	}
	for _, key := range w.added {
		t.put(t.turnIDs, key, layout.EncodeTurn(key, w.conversation))
	}
	for _, c := range w.chunks {
		t.put(t.turnChunks, c.Key, c.Value)
	}
	if w.before > 0 {
		t.putOrphan(layout.Orphan{Tenant: tenant, Conversation: w.conversation, TurnsBefore: w.before})
	}
}

// turnKeys returns the keys in turnids of turns, without those of entries that do not lead to the conversation.
func (t *txn) turnKeys(tenant string, conversation layout.InnerKey, ids []record.TurnID) (keys [][]byte) {
	if t.turnIDs == nil {
		return nil
	}
	for _, id := range ids {
		key := layout.TurnKey(tenant, id)
		if value := t.turnIDs.Get(key); bytes.Equal(value, layout.EncodeTurn(key, conversation)) {
			keys = append(keys, key)
		}
	}
	return keys
}

// takeTurns adds the turns of a conversation that is removed to its contents: their entries in turnids and the chunks
// of turns, up to the limits of the transaction. If turns that are in no chunk exceed the limit, the rest is in
// contents.turnsLeft, for which removeTurns writes a chunk.
func (t *txn) takeTurns(c *contents) {
	if t.turnIDs == nil {
		return
	}
	conversation := layout.ConversationKey(c.orphan.Tenant, c.orphan.Conversation)
	if ids := record.IndexedTurns(t.conversations.Get(conversation)); len(ids) > 0 {
		n := min(len(ids), max(0, maxRemoved-t.removed))
		c.turns = t.turnKeys(c.orphan.Tenant, c.orphan.Conversation, ids[:n])
		c.turnsLeft, t.removed = ids[n:], t.removed+n
		c.all = c.all && len(c.turnsLeft) == 0
	}
	t.takeTurnChunks(c)
}

// takeTurnChunks adds the chunks of turns of an orphan and their entries in turnids to its contents, up to the limits
// of the transaction. It also adds damaged chunks: only entries that lead to the conversation are removed.
func (t *txn) takeTurnChunks(c *contents) {
	prefix := layout.ConversationKey(c.orphan.Tenant, c.orphan.Conversation)
	cursor := t.turnChunks.Cursor()
	for k, v := cursor.Seek(prefix); bytes.HasPrefix(k, prefix); k, v = cursor.Next() {
		if len(k) != len(prefix)+layout.SequenceSize {
			continue
		}
		if before := c.orphan.TurnsBefore; before > 0 && layout.OrdinalOf(k) >= before {
			return
		}
		if t.removed >= maxRemoved || t.removedBytes >= maxRemovedBytes {
			c.all = false
			return
		}
		ids := record.TurnIDs(layout.TurnsOf(v))
		c.turns = append(c.turns, t.turnKeys(c.orphan.Tenant, c.orphan.Conversation, ids)...)
		c.turnChunks = append(c.turnChunks, bytes.Clone(k))
		t.removed, t.removedBytes = t.removed+1+len(ids), t.removedBytes+len(v)
	}
}

// lastOrdinal is the ordinal of the chunk that removeTurns writes for contents.turnsLeft. No other chunk has it.
const lastOrdinal = 1<<63 - 1

// removeTurns removes the turns of contents. It writes a chunk with those that a later transaction must remove.
func (t *txn) removeTurns(c contents) {
	for _, key := range c.turns {
		t.del(t.turnIDs, key)
	}
	for _, key := range c.turnChunks {
		t.del(t.turnChunks, key)
	}
	if len(c.turnsLeft) > 0 {
		key := layout.TurnChunkKey(layout.ConversationKey(c.orphan.Tenant, c.orphan.Conversation), lastOrdinal)
		t.put(t.turnChunks, key, layout.EncodeTurnChunk(key, record.TurnsWithIDs(c.turnsLeft)))
	}
}

// makeTurnBuckets makes the buckets of turns in a file that has none.
func (t *txn) makeTurnBuckets() {
	if t.turnIDs == nil {
		tx := t.meta.Tx()
		t.mutations++
		t.fail(boltfile.MakeTurnBuckets(tx))
		t.openRecordBuckets(tx)
		t.openTurnBuckets(tx)
	}
}

func (r *reader) openTurnBuckets(tx *bolt.Tx) {
	r.turnIDs, r.turnChunks = tx.Bucket([]byte(layout.TurnIDsBucket)), tx.Bucket([]byte(layout.TurnChunksBucket))
}
