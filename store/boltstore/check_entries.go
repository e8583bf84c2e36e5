package boltstore

import (
	"github.com/parleyhq/parley/store/internal/record"
)

// What leads to conversations, or is counted. That each conversation has its entries was
// seen with the conversation; here each entry must have its conversation.

func (c *checker) id(key, value []byte) {
	tenant, id, ok := cutTenant(key)
	if !ok {
		c.addFault("ids: %x is no key", key)
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
		c.addFault("conversation %q of tenant %q: its id leads to %x, where there is none", id, tenant, p.key)
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
		c.addFault("expiry: entry %x is damaged: its conversation is not swept, but ends all the same", key)
		return
	}
	b := c.get(conversationsBucket, conversationKey(d.tenant, at))
	if b == nil {
		c.addFault("expiry: entry %x of tenant %q leads to no conversation", key, d.tenant)
		return
	}
	r, err := record.UnmarshalHead(b)
	if err != nil {
		return // That was told.
	}
	id := idKey(d.tenant, r.Conversation().GetId())
	if p, err := decodePlace(id, c.get(idsBucket, id)); err == nil && p.key == at && p.minute != d.slot {
		c.addFault("conversation %q of tenant %q: it has an entry in expiry for minute %d besides that for minute %d",
			r.Conversation().GetId(), d.tenant, d.slot, p.minute)
	}
}

func (c *checker) turn(key, _ []byte) {
	tenant, id, ok := cutTenant(key)
	if !ok {
		c.addFault("turns: %x is no key", key)
		return
	}
	if c.get(idsBucket, key) == nil {
		c.addFault("conversation %q of tenant %q: turns has one of it, and there is no such conversation", id, tenant)
	}
}

// tenant looks at the counts of one. Messages of a damaged conversation that was deleted are
// still counted.
func (c *checker) tenant(key, value []byte) {
	tenant, rest, ok := cutTenant(key)
	got, sound := decodeCounts(key, value)
	want := c.counts[tenant]
	delete(c.counts, tenant)
	switch {
	case !ok || len(rest) > 0 || !sound:
		c.addFault("tenant %q: its counts are damaged", tenant)
	case want.conversations == 0:
		c.addFault("tenant %q: it has counts and no conversation", tenant)
	case got.conversations != want.conversations || got.bytes != want.bytes || got.messages < want.messages:
		c.addFault("tenant %q: it counts %d conversations, %d messages and %d bytes, and has %d, %d and %d", tenant,
			got.conversations, got.messages, got.bytes, want.conversations, want.messages, want.bytes)
	}
}

func (c *checker) ephemeral(key, value []byte) {
	tenant, id, ok := cutTenant(key)
	m, sound := decodeEphemeral(key, value)
	if !ok || !sound {
		c.addFault("conversation %q of tenant %q: its session memory is damaged: it counts as none", id, tenant)
		return
	}
	if m.held() {
		return // What held it has ended.
	}
	if c.get(idsBucket, key) == nil {
		c.addFault("conversation %q of tenant %q: it is session memory that nobody holds, and there is no such conversation", id, tenant)
	}
	entry := endKey(m.deleteAt, tenant, string(id))
	if e, ok := decodeDue(entry, c.get(endsBucket, entry)); !ok || e.at != m.deleteAt {
		c.addFault("conversation %q of tenant %q: its session memory ends at %d, and ends does not have that", id, tenant, m.deleteAt)
	}
}

func (c *checker) deletion(key, value []byte) {
	e, ok := decodeDue(key, value)
	if !ok {
		c.addFault("ends: entry %x is damaged", key)
		return
	}
	id := idKey(e.tenant, e.name)
	if m, ok := decodeEphemeral(id, c.get(sessionsBucket, id)); !ok || m.deleteAt != e.at {
		c.addFault("conversation %q of tenant %q: ends has %d for it, and its session memory does not end then", e.name, e.tenant, e.at)
	}
}
