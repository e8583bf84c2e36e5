package rpc

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestChangeKinds checks the changes in a watch after each call that writes.
func TestChangeKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, func(s *setup) { s.storeOptions.TTL, s.storeOptions.MaxConversations = time.Hour, 3 })
		w := f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{})
		must := func(_ any, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		seen := []string{"HEARTBEAT"}
		want := func(lines ...string) *parleyv1.ConversationChange {
			t.Helper()
			seen = append(seen, lines...)
			w.want(t, seen...)
			return w.changes[len(w.changes)-1]
		}
		// wantHeader checks that a change has the current header of its conversation.
		wantHeader := func(c *parleyv1.ConversationChange) {
			t.Helper()
			reply, err := f.GetConversation(
				t.Context(),
				&parleyv1.GetConversationRequest{ConversationId: c.GetConversationId()},
			)
			must(reply, err)
			if reply.GetConversation().GetSystemPrompt() == "" {
				t.Fatal("the conversation has no system prompt")
			}
			reply.GetConversation().SystemPrompt = "" // Changes have no system prompt.
			if d := cmp.Diff(reply.GetConversation(), c.GetConversation(), protocmp.Transform()); d != "" {
				t.Errorf("header of %v (-read +change):\n%s", c.GetKind(), d)
			}
			if now := time.Now(); !c.GetTime().AsTime().Equal(now) {
				t.Errorf("time of %v = %v, want %v", c.GetKind(), c.GetTime().AsTime(), now)
			}
		}
		wantNoPayload := func(c *parleyv1.ConversationChange) {
			t.Helper()
			if c.GetPayload() != nil || c.GetTime() == nil {
				t.Errorf("change = %v, want a time and no payload", c)
			}
		}

		f.create(t, fullConversation("c1"))
		wantHeader(want("CREATED c1 1"))
		<-time.After(time.Second)
		must(
			f.UpdateConversation(
				t.Context(),
				&parleyv1.UpdateConversationRequest{Conversation: &parleyv1.Conversation{Id: "c1", Title: "another"}},
			),
		)
		wantHeader(want("UPDATED c1 2"))
		must(
			f.UpdateConversation(
				t.Context(),
				&parleyv1.UpdateConversationRequest{Conversation: &parleyv1.Conversation{Id: "c1", Title: "another"}},
			),
		) // Changes nothing.
		must(
			f.SetActiveAgent(
				t.Context(),
				&parleyv1.SetActiveAgentRequest{ConversationId: "c1", Agent: "writer", Reason: "asked"},
			),
		)
		if c := want("UPDATED c1 3"); c.GetConversation().GetActiveAgent().GetAgent() != "writer" {
			t.Errorf("change after SetActiveAgent = %v", c)
		}
		f.append(t, "c1", user("one"), assistant("two"))
		c := want("MESSAGE_APPENDED c1 4", "MESSAGE_APPENDED c1 4")
		loaded, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "c1"})
		must(loaded, err)
		for i, m := range loaded.GetMessages() {
			if d := cmp.Diff(m, w.changes[len(w.changes)-2+i].GetMessage(), protocmp.Transform()); d != "" {
				t.Errorf("message %d (-read +change):\n%s", i+1, d)
			}
		}
		if c.GetTime().AsTime() != loaded.GetMessages()[1].GetCreateTime().AsTime() {
			t.Errorf("time of the change = %v, want the create_time of the message", c.GetTime().AsTime())
		}
		must(
			f.ForkConversation(
				t.Context(),
				&parleyv1.ForkConversationRequest{ConversationId: "c1", NewConversationId: "fork"},
			),
		)
		wantHeader(want("CREATED fork 1"))
		must(
			f.ClearConversation(
				t.Context(),
				&parleyv1.ClearConversationRequest{ConversationId: "c1", AfterSequence: 1},
			),
		)
		cleared := want("CLEARED c1 5")
		wantHeader(cleared)
		wantRemoved(t, cleared, &parleyv1.RemovedMessages{Count: 1, AfterSequence: 1})
		must(f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
			ConversationId: "c1", ReplaceAfterSequence: new(int32), Messages: []*parleyv1.Message{user("three"), user("four")},
		}))
		if c := want("CLEARED c1 6", "MESSAGE_APPENDED c1 6", "MESSAGE_APPENDED c1 6"); c.GetMessage().GetSequence() != 4 {
			t.Errorf("last change of a replacement = %v, want message 4", c)
		}
		replaced := w.changes[len(w.changes)-3]
		wantHeader(replaced)
		wantRemoved(t, replaced, &parleyv1.RemovedMessages{Count: 1})
		must(f.ClearConversation(t.Context(), &parleyv1.ClearConversationRequest{
			ConversationId: "c1", Sequences: []int32{4, 3},
		}))
		wantRemoved(t, want("CLEARED c1 7"), &parleyv1.RemovedMessages{Count: 2, Sequences: []int32{3, 4}})
		must(f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "loaded"}))
		want("CREATED loaded 1")
		must(
			f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "loaded"}),
		) // Changes nothing.
		<-time.After(time.Second)
		f.append(t, "fourth", user("hello"))
		wantNoPayload(w.until(t, "EVICTED"))
		seen = describe(w.changes)
		want("CREATED fourth 1", "MESSAGE_APPENDED fourth 1")
		must(f.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: "fork"}))
		wantNoPayload(want("DELETED fork 1"))
		must(
			f.PurgeConversations(
				t.Context(),
				&parleyv1.PurgeConversationsRequest{InactiveFor: durationpb.New(time.Second)},
			),
		)
		wantNoPayload(want("DELETED loaded 1"))
		<-time.After(time.Hour)
		must(f.store.Sweep(t.Context(), 10))
		wantNoPayload(w.until(t, "EXPIRED"))
		if len(f.changes) != len(w.withoutHeartbeats()) {
			t.Errorf("%d changes were committed, the watch has %q", len(f.changes), describe(w.changes))
		}
	})
}

// until receives changes until one has the kind, and returns it.
func (w *watchStream) until(t *testing.T, kind string) *parleyv1.ConversationChange {
	t.Helper()
	for {
		if err := w.next(); err != nil {
			t.Fatalf("error before %s, after %q: %v", kind, describe(w.changes), err)
		}
		if c := w.changes[len(w.changes)-1]; strings.HasSuffix(c.GetKind().String(), kind) {
			return c
		}
	}
}

// withoutHeartbeats returns the changes of conversations.
func (w *watchStream) withoutHeartbeats() []*parleyv1.ConversationChange {
	var changes []*parleyv1.ConversationChange
	for _, c := range w.changes {
		if c.GetKind() != parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT {
			changes = append(changes, c)
		}
	}
	return changes
}

// TestWatchTurns checks that a watch with include_turn_events has the same events as the Chat stream, without merged
// texts, in the right order with the other changes.
func TestWatchTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, script := openScripted(t, nil)
		plain := f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{})
		w := f.watch(
			t,
			t.Context(),
			&parleyv1.WatchConversationsRequest{ConversationIds: []string{"c1"}, IncludeTurnEvents: true},
		)
		for turn, word := range []string{"first", "second"} {
			from := len(w.changes)
			chat := f.startChat(t, t.Context(), chatRequest("c1", "a question", reject))
			script.send(t, "c1", word, " answer", end)
			finished := chat.wait(t)
			var events []*parleyv1.TurnEvent
			for len(events) == 0 || events[len(events)-1].GetFinished() == nil {
				if err := w.next(); err != nil {
					t.Fatalf("after %q: %v", describe(w.changes), err)
				}
				if event := w.changes[len(w.changes)-1].GetTurnEvent(); event != nil {
					events = append(events, event)
				}
			}
			if d := cmp.Diff(mergeTexts(chat.events), mergeTexts(events), protocmp.Transform()); len(events) != 4 || d != "" {
				t.Errorf("%d events of turn %d, want 4 (-Chat +watch):\n%s", len(events), turn, d)
			}
			// The user's message comes before the started event, the answer before the finished event.
			changes := w.changes[from:]
			index := func(match func(*parleyv1.ConversationChange) bool) int {
				for i, c := range changes {
					if match(c) {
						return i
					}
				}
				t.Fatalf("changes of turn %d are incomplete: %q", turn, describe(changes))
				return 0
			}
			message := func(sequence int32) int {
				return index(
					func(c *parleyv1.ConversationChange) bool { return c.GetMessage().GetSequence() == sequence },
				)
			}
			question, answer := message(
				finished.GetTurn().GetInputSequence(),
			), message(
				finished.GetTurn().GetLastAnswerSequence(),
			)
			started := index(func(c *parleyv1.ConversationChange) bool { return c.GetTurnEvent().GetStarted() != nil })
			if last := len(changes) - 1; question > started || answer > last ||
				changes[last].GetTurnEvent().GetFinished() == nil {
				t.Errorf(
					"turn %d: message is change %d, started %d, answer %d, of %q",
					turn,
					question,
					started,
					answer,
					describe(changes),
				)
			}
			for i, c := range changes {
				if isEvent := c.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_TURN; isEvent &&
					(c.GetVersion() != 0 || i > 0 && c.GetCursor() != changes[i-1].GetCursor()) {
					t.Errorf("turn %d: %v follows %v", turn, c, changes[max(i-1, 0)])
				}
			}
		}
		plain.want(
			t,
			"HEARTBEAT",
			"CREATED c1 1",
			"MESSAGE_APPENDED c1 1",
			"MESSAGE_APPENDED c1 2",
			"MESSAGE_APPENDED c1 3",
			"MESSAGE_APPENDED c1 4",
		)
	})
}

// TestWatchStartsDuringTurn checks that a watch has the events of a running turn from the start of the
// watch on.
func TestWatchStartsDuringTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, script := openScripted(t, nil)
		chat := f.startChat(t, t.Context(), chatRequest("c1", "a question", reject))
		script.send(t, "c1", "one ", "two ")
		synctest.Wait()
		w := f.watch(
			t,
			t.Context(),
			&parleyv1.WatchConversationsRequest{ConversationIds: []string{"c1"}, IncludeTurnEvents: true},
		)
		script.send(t, "c1", "three", end)
		chat.wait(t)
		first := w.until(t, "TURN").GetTurnEvent()
		if first.GetTextDelta().GetText() != "three" || int(first.GetTextDelta().GetOffset()) != len("one two ") {
			t.Errorf("first event = %v, want the third piece", first)
		}
		if first.GetIndex() != 4 { // "started" and two pieces came before it.
			t.Errorf("first event = %v, want the one after the second piece", first)
		}
	})
}

// TestSlowWatcher checks that, unlike other streams, the watch of a client that does not read does not
// end. When the client reads again, it receives a GAP and then new changes.
func TestSlowWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, nil)
		w := f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{})
		batch := make([]*parleyv1.Message, 100)
		for i := range batch {
			batch[i] = user("hello")
		}
		const batches = 120 // More than the 10,000 changes that the hub retains.
		for range batches {
			f.append(t, "c1", batch...)
		}
		<-time.After(time.Hour / 2)
		gap := w.until(t, "GAP")
		got := len(w.changes)
		if got < 3 || got > 100*batches/2 || gap.GetConversationId() != "" || gap.GetVersion() != 0 {
			t.Errorf("got %v after %d changes", gap, got)
		}
		for i, c := range w.changes[2 : len(w.changes)-1] {
			if c.GetMessage().GetSequence() != int32(i+1) {
				t.Fatalf("change %d = %v, want sequence %d", i+1, c, i+1)
			}
		}
		f.append(t, "c1", user("after that"))
		// There may be heartbeats before the change.
		next := w.until(t, "MESSAGE_APPENDED")
		if m := next.GetMessage(); m.GetContent() != "after that" || m.GetSequence() != 100*batches+1 ||
			len(w.withoutHeartbeats()) != got {
			t.Errorf("change after the GAP = %v", next)
		}
		// A watch from the cursor before the GAP starts with a GAP, too.
		again := f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{Cursor: w.changes[0].GetCursor()})
		again.want(t, "GAP", "HEARTBEAT")
		again = f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{Cursor: gap.GetCursor()})
		again.want(t, "HEARTBEAT", "MESSAGE_APPENDED c1 121")
	})
}

// wantRemoved checks what a change says about removed messages.
func wantRemoved(t *testing.T, c *parleyv1.ConversationChange, want *parleyv1.RemovedMessages) {
	t.Helper()
	if d := cmp.Diff(want, c.GetRemoved(), protocmp.Transform()); d != "" {
		t.Errorf("removed messages of %v (-want +got):\n%s", c, d)
	}
}
