package fsck

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// The methods in this file check the chunks of turns, and that the index of turns has an entry for each turn that must
// have one, and no others.

// checkTurns checks the chunks of turns of a conversation with that key, and the entries of its turns in turnids.
func (c *checker) checkTurns(tenant string, key layout.InnerKey, r *record.Record) error {
	header, swept := r.Header.GetTurnChunks(), c.turnsSweptBefore(tenant, key)
	lists, size, next := [][]byte{r.Turns}, int64(0), header.GetFirst()
	var damage error
	c.eachTurnChunk(layout.ConversationKey(tenant, key), func(ordinal int64, turns []byte, err error) {
		switch {
		case err != nil:
			damage = errors.Join(damage, fmt.Errorf("chunk %d of its turns: %w", ordinal, err))
		case ordinal < header.GetFirst() && ordinal >= swept:
			damage = errors.Join(damage, fmt.Errorf("chunk %d of its turns was dropped, but is not swept", ordinal))
		case ordinal >= header.GetFirst() && ordinal != next:
			damage = errors.Join(damage, fmt.Errorf("chunk %d of its turns follows chunk %d", ordinal, next-1))
		}
		if ordinal >= header.GetFirst() {
			size, next = size+int64(len(turns)), ordinal+1
		}
		lists = append(lists, turns)
	})
	if damage != nil {
		return damage
	}
	if next != header.GetNext() || size != header.GetBytes() {
		return fmt.Errorf("it has %d bytes in chunks of turns before %d, but its header says %d before %d", size, next,
			header.GetBytes(), header.GetNext())
	}
	if !r.Header.GetTurnsIndexed() {
		return nil
	}
	for _, list := range lists {
		for _, id := range record.TurnIDs(list) {
			if !c.leadsTo(tenant, id, key) {
				return fmt.Errorf("turn %s has no entry in turnids that leads to it", id)
			}
			c.turnEntries++
		}
	}
	return nil
}

// leadsTo reports whether the entry of a turn leads to a conversation.
func (c *checker) leadsTo(tenant string, id record.TurnID, conversation layout.InnerKey) bool {
	key := layout.TurnKey(tenant, id)
	got, err := layout.DecodeTurn(key, c.get(layout.TurnIDsBucket, key))
	return err == nil && got == conversation
}

// eachTurnChunk calls check for each chunk of turns of a conversation. Of a damaged one it gets what can be read.
func (c *checker) eachTurnChunk(conversation []byte, check func(ordinal int64, turns []byte, err error)) {
	b := c.tx.Bucket([]byte(layout.TurnChunksBucket))
	if b == nil {
		return
	}
	cursor := b.Cursor()
	for k, v := cursor.Seek(conversation); bytes.HasPrefix(k, conversation); k, v = cursor.Next() {
		if len(k) == len(conversation)+layout.SequenceSize {
			_, err := layout.DecodeTurnChunk(k, v)
			check(layout.OrdinalOf(k), layout.TurnsOf(v), err)
		}
	}
}

// turnsSweptBefore returns the ordinal before which the chunks of turns of a conversation are swept, or 0.
func (c *checker) turnsSweptBefore(tenant string, key layout.InnerKey) (before int64) {
	b := c.tx.Bucket([]byte(layout.OrphansBucket))
	if b == nil {
		return 0
	}
	scope, cursor := layout.ConversationScope(tenant, key), b.Cursor()
	for k, v := cursor.Seek(scope); bytes.HasPrefix(k, scope); k, v = cursor.Next() {
		if o, ok := layout.DecodeOrphan(k, v); ok {
			before = max(before, o.TurnsBefore)
		}
	}
	return before
}

// turnChunk checks that a chunk of turns belongs to a conversation or an orphan. Those of sound conversations were
// checked with these.
func (c *checker) turnChunk(key, value []byte) {
	tenant, rest, ok := layout.CutTenant(key)
	if !ok || len(rest) != record.KeySize+layout.SequenceSize {
		c.addFault("turnchunks: %x is not the key of a chunk of turns", key)
		return
	}
	orphan := layout.Orphan{Tenant: tenant, Conversation: layout.InnerKey(rest[:record.KeySize])}
	switch {
	case c.get(layout.ConversationsBucket, key[:len(key)-layout.SequenceSize]) != nil:
	case c.get(layout.OrphansBucket, orphan.Key()) == nil:
		c.addFault("turnchunks: %x of tenant %q leads to no conversation", key, tenant)
	default:
		for _, id := range record.TurnIDs(layout.TurnsOf(value)) {
			if c.leadsTo(tenant, id, orphan.Conversation) {
				c.turnEntries++
			}
		}
	}
}

// checkTurnIDs checks the entries of turnids. The other checks have counted the entries that must exist, so only if
// there are others, it looks for each entry in its conversation.
func (c *checker) checkTurnIDs() {
	entries := int64(0)
	c.each(layout.TurnIDsBucket, func(key, value []byte) {
		tenant, id, ok := layout.CutTenant(key)
		if !ok || len(id) != len(record.TurnID{}) {
			c.addFault("turnids: %x is not the key of a turn", key)
			return
		}
		if _, err := layout.DecodeTurn(key, value); err != nil {
			c.addFault("turn %s of tenant %q: %v", record.TurnID(id), tenant, err)
		}
		entries++
	})
	if entries != c.turnEntries {
		c.findLostTurns()
	}
}

// findLostTurns reports the entries of turnids whose conversations do not keep their turns. It reads the turns of each
// conversation once. Those of damaged conversations are not known.
func (c *checker) findLostTurns() {
	entries := map[string]int{} // number that lead to a conversation, by its key in conversations
	c.eachTurnID(func(tenant string, _ record.TurnID, at layout.InnerKey) {
		entries[string(layout.ConversationKey(tenant, at))]++
	})
	kept := map[string]map[record.TurnID]bool{} // only of conversations with more entries than turns
	for conversation, n := range entries {
		if turns, ok := c.keptTurns([]byte(conversation)); ok && len(turns) < n {
			kept[conversation] = turns
		}
	}
	c.eachTurnID(func(tenant string, id record.TurnID, at layout.InnerKey) {
		if turns, ok := kept[string(layout.ConversationKey(tenant, at))]; ok && !turns[id] {
			c.addFault("turn %s of tenant %q: its entry leads to key %x, whose conversation does not keep it", id, tenant, at)
		}
	})
}

// eachTurnID calls do for all sound entries of turnids, with the conversations to which they lead.
func (c *checker) eachTurnID(do func(tenant string, id record.TurnID, at layout.InnerKey)) {
	c.each(layout.TurnIDsBucket, func(key, value []byte) {
		tenant, id, ok := layout.CutTenant(key)
		if at, err := layout.DecodeTurn(key, value); ok && len(id) == len(record.TurnID{}) && err == nil {
			do(tenant, record.TurnID(id), at)
		}
	})
}

// keptTurns returns the turns of a conversation, by its key, to which entries of turnids lead. The bool is false if the
// conversation is damaged. One that does not exist may have chunks that are still to be removed.
func (c *checker) keptTurns(conversation []byte) (kept map[record.TurnID]bool, ok bool) {
	tenant, at, _ := layout.CutTenant(conversation)
	kept = map[record.TurnID]bool{}
	add := func(ids []record.TurnID) {
		for _, id := range ids {
			if c.leadsTo(tenant, id, layout.InnerKey(at)) {
				kept[id] = true
			}
		}
	}
	value := c.get(layout.ConversationsBucket, conversation)
	if value != nil {
		if _, err := record.Unmarshal(value); err != nil {
			return nil, false
		}
	}
	add(record.IndexedTurns(value))
	c.eachTurnChunk(conversation, func(_ int64, turns []byte, _ error) { add(record.TurnIDs(turns)) })
	return kept, true
}
