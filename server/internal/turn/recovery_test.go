package turn

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/turn/replay"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore"
)

// crashStore is a store that can stop to accept writes at any time, as if its process had been
// killed. It supports one running turn.
type crashStore struct {
	store.Store
	crashed atomic.Bool

	mu       sync.Mutex
	progress *store.Progress
}

func (m *crashStore) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if m.crashed.Load() {
		return nil, store.ErrClosed
	}
	result, err := m.Store.Append(ctx, a)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && a.Begin != nil {
		m.progress = &store.Progress{
			Tenant: a.Tenant, ConversationID: a.ConversationID, TurnID: a.Begin.GetId(),
			Events: proto.CloneOf(a.Events),
		}
	}
	if err == nil && a.End != nil && m.progress != nil && m.progress.TurnID == a.End.GetId() {
		m.progress = nil
	}
	return result, err
}

func (m *crashStore) SaveProgress(ctx context.Context, p *store.Progress) error {
	if m.crashed.Load() {
		return store.ErrClosed
	}
	saved := *p
	saved.Events, saved.Messages = proto.CloneOf(p.Events), nil
	for _, message := range p.Messages {
		saved.Messages = append(saved.Messages, proto.CloneOf(message))
	}
	m.mu.Lock()
	m.progress = &saved
	m.mu.Unlock()
	return m.Store.SaveProgress(ctx, p)
}

func (m *crashStore) Abandoned(context.Context, string) (turns []store.Progress, next string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.progress != nil {
		turns = append(turns, *m.progress)
	}
	return turns, "", nil
}

// crash kills the manager and starts another one on the same store.
func (f *fixture) crash(t *testing.T, m *crashStore) {
	t.Helper()
	m.crashed.Store(true)
	ctx, now := context.WithCancel(t.Context())
	now()
	f.Stop(ctx)
	synctest.Wait()
	m.crashed.Store(false)
	f.Manager = New(t.Context(), f.o)
	if err := f.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestResumeAfterCrash: an agent sends random pieces, the answer is saved at random times, and the
// server is killed. A reader that has received only saved events can resume. All others are
// refused. No reader has already received an event with the index of the finished event.
func TestResumeAfterCrash(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bubble(t, rt, func(t *testing.T) {
			t.Helper()
			var m *crashStore
			f, p := newControlled(t, func(o *Options) {
				m = &crashStore{Store: o.Store}
				o.Store = m
			})
			request := &parleyv1.ChatRequest{ConversationId: "c", Content: "q", RequestId: "r"}
			r := f.startChat(t, request)
			var s pieceGenerator
			send := func() (changed bool) { // Progress is not part of the answer and is not saved.
				for _, piece := range s.draw(rt) {
					p.lastRun().do(step{pieces: []*parleyv1.RespondResponse{piece}})
					changed = changed || piece.GetProgress() == nil
				}
				return changed
			}
			saved := len(r.events)
			for range rapid.IntRange(0, 2).Draw(rt, "saves") {
				changed := send()
				<-time.After(saveInterval)
				synctest.Wait()
				if changed {
					saved = len(r.events)
				}
			}
			send()
			events := r.events
			f.crash(t, m)

			all, err := readAll(f.Resume(t.Context(), tenant, "c", "", 0))
			if err != nil {
				rt.Fatal(err)
			}
			end := all[len(all)-1]
			if turn := end.GetFinished().GetTurn(); stateName(turn.GetState()) != "INTERRUPTED" ||
				turn.GetError().GetReason() != "SHUTTING_DOWN" || turn.GetId() != r.turnID() {
				rt.Errorf("turn ended %v, want INTERRUPTED by SHUTTING_DOWN", turn)
			}
			if int(end.GetIndex()) <= len(events) {
				rt.Errorf("index of finished = %d, want more than the %d events that readers received", end.GetIndex(), len(events))
			}
			received := slices.Concat(events[:saved], []*parleyv1.TurnEvent{end})
			for after := range int32(len(events)) + 2 {
				want, dropped := expectedReplay(received, 0, after)
				dropped = dropped || int(after) > saved
				got, err := readAll(f.Resume(t.Context(), tenant, "c", r.turnID(), after))
				if refused := errors.As(err, new(*EventsGoneError)); refused != dropped || err != nil && !refused {
					rt.Errorf("Resume(%d) of %d events, %d saved: error = %v, want EventsGoneError: %t", after, len(events), saved,
						err, dropped)
				} else if diff := diffEvents(want, got); err == nil && diff != "" {
					rt.Errorf("Resume(%d) (-want +got):\n%s", after, diff)
				}
			}
			if got, err := readAll(f.Resume(t.Context(), tenant, "c", "", end.GetIndex())); len(got) != 0 || err != nil {
				rt.Errorf("Resume at the end = %v, %v, want no events", got, err)
			}
			if retry := f.startChat(t, request); retry.err != nil || diffEvents(all, retry.events) != "" || p.runCount() != 1 {
				rt.Errorf("retry = %v, %v, want the same events; %d agent calls, want 1", retry.received(), retry.err, p.runCount())
			}
			if next := f.startChat(t, chatRequest("next", 0)); next.err != nil || next.events[0].GetStarted() == nil {
				rt.Errorf("next Chat = %v, %v, want a new turn", next.received(), next.err)
			}
		})
	})
}

// TestRecoverFromFile checks guarantees 6 and 1 for the turn: saved text survives a kill, once in
// the history, marked as incomplete. A queued turn is not durable.
func TestRecoverFromFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "parley.db")
		var f *fixture
		open := func() *boltstore.Store {
			t.Helper()
			s, err := boltstore.Open(path, boltstore.Options{Options: store.Options{
				Observe: func(changes []store.Change) { f.Committed(changes) },
			}})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		m := &crashStore{Store: open()}
		f, p := newControlled(t, func(o *Options) { o.Store = m })
		request := &parleyv1.ChatRequest{ConversationId: "c", Content: "q", RequestId: "r"}
		first := f.startChat(t, request)
		waiting := chatRequest("waits", onBusyQueue)
		waiting.RequestId = "w"
		f.startChat(t, waiting)
		p.lastRun().sendText("saved ")
		<-time.After(saveInterval)
		synctest.Wait()
		p.lastRun().sendText("lost")
		silent := f.startChat(t, &parleyv1.ChatRequest{ConversationId: "silent", Content: "q"})

		m.crashed.Store(true)
		ctx, now := context.WithCancel(t.Context())
		now()
		f.Stop(ctx)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		f.store = open()
		f.o.Store = f.store
		f.Manager = New(t.Context(), f.o)
		if err := f.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"user: q", "assistant: saved  …"}, f.stored(t)); diff != "" {
			t.Errorf("stored messages (-want +got):\n%s", diff)
		}
		for id, turnID := range map[string]string{"c": first.turnID(), "silent": silent.turnID()} {
			turn, err := f.Get(t.Context(), tenant, id, turnID)
			if stateName(turn.GetState()) != "INTERRUPTED" || !turn.GetError().GetRetryable() {
				t.Errorf("Get in %s = %v, %v, want INTERRUPTED", id, turn, err)
			}
		}
		want := []string{
			`1 started "q" created replayed`, `2 text "saved " at 0`,
			fmt.Sprintf("%d finished INTERRUPTED", 2+replay.LostIndexGap),
		}
		if diff := cmp.Diff(want, f.startChat(t, request).received()); diff != "" || p.runCount() != 2 {
			t.Errorf("%d agent calls, want 2; events of a retry (-want +got):\n%s", p.runCount(), diff)
		}
		if retry := f.startChat(t, waiting); retry.err != nil || retry.events[0].GetStarted() == nil || p.runCount() != 3 {
			t.Errorf("retry of the queued request = %q, %v, want a new turn", retry.received(), retry.err)
		}
	})
}

// pagedStore returns abandoned turns, one on each page.
type pagedStore struct {
	store.Store
	turns     []store.Progress
	fails     map[string]error // by turn
	requested []string
}

func (p *pagedStore) Abandoned(_ context.Context, after string) (turns []store.Progress, next string, err error) {
	p.requested = append(p.requested, after)
	if len(p.turns) == 0 {
		return nil, "", nil
	}
	turns, p.turns = p.turns[:1], p.turns[1:]
	if len(p.turns) > 0 {
		next = p.turns[0].TurnID
	}
	return turns, next, nil
}

func (p *pagedStore) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if a.End != nil && p.fails[a.End.GetId()] != nil {
		return nil, p.fails[a.End.GetId()]
	}
	return p.Store.Append(ctx, a)
}

// TestRecoverPages: Recover reads all pages. A turn that has ended, was deleted or cannot be ended
// does not keep it from ending the others, and neither does a turn without event indexes, saved by
// an earlier version.
func TestRecoverPages(t *testing.T) {
	p := &pagedStore{fails: map[string]error{"damaged": store.ErrCorrupt, "full": store.ErrNoSpace}}
	f := newFixture(t, map[string]agent.Agent{"main": respondWith()}, func(o *Options) {
		p.Store = o.Store
		o.Store = p
	})
	names := []string{"first", "ended", "damaged", "gone", "full", "last"}
	for _, name := range names {
		message := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: "q"}
		a := &store.Append{
			Tenant: tenant, ConversationID: name, Messages: []*parleyv1.Message{message},
			Begin: &parleyv1.Turn{Id: name},
		}
		if _, err := f.store.Append(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		progress := store.Progress{Tenant: tenant, ConversationID: name, TurnID: name, Messages: []*parleyv1.Message{
			{Role: parleyv1.Role_ROLE_ASSISTANT, Content: "half", Status: parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE},
		}}
		if name == "last" {
			progress.Events = &storev1.TurnEvents{
				Started: 1, LostAfter: 2,
				Messages: []*storev1.MessageEvents{{FirstText: 2, LastText: 2}},
			}
		}
		p.turns = append(p.turns, progress)
	}
	if _, err := f.store.Append(t.Context(), &store.Append{
		Tenant: tenant, ConversationID: "ended", End: &parleyv1.Turn{
			Id:    "ended",
			State: parleyv1.TurnState_TURN_STATE_COMPLETED,
		},
	}); err != nil {
		t.Fatal(err)
	}
	if err := f.store.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "gone"}); err != nil {
		t.Fatal(err)
	}
	if err := f.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(append([]string{""}, names[1:]...), p.requested); diff != "" {
		t.Errorf("requested pages (-want +got):\n%s", diff)
	}
	for name, want := range map[string]string{
		"first": "INTERRUPTED", "ended": "COMPLETED", "damaged": "RUNNING",
		"full": "RUNNING", "last": "INTERRUPTED",
	} {
		if got, err := f.Get(t.Context(), tenant, name, name); stateName(got.GetState()) != want {
			t.Errorf("Get(%s) = %v, %v, want %s", name, got, err, want)
		}
		if half := strings.Contains(fmt.Sprint(f.history(t, name)), "assistant: half …"); half != (want == "INTERRUPTED") {
			t.Errorf("turn %s: stored messages = %q", name, f.history(t, name))
		}
	}
	for name, last := range map[string]int32{"first": 3, "last": 2 + replay.LostIndexGap} {
		events, err := readAll(f.Resume(t.Context(), tenant, name, "", 0))
		if err != nil || len(events) != 3 || events[2].GetIndex() != last {
			t.Errorf("Resume of turn %s = %v, %v", name, events, err)
		}
	}
	// CancelTurn and ResumeTurn cannot end a turn that this server does not run.
	busy := new(store.BusyError)
	if _, err := f.Cancel(t.Context(), tenant, "full", "full"); !errors.As(err, &busy) || busy.TurnID != "full" {
		t.Errorf("Cancel: error = %v, want BusyError", err)
	}
	if _, err := readAll(f.Resume(t.Context(), tenant, "full", "", 0)); !errors.As(err, &busy) {
		t.Errorf("Resume: error = %v, want BusyError", err)
	}

	p.turns = []store.Progress{{Tenant: tenant, ConversationID: "full", TurnID: "full"}}
	p.fails["full"] = store.ErrFailed
	if err := f.Recover(t.Context()); !errors.Is(err, store.ErrFailed) {
		t.Errorf("Recover with a failed store: error = %v, want ErrFailed", err)
	}
}

// TestWatchersReceiveEndOfAbandonedTurn: the sink receives the finished event of an abandoned turn, as a reader that
// resumes the turn does.
func TestWatchersReceiveEndOfAbandonedTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m *crashStore
		sent := new(sentEvents)
		f, p := newControlled(t, func(o *Options) {
			m = &crashStore{Store: o.Store}
			o.Store, o.EventSink = m, sent
		})
		r := f.startChat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})
		p.lastRun().do(step{pieces: []*parleyv1.RespondResponse{text("half")}})
		<-time.After(saveInterval)
		synctest.Wait()
		before := len(sent.events)
		f.crash(t, m)
		all, err := readAll(f.Resume(t.Context(), tenant, "c", r.turnID(), 0))
		if err != nil {
			t.Fatal(err)
		}
		if d := diffEvents(all[len(all)-1:], sent.events[before:]); d != "" {
			t.Errorf("events after the crash (-want +got):\n%s", d)
		}
	})
}
