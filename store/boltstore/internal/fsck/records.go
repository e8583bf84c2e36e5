package fsck

import (
	"errors"
	"fmt"

	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/records"
)

// The methods in this file check records: their values, that their scope exists and counts them, and the entries at
// which those of tenants expire.

// record checks a record, and adds it to the counts of its scope.
func (c *checker) record(key, value []byte) {
	k, ok := layout.DecodeRecordKey(key)
	if !ok || len(k.Key) == 0 {
		c.addFault("records: %x is not the key of a record", key)
		return
	}
	s, err := records.StateOf(string(k.Key), value)
	if err == nil {
		_, err = records.Unmarshal(string(k.Key), value)
	}
	if err != nil {
		c.addFault("%s: %v", describe(k), err)
	}
	of := string(k.Scope())
	c.scopes[of] = c.scopes[of].Plus(layout.OfRecords(s.Counts))
	c.Records += s.Counts.Records
	if s.ExpireTime.IsZero() {
		return
	}
	at := layout.Nanosecond(s.ExpireTime)
	entry := layout.RecordEndKey(at, k.Tenant, string(k.Key))
	if d, ok := layout.DecodeDue(entry, c.get(layout.RecordEndsBucket, entry)); !ok || d.At != at || !k.OfTenant {
		c.addFault("%s: it expires at %d, but has no such entry in recordends", describe(k), at)
	}
}

// describe returns the name of a record in faults, or that of its scope.
func describe(k layout.RecordKey) string {
	name := fmt.Sprintf("records of tenant %q", k.Tenant)
	if !k.OfTenant {
		name = fmt.Sprintf("records of the conversation with key %x of tenant %q", k.Conversation, k.Tenant)
	}
	if len(k.Key) > 0 {
		name = fmt.Sprintf("record %.128q in the %s", k.Key, name)
	}
	return name
}

// orphan checks a conversation that is being removed. Its chunks and records count nowhere. checkChunks checks those of
// dropped chunks.
func (c *checker) orphan(key, value []byte) {
	o, ok := layout.DecodeOrphan(key, value)
	switch {
	case !ok:
		c.addFault("orphans: entry %x is damaged", key)
	case o.Before != 0 || o.TurnsBefore != 0:
	case c.get(layout.ConversationsBucket, layout.ConversationKey(o.Tenant, o.Conversation)) != nil:
		c.addFault("%s: they are orphans, but the conversation exists", describe(layout.RecordKey{
			Tenant: o.Tenant, Conversation: o.Conversation,
		}))
	default:
		c.Records -= c.scopes[string(key)].Records
		delete(c.scopes, string(key))
	}
}

// checkCounts checks that the records of a scope are those that a header, or an entry in scopes, counts.
func (c *checker) checkCounts(of []byte, want records.Counts) error {
	if got := c.scopes[string(of)]; got != layout.OfRecords(want) {
		return fmt.Errorf("it has %d records of %d bytes, but counts %d of %d", got.Records, got.Bytes, want.Records,
			want.Bytes)
	}
	return nil
}

// checkScopes checks the scopes of tenants, and that no other scope is left after the conversations and orphans.
func (c *checker) checkScopes() {
	c.each(layout.ScopesBucket, func(key, value []byte) {
		tenant, rest, ok := layout.CutTenant(key)
		state, err := layout.DecodeTenantRecords(key, value)
		if !ok || len(rest) > 0 {
			err = errors.New("its key is damaged")
		}
		of := layout.TenantScope(tenant)
		if err == nil {
			err = c.checkCounts(of, state.Counts)
		}
		if err != nil {
			c.addFault("records of tenant %q: %v", tenant, err)
		}
		c.counts[tenant] = c.counts[tenant].Plus(c.scopes[string(of)])
		delete(c.scopes, string(of))
	})
	for of := range c.scopes {
		k, _ := layout.DecodeRecordKey([]byte(of))
		c.addFault("%s: their conversation does not exist, or the tenant has no entry in scopes", describe(k))
	}
}

func (c *checker) recordEnd(key, value []byte) {
	e, ok := layout.DecodeDue(key, value)
	if !ok {
		c.addFault("recordends: entry %x is damaged: its record is not swept, but expires", key)
		return
	}
	at := append(layout.TenantScope(e.Tenant), e.Name...)
	s, err := records.StateOf(e.Name, c.get(layout.RecordsBucket, at))
	if err != nil || s.ExpireTime.IsZero() || layout.Nanosecond(s.ExpireTime) != e.At {
		c.addFault("recordends: entry %x of tenant %q leads to no record that expires then", key, e.Tenant)
	}
}
