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

// TestEveryKindOfChange: what each call does is what a watcher is told.
func TestEveryKindOfChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, func(s *setup) { s.stored.TTL, s.stored.MaxConversations = time.Hour, 3 })
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
		// header checks a change against the conversation as it is read by then.
		header := func(c *parleyv1.ConversationChange) {
			t.Helper()
			reply, err := f.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: c.GetConversationId()})
			must(reply, err)
			if reply.GetConversation().GetSystemPrompt() == "" {
				t.Fatal("the conversation has no system prompt")
			}
			reply.GetConversation().SystemPrompt = "" // Left out.
			if d := cmp.Diff(reply.GetConversation(), c.GetConversation(), protocmp.Transform()); d != "" {
				t.Errorf("%v (-read +told):\n%s", c.GetKind(), d)
			}
			if now := time.Now(); !c.GetTime().AsTime().Equal(now) {
				t.Errorf("%v is of %v, now it is %v", c.GetKind(), c.GetTime().AsTime(), now)
			}
		}
		bare := func(c *parleyv1.ConversationChange) {
			t.Helper()
			if c.GetPayload() != nil || c.GetTime() == nil {
				t.Errorf("%v", c)
			}
		}

		f.create(t, chosen("c1"))
		header(want("CREATED c1 1"))
		<-time.After(time.Second)
		must(f.UpdateConversation(t.Context(), &parleyv1.UpdateConversationRequest{Conversation: &parleyv1.Conversation{Id: "c1", Title: "another"}}))
		header(want("UPDATED c1 2"))
		must(f.UpdateConversation(t.Context(), &parleyv1.UpdateConversationRequest{Conversation: &parleyv1.Conversation{Id: "c1", Title: "another"}})) // Nothing.
		must(f.SetActiveAgent(t.Context(), &parleyv1.SetActiveAgentRequest{ConversationId: "c1", Agent: "writer", Reason: "asked"}))
		if c := want("UPDATED c1 3"); c.GetConversation().GetActiveAgent().GetAgent() != "writer" {
			t.Errorf("after SetActiveAgent: %v", c)
		}
		f.append(t, "c1", user("one"), assistant("two"))
		c := want("MESSAGE_APPENDED c1 4", "MESSAGE_APPENDED c1 4")
		loaded, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "c1"})
		must(loaded, err)
		for i, m := range loaded.GetMessages() {
			if d := cmp.Diff(m, w.changes[len(w.changes)-2+i].GetMessage(), protocmp.Transform()); d != "" {
				t.Errorf("message %d (-read +told):\n%s", i+1, d)
			}
		}
		if c.GetTime().AsTime() != loaded.GetMessages()[1].GetCreateTime().AsTime() {
			t.Errorf("the change is of %v", c.GetTime().AsTime())
		}
		must(f.ForkConversation(t.Context(), &parleyv1.ForkConversationRequest{ConversationId: "c1", NewConversationId: "fork"}))
		header(want("CREATED fork 1"))
		must(f.ClearConversation(t.Context(), &parleyv1.ClearConversationRequest{ConversationId: "c1", AfterSequence: 1}))
		header(want("CLEARED c1 5"))
		must(f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "loaded"}))
		want("CREATED loaded 1")
		must(f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "loaded"})) // Nothing.
		<-time.After(time.Second)
		f.append(t, "fourth", user("hello"))
		bare(w.lastOf(t, "EVICTED"))
		seen = brief(w.changes)
		want("CREATED fourth 1", "MESSAGE_APPENDED fourth 1")
		must(f.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: "fork"}))
		bare(want("DELETED fork 1"))
		must(f.PurgeConversations(t.Context(), &parleyv1.PurgeConversationsRequest{InactiveFor: durationpb.New(time.Second)}))
		bare(want("DELETED loaded 1"))
		<-time.After(time.Hour)
		must(f.store.Sweep(t.Context(), 10))
		bare(w.lastOf(t, "EXPIRED"))
		if len(f.changes) != len(w.withoutHeartbeats()) {
			t.Errorf("%d changes were committed, the watcher has %q", len(f.changes), brief(w.changes))
		}
	})
}

// lastOf takes changes up to one of this kind.
func (w *watching) lastOf(t *testing.T, kind string) *parleyv1.ConversationChange {
	t.Helper()
	for {
		if err := w.next(); err != nil {
			t.Fatalf("no %s after %q: %v", kind, brief(w.changes), err)
		}
		if c := w.changes[len(w.changes)-1]; strings.HasSuffix(c.GetKind().String(), kind) {
			return c
		}
	}
}

// withoutHeartbeats are the changes of conversations.
func (w *watching) withoutHeartbeats() []*parleyv1.ConversationChange {
	var changes []*parleyv1.ConversationChange
	for _, c := range w.changes {
		if c.GetKind() != parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT {
			changes = append(changes, c)
		}
	}
	return changes
}

// TestWatchTurns: who asks for events sees those of a turn as its own client does, each
// change in its place.
func TestWatchTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, words := openScripted(t, nil)
		plain := f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{})
		w := f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{ConversationIds: []string{"c1"}, IncludeTurnEvents: true})
		for turn, word := range []string{"first", "second"} {
			from := len(w.changes)
			asked := f.begin(t, t.Context(), asks("c1", "a question", reject))
			words.say(t, "c1", word, " answer", end)
			finished := asked.drain(t)
			var events []*parleyv1.TurnEvent
			for len(events) < len(asked.events) {
				if err := w.next(); err != nil {
					t.Fatalf("after %q: %v", brief(w.changes), err)
				}
				if event := w.changes[len(w.changes)-1].GetTurnEvent(); event != nil {
					events = append(events, event)
				}
			}
			if d := cmp.Diff(asked.events, events, protocmp.Transform()); d != "" {
				t.Errorf("events of turn %d (-as the client +as the watcher):\n%s", turn, d)
			}
			// The question comes ahead of the first event, the answer ahead of the last.
			changes := w.changes[from:]
			place := func(what func(*parleyv1.ConversationChange) bool) int {
				for i, c := range changes {
					if what(c) {
						return i
					}
				}
				t.Fatalf("turn %d is not whole: %q", turn, brief(changes))
				return 0
			}
			message := func(sequence int32) int {
				return place(func(c *parleyv1.ConversationChange) bool { return c.GetMessage().GetSequence() == sequence })
			}
			question, answer := message(finished.GetTurn().GetInputSequence()), message(finished.GetTurn().GetLastAnswerSequence())
			started := place(func(c *parleyv1.ConversationChange) bool { return c.GetTurnEvent().GetStarted() != nil })
			if last := len(changes) - 1; question > started || answer > last || changes[last].GetTurnEvent().GetFinished() == nil {
				t.Errorf("turn %d: the question is change %d, started %d, the answer %d, of %q", turn, question, started, answer, brief(changes))
			}
			for i, c := range changes {
				if isEvent := c.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_TURN; isEvent && (c.GetVersion() != 0 || i > 0 && c.GetCursor() != changes[i-1].GetCursor()) {
					t.Errorf("turn %d: %v follows %v", turn, c, changes[max(i-1, 0)])
				}
			}
		}
		plain.want(t, "HEARTBEAT", "CREATED c1 1", "MESSAGE_APPENDED c1 1", "MESSAGE_APPENDED c1 2", "MESSAGE_APPENDED c1 3", "MESSAGE_APPENDED c1 4")
	})
}

// TestWatchBeginsInATurn: of a turn that runs come the events from then on, and ResumeTurn
// has those before.
func TestWatchBeginsInATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, words := openScripted(t, nil)
		asked := f.begin(t, t.Context(), asks("c1", "a question", reject))
		words.say(t, "c1", "one ", "two ")
		synctest.Wait()
		w := f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{ConversationIds: []string{"c1"}, IncludeTurnEvents: true})
		words.say(t, "c1", "three", end)
		asked.drain(t)
		first := w.lastOf(t, "TURN").GetTurnEvent()
		if first.GetTextDelta().GetText() != "three" || int(first.GetTextDelta().GetOffset()) != len("one two ") {
			t.Errorf("the first event is %v", first)
		}
		for _, event := range asked.events {
			if event.GetTextDelta().GetText() == "two " && event.GetIndex() != first.GetIndex()-1 {
				t.Errorf("the first event is %v, behind %v", first, event)
			}
		}
	})
}

// TestAWatcherMayBeSlow: unlike other streams a watch is not taken from a client that does
// not read; it gets a GAP once it does, and then what is committed.
func TestAWatcherMayBeSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, nil)
		w := f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{})
		batch := make([]*parleyv1.Message, 100)
		for i := range batch {
			batch[i] = user("hello")
		}
		const batches = 120 // More than the 10,000 changes that are kept.
		for range batches {
			f.append(t, "c1", batch...)
		}
		<-time.After(time.Hour / 2)
		gap := w.lastOf(t, "GAP")
		got := len(w.changes)
		if got < 3 || got > 100*batches/2 || gap.GetConversationId() != "" || gap.GetVersion() != 0 {
			t.Errorf("%v comes after %d changes", gap, got)
		}
		for i, c := range w.changes[2 : len(w.changes)-1] {
			if c.GetMessage().GetSequence() != int32(i+1) {
				t.Fatalf("message %d is %v", i+1, c)
			}
		}
		f.append(t, "c1", user("after that"))
		// There may be a heartbeat of the silent time between.
		next := w.lastOf(t, "MESSAGE_APPENDED")
		if m := next.GetMessage(); m.GetContent() != "after that" || m.GetSequence() != 100*batches+1 || len(w.withoutHeartbeats()) != got {
			t.Errorf("after the GAP comes %v", next)
		}
		// Who comes back with the cursor from before the GAP is told the same, first of all.
		again := f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{Cursor: w.changes[0].GetCursor()})
		again.want(t, "GAP", "HEARTBEAT")
		again = f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{Cursor: gap.GetCursor()})
		again.want(t, "HEARTBEAT", "MESSAGE_APPENDED c1 121")
	})
}
