package memstore

import (
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
