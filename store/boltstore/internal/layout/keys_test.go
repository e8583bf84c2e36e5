package layout

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhq/parley/store/internal/record"
)

// FuzzDecode decodes small entries from arbitrary bytes. Accepted entries must encode to the same
// bytes.
func FuzzDecode(f *testing.F) {
	entry, id := ExpiryKey(7, "acme", InnerKey{1, 2, 3}), IDKey("acme", "a")
	f.Add(entry, EncodeDue(entry, 7))
	f.Add(id, Place{InnerKey{1, 2, 3}, 7}.Encode(id))
	f.Add(id, EphemeralEntry{7, 8}.Encode(id))
	f.Add(TenantKey("acme"), Counts{1, 2, 3, 0, 0}.Encode(TenantKey("acme")))
	f.Add(TenantKey("acme"), Counts{1, 2, 3, 4, 5}.Encode(TenantKey("acme")))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, make([]byte, record.KeySize+4))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if e, ok := DecodeDue(key, value); ok && !slices.Equal(DueKey(e.Slot, e.Tenant, e.Name), key) && key[4] < 0x80 {
			t.Errorf("dueKey(decodeDue(%x)) = %x", key, DueKey(e.Slot, e.Tenant, e.Name))
		}
		if c, ok := DecodeCounts(key, value); ok && !slices.Equal(c.Encode(key), value) {
			t.Errorf("decodeCounts(%x) encodes to %x", value, c.Encode(key))
		}
		if m, ok := DecodeEphemeral(key, value); ok && !slices.Equal(m.Encode(key), value) {
			t.Errorf("decodeEphemeral(%x) encodes to %x", value, m.Encode(key))
		}
		if p, err := DecodePlace(key, value); err == nil && !slices.Equal(p.Encode(key), value) {
			t.Errorf("decodePlace(%x) encodes to %x", value, p.Encode(key))
		}
		if tenant, rest, ok := CutTenant(key); ok && len(tenant)+len(rest) >= len(key) {
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
		key, other := IDKey(tenant, id), IDKey(otherTenant, otherID)
		if gotTenant, gotID, ok := CutTenant(key); !ok || gotTenant != tenant || string(gotID) != id {
			t.Errorf("cutTenant(key of %q of %q) = %q of %q, %v", id, tenant, gotID, gotTenant, ok)
		}
		if same := tenant == otherTenant && id == otherID; bytes.Equal(key, other) != same {
			t.Errorf("%q of %q and %q of %q have keys %x and %x", id, tenant, otherID, otherTenant, key, other)
		}
		if tenant != otherTenant && bytes.HasPrefix(key, TenantKey(otherTenant)) {
			t.Errorf("key %x of tenant %q has the prefix of tenant %q", key, tenant, otherTenant)
		}
		entry := EndKey(7, tenant, id)
		if e, ok := DecodeDue(entry, EncodeDue(entry, 7)); !ok || e.Tenant != tenant || e.Name != id || e.At != 7 {
			t.Errorf("decodeDue(end of %q of %q) = %+v, %v", id, tenant, e, ok)
		}
	})
}
