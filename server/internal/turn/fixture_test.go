package turn

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

const tenant = "t"

// agentFunc is an agent made from a function.
type agentFunc func(ctx context.Context, r *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool)

func (f agentFunc) Respond(
	ctx context.Context, r *parleyv1.RespondRequest,
) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) { f(ctx, r, yield) }
}

func (agentFunc) Close() error { return nil }

func text(s string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: s}}
}

func reasoning(s string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Reasoning{Reasoning: s}}
}

func callDelta(id, arguments string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCallDelta{
		ToolCallDelta: &parleyv1.ToolCallDelta{Id: id, Name: "find", Arguments: arguments},
	}}
}

// respondWith returns an agent that answers with these pieces.
func respondWith(pieces ...*parleyv1.RespondResponse) agentFunc {
	return func(_ context.Context, _ *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
		for _, p := range pieces {
			if !yield(p, nil) {
				return
			}
		}
	}
}

// hangAfter returns an agent that sends a text, signals sent, and waits for its context.
func hangAfter(content string, sent chan<- struct{}) agentFunc {
	return func(ctx context.Context, _ *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
		if content != "" && !yield(text(content), nil) {
			return
		}
		if sent != nil {
			sent <- struct{}{}
		}
		<-ctx.Done()
		yield(nil, context.Cause(ctx))
	}
}

// fixture is a manager on a store, by default in memory.
type fixture struct {
	*Manager
	store  store.Store
	logged *strings.Builder
}

func newFixture(t *testing.T, agents map[string]agent.Agent, change func(*Options)) *fixture {
	t.Helper()
	entries := make([]agent.Entry, 0, len(agents))
	for name, a := range agents {
		entries = append(entries, agent.Entry{Name: name, Kind: "test", SystemPrompt: "prompt of " + name, Agent: a})
	}
	set, err := agent.NewSet("main", entries)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{logged: new(strings.Builder)}
	f.store = memstore.New(store.Options{
		MaxMessages: 1000,
		Observe:     func(changes []store.Change) { f.Committed(changes) },
	})
	o := Options{
		Store: f.store, Agents: set, Log: slog.New(slog.NewTextHandler(f.logged, nil)),
		TurnTimeout: 5 * time.Minute, IdleTimeout: time.Minute, MaxAnswerBytes: 1 << 20, MaxTurns: 256,
	}
	if change != nil {
		change(&o)
	}
	f.Manager = New(t.Context(), o)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		cancel()
		f.Stop(ctx)
		if running, waiting := f.Running(), f.Waiting(); running != 0 || waiting != 0 {
			t.Errorf("after Stop: %d turns run, %d wait, want none", running, waiting)
		}
		if err := f.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// chat starts a turn and returns its events. It fails the test if there is no first event.
func (f *fixture) chat(t *testing.T, request *parleyv1.ChatRequest) iter.Seq2[*parleyv1.TurnEvent, error] {
	t.Helper()
	events, err := f.tryChat(t, request, nil)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// tryChat returns the events of Chat, or the error that it yields first.
func (f *fixture) tryChat(
	t *testing.T, request *parleyv1.ChatRequest, q *store.Request,
) (iter.Seq2[*parleyv1.TurnEvent, error], error) {
	t.Helper()
	return awaitFirst(t, f.Chat(t.Context(), tenant, request, q))
}

// awaitFirst waits for the first event and returns the sequence with it. The sequence ends with the
// test.
func awaitFirst(
	t *testing.T, events iter.Seq2[*parleyv1.TurnEvent, error],
) (iter.Seq2[*parleyv1.TurnEvent, error], error) {
	t.Helper()
	next, stop := iter.Pull2(events)
	t.Cleanup(stop)
	first, err, ok := next()
	if err != nil {
		return nil, err
	}
	return func(yield func(*parleyv1.TurnEvent, error) bool) {
		for event, err := first, error(nil); ok; event, err, ok = next() {
			if !yield(event, err) {
				return
			}
		}
	}, nil
}

// readFinished reads a turn to its end and returns its finished event.
func readFinished(t *testing.T, events iter.Seq2[*parleyv1.TurnEvent, error]) *parleyv1.TurnFinished {
	t.Helper()
	all := collect(t, events)
	end := all[len(all)-1].GetFinished()
	if end == nil {
		t.Fatalf("last event = %v, want finished", all[len(all)-1])
	}
	return end
}

// collect collects the events of a turn. Texts may be merged.
func collect(t *testing.T, events iter.Seq2[*parleyv1.TurnEvent, error]) []*parleyv1.TurnEvent {
	t.Helper()
	var all []*parleyv1.TurnEvent
	last := int32(0)
	for event, err := range events {
		if err != nil {
			t.Fatalf("after %d events: %v", len(all), err)
		}
		if event.GetIndex() <= last || event.GetIndex() > last+1 && event.GetTextDelta() == nil {
			t.Fatalf("event %d, %v, follows %d", event.GetIndex(), event, last)
		}
		all, last = append(all, event), event.GetIndex()
	}
	return all
}

// newestTurns returns the newest 32 turns of a conversation, newest first.
func (f *fixture) newestTurns(t *testing.T, id string) ([]*parleyv1.Turn, error) {
	t.Helper()
	page, err := f.List(t.Context(), &ListRequest{Tenant: tenant, ConversationID: id, Limit: 32})
	if err != nil {
		return nil, err
	}
	return page.Turns, nil
}

// stored returns the messages of conversation c as "role: content", with "…" if incomplete.
func (f *fixture) stored(t *testing.T) []string {
	t.Helper()
	return f.history(t, "c")
}

// history returns the messages of a conversation in that form, nil if it does not exist. It fails
// the test if a sequence is missing.
func (f *fixture) history(t *testing.T, id string) []string {
	t.Helper()
	snapshot, err := f.store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: id, Newest: -1})
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	messages, err := snapshot.Messages.Messages()
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range messages {
		if want := messages[0].GetSequence() + int32(i); m.GetSequence() != want {
			t.Errorf("message %d of %s has sequence %d, want %d", i, id, m.GetSequence(), want)
		}
	}
	return describeMessages(messages)
}

// describeMessages describes messages.
func describeMessages(messages []*parleyv1.Message) []string {
	var described []string
	for _, m := range messages {
		description := strings.ToLower(strings.TrimPrefix(m.GetRole().String(), "ROLE_")) + ": " + m.GetContent() +
			m.GetToolResult().GetContent()
		if m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE {
			description += " …"
		}
		described = append(described, description)
	}
	return described
}
