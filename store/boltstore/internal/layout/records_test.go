package layout

import (
	"bytes"
	"math"
	"testing"
)

// TestOrphan encodes and decodes entries of orphans, and refuses all others.
func TestOrphan(t *testing.T) {
	for _, want := range []Orphan{
		{Tenant: "acme", Conversation: InnerKey{1, 2, 3}},
		{Conversation: InnerKey{1, 2, 3}, Before: 1},
		{Tenant: "acme", Before: math.MaxInt32},
	} {
		key := want.Key()
		if got, ok := DecodeOrphan(key, EncodeOrphan(key)); !ok || got != want {
			t.Errorf("DecodeOrphan() = %+v, %v, want %+v", got, ok, want)
		}
		if _, ok := DecodeOrphan(key, EncodeOrphan([]byte("other"))); ok {
			t.Errorf("DecodeOrphan() of %+v with the value of another key is accepted", want)
		}
	}
	scope := Orphan{Tenant: "acme"}.Key()
	for name, key := range map[string][]byte{
		"of a tenant": TenantScope("acme"), "sequence 0": append(bytes.Clone(scope), make([]byte, SequenceSize)...),
		"large sequence": append(bytes.Clone(scope), 0, 0, 0, 1, 0, 0, 0, 0), "short": scope[:len(scope)-1],
		"long": append(bytes.Clone(scope), 1), "empty": {},
	} {
		if got, ok := DecodeOrphan(key, EncodeOrphan(key)); ok {
			t.Errorf("DecodeOrphan() of key %s = %+v, want none", name, got)
		}
	}
}
