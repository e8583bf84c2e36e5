package openai

import (
	"bufio"
	"maps"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// replayed returns the events of a response after a number, for a turn with these events.
func replayed(t *testing.T, after int, turn []*parleyv1.TurnEvent) []values {
	t.Helper()
	w := httptest.NewRecorder()
	ref := turnRef{"00000000-0000-4000-8000-000000000001", "00000000-0000-7000-8000-000000000002"}
	q := &request{Context: t.Context(), w: w}
	err := writeEvents(q, newResponse(ref, "a", nil), after, func() (*parleyv1.TurnEvent, error) {
		event := turn[0]
		turn = turn[1:]
		return event, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return (&stream{lines: bufio.NewReader(w.Body)}).all(t)
}

// TestMergedTextKeepsItsNumbers: the server may merge the texts of a message. A client that resumes after any event of
// the stream with separate texts then gets the rest of the text, and the same events after it.
func TestMergedTextKeepsItsNumbers(t *testing.T) {
	delta := func(text string) *parleyv1.TurnEvent {
		return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{Text: text}}}
	}
	next := &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_AnswerStarted{AnswerStarted: &parleyv1.AnswerStarted{}}}
	id := "00000000-0000-7000-8000-000000000002"
	end := &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Finished{Finished: &parleyv1.TurnFinished{
		Turn: &parleyv1.Turn{
			Id: id, State: parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED, CreateTime: timestamppb.Now(),
			FinishTime: timestamppb.Now(),
		},
		Messages: []*parleyv1.Message{
			{Role: parleyv1.Role_ROLE_ASSISTANT, Content: "Stück für Stück"},
			{
				Role: parleyv1.Role_ROLE_ASSISTANT, Content: "二つ目", ToolCalls: []*parleyv1.ToolCall{
					{Id: "c", Name: "f", Arguments: `{"ö": 1}`},
				},
			},
		},
	}}}
	separate := []*parleyv1.TurnEvent{delta("Stück "), delta("fü"), delta("r Stück"), next, delta("二"), delta("つ目"), end}
	merged := []*parleyv1.TurnEvent{delta("Stück für Stück"), next, delta("二つ目"), end}
	complete := replayed(t, -1, separate)
	for i, event := range complete[:len(complete)-1] {
		after := int(event.sequenceNumber())
		got, want := joined(replayed(t, after, merged)), joined(replayed(t, after, separate))
		if !reflect.DeepEqual(got, want) {
			t.Errorf("after %d: %v, want %v", after, got, want)
		}
		if rest := joined(complete[i+1:]); !reflect.DeepEqual(want, rest) {
			t.Errorf("after %d: %v, want %v", after, want, rest)
		}
	}
	// A number that is not that of an event does not split a character.
	last := int(complete[len(complete)-1].sequenceNumber())
	for after := range last {
		for _, event := range replayed(t, after, merged) {
			if strings.Contains(event.text("delta"), "\uFFFD") {
				t.Errorf("after %v: %v", after, event)
			}
		}
	}
}

// joined returns the events with the deltas of one item as one.
func joined(events []values) (all []values) {
	for _, event := range events {
		copied := values{}
		maps.Copy(copied, event)
		if n := len(all); n > 0 && event.text("delta") != "" && all[n-1].text("type") == event.text("type") {
			copied["delta"] = all[n-1].text("delta") + event.text("delta")
			all = all[:n-1]
		}
		all = append(all, copied)
	}
	return all
}
