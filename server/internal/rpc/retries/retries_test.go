package retries

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestDeriveIsStable checks one derived id. If the ids changed, a retry after an update of the server
// would not find its conversation.
func TestDeriveIsStable(t *testing.T) {
	if got, want := derive("default", "Chat", "r1"), "82f6edd3-1830-40f0-a5e7-a4ad13a8f22b"; got != want {
		t.Errorf("derive = %s, want %s", got, want)
	}
}

func TestDerive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.StringOfN(rapid.SampledFrom([]rune("ab\x00\x01é")), 0, 4, -1)
		a := rapid.SliceOfN(part, 0, 4).Draw(t, "a")
		b := rapid.SliceOfN(part, 0, 4).Draw(t, "b")
		id := derive(a...)
		if u, err := uuid.Parse(id); err != nil || u.Version() != 4 || u.Variant() != uuid.RFC4122 || u.String() != id {
			t.Errorf("derive(%q) = %q (%v), want a UUID v4", a, id, err)
		}
		if same := derive(b...) == id; same != slices.Equal(a, b) {
			t.Errorf("derive(%q) == derive(%q) = %t", a, b, same)
		}
	})
}

func TestNewID(t *testing.T) {
	if first, second := NewID("", "a"), NewID("", "a"); first == second {
		t.Errorf("NewID without a request_id = %s twice, want different ids", first)
	}
	if first, second := NewID("r", "a"), NewID("r", "a"); first != second {
		t.Errorf("NewID with the same request_id = %s, then %s", first, second)
	}
}

func TestNewRequest(t *testing.T) {
	batch := func(change func(*parleyv1.Message)) *parleyv1.AppendMessagesRequest {
		m := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: "hello", Metadata: make(map[string]string)}
		for i := range 50 { // The order of 50 map entries differs between calls.
			m.Metadata[fmt.Sprint(i)] = strings.Repeat("v", i)
		}
		change(m)
		return &parleyv1.AppendMessagesRequest{Messages: []*parleyv1.Message{m}}
	}
	digest := func(m proto.Message) [32]byte {
		q, err := NewRequest("r", "AppendMessages", m)
		if err != nil {
			t.Fatal(err)
		}
		return q.Digest
	}
	first := digest(batch(func(*parleyv1.Message) {}))
	if first != digest(batch(func(*parleyv1.Message) {})) {
		t.Error("digests of the same content differ")
	}
	if first == digest(batch(func(m *parleyv1.Message) { m.Metadata["7"] = "other" })) {
		t.Error("digests of different content are equal")
	}
	if q, err := NewRequest("", "AppendMessages", batch(func(*parleyv1.Message) {})); q != nil || err != nil {
		t.Errorf("NewRequest without a request_id = %v, %v, want nil", q, err)
	}
}
