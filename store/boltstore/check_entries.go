package boltstore

import (
	"github.com/parleyhq/parley/store/internal/record"
)

// The methods in this file check the entries that lead to conversations and the counts.
// checkConversation has checked that each conversation has its entries. Here each entry must have
// its conversation.

func (c *checker) id(key, value []byte) {
	tenant, id, ok := cutTenant(key)
	if !ok {
		c.addFault("ids: %x is not a valid key", key)
		return
	}
	p, err := decodePlace(key, value)
	if err != nil {
		c.addFault("conversation %q of tenant %q: %v", id, tenant, err)
		return
	}
	at := conversationKey(tenant, p.key)
	b := c.get(conversationsBucket, at)
	if b == nil {
		c.addFault("conversation %q of tenant %q: its id leads to key %x, which has no conversation", id, tenant, p.key)
		return
	}
	if err := c.damaged[string(at)]; err != nil {
		c.addFault("conversation %q of tenant %q: %v", id, tenant, err)
		delete(c.damaged, string(at))
		return
	}
	if r, err := record.UnmarshalHead(b); err == nil && r.Conversation().GetId() != string(id) {
		c.addFault("conversation %q of tenant %q: its id leads to conversation %q", id, tenant, r.Conversation().GetId())
	}
}

func (c *checker) expiry(key, value []byte) {
	d, ok := decodeDue(key, value)
	at, isKey := d.innerKey()
	if !ok || !isKey {
		c.addFault("expiry: entry %x is damaged: its conversation is not swept, but expires", key)
		return
	}
	b := c.get(conversationsBucket, conversationKey(d.tenant, at))
	if b == nil {
		c.addFault("expiry: entry %x of tenant %q leads to no conversation", key, d.tenant)
		return
	}
	r, err := record.UnmarshalHead(b)
	if err != nil {
		return // checkConversation has reported it.
	}
	id := idKey(d.tenant, r.Conversation().GetId())
	if p, err := decodePlace(id, c.get(idsBucket, id)); err == nil && p.key == at && p.minute != d.slot {
		c.addFault("conversation %q of tenant %q: it has an entry in expiry for minute %d in addition to that for minute %d",
			r.Conversation().GetId(), d.tenant, d.slot, p.minute)
	}
}

func (c *checker) turn(key, _ []byte) {
	tenant, id, ok := cutTenant(key)
	if !ok {
		c.addFault("turns: %x is not a valid key", key)
		return
	}
	if c.get(idsBucket, key) == nil {
		c.addFault("conversation %q of tenant %q: it has an entry in turns, but does not exist", id, tenant)
	}
}

// tenant checks the counts of one tenant. They may include the messages of damaged conversations
// that were deleted.
func (c *checker) tenant(key, value []byte) {
	tenant, rest, ok := cutTenant(key)
	got, sound := decodeCounts(key, value)
	want := c.counts[tenant]
	delete(c.counts, tenant)
	switch {
	case !ok || len(rest) > 0 || !sound:
		c.addFault("tenant %q: its counts are damaged", tenant)
	case want.conversations == 0:
		c.addFault("tenant %q: it has counts, but no conversation", tenant)
	case got.conversations != want.conversations || got.bytes != want.bytes || got.messages < want.messages:
		c.addFault("tenant %q: its counts are %d conversations, %d messages and %d bytes, but it has %d, %d and %d", tenant,
			got.conversations, got.messages, got.bytes, want.conversations, want.messages, want.bytes)
	}
}

func (c *checker) ephemeral(key, value []byte) {
	tenant, id, ok := cutTenant(key)
	e, sound := decodeEphemeral(key, value)
	if !ok || !sound {
		c.addFault("conversation %q of tenant %q: its entry in sessions is damaged: it counts as not ephemeral", id, tenant)
		return
	}
	if e.held() {
		return // The process that held it has ended.
	}
	if c.get(idsBucket, key) == nil {
		c.addFault("conversation %q of tenant %q: it is ephemeral and not held, but does not exist", id, tenant)
	}
	entry := endKey(e.deleteAt, tenant, string(id))
	if d, ok := decodeDue(entry, c.get(endsBucket, entry)); !ok || d.at != e.deleteAt {
		c.addFault("conversation %q of tenant %q: it is ephemeral and deleted at %d, but has no such entry in ends", id, tenant, e.deleteAt)
	}
}

func (c *checker) deletion(key, value []byte) {
	e, ok := decodeDue(key, value)
	if !ok {
		c.addFault("ends: entry %x is damaged", key)
		return
	}
	id := idKey(e.tenant, e.name)
	if entry, ok := decodeEphemeral(id, c.get(sessionsBucket, id)); !ok || entry.deleteAt != e.at {
		c.addFault("conversation %q of tenant %q: its entry in ends has %d, but its entry in sessions has another time", e.name, e.tenant, e.at)
	}
}
