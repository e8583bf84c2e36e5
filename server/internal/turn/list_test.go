package turn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
)

// listedTurns are the turns of the conversations c, d and e: those of c have ended, run and wait in the queue.
type listedTurns struct {
	*fixture
	*controlledAgent

	t     *testing.T
	turns map[string]string // ids by name
}

// newListedTurns starts the turns. The names are in the order in which the manager accepts them.
func newListedTurns(t *testing.T) *listedTurns {
	t.Helper()
	l := &listedTurns{t: t, turns: make(map[string]string)}
	l.fixture, l.controlledAgent = newControlled(t, nil)
	start := func(name, id string, busy parleyv1.OnBusy) {
		t.Helper()
		r := l.startChat(t, &parleyv1.ChatRequest{ConversationId: id, Content: name, OnBusy: busy, Metadata: ignoreCancel})
		if r.err != nil {
			t.Fatal(r.err)
		}
		l.turns[name] = r.turnID()
	}
	start("ended", "c", 0)
	l.lastRun().complete()
	start("other", "d", 0)
	start("failed", "c", 0)
	l.lastRun().fail()
	start("running", "c", 0)
	start("first", "c", onBusyQueue)
	start("latest", "e", 0)
	start("second", "c", onBusyQueue)
	start("interrupts", "c", onBusyInterrupt)
	start("third", "c", onBusyQueue)
	return l
}

// name returns the name of a turn, or its id if the test has not started it.
func (l *listedTurns) name(id string) string {
	for name, known := range l.turns {
		if known == id {
			return name
		}
	}
	return id
}

// pages returns the names of the turns of a list, and calls between after each page.
func (l *listedTurns) pages(t *testing.T, r ListRequest, between func(page int)) []string {
	t.Helper()
	var names []string
	for page := 1; page < 50; page++ {
		got, err := l.List(t.Context(), &r)
		if err != nil {
			t.Fatalf("List(%+v): %v", r, err)
		}
		if len(got.Turns) > r.Limit {
			t.Errorf("List(%+v) = %d turns", r, len(got.Turns))
		}
		for _, turn := range got.Turns {
			names = append(names, l.name(turn.GetId()))
		}
		if got.Next.IsLast() {
			return names
		}
		between(page)
		r.Position = got.Next
	}
	t.Fatalf("List(%+v) does not end: %q", r, names)
	return nil
}

// shortPagesStore lists one turn at a time.
type shortPagesStore struct{ store.Store }

func (s shortPagesStore) ListTurns(ctx context.Context, l *store.ListTurns) (*store.TurnPage, error) {
	one := *l
	one.Limit = 1
	return s.Store.ListTurns(ctx, &one)
}

// TestListOrder: the turns of a conversation are listed in the order in which they start or would start, those of a
// tenant in the order in which they were accepted, with any size of the pages.
func TestListOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListedTurns(t)
		for id, want := range map[string][]string{
			"c": {"third", "second", "first", "interrupts", "running", "failed", "ended"},
			"":  {"third", "interrupts", "second", "latest", "first", "running", "failed", "other", "ended"},
		} {
			for limit := 1; limit < 10; limit++ {
				for _, s := range []store.Store{l.store, shortPagesStore{l.store}} {
					l.o.Store = s
					got := l.pages(t, ListRequest{Tenant: tenant, ConversationID: id, Limit: limit}, func(int) {})
					if diff := gocmp.Diff(want, got); diff != "" {
						t.Errorf("pages of %d turns of conversation %q in %T (-want +got):\n%s", limit, id, s, diff)
					}
				}
			}
		}
		l.runs[3].complete() // Let the turn that is interrupted end.
	})
}

// statesOf returns the states with these names.
func statesOf(names string) []parleyv1.TurnState {
	var states []parleyv1.TurnState
	for name := range strings.FieldsSeq(names) {
		states = append(states, parleyv1.TurnState(parleyv1.TurnState_value["TURN_STATE_"+name]))
	}
	return states
}

// TestListStates: a list with states contains turns in these states only, also queued ones.
func TestListStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListedTurns(t)
		for _, id := range []string{"c", ""} {
			for states, want := range map[string][]string{
				"QUEUED":         {"first", "interrupts", "second", "third"},
				"RUNNING":        {"running"},
				"FAILED":         {"failed"},
				"QUEUED FAILED":  {"failed", "first", "interrupts", "second", "third"},
				"QUEUED RUNNING": {"first", "interrupts", "running", "second", "third"},
				"INPUT_REQUIRED": nil,
			} {
				r := ListRequest{Tenant: tenant, ConversationID: id, Limit: 2, States: statesOf(states)}
				got := l.pages(t, r, func(int) {})
				slices.Sort(got)
				if id == "" && strings.Contains(states, "RUNNING") {
					want = slices.Sorted(slices.Values(append(want, "latest", "other")))
				}
				if diff := gocmp.Diff(want, got); diff != "" {
					t.Errorf("turns of conversation %q in states %s (-want +got):\n%s", id, states, diff)
				}
			}
		}
		l.runs[3].complete()
	})
}

// TestListAfterLongHistory: the turns of a tenant that wait or run are on one page, however many turns of it have ended
// since they were accepted.
func TestListAfterLongHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListedTurns(t)
		for i := range 2000 { // A store examines at most 1000 turns for a page.
			id := uuid.Must(uuid.NewV7()).String()
			begin := &store.Append{
				Tenant: tenant, ConversationID: fmt.Sprint("h", i/store.DefaultMaxTurns), Begin: &parleyv1.Turn{Id: id},
				Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "q"}},
			}
			end := &store.Append{
				Tenant: tenant, ConversationID: begin.ConversationID,
				End: &parleyv1.Turn{Id: id, State: parleyv1.TurnState_TURN_STATE_COMPLETED},
			}
			for _, a := range []*store.Append{begin, end} {
				if _, err := l.store.Append(t.Context(), a); err != nil {
					t.Fatal(err)
				}
			}
		}
		for states, want := range map[string][]string{
			"QUEUED":         {"third", "interrupts", "second", "first"},
			"QUEUED RUNNING": {"third", "interrupts", "second", "latest", "first", "running", "other"},
		} {
			r := ListRequest{Tenant: tenant, Limit: 32, States: statesOf(states)}
			got := l.pages(t, r, func(page int) { t.Errorf("page %d of turns in states %s is not the last", page, states) })
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("turns in states %s (-want +got):\n%s", states, diff)
			}
		}
		l.runs[3].complete()
	})
}

// TestListQueuedOfNoConversation: the list of queued turns of a conversation that does not exist is an error.
func TestListQueuedOfNoConversation(t *testing.T) {
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(text("a"))}, nil)
	page, err := f.List(t.Context(), &ListRequest{
		Tenant: tenant, ConversationID: "none", Limit: 1, States: statesOf("QUEUED"),
	})
	if !errors.Is(err, store.ErrNotFound) {
		t.Errorf("List = %v, %v, want ErrNotFound", page, err)
	}
}

// TestListOfQueuedTurns: a queued turn that starts after the first page is not among the queued turns of the next one.
func TestListOfQueuedTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListedTurns(t)
		queued := []parleyv1.TurnState{parleyv1.TurnState_TURN_STATE_QUEUED}
		got := l.pages(t, ListRequest{Tenant: tenant, ConversationID: "c", Limit: 1, States: queued}, func(page int) {
			if page == 1 {
				l.runs[3].complete()
			}
		})
		if diff := gocmp.Diff([]string{"third", "second", "first"}, got); diff != "" {
			t.Errorf("queued turns, of which one has started (-want +got):\n%s", diff)
		}
		l.lastRun().complete()
	})
}

// TestMaxPending: a list that begins when the queue is full, while a turn starts, has MaxPending turns before it continues
// in the store.
func TestMaxPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		f, p := newControlled(t, nil)
		f.startChat(t, chatRequest("ended", 0))
		p.lastRun().complete()
		f.o.Store = gatedStore{f.o.Store, gate}
		f.startChat(t, chatRequest("starts", onBusyQueue))
		for range maxQueued + 1 {
			f.startChat(t, chatRequest("waits", onBusyQueue))
		}
		for range maxInterrupting + 1 {
			f.startChat(t, chatRequest("interrupts", onBusyInterrupt))
		}
		page, err := f.List(t.Context(), &ListRequest{Tenant: tenant, ConversationID: "c", Limit: 1})
		if err != nil || len(page.Turns) != 1 || len(page.Next.Pending) != MaxPending-1 {
			t.Errorf("List = %v, %v, want one turn and %d that are pending", page, err, MaxPending-1)
		}
		close(gate)
	})
}

// TestListDuringChanges: a turn that was accepted before a list, and is kept during it, is returned once, whatever
// happens between its pages. No turn is returned twice.
func TestListDuringChanges(t *testing.T) {
	// Each change returns the name of the turn that ends before its start, or "".
	changes := map[string]func(l *listedTurns) (gone string){
		"the next turn starts": func(l *listedTurns) string { l.runs[3].complete(); return "" },
		"two turns start": func(l *listedTurns) string {
			l.runs[3].complete()
			l.lastRun().complete()
			return ""
		},
		"all turns end": func(l *listedTurns) string {
			l.runs[3].complete()
			for l.lastRun().complete() {
			}
			return ""
		},
		"the first in the queue is cancelled":     func(l *listedTurns) string { return l.cancelled("first") },
		"the last in the queue is cancelled":      func(l *listedTurns) string { return l.cancelled("third") },
		"the interrupting turn is cancelled":      func(l *listedTurns) string { return l.cancelled("interrupts") },
		"the next turn starts and one is started": func(l *listedTurns) string { l.runs[3].complete(); return l.another() },
		"another interrupts":                      func(l *listedTurns) string { return l.another() },
	}
	for name, change := range changes {
		for _, id := range []string{"c", ""} {
			for limit := 1; limit < 7; limit++ {
				for after := 1; after < 4; after++ {
					synctest.Test(t, func(t *testing.T) {
						l, gone := newListedTurns(t), ""
						got := l.pages(t, ListRequest{Tenant: tenant, ConversationID: id, Limit: limit}, func(page int) {
							if page == after {
								gone = change(l)
							}
						})
						counts := make(map[string]int)
						for _, turn := range got {
							counts[turn]++
						}
						for turn := range l.turns {
							if n := counts[turn]; n != 1 && turn != gone && (turn != "other" && turn != "latest" || id == "") && turn != "another" || n > 1 {
								t.Errorf("%s after page %d of %d turns of %q: %q has %s %d times", name, after, limit, id, got, turn, n)
							}
						}
						l.runs[3].complete()
						for l.lastRun().complete() {
						}
					})
				}
			}
		}
	}
}

// cancelled cancels a turn of the queue and returns its name.
func (l *listedTurns) cancelled(name string) string {
	l.t.Helper()
	l.mustCancel(l.t, l.turns[name])
	return name
}

// another starts a further turn.
func (l *listedTurns) another() string {
	l.t.Helper()
	l.turns["another"] = l.startChat(l.t, chatRequest("another", onBusyInterrupt)).turnID()
	return ""
}

// listHookStore calls hook before a list of turns and after a search for a turn.
type listHookStore struct {
	store.Store
	hook func()
}

func (s *listHookStore) ListTurns(ctx context.Context, l *store.ListTurns) (*store.TurnPage, error) {
	s.hook()
	return s.Store.ListTurns(ctx, l)
}

func (s *listHookStore) FindTurn(ctx context.Context, f *store.FindTurn) (*store.FoundTurn, error) {
	defer s.hook()
	return s.Store.FindTurn(ctx, f)
}

// TestListDuringStart: a turn that starts while List runs is listed once. A turn that starts while Get runs is found.
func TestListDuringStart(t *testing.T) {
	for _, id := range []string{"c", ""} {
		synctest.Test(t, func(t *testing.T) {
			gate := make(chan struct{})
			start := func() {
				if gate != nil {
					close(gate)
					gate = nil
					synctest.Wait()
				}
			}
			f, _ := newControlled(t, func(o *Options) { o.Store = &listHookStore{gatedStore{o.Store, gate}, start} })
			r := f.startChat(t, chatRequest("q", 0))
			page, err := f.List(t.Context(), &ListRequest{Tenant: tenant, ConversationID: id, Limit: 2})
			if err != nil || len(page.Turns) != 1 || page.Turns[0].GetId() != r.turnID() ||
				stateName(page.Turns[0].GetState()) != "RUNNING" {
				t.Errorf("List(%q) = %v, %v, want the running turn once", id, page, err)
			}
		})
	}
	for _, id := range []string{"c", ""} {
		synctest.Test(t, func(t *testing.T) {
			f, p := newControlled(t, nil)
			var readers []*reader
			for range 3 {
				readers = append(readers, f.startChat(t, chatRequest("q", onBusyQueue)))
			}
			f.o.Store = &listHookStore{f.o.Store, func() { p.lastRun().complete() }}
			for _, r := range readers[1:] { // Each of them starts after the search.
				if turn, err := f.Get(t.Context(), tenant, id, r.turnID()); turn.GetId() != r.turnID() || err != nil {
					t.Errorf("Get(%q, %q) = %v, %v, want the turn", id, r.turnID(), turn, err)
				}
			}
		})
	}
}

// TestGetByID: a turn is found by its id alone in each of its states, and only in its tenant and its conversation.
func TestGetByID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListedTurns(t)
		l.mustCancel(t, l.turns["second"])
		for name, want := range map[string]string{
			"ended": "COMPLETED", "other": "RUNNING", "failed": "FAILED", "running": "RUNNING", "first": "QUEUED",
			"second": "CANCELLED",
		} {
			turn, err := l.Get(t.Context(), tenant, "", l.turns[name])
			if err != nil || turn.GetId() != l.turns[name] || stateName(turn.GetState()) != want {
				t.Errorf("Get of turn %s = %v, %v, want %s", name, turn, err, want)
			}
			for _, at := range []key{{"other tenant", ""}, {tenant, "f"}, {"other tenant", turn.GetConversationId()}} {
				if turn, err := l.Get(t.Context(), at.tenant, at.id, l.turns[name]); !isMissingTurn(err) {
					t.Errorf("Get of turn %s in %q = %v, %v, want no turn", name, at, turn, err)
				}
			}
		}
		if turn, err := l.Get(t.Context(), tenant, "", "none"); !errors.As(err, new(*NotFoundError)) {
			t.Errorf("Get(none) = %v, %v, want NotFoundError", turn, err)
		}
		l.runs[3].complete()
	})
}

// TestTurnIDs: the ids of turns are UUIDs of version 7 with the time at which the manager accepted them, and rise.
func TestTurnIDs(t *testing.T) {
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(text("a"))}, nil)
	last := ""
	for range 100 {
		turn := readFinished(t, f.chat(t, chatRequest("q", 0))).GetTurn()
		id, err := uuid.Parse(turn.GetId())
		seconds, nanoseconds := id.Time().UnixTime()
		made := time.Unix(seconds, nanoseconds)
		if err != nil || id.Version() != 7 || turn.GetId() != id.String() || turn.GetId() <= last ||
			made.Sub(turn.GetCreateTime().AsTime()).Abs() > time.Minute {
			t.Fatalf("turn after %q = %v (%v), want a later UUID of version 7 of its create time", last, turn, err)
		}
		last = turn.GetId()
	}
}

// largeTurnsStore lists turns whose errors are large.
type largeTurnsStore struct{ store.Store }

func (largeTurnsStore) ListTurns(_ context.Context, l *store.ListTurns) (*store.TurnPage, error) {
	page := new(store.TurnPage)
	for last := cmp.Or(l.Before, "99"); len(page.Turns) < l.Limit && last > "90"; {
		last = string([]byte{'9', last[1] - 1})
		page.Turns = append(page.Turns, &parleyv1.Turn{
			Id: last, Error: &parleyv1.TurnError{Message: strings.Repeat("x", store.MaxListBytes/3)},
		})
		page.Next = last
	}
	return page, nil
}

// TestListBytes: the turns of a page are at most store.MaxListBytes, and all turns are returned.
func TestListBytes(t *testing.T) {
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(text("a"))}, func(o *Options) {
		o.Store = largeTurnsStore{o.Store}
	})
	for _, id := range []string{"c", ""} {
		r, got := ListRequest{Tenant: tenant, ConversationID: id, Limit: 5}, ""
		for range 20 {
			page, err := f.List(t.Context(), &r)
			if size := proto.Size(&parleyv1.ListTurnsResponse{Turns: page.Turns}); size > store.MaxListBytes || err != nil {
				t.Errorf("List(%q) = %d bytes, %v, want at most %d", id, size, err, store.MaxListBytes)
			}
			for _, turn := range page.Turns {
				got += turn.GetId() + " "
			}
			if r.Position = page.Next; r.Position.IsLast() {
				break
			}
		}
		if want := "98 97 96 95 94 93 92 91 90 "; got != want {
			t.Errorf("List(%q) = %s, want %s", id, got, want)
		}
	}
}
