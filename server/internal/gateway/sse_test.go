package gateway

import (
	"net/http"
	"slices"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestAcceptsEvents(t *testing.T) {
	for _, c := range []struct {
		accept []string
		want   bool
	}{
		{nil, false},
		{[]string{"*/*"}, false},
		{[]string{"text/*"}, false},
		{[]string{"application/json"}, false},
		{[]string{"text/event-stream"}, true},
		{[]string{"Text/Event-Stream; charset=utf-8"}, true},
		{[]string{"application/json, text/event-stream"}, true},
		{[]string{"text/event-stream;q=0.5,application/json"}, true},
		{[]string{"application/json", "text/event-stream"}, true},
		{[]string{"text/event-stream;q=0"}, false},
		{[]string{"text/event-stream;q=0.000, */*"}, false},
		{[]string{"text/event-streams"}, false},
		{[]string{";, /,,"}, false},
	} {
		if got := acceptsEvents(http.Header{"Accept": c.accept}); got != c.want {
			t.Errorf("acceptsEvents(%q) = %t, want %t", c.accept, got, c.want)
		}
	}
}

func valueEvent(index int32) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{
		Index: index, Event: &parleyv1.TurnEvent_StructuredData{StructuredData: &parleyv1.StructuredData{}},
	}
}

func finishedEvent(index int32) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Index: index, Event: &parleyv1.TurnEvent_Finished{Finished: &parleyv1.TurnFinished{}}}
}

func startedEvent(index int32, replayed bool) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Index: index, TurnId: "t", Event: &parleyv1.TurnEvent_Started{
		Started: &parleyv1.TurnStarted{Conversation: &parleyv1.Conversation{Id: "c"}, Replayed: replayed},
	}}
}

func queuedEvent(index int32) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{
		Index: index, TurnId: "t", Event: &parleyv1.TurnEvent_Queued{Queued: &parleyv1.TurnQueued{Position: 1}},
	}
}

// TestEventIDs: the id of an event that may have been sent before earlier text has a suffix.
func TestEventIDs(t *testing.T) {
	toolCall := &parleyv1.TurnEvent{Index: 9, Event: &parleyv1.TurnEvent_ToolCall{ToolCall: &parleyv1.ToolCall{}}}
	answer := &parleyv1.TurnEvent{
		Index: 12, Event: &parleyv1.TurnEvent_AnswerStarted{AnswerStarted: &parleyv1.AnswerStarted{}},
	}
	for _, c := range []struct {
		name   string
		after  int32
		events []*parleyv1.TurnEvent
		want   []string
	}{
		{
			"one by one", 0,
			[]*parleyv1.TurnEvent{startedEvent(1, false), textEvent(2, "a"), valueEvent(3), textEvent(4, "b"), finishedEvent(5)},
			[]string{"1", "2", "3", "4", "5"},
		},
		{
			"merged for a late reader", 0,
			[]*parleyv1.TurnEvent{
				startedEvent(1, false),
				{Index: 4, Event: &parleyv1.TurnEvent_ReasoningDelta{}},
				textEvent(6, "a"),
				{Index: 8, Event: &parleyv1.TurnEvent_ToolCallDelta{}},
				toolCall,
			},
			[]string{"1", "4", "6", "8", "9"},
		},
		{"resumed", 2, []*parleyv1.TurnEvent{valueEvent(3), textEvent(4, "b")}, []string{"3", "4"}},
		{
			"merged", 0,
			[]*parleyv1.TurnEvent{
				startedEvent(1, true), valueEvent(3), toolCall, textEvent(10, "ab"), valueEvent(11), finishedEvent(99),
			},
			[]string{"1", "3~", "9~", "10", "11", "99"},
		},
		{
			"merged, then the next message", 0,
			[]*parleyv1.TurnEvent{startedEvent(1, true), valueEvent(3), answer, valueEvent(13), valueEvent(15)},
			[]string{"1", "3~", "12", "13", "15~"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, got := EventIDs{last: c.after}, []string(nil)
			for _, event := range c.events {
				reply, ok := n.withID(&parleyv1.ResumeTurnResponse{Event: event}).(replyWithID)
				if !ok {
					t.Fatalf("withID(%v) has no id", event)
				}
				got = append(got, reply.id)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("ids = %q, want %q", got, c.want)
			}
		})
	}
	change := &parleyv1.WatchConversationsResponse{Change: &parleyv1.ConversationChange{Cursor: "x"}}
	if got, ok := new(EventIDs).withID(change).(replyWithID); !ok || got.id != "x" {
		t.Errorf("withID of a change = %v, want id x", got)
	}
	if export, ok := new(EventIDs).withID(&parleyv1.ExportConversationsResponse{}).(replyWithID); ok {
		t.Errorf("withID of an exported conversation has the id %q, want none", export.id)
	}
}

func TestParseEventID(t *testing.T) {
	for _, c := range []struct {
		id          string
		index       int32
		pending, ok bool
	}{
		{"0", 0, false, true},
		{"17", 17, false, true},
		{"17~", 17, true, true},
		{"2147483647", 2147483647, false, true},
		{"2147483648", 0, false, false},
		{"-1", 0, false, false},
		{"+1", 0, false, false},
		{"1.0", 0, false, false},
		{" 1", 0, false, false},
		{"~", 0, false, false},
		{"1~~", 0, false, false},
		{"", 0, false, false},
		{"x", 0, false, false},
	} {
		if index, pending, ok := ParseEventID(c.id); ok != c.ok || ok && (index != c.index || pending != c.pending) {
			t.Errorf("ParseEventID(%q) = %d, %t, %t, want %d, %t, %t", c.id, index, pending, ok, c.index, c.pending, c.ok)
		}
	}
}
