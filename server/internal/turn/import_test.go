package turn

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// importOverItself exports conversation c and imports it over itself.
func (f *fixture) importOverItself(t *testing.T) {
	t.Helper()
	exported, err := f.store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "c", Newest: -1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.store.Import(t.Context(), &store.Import{
		Tenant: tenant, Conversation: exported.Conversation, Messages: exported.Messages, Overwrite: true,
	}); err != nil {
		t.Fatal(err)
	}
}

// wantFree fails the test if a turn runs in conversation c or if a new turn cannot run.
func (f *fixture) wantFree(t *testing.T, p *controlledAgent) {
	t.Helper()
	header, err := f.store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "c"})
	if err != nil {
		t.Fatal(err)
	}
	if running := header.Conversation.GetActiveTurnId(); running != "" || f.Running() != 0 {
		t.Errorf("turn %q runs in the store and %d turns in the manager, want none", running, f.Running())
	}
	next := f.startChat(t, chatRequest("next", 0))
	if next.err != nil {
		t.Errorf("next turn: %v", next.err)
		return
	}
	p.lastRun().complete()
	if next.err != nil || stateName(next.finished().GetState()) != "COMPLETED" {
		t.Errorf("next turn = %q, %v", next.received(), next.err)
	}
}

// TestImportBeforeStart: an import that overwrites the conversation while a turn is about to start
// creates another conversation. The first turn of a queue starts and ends in the new one. A turn
// that waited for another turn does not start.
func TestImportBeforeStart(t *testing.T) {
	for name, waits := range map[string]bool{"the first in the queue": false, "after another": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := new(hookStore)
				f, p := newControlled(t, func(o *Options) {
					h.Store = o.Store
					o.Store = h
				})
				before := f.startChat(t, chatRequest("before", 0))
				once := sync.OnceFunc(func() { f.importOverItself(t) })
				var r *reader
				if waits {
					r = f.startChat(t, chatRequest("q", onBusyQueue))
					h.begin = func(*store.Append) { once() }
					p.lastRun().complete()
					synctest.Wait()
				} else {
					p.lastRun().complete()
					h.begin = func(*store.Append) { once() }
					r = f.startChat(t, chatRequest("q", 0))
					p.lastRun().sendText("a")
					p.lastRun().complete()
				}
				if before.err != nil {
					t.Errorf("previous turn = %q, %v", before.received(), before.err)
				}
				want := []string{"user: before"}
				if waits {
					if !errors.Is(r.err, ErrConversationDeleted) {
						t.Errorf("Chat = %q, %v, want ErrConversationDeleted", r.received(), r.err)
					}
				} else {
					want = append(want, "user: q", "assistant: a")
					if r.err != nil || stateName(r.finished().GetState()) != "COMPLETED" {
						t.Errorf("Chat = %q, %v, want a complete answer", r.received(), r.err)
					}
				}
				if diff := cmp.Diff(want, f.stored(t)); diff != "" {
					t.Errorf("stored messages (-want +got):\n%s", diff)
				}
				f.wantFree(t, p)
			})
		})
	}
}

// blindStore does not find the conversation on the first read of the complete history.
type blindStore struct {
	store.Store
	once sync.Once
}

func (b *blindStore) Read(ctx context.Context, r *store.Read) (found *store.Snapshot, err error) {
	found, err = b.Store.Read(ctx, r)
	if r.Newest < 0 {
		b.once.Do(func() { found, err = nil, store.ErrNotFound })
	}
	return found, err
}

// TestStoreDecidesWhetherTurnRuns: the manager ends a turn that has started in the store, even if
// its conversation seems to be deleted: the store decides.
func TestStoreDecidesWhetherTurnRuns(t *testing.T) {
	for name, test := range map[string]struct {
		blind bool
		then  func(f *fixture)
	}{
		"the history is not found": {blind: true, then: func(*fixture) {}},
		"a damaged one was deleted": {then: func(f *fixture) { // A damaged conversation has no uid.
			f.Committed([]store.Change{{Tenant: tenant, ConversationID: "c", Kind: parleyv1.ChangeKind_CHANGE_KIND_DELETED}})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, p := newControlled(t, func(o *Options) {
					if test.blind {
						o.Store = &blindStore{Store: o.Store}
					}
				})
				r := f.startChat(t, chatRequest("q", 0))
				test.then(f)
				synctest.Wait()
				if r.err != nil || stateName(r.finished().GetState()) != "INTERRUPTED" || !r.finished().GetError().GetRetryable() {
					t.Errorf("Chat = %q, %v, want an interrupted turn", r.received(), r.err)
				}
				f.wantFree(t, p)
			})
		})
	}
}
