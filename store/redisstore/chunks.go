package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// chunkReader reads the messages that are counted aside: those at the begin of the list.
type chunkReader struct {
	ctx          context.Context //nolint:containedctx // It is that of one read or write: package record passes none.
	store        *Store
	conversation *conversation
	aside        int
	joined       int // messages that From has returned
	read         int // messages that Head has read
	most         int // that Head has read at once
	page         store.Frames
}

var _ record.ChunkReader = (*chunkReader)(nil)

// firstElements is the number of messages that Head reads first.
const firstElements = 8

func (r *chunkReader) elements(first, last int) (store.Frames, error) {
	return r.store.elements(r.ctx, r.conversation, first, last)
}

// Head implements record.ChunkReader.
func (r *chunkReader) Head(sequence int32) (*record.Chunk, error) {
	for {
		for frame := range r.page.All() {
			if frame.Sequence() >= sequence {
				return record.ChunkOf(r.page)
			}
		}
		if r.read >= r.aside {
			return nil, fmt.Errorf("%w: no message from %d on", store.ErrCorrupt, sequence)
		}
		// An append drops one or two messages, mostly.
		r.most = min(pageElements, max(firstElements, 4*r.most))
		end := min(r.aside, r.read+r.most)
		var err error
		if r.page, err = r.elements(r.read, end-1); err != nil {
			return nil, err
		}
		r.read = end
	}
}

// From implements record.ChunkReader.
func (r *chunkReader) From(sequence int32) ([]*record.Chunk, error) {
	var found []*record.Chunk
	for end := r.aside; end > 0; {
		begin := max(0, end-pageElements)
		frames, err := r.elements(begin, end-1)
		if err != nil {
			return nil, err
		}
		older := 0
		for frame := range frames.All() {
			if frame.Sequence() >= sequence {
				break
			}
			older += len(frame)
		}
		if older < len(frames) {
			chunk, err := record.ChunkOf(frames[older:])
			if err != nil {
				return nil, err
			}
			found, r.joined = append(found, chunk), r.joined+len(chunk.Sizes)
		}
		if older > 0 {
			break
		}
		end = begin
	}
	slices.Reverse(found)
	return found, nil
}

// Before implements record.ChunkReader.
func (r *chunkReader) Before(sequence int32) iter.Seq2[*record.Chunk, error] {
	return func(yield func(*record.Chunk, error) bool) {
		for end := r.aside; end > 0; end -= pageElements {
			frames, err := r.elements(max(0, end-pageElements), end-1)
			if err != nil {
				yield(nil, err)
				return
			}
			size := 0
			for frame := range frames.All() {
				if frame.Sequence() >= sequence {
					break
				}
				size += len(frame)
			}
			if size == 0 {
				continue
			}
			chunk, err := record.ChunkOf(frames[:size])
			if !yield(chunk, err) || err != nil {
				return
			}
		}
	}
}

// turnChunks reads the chunks of turns of a conversation.
type turnChunks struct {
	ctx          context.Context //nolint:containedctx // It is that of one read or write: package record passes none.
	store        *Store
	conversation *conversation
	read         map[int64][]byte
}

var _ record.TurnChunkReader = (*turnChunks)(nil)

// Size implements record.TurnChunkReader.
func (c *turnChunks) Size(ordinal int64) int {
	list, _ := c.Turns(ordinal)
	return len(list)
}

// Turns implements record.TurnChunkReader.
func (c *turnChunks) Turns(ordinal int64) ([]byte, error) {
	if list, ok := c.read[ordinal]; ok {
		return list, nil
	}
	p := c.conversation
	get := c.store.client.B().Hget().Key(p.of("tc", p.id)).Field(strconv.FormatInt(ordinal, 10)).Build()
	value, err := c.store.client.Do(c.ctx, get).AsBytes()
	if err != nil && !isNil(err) {
		return nil, c.store.fault(err)
	}
	if n := len(value) - 4; n < 0 || record.Checksum(value[:n]) != binary.BigEndian.Uint32(value[n:]) {
		return nil, fmt.Errorf("%w: chunk %d of turns", store.ErrCorrupt, ordinal)
	}
	if c.read == nil {
		c.read = make(map[int64][]byte)
	}
	c.read[ordinal] = value[:len(value)-4]
	return c.read[ordinal], nil
}

// putTurns adds the commands that write chunks of turns, the index of turns and the running turn. changes says that the
// conversation exists.
func (t *transaction) putTurns(b *commands, r *record.Record, changes bool) error {
	id := t.write.id
	if err := t.putRunning(b, r, changes); err != nil {
		return err
	}
	if changes && !t.old.read[turnsPart] {
		return nil
	}
	put := r.DivideTurns()
	chunks := t.of("tc", id)
	for _, c := range put {
		value := binary.BigEndian.AppendUint32(slices.Clone(c.Turns), record.Checksum(c.Turns))
		b.add("HSET", chunks, strconv.FormatInt(c.Ordinal, 10), string(value))
	}
	var indexed, dropped []record.TurnID
	if changes {
		if t.indexedBefore {
			indexed = record.TurnIDs([]byte(t.old.values[turnsPart]))
		}
		for ordinal := t.firstChunk; ordinal < r.Header.GetTurnChunks().GetFirst(); ordinal++ {
			list, err := t.old.record.TurnChunks.Turns(ordinal)
			if err != nil && !errors.Is(err, store.ErrCorrupt) {
				return err
			}
			dropped = append(dropped, record.TurnIDs(list)...)
			b.add("HDEL", chunks, strconv.FormatInt(ordinal, 10))
		}
	}
	change := r.ChangeOfIndex(indexed, put)
	dropped = append(dropped, change.Dropped...)
	var added, own, removed []string
	for _, turn := range change.Added {
		added, own = append(added, "0", string(turn[:])+id), append(own, string(turn[:])+id)
	}
	for _, turn := range dropped {
		removed = append(removed, string(turn[:])+id)
	}
	b.addMany([]string{"ZADD", t.key("ti")}, 2, added)
	b.addMany([]string{"SADD", t.of("tl", id)}, 1, own)
	b.addMany([]string{"ZREM", t.key("ti")}, 1, removed)
	b.addMany([]string{"SREM", t.of("tl", id)}, 1, removed)
	return nil
}

// putRunning adds the commands that write the indexes of running turns.
func (t *transaction) putRunning(b *commands, r *record.Record, changes bool) error {
	id, before, now := t.write.id, "", r.Conversation().GetActiveTurnId()
	if changes {
		before = t.runningBefore
	}
	if before == now {
		return nil
	}
	name := t.name + id
	if before != "" {
		turn, _ := record.ParseTurnID(before)
		b.add("HDEL", t.prefix+"rt", name)
		b.add("ZREM", t.prefix+"rl", name)
		b.add("ZREM", t.key("tr"), string(turn[:])+id)
		b.add("UNLINK", t.of("p", id))
	}
	if now != "" {
		turn, indexed := record.ParseTurnID(now)
		b.add("HSET", t.prefix+"rt", name, t.store.server+string(turn[:])+now)
		b.add("ZADD", t.prefix+"rl", "0", name)
		if indexed {
			b.add("ZADD", t.key("tr"), "0", string(turn[:])+id)
		}
	}
	return nil
}
