package boltstore

import (
	"github.com/parleyhq/parley/store/boltstore/internal/chunks"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// defaultChunkSize is the size in bytes for record.Record.Divide. A transaction or a fold that writes a conversation
// writes up to twice as many bytes of messages. A read of a few older messages reads up to two chunks.
const defaultChunkSize = 32 << 10

// encoded is a conversation in the form in which the file has it, with its changes of the buckets of turns.
type encoded struct {
	*chunks.Encoded

	turns turnWrite
}

// divides reports whether the chunks of messages or of turns of the conversation change.
func (e *encoded) divides() bool { return e.Divides() || len(e.turns.chunks) > 0 }

// encode divides a record and encodes it.
func (t *txn) encode(tenant string, r *record.Record) (*encoded, error) {
	turns := t.encodeTurns(tenant, r)
	of := t.chunksOf(tenant, layout.InnerKey(r.Key()))
	var dropped chunks.Dropped
	if r.Divided() {
		_ = t.tally.guard.Do(func() error { // The pages of chunks that are not removed may be damaged.
			dropped = of.Dropped(r)
			return nil
		})
	}
	e, err := of.Encode(r, t.chunkSize, dropped)
	if err != nil {
		return nil, err
	}
	e.Written += turns.size()
	return &encoded{Encoded: e, turns: turns}, nil
}

// putConversation writes a conversation without the entries that lead to it. e is the encoded record.
func (t *txn) putConversation(tenant string, r *record.Record, e *encoded) {
	t.put(t.conversations, e.Key, e.Value)
	t.writeTurns(tenant, e.turns)
	if !e.Divides() && !r.NeedsSchemaOfRecords() {
		return
	}
	t.makeRecordBuckets()
	if t.err != nil || !e.Divides() {
		return
	}
	for _, key := range e.Removed {
		t.del(t.chunks, key)
	}
	if e.Before > 0 {
		t.putOrphan(layout.Orphan{Tenant: tenant, Conversation: layout.InnerKey(r.Key()), Before: e.Before})
	}
	for _, c := range e.Chunks {
		t.put(t.chunks, c.Key, c.Value)
	}
}
