package memstore

import (
	"fmt"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// TestEmptyTenantIsDeleted creates conversations and ephemeral ids of several tenants, removes them
// in different ways, and checks that no tenant remains.
func TestEmptyTenantIsDeleted(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	s := New(store.Options{Now: func() time.Time { return now }})
	defer s.Close()
	ctx := t.Context()
	sweep := func() error {
		_, err := s.Sweep(ctx, 100)
		return err
	}
	for name, steps := range map[string]func(h *store.Hold) []error{
		"released": func(h *store.Hold) []error { return []error{s.Hold(ctx, h), s.Release(ctx, h)} },
		"swept": func(h *store.Hold) []error {
			errs := []error{s.Hold(ctx, h)}
			h.DeleteAfter = time.Minute
			errs = append(errs, s.Release(ctx, h))
			now = now.Add(time.Minute)
			return append(errs, sweep())
		},
		"deleted, then released": func(h *store.Hold) []error {
			return []error{
				s.Hold(ctx, h), s.Delete(ctx, &store.Delete{Tenant: h.Tenant, ConversationID: "a"}), s.Release(ctx, h),
			}
		},
		"expired": func(*store.Hold) []error {
			now = now.Add(time.Hour)
			return []error{sweep()}
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Create(ctx, &store.Create{Tenant: name, Conversation: &parleyv1.Conversation{Id: "a"}})
			for i, err := range append(steps(&store.Hold{Tenant: name, ConversationIDs: []string{"a", "b"}}), err) {
				if err != nil {
					t.Errorf("step %d: %v", i, err)
				}
			}
			for left, of := range s.tenants {
				t.Errorf("tenant %s remains with %d conversations and %d ephemeral ids", left, len(of.byID), of.ephemeral.Len())
			}
		})
	}
}

// TestTurnsAreForgotten checks that the index of turns has no turn that was dropped or ended with its conversation.
func TestTurnsAreForgotten(t *testing.T) {
	s := New(store.Options{})
	defer s.Close()
	if _, err := s.Create(t.Context(), &store.Create{Tenant: "acme", Conversation: &parleyv1.Conversation{
		Id: "a", Retention: &parleyv1.Retention{MaxTurns: 100},
	}}); err != nil {
		t.Fatal(err)
	}
	for n := range 300 {
		id := fmt.Sprintf("0198c0de-0000-7000-8000-%012d", n)
		for _, a := range []*store.Append{{Begin: &parleyv1.Turn{Id: id}}, {End: &parleyv1.Turn{Id: id}}} {
			a.Tenant, a.ConversationID = "acme", "a"
			if _, err := s.Append(t.Context(), a); err != nil {
				t.Fatal(err)
			}
		}
	}
	of := s.tenants["acme"]
	if n := of.turns.Len(); n < 100 || n > 115 || of.running.Len() != 0 {
		t.Errorf("the index has %d turns, of which %d run, want 100 to 115, and none", n, of.running.Len())
	}
	if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "a"}); err != nil {
		t.Fatal(err)
	}
	if n := of.turns.Len(); n != 0 {
		t.Errorf("the index has %d turns after the deletion, want none", n)
	}
}
