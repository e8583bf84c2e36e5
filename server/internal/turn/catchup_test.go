package turn

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// wholeAnswer checks that events tell of these messages, whole, each thing once, under
// rising indexes; whoever reads them need not have seen anything before.
func wholeAnswer(events []*parleyv1.TurnEvent, messages []*parleyv1.Message) error {
	last := int32(0)
	for i, e := range events {
		if e.GetIndex() <= last {
			return fmt.Errorf("event %d follows %d", e.GetIndex(), last)
		}
		last = e.GetIndex()
		if (i == 0) != (e.GetStarted() != nil) || (i == len(events)-1) != (e.GetFinished() != nil) {
			return fmt.Errorf("event %d of %d is %s", i+1, len(events), describe(e))
		}
	}
	parts := perMessage(events)
	if len(parts) != len(messages) {
		return fmt.Errorf("the events tell of %d messages, want %d", len(parts), len(messages))
	}
	for i, part := range parts {
		told, want := new(parleyv1.Message), messages[i]
		for _, e := range part {
			switch s := e.GetEvent().(type) {
			case *parleyv1.TurnEvent_TextDelta:
				if int(s.TextDelta.GetOffset()) != len(told.GetContent()) {
					return fmt.Errorf("event %d: text at %d follows %d bytes", e.GetIndex(), s.TextDelta.GetOffset(), len(told.GetContent()))
				}
				told.Content += s.TextDelta.GetText()
			case *parleyv1.TurnEvent_ToolCall:
				told.ToolCalls = append(told.ToolCalls, s.ToolCall)
			case *parleyv1.TurnEvent_ToolResult:
				told.ToolResult = s.ToolResult
			}
		}
		if told.GetContent() != want.GetContent() || len(told.GetToolCalls()) != len(want.GetToolCalls()) || !proto.Equal(told.GetToolResult(), want.GetToolResult()) {
			return fmt.Errorf("the events tell of %v, want %v", told, want)
		}
	}
	return nil
}

// flood pushes all earlier events out of what is kept, without words. Nobody who reads falls
// behind.
func (r *run) flood() {
	var chunk []*parleyv1.RespondResponse
	for range maxEventBytes / maxNoteBytes / 4 {
		chunk = append(chunk, note(strings.Repeat("x", maxNoteBytes)))
	}
	for range 4 {
		r.do(step{pieces: chunk})
	}
}

// TestCatchUp: whoever begins to read when the first events are no longer kept gets what has
// been said in one piece, then what is said; and so does who comes after the end.
func TestCatchUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bubble(t, rt, func(t *testing.T) {
			t.Helper()
			f, p := newPuppet(t, nil)
			request := &parleyv1.ChatRequest{ConversationId: "c", Content: "q", RequestId: "r"}
			readers := []*reader{f.begin(t, request)}
			calls, floods := 0, 0
			for range rapid.IntRange(1, 10).Draw(rt, "steps") {
				switch rapid.SampledFrom([]string{"text", "tool", "next", "flood", "join", "resume"}).Draw(rt, "step") {
				case "text":
					p.last().say("x", "y ")
				case "tool":
					calls++
					p.last().do(step{pieces: []*parleyv1.RespondResponse{call(fmt.Sprint(calls)), result(fmt.Sprint(calls), "found")}})
				case "next":
					p.last().do(step{pieces: []*parleyv1.RespondResponse{handoff("other"), text("z")}})
				case "flood":
					floods++
					if floods <= 2 {
						p.last().flood()
					}
				case "join":
					readers = append(readers, f.begin(t, request))
				case "resume":
					readers = append(readers, f.resume(t, "", 0))
				}
			}
			p.last().end()
			messages := readers[0].events[len(readers[0].events)-1].GetFinished().GetMessages()
			readers = append(readers, f.begin(t, request), f.resume(t, "", 0))
			for i, r := range readers {
				if err := errors.Join(r.err, wholeAnswer(r.events, messages)); err != nil {
					rt.Errorf("reader %d of %d read %d events: %v", i+1, len(readers), len(r.events), err)
				}
			}
			// From within the lost events there is no going on.
			if r := f.resume(t, "", 1); errors.As(r.err, new(*EventsGoneError)) != (floods > 0) {
				rt.Errorf("resumed from 1: %d events, %v", len(r.events), r.err)
			}
		})
	})
}

// A reader catches up while the turn ends: neither disturbs the other.
func TestCatchUpAtTheEnd(t *testing.T) {
	for range 5 {
		synctest.Test(t, func(t *testing.T) {
			f, p := newPuppet(t, nil)
			f.begin(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})
			p.last().say("x", "y")
			p.last().flood()
			one := p.last()
			go func() { one.steps <- step{end: true} }()
			r := f.resume(t, "", 0)
			if err := errors.Join(r.err, wholeAnswer(r.events, r.events[len(r.events)-1].GetFinished().GetMessages())); err != nil {
				t.Error(err)
			}
		})
	}
}

// A turn may have moved in its line so often that it has lost events before it began: there
// is nothing to catch up with then.
func TestCatchUpInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newPuppet(t, nil)
		f.begin(t, asks("ahead", 0))
		id := f.begin(t, asks("q", queue)).turnID()
		f.mu.Lock()
		for range maxEvents {
			f.turns[id].tellPosition()
		}
		f.mu.Unlock()
		synctest.Wait()
		r := f.resume(t, id, 0)
		p.last().end()
		p.last().say("yes")
		p.last().end()
		for i, e := range r.events {
			if e.GetEvent() == nil {
				t.Fatalf("event %d of %d is %v", i+1, len(r.events), e)
			}
		}
		if r.err != nil || r.finished() == nil {
			t.Errorf("read %d events, %v", len(r.events), r.err)
		}
	})
}
