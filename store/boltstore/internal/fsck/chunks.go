package fsck

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/parleyhq/parley/store/boltstore/internal/chunks"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// checkChunks checks the chunks of a conversation with that key. It returns the sequence of their newest message, or
// 0 if there is none.
func (c *checker) checkChunks(key []byte, r *record.Record) (last int32, err error) {
	all, err := chunks.Of(c.tx, key).All()
	if err != nil {
		return 0, err
	}
	header := r.Header.GetChunks()
	messages, size := 0, 0
	for _, chunk := range all {
		sizes, dropped := chunk.Retained(header.GetFirstSequence())
		switch {
		case !slices.Equal(record.Sizes(chunk.Messages), chunk.Sizes):
			return 0, fmt.Errorf("the messages of chunk %d have other sizes than its head says", chunk.First())
		case chunk.First() <= last:
			return 0, fmt.Errorf("message %d in chunk %d follows message %d", chunk.First(), chunk.First(), last)
		case len(sizes) == 0:
			return 0, fmt.Errorf("chunk %d retains no message", chunk.First())
		}
		messages, size, last = messages+len(sizes), size+len(chunk.Messages)-dropped, chunk.Last()
	}
	if messages != int(header.GetMessages()) || size != int(header.GetBytes()) {
		return 0, fmt.Errorf("its chunks retain %d messages of %d bytes, but its header says %d of %d", messages, size,
			header.GetMessages(), header.GetBytes())
	}
	if !bytes.Equal(record.TypesOf(all, header.GetFirstSequence()), r.Types) {
		return 0, fmt.Errorf("its chunks have other types of structured data than its header says")
	}
	return last, nil
}

// chunk checks that a chunk belongs to a conversation or an orphan. The chunks of sound conversations were checked with
// these.
func (c *checker) chunk(key, _ []byte) {
	tenant, rest, ok := layout.CutTenant(key)
	if !ok || len(rest) != record.KeySize+layout.SequenceSize {
		c.addFault("chunks: %x is not the key of a chunk", key)
		return
	}
	conversation := key[:len(key)-layout.SequenceSize]
	orphan := layout.Orphan{Tenant: tenant, Conversation: layout.InnerKey(rest)}
	if c.get(layout.ConversationsBucket, conversation) == nil && c.get(layout.OrphansBucket, orphan.Key()) == nil {
		c.addFault("chunks: %x of tenant %q leads to no conversation", key, tenant)
	}
}
