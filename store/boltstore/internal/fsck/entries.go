package fsck

import (
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// The methods in this file check the entries that lead to conversations and the counts.
// checkConversation has checked that each conversation has its entries. Here each entry must have
// its conversation.

func (c *checker) id(key, value []byte) {
	tenant, id, ok := layout.CutTenant(key)
	if !ok {
		c.addFault("ids: %x is not a valid key", key)
		return
	}
	p, err := layout.DecodePlace(key, value)
	if err != nil {
		c.addFault("conversation %q of tenant %q: %v", id, tenant, err)
		return
	}
	at := layout.ConversationKey(tenant, p.Key)
	b := c.get(layout.ConversationsBucket, at)
	if b == nil {
		c.addFault("conversation %q of tenant %q: its id leads to key %x, which has no conversation", id, tenant, p.Key)
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
	d, ok := layout.DecodeDue(key, value)
	at, isKey := d.InnerKey()
	if !ok || !isKey {
		c.addFault("expiry: entry %x is damaged: its conversation is not swept, but expires", key)
		return
	}
	b := c.get(layout.ConversationsBucket, layout.ConversationKey(d.Tenant, at))
	if b == nil {
		c.addFault("expiry: entry %x of tenant %q leads to no conversation", key, d.Tenant)
		return
	}
	r, err := record.UnmarshalHead(b)
	if err != nil {
		return // checkConversation has reported it.
	}
	id := layout.IDKey(d.Tenant, r.Conversation().GetId())
	if p, err := layout.DecodePlace(id, c.get(layout.IDsBucket, id)); err == nil && p.Key == at && p.Minute != d.Slot {
		c.addFault("conversation %q of tenant %q: it has an entry in expiry for minute %d in addition to that for minute %d",
			r.Conversation().GetId(), d.Tenant, d.Slot, p.Minute)
	}
}

func (c *checker) turn(key, _ []byte) {
	tenant, id, ok := layout.CutTenant(key)
	if !ok {
		c.addFault("turns: %x is not a valid key", key)
		return
	}
	if c.get(layout.IDsBucket, key) == nil {
		c.addFault("conversation %q of tenant %q: it has an entry in turns, but does not exist", id, tenant)
	}
}

// tenant checks the counts of one tenant. They may include the messages of damaged conversations
// that were deleted, and the bytes of those in chunks.
func (c *checker) tenant(key, value []byte) {
	tenant, rest, ok := layout.CutTenant(key)
	got, sound := layout.DecodeCounts(key, value)
	want := c.counts[tenant]
	delete(c.counts, tenant)
	switch {
	case !ok || len(rest) > 0 || !sound:
		c.addFault("tenant %q: its counts are damaged", tenant)
	case want == layout.Counts{} && (got != want || !boltfile.IsJournaled(c.tx)):
		c.addFault("tenant %q: it has counts, but no conversation and no record", tenant)
	case got.Conversations != want.Conversations || got.Messages < want.Messages ||
		got.Bytes < want.Bytes || got.Bytes > want.Bytes && got.Messages == want.Messages:
		c.addFault("tenant %q: its counts are %d conversations, %d messages and %d bytes, but it has %d, %d and %d", tenant,
			got.Conversations, got.Messages, got.Bytes, want.Conversations, want.Messages, want.Bytes)
	case got.Records != want.Records || got.RecordBytes != want.RecordBytes:
		c.addFault("tenant %q: its counts are %d records of %d bytes, but it has %d of %d", tenant, got.Records,
			got.RecordBytes, want.Records, want.RecordBytes)
	}
}

func (c *checker) ephemeral(key, value []byte) {
	tenant, id, ok := layout.CutTenant(key)
	e, sound := layout.DecodeEphemeral(key, value)
	if !ok || !sound {
		c.addFault("conversation %q of tenant %q: its entry in sessions is damaged: it counts as not ephemeral", id, tenant)
		return
	}
	if e.Held() {
		return // The process that held it has ended.
	}
	if c.get(layout.IDsBucket, key) == nil {
		c.addFault("conversation %q of tenant %q: it is ephemeral and not held, but does not exist", id, tenant)
	}
	entry := layout.EndKey(e.DeleteAt, tenant, string(id))
	if d, ok := layout.DecodeDue(entry, c.get(layout.EndsBucket, entry)); !ok || d.At != e.DeleteAt {
		c.addFault("conversation %q of tenant %q: it is ephemeral and deleted at %d, but has no such entry in ends", id,
			tenant, e.DeleteAt)
	}
}

func (c *checker) deletion(key, value []byte) {
	e, ok := layout.DecodeDue(key, value)
	if !ok {
		c.addFault("ends: entry %x is damaged", key)
		return
	}
	id := layout.IDKey(e.Tenant, e.Name)
	if entry, ok := layout.DecodeEphemeral(id, c.get(layout.SessionsBucket, id)); !ok || entry.DeleteAt != e.At {
		c.addFault("conversation %q of tenant %q: its entry in ends has %d, but its entry in sessions has another time",
			e.Name, e.Tenant, e.At)
	}
}
