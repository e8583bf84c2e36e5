package redisstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// Read implements store.Store.
func (s *Store) Read(ctx context.Context, q *store.Read) (*store.Snapshot, error) {
	if err := s.enter(ctx); err != nil {
		return nil, fmt.Errorf("conversation %q: %w", q.ConversationID, err)
	}
	defer s.leave()
	snapshot, err := again(ctx, func() (*store.Snapshot, error) { return s.readOnce(ctx, q) })
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", q.ConversationID, s.counted(err))
	}
	return snapshot, nil
}

func (s *Store) readOnce(ctx context.Context, q *store.Read) (*store.Snapshot, error) {
	p := s.spaceOf(q.Tenant, q.ConversationID)
	if q.Known.Version != 0 {
		if unchanged, err := s.isUnchanged(ctx, p, q); err != nil || unchanged {
			return &store.Snapshot{Unchanged: unchanged}, err
		}
	}
	with := []part{promptPart}
	if q.Request != nil {
		with = append(with, requestsPart)
	}
	if q.Turns {
		with = append(with, turnsPart)
	}
	first := firstPage(q)
	commands := []rueidis.Completed{s.loadCommand(p, q.ConversationID, with...)}
	if first > 0 {
		list := p.of("m", q.ConversationID)
		commands = append(commands, s.client.B().Lrange().Key(list).Start(int64(-first)).Stop(-1).Build())
	}
	replies := s.client.DoMulti(ctx, append(commands, s.revisionCommand(p, q.ConversationID))...)
	c, err := s.decode(ctx, p, q.ConversationID, replies[0], with...)
	if err != nil {
		return nil, err
	}
	if err := s.unchanged(c, replies[len(replies)-1]); err != nil {
		return nil, err
	}
	now := s.options.Now()
	if c.record == nil {
		return nil, store.ErrNotFound
	}
	if err := c.ephemeral.NotFound(now, c.record.ExpireTime(), c.record.Running()); err != nil {
		return nil, err
	}
	var part record.Part
	if q.Newest != 0 || q.WithOldestSequence {
		var newest store.Frames
		if first > 0 {
			list, err := replies[1].AsStrSlice()
			if err != nil {
				return nil, s.fault(err)
			}
			if want := min(first, c.count()); len(list) != want {
				return nil, fmt.Errorf("%w: %d of %d messages are missing", store.ErrCorrupt, want-len(list), c.count())
			}
			if newest, err = unsealed(nil, list); err != nil {
				return nil, err
			}
		}
		if part, err = s.partFor(ctx, c, q, newest); err != nil {
			return nil, err
		}
	}
	snapshot, err := record.Read(c.record, part, q, now)
	if err != nil || len(q.RecordPrefixes) == 0 || snapshot.Unchanged {
		return snapshot, err
	}
	snapshot.Records, snapshot.MoreRecords, err = s.withPrefixes(ctx, c, q.RecordPrefixes)
	return snapshot, err
}

// isUnchanged reports whether a conversation is live and still in the state that the caller knows.
func (s *Store) isUnchanged(ctx context.Context, p space, q *store.Read) (bool, error) {
	f, err := s.client.Do(ctx, s.client.B().Hmget().Key(p.of("c", q.ConversationID)).Field("s", "e").Build()).ToArray()
	if err != nil {
		return false, s.fault(err)
	}
	text, _ := f[0].ToString()
	state, _ := f[1].ToString()
	sum, ok := readSummary(text)
	if !ok || !q.Known.Is(store.Known{Version: sum.version, UID: sum.uid}) {
		return false, nil
	}
	ephemeral, ok := ephemeralOf(state)
	return ok && ephemeral.NotFound(s.options.Now(), sum.ends, sum.running) == nil, nil
}

// firstPage returns how many of the newest messages a read fetches together with the conversation.
func firstPage(q *store.Read) int {
	switch {
	case q.Newest == 0, q.Oldest, q.Before > 0:
		return 0
	case q.Newest < 0 || q.Newest >= pageElements:
		return pageElements
	}
	return q.Newest + 1 // One more tells whether there are more.
}

// partFor reads the messages that a read needs, and one more if there is one. newest are the newest messages that were
// read already. The messages of a conversation have rising sequences, but removed ones leave gaps: where in the list a
// sequence is, is only known within the number of gaps.
func (s *Store) partFor(ctx context.Context, c *conversation, q *store.Read, newest store.Frames) (record.Part, error) {
	var part record.Part
	count := c.count()
	if count == 0 {
		return part, nil
	}
	oldest, err := s.oldestSequence(ctx, c, q)
	if err != nil {
		return part, err
	}
	if q.WithOldestSequence {
		part.OldestSequence = oldest
	}
	last := c.record.Conversation().GetLastSequence()
	if n := len(c.extra.sizes); n > 0 { // Removed messages leave none if all newest ones are removed.
		last = c.extra.sizes[n-1].Sequence
	}
	least := func(sequence int32) int { return max(0, count-1-int(last-sequence)) } // place that a sequence has at least
	most := func(sequence int32) int { return min(count-1, int(sequence-oldest)) }  // and at most
	from, to := 0, count-1
	if q.After > 0 {
		from = least(q.After + 1)
	}
	if q.Before > 0 {
		to = most(q.Before - 1)
	}
	part.OmittedBytes = c.record.Header.GetChunks().GetBodyBytes()
	for _, size := range c.extra.sizes {
		part.OmittedBytes += int64(size.Body)
	}
	if q.Newest == 0 || from > to {
		return part, nil
	}
	if q.Oldest {
		for ; from <= to && !suffice(part.Messages, q); from += pageElements {
			frames, err := s.elements(ctx, c, from, min(to, from+pageElements-1))
			if err != nil {
				return part, err
			}
			part.Messages = append(part.Messages, frames...)
		}
		return part, nil
	}
	part.Messages = newest
	if n := newest.Count(); n > 0 {
		to = count - 1 - n
	}
	for ; from <= to && !suffice(part.Messages, q); to -= pageElements {
		frames, err := s.elements(ctx, c, max(from, to-pageElements+1), to)
		if err != nil {
			return part, err
		}
		part.Messages = slices.Concat(frames, part.Messages)
	}
	for frame := range part.Messages.All() {
		part.OmittedBytes -= int64(len(frame.Body()))
	}
	return part, nil
}

// suffice reports whether messages include one more than a read needs.
func suffice(frames store.Frames, q *store.Read) bool {
	n, size := 0, 0
	for frame := range frames.All() {
		if sequence := frame.Sequence(); sequence > q.After && (q.Before == 0 || sequence < q.Before) {
			n, size = n+1, size+len(frame)
		}
	}
	return q.Newest > 0 && n > q.Newest || q.MaxBytes > 0 && size > q.MaxBytes && n > 1
}

// oldestSequence returns the sequence of the oldest retained message. Unless the read asks for it, it may be lower.
func (s *Store) oldestSequence(ctx context.Context, c *conversation, q *store.Read) (int32, error) {
	chunks := c.record.Header.GetChunks()
	switch {
	case chunks.GetMessages() == 0:
		return c.extra.sizes[0].Sequence, nil
	case !q.WithOldestSequence:
		return chunks.GetFirstSequence(), nil
	}
	frames, err := s.elements(ctx, c, 0, 0)
	if err != nil {
		return 0, err
	}
	for frame := range frames.All() {
		return frame.Sequence(), nil
	}
	return 0, fmt.Errorf("%w: oldest message", store.ErrCorrupt)
}
