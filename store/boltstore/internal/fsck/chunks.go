package fsck

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"github.com/parleyhq/parley/store/boltstore/internal/chunks"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// checkChunks checks the chunks of a conversation with that key. It returns the sequence of their newest message, or
// 0 if there is none.
func (c *checker) checkChunks(key []byte, r *record.Record) (last int32, err error) {
	all, err := chunks.Of(c.tx, key).From(0)
	if err != nil {
		return 0, err
	}
	header, first := r.Header.GetChunks(), int32(math.MaxInt32)
	if header != nil {
		first = header.GetFirstSequence()
	}
	swept := c.sweptBefore(key)
	messages, size, bodies := 0, 0, int64(0)
	for _, chunk := range all {
		sizes, dropped := chunk.Retained(first)
		switch {
		case !slices.Equal(record.Sizes(chunk.Messages), chunk.Sizes):
			return 0, fmt.Errorf("the messages of chunk %d have other sizes than its head says", chunk.First())
		case chunk.First() <= last:
			return 0, fmt.Errorf("message %d in chunk %d follows message %d", chunk.First(), chunk.First(), last)
		case len(sizes) > 0 && chunk.Last() < swept:
			return 0, fmt.Errorf("chunk %d would be swept, but retains messages", chunk.First())
		case len(sizes) == 0 && chunk.Last() >= swept:
			return 0, fmt.Errorf("chunk %d retains no message", chunk.First())
		case len(sizes) == 0:
			continue
		}
		messages, size, last = messages+len(sizes), size+len(chunk.Messages)-dropped, chunk.Last()
		for _, s := range sizes {
			bodies += int64(s.Body)
		}
	}
	if messages != int(header.GetMessages()) || size != int(header.GetBytes()) {
		return 0, fmt.Errorf("its chunks retain %d messages of %d bytes, but its header says %d of %d", messages, size,
			header.GetMessages(), header.GetBytes())
	}
	if got := header.GetBodyBytes(); bodies != got {
		return 0, fmt.Errorf("its chunks retain messages of %d bytes without frames, but its header says %d", bodies, got)
	}
	if !r.CountsAll() {
		return last, nil
	}
	if !bytes.Equal(record.TypesOf(all, first), r.Types) {
		return 0, fmt.Errorf("its chunks have other types of structured data than its header says")
	}
	return last, nil
}

// sweptBefore returns the sequence before which the chunks of a conversation with that key are swept, or 0.
func (c *checker) sweptBefore(key []byte) (before int32) {
	tenant, rest, _ := layout.CutTenant(key)
	scope := layout.ConversationScope(tenant, layout.InnerKey(rest))
	b := c.tx.Bucket([]byte(layout.OrphansBucket))
	if b == nil {
		return 0
	}
	cursor := b.Cursor()
	for k, v := cursor.Seek(scope); bytes.HasPrefix(k, scope); k, v = cursor.Next() {
		if o, ok := layout.DecodeOrphan(k, v); ok {
			before = max(before, o.Before)
		}
	}
	return before
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
