package turn

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn/answer"
	"github.com/parleyhq/parley/server/internal/turn/eventlog"
)

// checkAnswer checks that events describe exactly these messages, completely and under increasing
// indexes, from started to finished.
func checkAnswer(events []*parleyv1.TurnEvent, messages []*parleyv1.Message) error {
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
	parts := splitByMessage(events)
	if len(parts) != len(messages) {
		return fmt.Errorf("events of %d messages, want %d", len(parts), len(messages))
	}
	for i, part := range parts {
		got, want, arguments := new(parleyv1.Message), messages[i], make(map[string]string)
		for _, e := range part {
			switch s := e.GetEvent().(type) {
			case *parleyv1.TurnEvent_TextDelta:
				if int(s.TextDelta.GetOffset()) != len(got.GetContent()) {
					return fmt.Errorf("event %d: text at %d follows %d bytes", e.GetIndex(), s.TextDelta.GetOffset(),
						len(got.GetContent()))
				}
				got.Content += s.TextDelta.GetText()
			case *parleyv1.TurnEvent_ReasoningDelta:
				if int(s.ReasoningDelta.GetOffset()) != len(got.GetReasoning()) {
					return fmt.Errorf("event %d: reasoning at %d follows %d bytes", e.GetIndex(), s.ReasoningDelta.GetOffset(),
						len(got.GetReasoning()))
				}
				got.Reasoning += s.ReasoningDelta.GetText()
			case *parleyv1.TurnEvent_ToolCallDelta:
				d := s.ToolCallDelta
				if int(d.GetOffset()) != len(arguments[d.GetId()]) {
					return fmt.Errorf("event %d: arguments at %d follow %d bytes", e.GetIndex(), d.GetOffset(),
						len(arguments[d.GetId()]))
				}
				arguments[d.GetId()] += d.GetArguments()
			case *parleyv1.TurnEvent_ToolCall:
				got.ToolCalls = append(got.ToolCalls, s.ToolCall)
				if parts := arguments[s.ToolCall.GetId()]; parts != "" && parts != s.ToolCall.GetArguments() {
					return fmt.Errorf("event %d: arguments %q, deltas had %q", e.GetIndex(), s.ToolCall.GetArguments(), parts)
				}
				delete(arguments, s.ToolCall.GetId())
			case *parleyv1.TurnEvent_ToolResult:
				got.ToolResult = s.ToolResult
			}
		}
		if got.GetContent() != want.GetContent() || got.GetReasoning() != want.GetReasoning() || len(got.GetToolCalls()) != len(want.GetToolCalls()) ||
			!proto.Equal(got.GetToolResult(), want.GetToolResult()) {
			return fmt.Errorf("events of message %v, want %v", got, want)
		}
	}
	return nil
}

// flood sends progress until all earlier events are dropped. It does not outrun the readers.
func (r *agentRun) flood() {
	var chunk []*parleyv1.RespondResponse
	for range eventlog.MaxBytes / answer.MaxNoteBytes / 4 {
		chunk = append(chunk, note(strings.Repeat("x", answer.MaxNoteBytes)))
	}
	for range 4 {
		r.do(step{pieces: chunk})
	}
}

// TestFollowMerged: a reader that starts when the first events are no longer retained receives the
// texts so far merged, then the following events. A reader that starts after the end does too.
func TestFollowMerged(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bubble(t, rt, func(t *testing.T) {
			t.Helper()
			f, p := newControlled(t, nil)
			request := &parleyv1.ChatRequest{ConversationId: "c", Content: "q", RequestId: "r"}
			readers := []*reader{f.startChat(t, request)}
			calls, floods, written := 0, 0, ""
			for range rapid.IntRange(1, 10).Draw(rt, "steps") {
				switch rapid.SampledFrom([]string{
					"text", "reasoning", "arguments", "tool", "next", "flood", "join", "resume",
				}).Draw(rt, "step") {
				case "text":
					p.lastRun().sendText("x", "y ")
				case "reasoning":
					p.lastRun().do(step{pieces: []*parleyv1.RespondResponse{reasoning("hm "), reasoning("so ")}})
				case "arguments":
					written += "[]"
					p.lastRun().do(step{pieces: []*parleyv1.RespondResponse{
						callDelta(fmt.Sprint(calls+1), "["),
						callDelta(fmt.Sprint(calls+1), "]"),
					}})
				case "tool":
					calls++
					made := call(fmt.Sprint(calls))
					made.GetToolCall().Arguments, written = written, ""
					p.lastRun().do(step{pieces: []*parleyv1.RespondResponse{made, result(fmt.Sprint(calls), "found")}})
				case "next":
					written = ""
					p.lastRun().do(step{pieces: []*parleyv1.RespondResponse{handoff("other"), text("z")}})
				case "flood":
					floods++
					if floods <= 2 {
						p.lastRun().flood()
					}
				case "join":
					readers = append(readers, f.startChat(t, request))
				case "resume":
					readers = append(readers, f.startResume(t, "", 0))
				}
			}
			p.lastRun().complete()
			messages := readers[0].events[len(readers[0].events)-1].GetFinished().GetMessages()
			readers = append(readers, f.startChat(t, request), f.startResume(t, "", 0))
			for i, r := range readers {
				if err := errors.Join(r.err, checkAnswer(r.events, messages)); err != nil {
					rt.Errorf("reader %d of %d read %d events: %v", i+1, len(readers), len(r.events), err)
				}
			}
			// A reader cannot resume within dropped events.
			if r := f.startResume(t, "", 1); errors.As(r.err, new(*EventsGoneError)) != (floods > 0) {
				rt.Errorf("Resume(1) = %d events, %v", len(r.events), r.err)
			}
		})
	})
}

// TestFollowMergedDuringCall: a reader that starts while the agent writes a call, when its first parts are no
// longer retained, receives them merged.
func TestFollowMergedDuringCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		f.startChat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})
		p.lastRun().do(step{pieces: []*parleyv1.RespondResponse{reasoning("hm"), callDelta("1", "["), callDelta("1", "1")}})
		p.lastRun().flood()
		r := f.startResume(t, "", 0)
		made := call("1")
		made.GetToolCall().Arguments = "[1]"
		p.lastRun().do(step{pieces: []*parleyv1.RespondResponse{callDelta("1", "]"), made}})
		p.lastRun().complete()
		var got []string
		for _, e := range r.events {
			if d := e.GetToolCallDelta(); d != nil {
				got = append(got, fmt.Sprintf("%s at %d", d.GetArguments(), d.GetOffset()))
			}
		}
		if want := []string{"[1 at 0", "] at 2"}; !slices.Equal(got, want) || r.err != nil {
			t.Errorf("parts of the call = %q, %v, want %q", got, r.err, want)
		}
		if err := checkAnswer(r.events, r.events[len(r.events)-1].GetFinished().GetMessages()); err != nil {
			t.Error(err)
		}
	})
}

// TestFollowMergedDuringLaterCall: the same for a message after a tool result, which has nothing but a call yet. Its
// start must not be missing, or clients would add its text to the message before.
func TestFollowMergedDuringLaterCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		f.startChat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})
		p.lastRun().do(step{pieces: []*parleyv1.RespondResponse{call("1"), result("1", "r"), callDelta("2", "[")}})
		p.lastRun().flood()
		r := f.startResume(t, "", 0)
		p.lastRun().do(step{pieces: []*parleyv1.RespondResponse{text("late")}})
		p.lastRun().complete()
		starts := 0
		for _, e := range r.events {
			if e.GetAnswerStarted() != nil {
				starts++
			}
		}
		if starts != 1 || r.err != nil {
			t.Errorf("%d answer_started events, %v, want 1: %v", starts, r.err, r.events)
		}
		if err := checkAnswer(r.events, r.events[len(r.events)-1].GetFinished().GetMessages()); err != nil {
			t.Error(err)
		}
	})
}

// TestFollowMergedDuringEnd: a reader may read merged texts while the turn ends.
func TestFollowMergedDuringEnd(t *testing.T) {
	for range 5 {
		synctest.Test(t, func(t *testing.T) {
			f, p := newControlled(t, nil)
			f.startChat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})
			p.lastRun().sendText("x", "y")
			p.lastRun().flood()
			run := p.lastRun()
			go func() { run.steps <- step{end: true} }()
			r := f.startResume(t, "", 0)
			if err := errors.Join(r.err, checkAnswer(r.events,
				r.events[len(r.events)-1].GetFinished().GetMessages())); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFollowMergedWhileQueued: a turn may have dropped events before it starts, if its position
// changed often. Then there is no text to merge.
func TestFollowMergedWhileQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		f.startChat(t, chatRequest("ahead", 0))
		id := f.startChat(t, chatRequest("q", onBusyQueue)).turnID()
		f.mu.Lock()
		for range eventlog.MaxEvents {
			f.turns[id].reportPosition()
		}
		f.mu.Unlock()
		synctest.Wait()
		r := f.startResume(t, id, 0)
		p.lastRun().complete()
		p.lastRun().sendText("yes")
		p.lastRun().complete()
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
