package replay

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn/eventlog"
	"github.com/parleyhq/parley/store"
)

// messages returns a question, and an answer that calls a tool.
func messages() []*parleyv1.Message {
	return []*parleyv1.Message{
		{Role: parleyv1.Role_ROLE_USER, Content: "q", Sequence: 1},
		{
			Role: parleyv1.Role_ROLE_ASSISTANT, Content: "look", Agent: "main", Sequence: 2,
			ToolCalls: []*parleyv1.ToolCall{{Id: "1"}},
		},
		{Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{CallId: "1"}, Sequence: 3},
		{Role: parleyv1.Role_ROLE_ASSISTANT, Content: "there", Agent: "main", Sequence: 4},
	}
}

// indexes returns event indexes of the answer. Index 4 was a progress event.
func indexes() *storev1.TurnEvents {
	return &storev1.TurnEvents{TurnId: "turn", Started: 1, Finished: 10, Messages: []*storev1.MessageEvents{
		{FirstText: 2, LastText: 3, ToolCalls: []int32{5}},
		{ToolResult: 6},
		{AnswerStarted: 7, FirstText: 8, LastText: 9},
	}}
}

// newTurn returns the turn of these messages.
func newTurn(t *testing.T, stored []*parleyv1.Message, events *storev1.TurnEvents) *Turn {
	t.Helper()
	s := &store.Snapshot{Conversation: &parleyv1.Conversation{SystemPrompt: "prompt"}}
	for _, m := range stored {
		body, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		s.Messages = store.AppendFrame(s.Messages, body)
	}
	r, err := New(s, &store.FoundTurn{Events: events, Turn: &parleyv1.Turn{
		Id: "turn", Agent: "main", InputSequence: 1, FirstAnswerSequence: 2, LastAnswerSequence: 4,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func describe(events []*parleyv1.TurnEvent) []string {
	var all []string
	for _, e := range events {
		s := fmt.Sprintf("%d %T", e.GetIndex(), e.GetEvent())
		if e.GetTextDelta() != nil {
			s = fmt.Sprintf("%d %s", e.GetIndex(), e.GetTextDelta().GetText())
		}
		if delta := e.GetReasoningDelta(); delta != nil {
			s = fmt.Sprintf("%d reasoning %s at %d", e.GetIndex(), delta.GetText(), delta.GetOffset())
		}
		all = append(all, s)
	}
	return all
}

func TestAfter(t *testing.T) {
	all := []string{
		"1 *parleyv1.TurnEvent_Started", "3 look", "5 *parleyv1.TurnEvent_ToolCall", "6 *parleyv1.TurnEvent_ToolResult",
		"7 *parleyv1.TurnEvent_AnswerStarted", "9 there", "10 *parleyv1.TurnEvent_Finished",
	}
	lost := indexes()
	lost.LostAfter = 6
	tests := []struct {
		name   string
		stored []*parleyv1.Message
		events *storev1.TurnEvents
		want   map[int32][]string // by index; GoneError for others up to 11
	}{
		{"complete", messages(), indexes(), map[int32][]string{
			0: all, 1: all[1:], 3: all[2:], 4: all[2:], 5: all[3:], 6: all[4:], 7: all[5:], 9: all[6:], 10: nil,
		}},
		{"cut off by a crash", messages(), lost, map[int32][]string{
			0: all, 1: all[1:], 3: all[2:], 4: all[2:], 5: all[3:], 6: all[4:], 10: nil,
		}},
		{"without the first message", messages()[2:], indexes(), map[int32][]string{
			0: {all[0], all[3], all[4], all[5], all[6]}, 5: all[3:], 6: all[4:], 7: all[5:], 9: all[6:], 10: nil,
		}},
		{"without messages", nil, indexes(), map[int32][]string{0: {all[0], all[6]}, 9: all[6:], 10: nil}},
	}
	for _, test := range tests {
		r := newTurn(t, test.stored, test.events)
		for index := range int32(12) {
			want, found := test.want[index]
			got, err := r.After(index)
			if diff := cmp.Diff(want, describe(got)); diff != "" || errors.As(err, new(*eventlog.GoneError)) == found {
				t.Errorf("%s: After(%d): error = %v, events (-want +got):\n%s", test.name, index, err, diff)
			}
		}
	}
}

// TestReasoning: each run of reasoning and of text is one event. A reader cannot resume within one.
func TestReasoning(t *testing.T) {
	stored := []*parleyv1.Message{
		{Role: parleyv1.Role_ROLE_USER, Content: "q", Sequence: 1},
		{
			Role: parleyv1.Role_ROLE_ASSISTANT, Content: "onetwo", Reasoning: "hm größer", Agent: "main", Sequence: 2,
			ToolCalls: []*parleyv1.ToolCall{{Id: "1"}},
		},
		{Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{CallId: "1"}, Sequence: 3},
		{Role: parleyv1.Role_ROLE_ASSISTANT, Content: "there", Agent: "main", Sequence: 4},
	}
	// Indexes 9 to 11 were deltas of the call.
	events := &storev1.TurnEvents{TurnId: "turn", Started: 1, Finished: 17, Messages: []*storev1.MessageEvents{
		{FirstText: 4, LastText: 8, ToolCalls: []int32{12}, Deltas: []*storev1.DeltaRun{
			{First: 2, Last: 3, Bytes: 3, Reasoning: true},
			{First: 4, Last: 5, Bytes: 3},
			{First: 6, Last: 7, Bytes: 8, Reasoning: true},
			{First: 8, Last: 8, Bytes: 3},
		}},
		{ToolResult: 13},
		{AnswerStarted: 14, FirstText: 15, LastText: 16},
	}}
	all := []string{
		"1 *parleyv1.TurnEvent_Started", "3 reasoning hm  at 0", "5 one", "7 reasoning größer at 3", "8 two",
		"12 *parleyv1.TurnEvent_ToolCall", "13 *parleyv1.TurnEvent_ToolResult", "14 *parleyv1.TurnEvent_AnswerStarted",
		"16 there", "17 *parleyv1.TurnEvent_Finished",
	}
	want := map[int32][]string{
		0: all, 1: all[1:], 3: all[2:], 5: all[3:], 7: all[4:], 8: all[5:], 9: all[5:], 10: all[5:], 11: all[5:], 12: all[6:],
		13: all[7:], 14: all[8:], 16: all[9:], 17: nil,
	}
	r := newTurn(t, stored, events)
	for index := range int32(19) {
		want, found := want[index]
		got, err := r.After(index)
		if diff := cmp.Diff(want, describe(got)); diff != "" || errors.As(err, new(*eventlog.GoneError)) == found {
			t.Errorf("After(%d): error = %v, events (-want +got):\n%s", index, err, diff)
		}
	}
	offsets, _ := r.After(7)
	if got := offsets[0].GetTextDelta().GetOffset(); got != 3 {
		t.Errorf("offset of the second run of text = %d, want 3", got)
	}
	// Without indexes, as if they were no longer stored.
	got, err := newTurn(t, stored, nil).After(0)
	if diff := cmp.Diff([]string{"2 reasoning hm größer at 0", "3 onetwo"}, describe(got)[1:3]); diff != "" || err != nil {
		t.Errorf("After(0) without indexes: error = %v, events (-want +got):\n%s", err, diff)
	}
}

// TestStarted: the started event has the question, unless the turn answered a pending message, and
// no system prompt.
func TestStarted(t *testing.T) {
	pending := indexes()
	pending.AnswerPending = true
	for _, events := range []*storev1.TurnEvents{indexes(), pending} {
		all, err := newTurn(t, messages(), events).After(0)
		if err != nil {
			t.Fatal(err)
		}
		started := all[0].GetStarted()
		if started.GetConversation().GetSystemPrompt() != "" || !started.GetReplayed() ||
			(started.GetUserMessage() == nil) != events.GetAnswerPending() {
			t.Errorf("started = %v, answer_pending: %t", started, events.GetAnswerPending())
		}
	}
}

// TestWithoutIndexes: a turn of an earlier version has no stored indexes. It is replayed from the
// start only.
func TestWithoutIndexes(t *testing.T) {
	r := newTurn(t, messages(), nil)
	want := []string{
		"1 *parleyv1.TurnEvent_Started", "2 look", "3 *parleyv1.TurnEvent_ToolCall", "4 *parleyv1.TurnEvent_ToolResult",
		"5 *parleyv1.TurnEvent_AnswerStarted", "6 there", "7 *parleyv1.TurnEvent_Finished",
	}
	for index := range int32(9) {
		got, err := r.After(index)
		switch gone := errors.As(err, new(*eventlog.GoneError)); {
		case index == 0 || index == 1:
			if diff := cmp.Diff(want[index:], describe(got)); diff != "" || err != nil {
				t.Errorf("After(%d): error = %v, events (-want +got):\n%s", index, err, diff)
			}
		case index == 7 && (got != nil || err != nil), index != 7 && !gone:
			t.Errorf("After(%d) = %v, %v", index, describe(got), err)
		}
	}
}

// TestCompleteIndexes: a reader may resume after a saved event, and no reader has received an event
// with the index of the finished event.
func TestCompleteIndexes(t *testing.T) {
	if got := CompleteIndexes(nil); got != nil {
		t.Errorf("CompleteIndexes(nil) = %v, want nil", got)
	}
	for lostAfter, want := range map[int32]int32{0: 3, 7: 7} {
		got := CompleteIndexes(&storev1.TurnEvents{Started: 3, LostAfter: lostAfter})
		if got.GetLostAfter() != want || got.GetFinished() != want+LostIndexGap {
			t.Errorf("CompleteIndexes(lost_after %d) = %v, want lost_after %d", lostAfter, got, want)
		}
	}
}

// TestRestIsAboveAll: the finished event has a higher index than all that the reader has: those lost in a crash, and
// keep-alives after the index was stored.
func TestRestIsAboveAll(t *testing.T) {
	lost := indexes()
	lost.LostAfter = 6
	for _, test := range []struct {
		events   *storev1.TurnEvents
		received int32
		want     []string
	}{
		{indexes(), 9, []string{"10 *parleyv1.TurnEvent_Finished"}},
		{indexes(), 10, []string{"11 *parleyv1.TurnEvent_Finished"}},
		{indexes(), 20, []string{"21 *parleyv1.TurnEvent_Finished"}},
		{CompleteIndexes(lost), 20, []string{fmt.Sprintf("%d *parleyv1.TurnEvent_Finished", 6+LostIndexGap)}},
	} {
		got, err := newTurn(t, messages(), test.events).Rest(ReceivedThrough(test.received))
		if diff := cmp.Diff(test.want, describe(got)); diff != "" || err != nil {
			t.Errorf("Rest(%d): error = %v, events (-want +got):\n%s", test.received, err, diff)
		}
	}
}

// TestRestOfText: a reader that has a part of a run of text or reasoning receives the rest from its byte offset. If it
// is unknown how much the reader has, the rest is gone. Dropped messages are left out.
func TestRestOfText(t *testing.T) {
	stored := []*parleyv1.Message{
		{Role: parleyv1.Role_ROLE_USER, Content: "q", Sequence: 1},
		{Role: parleyv1.Role_ROLE_ASSISTANT, Content: "onetwo", Reasoning: "größer", Agent: "main", Sequence: 2},
	}
	events := &storev1.TurnEvents{Started: 1, Finished: 12, Messages: []*storev1.MessageEvents{{
		FirstText: 2, LastText: 9, Deltas: []*storev1.DeltaRun{
			{First: 2, Last: 3, Bytes: 3}, {First: 4, Last: 6, Bytes: 8, Reasoning: true}, {First: 7, Last: 9, Bytes: 3},
		},
	}}}
	textDelta := func(index int32, text string, offset int32) *parleyv1.TurnEvent {
		return &parleyv1.TurnEvent{Index: index, Event: &parleyv1.TurnEvent_TextDelta{
			TextDelta: &parleyv1.TextDelta{Text: text, Offset: offset},
		}}
	}
	reasoningDelta := func(index int32, text string, offset int32) *parleyv1.TurnEvent {
		return &parleyv1.TurnEvent{Index: index, Event: &parleyv1.TurnEvent_ReasoningDelta{
			ReasoningDelta: &parleyv1.ReasoningDelta{Text: text, Offset: offset},
		}}
	}
	finished := "12 *parleyv1.TurnEvent_Finished"
	for name, test := range map[string]struct {
		through int32
		events  []*parleyv1.TurnEvent
		want    []string // none: gone
	}{
		"in text":       {0, []*parleyv1.TurnEvent{textDelta(2, "o", 0)}, []string{"3 ne", "6 reasoning größer at 0", "9 two", finished}},
		"in reasoning":  {3, []*parleyv1.TurnEvent{reasoningDelta(4, "grö", 0)}, []string{"6 reasoning ßer at 4", "9 two", finished}},
		"in second run": {6, []*parleyv1.TurnEvent{textDelta(8, "tw", 3)}, []string{"9 o", finished}},
		"merged before": {0, []*parleyv1.TurnEvent{textDelta(3, "one", 0), reasoningDelta(5, "größ", 0)}, []string{
			"6 reasoning er at 6", "9 two", finished,
		}},
		"resumed between runs":          {6, nil, []string{"9 two", finished}},
		"resumed in a run":              {5, nil, nil},
		"resumed in a run, then others": {7, []*parleyv1.TurnEvent{{Index: 8, Event: &parleyv1.TurnEvent_Progress{}}}, nil},
	} {
		received := ReceivedThrough(test.through)
		for _, event := range test.events {
			received.Add(event)
		}
		got, err := newTurn(t, stored, events).Rest(received)
		if diff := cmp.Diff(test.want, describe(got)); diff != "" && test.want != nil ||
			errors.As(err, new(*eventlog.GoneError)) != (test.want == nil) {
			t.Errorf("%s: error = %v, events (-want +got):\n%s", name, err, diff)
		}
	}
	dropped, err := newTurn(t, nil, events).Rest(ReceivedThrough(5))
	if diff := cmp.Diff([]string{finished}, describe(dropped)); diff != "" || err != nil {
		t.Errorf("after the message was dropped: error = %v, events (-want +got):\n%s", err, diff)
	}
}
