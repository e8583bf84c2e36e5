package transfer

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

// slotUsers runs imports of one large conversation each, of which one may be collected at a time.
type slotUsers struct {
	importer *Importer
	clock    *manualClock

	mu   sync.Mutex       // guards the fields below
	got  []string         // tenants and conversations in the order in which they got the slot
	errs map[string]error // results of imports that have ended
}

func newSlotUsers(t *testing.T) *slotUsers {
	t.Helper()
	f := open(t)
	s := memstore.New(store.Options{MaxConversationBytes: store.MaxConversationBytes, Now: f.clock.Now})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &slotUsers{
		importer: NewImporter(s, store.MaxConversationBytes, f.clock.Now, rules.Retentions{}), clock: f.clock,
		errs: make(map[string]error),
	}
}

// start starts an import and returns when it waits. An import that has got the slot keeps it until gate is closed.
func (u *slotUsers) start(ctx context.Context, tenant, id string, gate <-chan struct{}) {
	parts, next, name := largeImport(id, u.clock.Now()), 0, tenant+"/"+id
	go func() {
		_, err := u.importer.Import(ctx, tenant, func() (*parleyv1.ImportConversationsRequest, error) {
			if next == 6 { // The sixth request needs the slot.
				u.mu.Lock()
				u.got = append(u.got, name)
				u.mu.Unlock()
				<-gate
			}
			if next == len(parts) {
				return nil, io.EOF
			}
			next++
			return parts[next-1], nil
		})
		u.mu.Lock()
		defer u.mu.Unlock()
		u.errs[name] = err
	}()
	synctest.Wait()
}

// check checks who got the slot, and that no tenant waits and no slot is in use.
func (u *slotUsers) check(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, u.got); diff != "" {
		t.Errorf("imports that got the slot (-want +got):\n%s", diff)
	}
	if n, waiting := len(u.importer.large.slots), len(u.importer.large.waiting); n != 0 || waiting != 0 {
		t.Errorf("%d slots are in use and %d tenants wait after all imports, want none", n, waiting)
	}
}

// TestTenantsGetLargeSlotsInTurn: a tenant with many imports that wait for a slot does not delay one of another tenant
// by more than the next of them.
func TestTenantsGetLargeSlotsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, gate, open := newSlotUsers(t), make(chan struct{}), make(chan struct{})
		close(open)
		u.start(t.Context(), "a", "1", gate)
		for _, id := range []string{"2", "3", "4"} {
			u.start(t.Context(), "a", id, open)
		}
		u.start(t.Context(), "b", "1", open)
		u.start(t.Context(), "b", "2", open)
		close(gate)
		synctest.Wait()
		u.check(t, "a/1", "a/2", "b/1", "a/3", "b/2", "a/4")
		for name, err := range u.errs {
			if err != nil {
				t.Errorf("import %s: %v", name, err)
			}
		}
	})
}

// TestImportsGiveUpLargeSlots: an import ends if it does not get a slot in time, or its client disconnects, wherever it
// waits. The imports after it get the slot.
func TestImportsGiveUpLargeSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, gate, open := newSlotUsers(t), make(chan struct{}), make(chan struct{})
		close(open)
		ctx, disconnect := context.WithCancelCause(t.Context())
		gone := errors.New("gone")
		u.start(t.Context(), "a", "1", gate)
		u.start(ctx, "a", "2", open)
		u.start(ctx, "a", "3", open)
		disconnect(gone)
		synctest.Wait()
		u.start(t.Context(), "a", "4", open)
		u.start(t.Context(), "a", "5", open)
		u.start(t.Context(), "b", "1", open)
		<-time.After(maxLargeWait)
		synctest.Wait()
		u.start(t.Context(), "a", "6", open)
		close(gate)
		synctest.Wait()
		u.check(t, "a/1", "a/6")
		for name, want := range map[string]error{
			"a/1": nil, "a/2": gone, "a/3": gone, "a/4": ErrTooManyImports, "a/5": ErrTooManyImports,
			"b/1": ErrTooManyImports, "a/6": nil,
		} {
			if err, ended := u.errs[name]; !ended || !errors.Is(err, want) {
				t.Errorf("import %s: ended %t, error %v, want %v", name, ended, err, want)
			}
		}
	})
}
