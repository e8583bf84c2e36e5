package storetest

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// call is a call of one of the store's methods.
type call struct {
	name   string
	writes bool
	run    func(context.Context) error
}

// calls returns at least one call of every method, for the given conversation and turn.
func (f *fixture) calls(id, turn string) []call {
	messages := []*parleyv1.Message{user("question")}
	appending := func(a store.Append) func(context.Context) error {
		return func(ctx context.Context) error {
			a.Tenant, a.ConversationID, a.Messages = tenant, id, messages
			_, err := f.store.Append(ctx, &a)
			return err
		}
	}
	creating := func(orGet bool) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := f.store.Create(ctx, &store.Create{
				Tenant: tenant, Conversation: &parleyv1.Conversation{Id: id}, OrGet: orGet,
			})
			return err
		}
	}
	return []call{
		{"Create", true, creating(false)},
		{"Create or get", true, creating(true)},
		{"Append", true, appending(store.Append{})},
		{"Append, begin", true, appending(store.Append{Begin: &parleyv1.Turn{Id: turn}, Events: turnEvents(1)})},
		{"Append, end", true, appending(store.Append{End: &parleyv1.Turn{Id: turn}, Events: turnEvents(2)})},
		{"Import", true, func(ctx context.Context) error {
			i := f.newImport(id, time.Minute)
			i.Tenant, i.Overwrite, i.Messages, i.Conversation.LastSequence = tenant, true, i.Messages.Newest(1), 20
			_, err := f.store.Import(ctx, i)
			return err
		}},
		{"Update", true, func(ctx context.Context) error {
			_, err := f.store.Update(ctx, &store.Update{
				Tenant: tenant, ConversationID: id, Lease: &store.Lease{Agent: "writer"},
			})
			return err
		}},
		{"Delete", true, func(ctx context.Context) error {
			return f.store.Delete(ctx, &store.Delete{Tenant: tenant, ConversationID: id})
		}},
		{"Hold", true, func(ctx context.Context) error {
			return f.store.Hold(ctx, &store.Hold{Tenant: tenant, ConversationIDs: []string{id, "none"}, DeleteAfter: time.Hour})
		}},
		{"Release", true, func(ctx context.Context) error {
			return f.store.Release(ctx, &store.Hold{Tenant: tenant, ConversationIDs: []string{id}})
		}},
		{"Purge", true, func(ctx context.Context) error {
			_, err := f.store.Purge(ctx, &store.Purge{Tenant: tenant, InactiveFor: 100 * time.Millisecond})
			return err
		}},
		{"Purge, dry run", false, func(ctx context.Context) error {
			_, err := f.store.Purge(ctx, &store.Purge{Tenant: tenant, InactiveFor: 100 * time.Millisecond, DryRun: true})
			return err
		}},
		{"Read", false, func(ctx context.Context) error {
			_, err := f.store.Read(ctx, &store.Read{Tenant: tenant, ConversationID: id, Newest: -1, Turns: true})
			return err
		}},
		{"Read, known", false, func(ctx context.Context) error {
			_, err := f.store.Read(ctx, &store.Read{Tenant: tenant, ConversationID: id, Known: store.Known{Version: 1}})
			return err
		}},
		{"List", false, func(ctx context.Context) error {
			_, err := f.store.List(ctx, &store.List{Tenant: tenant, PageSize: 2})
			return err
		}},
		{"Append, records", true, appending(store.Append{
			Records: []*parleyv1.RecordWrite{put("a", "1"), ofTenant(put("a", "1"))},
		})},
		{"WriteRecords", true, func(ctx context.Context) error {
			_, err := f.store.WriteRecords(ctx, &store.WriteRecords{
				Tenant: tenant, ConversationID: id, Writes: []*parleyv1.RecordWrite{put("a", "2"), put("b", "2")},
			})
			return err
		}},
		{"WriteRecords of the tenant", true, func(ctx context.Context) error {
			_, err := f.store.WriteRecords(ctx, &store.WriteRecords{
				Tenant: tenant, Writes: []*parleyv1.RecordWrite{put("a", "3"), remove("b")},
			})
			return err
		}},
		{"GetRecords", false, func(ctx context.Context) error {
			_, _, err := f.store.GetRecords(ctx, &store.GetRecords{Tenant: tenant, ConversationID: id, Keys: []string{"a"}})
			return err
		}},
		{"ListRecords", false, func(ctx context.Context) error {
			_, _, err := f.store.ListRecords(ctx, &store.ListRecords{Tenant: tenant, ConversationID: id, Limit: 1})
			return err
		}},
		{"SaveProgress", true, func(ctx context.Context) error {
			return f.store.SaveProgress(ctx, &store.Progress{
				Tenant: tenant, ConversationID: id, TurnID: turn, Messages: messages, Events: turnEvents(3),
			})
		}},
		{"Abandoned", false, func(ctx context.Context) error {
			_, _, err := f.store.Abandoned(ctx, "")
			return err
		}},
		{"Sweep", true, func(ctx context.Context) error {
			_, err := f.store.Sweep(ctx, 10)
			return err
		}},
		{"Tenants", false, func(ctx context.Context) error {
			_, _, err := f.store.Tenants(ctx, "", 2)
			return err
		}},
		{"Stats", false, func(ctx context.Context) error {
			_, err := f.store.Stats(ctx)
			return err
		}},
		{"TenantStats", false, func(ctx context.Context) error {
			_, err := f.store.TenantStats(ctx, tenant)
			return err
		}},
	}
}

func (s Subject) law04Cancellation(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	for _, test := range []struct {
		name string
		ctx  context.Context
		want error
	}{
		{"cancelled", cancelled, context.Canceled},
		{"deadline exceeded", late, context.DeadlineExceeded},
	} {
		t.Run(test.name, func(t *testing.T) { s.writesNothing(t, test.ctx, test.want) })
	}
	t.Run("a write that has started is completed", func(t *testing.T) {
		f := s.open(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		f.observer.setCallback(func([]store.Change) { cancel() })
		_, err := f.store.Append(ctx, &store.Append{
			Tenant: tenant, ConversationID: "a", Messages: []*parleyv1.Message{user("hello")},
		})
		if err != nil {
			t.Errorf("Append cancelled after its commit = %v, want nil", err)
		}
		if n := len(f.messages("a")); n != 1 {
			t.Errorf("%d messages are stored, want 1", n)
		}
	})
}

// writesNothing makes each write with a context that has ended, for conversations that the write
// would change.
func (s Subject) writesNothing(t *testing.T, ctx context.Context, want error) {
	f := s.open(t, nil)
	f.create("expired")
	f.clock.Advance(2 * time.Hour)
	f.create("idle")
	f.beginTurn("running", "turn")
	f.clock.Advance(2 * time.Minute)
	f.observer.drain()
	for _, id := range []string{"idle", "running", "new"} {
		for _, call := range f.calls(id, "turn") {
			if !call.writes {
				continue
			}
			before, stats := f.all(), f.stats()
			if err := call.run(ctx); !errors.Is(err, want) {
				t.Errorf("%s of %s = %v, want %v", call.name, id, err, want)
			}
			same(t, "conversations after "+call.name+" of "+id, f.all(), before)
			same(t, "counts after "+call.name+" of "+id, f.stats(), stats)
			if changes := f.observer.drain(); len(changes) > 0 {
				t.Errorf("%s of %s reported %v", call.name, id, summaries(changes))
			}
		}
	}
	if s.Durable {
		f.reopen(nil)
		f.abandoned([]store.Progress{{ConversationID: "running", TurnID: "turn"}})
	}
}

func (s Subject) law10End(t *testing.T) {
	t.Run("every method returns ErrClosed", func(t *testing.T) {
		f := s.open(t, nil)
		f.beginTurn("a", "turn")
		for range 2 {
			if err := f.store.Close(); err != nil {
				t.Fatalf("Close: %v", err)
			}
		}
		for _, call := range f.calls("a", "turn") {
			if err := call.run(t.Context()); !errors.Is(err, store.ErrClosed) {
				t.Errorf("%s: %v, want ErrClosed", call.name, err)
			}
		}
	})
	t.Run("Close waits for a write that has started", func(t *testing.T) {
		f := s.open(t, nil)
		started, proceed := make(chan struct{}), make(chan struct{})
		start := sync.OnceFunc(func() { close(started) })
		var closed, early atomic.Bool
		f.observer.setCallback(func([]store.Change) {
			start()
			<-proceed
			early.Store(closed.Load())
		})
		written, ended := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := f.store.Append(t.Context(), &store.Append{
				Tenant: tenant, ConversationID: "a", Messages: []*parleyv1.Message{user("hello")},
			})
			written <- err
		}()
		<-started
		go func() {
			err := f.store.Close()
			closed.Store(true)
			ended <- err
		}()
		for range 10_000 {
			runtime.Gosched() // If Close does not wait, this gives it time to return.
		}
		close(proceed)
		if err := <-written; err != nil {
			t.Errorf("Append: %v", err)
		}
		if err := <-ended; err != nil {
			t.Errorf("Close: %v", err)
		}
		if early.Load() {
			t.Error("Close returned while a write was running")
		}
	})
}
