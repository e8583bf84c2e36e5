package boltstore

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhq/parley/store/internal/record"
)

// FuzzDecode decodes small entries from arbitrary bytes. What is accepted must encode to the same
// bytes.
func FuzzDecode(f *testing.F) {
	entry, id := expiryKey(7, "acme", innerKey{1, 2, 3}), idKey("acme", "a")
	f.Add(entry, encodeDue(entry, 7))
	f.Add(id, place{innerKey{1, 2, 3}, 7}.encode(id))
	f.Add(id, ephemeralEntry{7, 8}.encode(id))
	f.Add(tenantKey("acme"), counts{1, 2, 3}.encode(tenantKey("acme")))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, make([]byte, record.KeySize+4))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if e, ok := decodeDue(key, value); ok && !slices.Equal(dueKey(e.slot, e.tenant, e.name), key) && key[4] < 0x80 {
			t.Errorf("dueKey(decodeDue(%x)) = %x", key, dueKey(e.slot, e.tenant, e.name))
		}
		if c, ok := decodeCounts(key, value); ok && !slices.Equal(c.encode(key), value) {
			t.Errorf("decodeCounts(%x) encodes to %x", value, c.encode(key))
		}
		if m, ok := decodeEphemeral(key, value); ok && !slices.Equal(m.encode(key), value) {
			t.Errorf("decodeEphemeral(%x) encodes to %x", value, m.encode(key))
		}
		if p, err := decodePlace(key, value); err == nil && !slices.Equal(p.encode(key), value) {
			t.Errorf("decodePlace(%x) encodes to %x", value, p.encode(key))
		}
		if tenant, rest, ok := cutTenant(key); ok && len(tenant)+len(rest) >= len(key) {
			t.Errorf("cutTenant(%x) = %q, %x, which are too long", key, tenant, rest)
		}
	})
}

// FuzzIDs checks keys of arbitrary tenants and ids.
func FuzzIDs(f *testing.F) {
	f.Add("acme", "a", "acm", "ea")
	f.Add("", "", "\x00", "")
	f.Add(strings.Repeat("x", 200), "a", strings.Repeat("x", 128), "b")
	f.Fuzz(func(t *testing.T, tenant, id, otherTenant, otherID string) {
		key, other := idKey(tenant, id), idKey(otherTenant, otherID)
		if gotTenant, gotID, ok := cutTenant(key); !ok || gotTenant != tenant || string(gotID) != id {
			t.Errorf("cutTenant(key of %q of %q) = %q of %q, %v", id, tenant, gotID, gotTenant, ok)
		}
		if same := tenant == otherTenant && id == otherID; bytes.Equal(key, other) != same {
			t.Errorf("%q of %q and %q of %q have keys %x and %x", id, tenant, otherID, otherTenant, key, other)
		}
		if tenant != otherTenant && bytes.HasPrefix(key, tenantKey(otherTenant)) {
			t.Errorf("key %x of tenant %q has the prefix of tenant %q", key, tenant, otherTenant)
		}
		entry := endKey(7, tenant, id)
		if e, ok := decodeDue(entry, encodeDue(entry, 7)); !ok || e.tenant != tenant || e.name != id || e.at != 7 {
			t.Errorf("decodeDue(end of %q of %q) = %+v, %v", id, tenant, e, ok)
		}
	})
}
