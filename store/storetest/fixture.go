package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// tenant is the tenant of tests that need only one.
const tenant = "acme"

// fixture is a store under test with its clock and observer. Its methods fail the test on an
// unexpected result. Unless their comment says otherwise they may only be called from the test's
// own goroutine.
type fixture struct {
	t        tester
	outer    *testing.T // the test that opens the store
	subject  Subject
	dir      string
	options  store.Options
	clock    *clock
	observer *observer
	known    map[string]store.Known // states of conversations that were read, by id
	store    store.Store
}

// open opens a new store. The options are zero except for clock and observer; edit, if not nil,
// changes them.
func (s Subject) open(t *testing.T, edit func(*store.Options)) *fixture {
	t.Helper()
	return s.openFor(t, t, edit)
}

// openFor opens a store within the test outer; failures are reported to t.
func (s Subject) openFor(outer *testing.T, t tester, edit func(*store.Options)) *fixture {
	t.Helper()
	f := &fixture{
		t: t, outer: outer, subject: s, dir: outer.TempDir(), clock: newClock(), observer: &observer{t: t},
		known: map[string]store.Known{},
	}
	f.options = store.Options{Now: f.clock.Now, Observe: f.observer.observe}
	if edit != nil {
		edit(&f.options)
	}
	f.store = s.Open(outer, f.dir, f.options)
	t.Cleanup(func() {
		if err := f.store.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return f
}

// reopen closes the store and opens it again. edit, if not nil, changes the options.
func (f *fixture) reopen(edit func(*store.Options)) {
	f.t.Helper()
	if err := f.store.Close(); err != nil {
		f.t.Fatalf("Close: %v", err)
	}
	if edit != nil {
		edit(&f.options)
	}
	f.store = f.subject.Open(f.outer, f.dir, f.options)
}

// try makes a write and returns its result and error. If the write has no tenant, tenant is set.
func (f *fixture) try(write any) (*store.Result, error) {
	ctx := f.t.Context()
	switch w := write.(type) {
	case *store.Create:
		w.Tenant = orTenant(w.Tenant)
		return f.store.Create(ctx, w)
	case *store.Append:
		w.Tenant = orTenant(w.Tenant)
		return f.store.Append(ctx, w)
	case *store.Update:
		w.Tenant = orTenant(w.Tenant)
		return f.store.Update(ctx, w)
	case *store.Import:
		w.Tenant = orTenant(w.Tenant)
		return f.store.Import(ctx, w)
	case *store.Delete:
		w.Tenant = orTenant(w.Tenant)
		return nil, f.store.Delete(ctx, w)
	}
	return nil, fmt.Errorf("%T is not a write", write)
}

func orTenant(t string) string {
	if t == "" {
		return tenant
	}
	return t
}

// do makes a write that must succeed.
func (f *fixture) do(write any) *store.Result {
	f.t.Helper()
	result, err := f.try(write)
	if err != nil {
		f.t.Fatalf("%T: %v", write, err)
	}
	if a, ok := write.(*store.Append); ok && len(result.Appended) != len(a.Messages) {
		f.t.Fatalf("Append of %d messages returned %d", len(a.Messages), len(result.Appended))
	}
	return result
}

// expectError makes a write that must fail with want and change nothing. A nil want means any
// error.
func (f *fixture) expectError(write any, want error) {
	f.t.Helper()
	before := f.all()
	f.observer.drain()
	result, err := f.try(write)
	if !errorIs(err, want) || result != nil {
		f.t.Errorf("%T = %v, %v, want only error %v", write, result, err, want)
	}
	same(f.t, fmt.Sprintf("conversations after a failed %T", write), f.all(), before)
	if changes := f.observer.drain(); len(changes) > 0 {
		f.t.Errorf("failed %T reported %v", write, summaries(changes))
	}
}

// create creates an empty conversation, one millisecond after the previous step.
func (f *fixture) create(id string) *store.Result {
	f.t.Helper()
	f.clock.Advance(time.Millisecond)
	return f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: id}})
}

// append appends messages, one millisecond after the previous step.
func (f *fixture) append(id string, messages ...*parleyv1.Message) *store.Result {
	f.t.Helper()
	f.clock.Advance(time.Millisecond)
	return f.do(&store.Append{ConversationID: id, Messages: messages})
}

// beginTurn starts a turn with a question.
func (f *fixture) beginTurn(id, turn string) *store.Result {
	f.t.Helper()
	return f.do(&store.Append{
		ConversationID: id, Messages: []*parleyv1.Message{user("question")}, Begin: &parleyv1.Turn{Id: turn, Agent: "writer"},
	})
}

// endTurn ends a turn with an answer.
func (f *fixture) endTurn(id, turn string) *store.Result {
	f.t.Helper()
	return f.do(&store.Append{
		ConversationID: id, Messages: []*parleyv1.Message{assistant("answer")},
		End: &parleyv1.Turn{Id: turn, State: parleyv1.TurnState_TURN_STATE_COMPLETED},
	})
}

// read returns a conversation with all messages and turns.
func (f *fixture) read(id string) *store.Snapshot {
	f.t.Helper()
	snapshot, err := f.store.Read(f.t.Context(), &store.Read{Tenant: tenant, ConversationID: id, Newest: -1, Turns: true})
	if err != nil {
		f.t.Fatalf("Read %s: %v", id, err)
	}
	f.checkKnown(id, snapshot.Conversation)
	return snapshot
}

// header returns the header of a conversation.
func (f *fixture) header(id string) *parleyv1.Conversation {
	f.t.Helper()
	return f.read(id).Conversation
}

// messages returns the kept messages of a conversation.
func (f *fixture) messages(id string) []*parleyv1.Message {
	f.t.Helper()
	messages, err := f.read(id).Messages.Messages()
	if err != nil {
		f.t.Fatal(err)
	}
	return messages
}

// missing checks that Read finds none of the conversations.
func (f *fixture) missing(ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		_, err := f.store.Read(f.t.Context(), &store.Read{Tenant: tenant, ConversationID: id})
		if !errors.Is(err, store.ErrNotFound) {
			f.t.Errorf("Read(%s) = %v, want ErrNotFound", id, err)
		}
		f.checkKnownMissing(id)
	}
}

// list returns one page.
func (f *fixture) list(l store.List) *store.Page {
	f.t.Helper()
	l.Tenant = orTenant(l.Tenant)
	page, err := f.store.List(f.t.Context(), &l)
	if err != nil {
		f.t.Fatalf("List: %v", err)
	}
	return page
}

// entry returns the entry of a conversation in the list.
func (f *fixture) entry(id string) *parleyv1.ConversationEntry {
	f.t.Helper()
	for _, e := range f.list(store.List{PageSize: 1000}).Entries {
		if e.GetConversation().GetId() == id {
			return e
		}
	}
	f.t.Fatalf("List does not contain %s", id)
	return nil
}

// eachPage calls each for every page of a list.
func (f *fixture) eachPage(l store.List, each func(page *store.Page)) {
	f.t.Helper()
	for range 1000 {
		page := f.list(l)
		each(page)
		if l.PageToken = page.NextPageToken; l.PageToken == "" {
			return
		}
	}
	f.t.Fatalf("List(%+v) has more than 1000 pages", l)
}

// pages returns the ids in a list, page by page.
func (f *fixture) pages(l store.List) [][]string {
	f.t.Helper()
	var pages [][]string
	f.eachPage(l, func(page *store.Page) { pages = append(pages, ids(page)) })
	return pages
}

// all returns all conversations of the tenant with all messages and turns.
func (f *fixture) all() map[string]*store.Snapshot {
	f.t.Helper()
	all := make(map[string]*store.Snapshot)
	for _, id := range slices.Concat(f.pages(store.List{PageSize: 1000})...) {
		all[id] = f.read(id)
	}
	return all
}

// stats returns the counts.
func (f *fixture) stats() store.Stats {
	f.t.Helper()
	stats, err := f.store.Stats(f.t.Context())
	if err != nil {
		f.t.Fatalf("Stats: %v", err)
	}
	return stats
}

// sweep calls Sweep until it returns false.
func (f *fixture) sweep() {
	f.t.Helper()
	for range 1000 {
		more, err := f.store.Sweep(f.t.Context(), 10)
		if err != nil {
			f.t.Fatalf("Sweep: %v", err)
		}
		if !more {
			return
		}
	}
	f.t.Fatal("Sweep still returns more after 1000 calls")
}

func ids(page *store.Page) []string {
	ids := make([]string, len(page.Entries))
	for i, e := range page.Entries {
		ids[i] = e.GetConversation().GetId()
	}
	return ids
}
