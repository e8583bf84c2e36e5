package turn

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
)

// pieceGenerator draws random pieces of an agent that break no rule: open calls have distinct ids,
// and results match open calls.
type pieceGenerator struct{ open []string }

// next returns the id of the next call. An id can be used again after its result.
func (s *pieceGenerator) next() string {
	id := 1
	for slices.Contains(s.open, fmt.Sprint(id)) {
		id++
	}
	return fmt.Sprint(id)
}

func (s *pieceGenerator) draw(rt *rapid.T) []*parleyv1.RespondResponse {
	word := rapid.StringOfN(rapid.SampledFrom([]rune("ab é日")), 0, 5, -1)
	kinds := map[string]func() *parleyv1.RespondResponse{
		"text": func() *parleyv1.RespondResponse { return text(word.Draw(rt, "text")) },
		"more": func() *parleyv1.RespondResponse { return text(word.Draw(rt, "text")) },
		"data": func() *parleyv1.RespondResponse {
			d := &parleyv1.StructuredData{Type: "t", Value: structpb.NewStringValue(word.Draw(rt, "data"))}
			return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_StructuredData{StructuredData: d}}
		},
		"reasoning": func() *parleyv1.RespondResponse { return reasoning(word.Draw(rt, "reasoning")) },
		"writing":   func() *parleyv1.RespondResponse { return callDelta(s.next(), word.Draw(rt, "arguments")) },
		"call": func() *parleyv1.RespondResponse {
			s.open = append(s.open, s.next())
			return call(s.open[len(s.open)-1])
		},
		"result": func() *parleyv1.RespondResponse {
			if len(s.open) == 0 {
				return text("no call")
			}
			i := rapid.IntRange(0, len(s.open)-1).Draw(rt, "call")
			id := s.open[i]
			s.open = slices.Delete(s.open, i, i+1)
			return result(id, word.Draw(rt, "result"))
		},
		"next": func() *parleyv1.RespondResponse { return handoff("other") },
		"note": func() *parleyv1.RespondResponse { return note("n") },
		"usage": func() *parleyv1.RespondResponse {
			return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Usage{Usage: &parleyv1.Usage{OutputTokens: 1}}}
		},
		"summary": func() *parleyv1.RespondResponse {
			return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Summary{Summary: "s"}}
		},
	}
	var pieces []*parleyv1.RespondResponse
	for _, kind := range rapid.SliceOfN(rapid.SampledFrom([]string{
		"text", "more", "reasoning", "writing", "data", "call", "result", "next", "note", "usage", "summary",
	}), 0, 14).Draw(rt, "pieces") {
		pieces = append(pieces, kinds[kind]())
	}
	return pieces
}

func call(id string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCall{ToolCall: &parleyv1.ToolCall{
		Id:   id,
		Name: "find",
	}}}
}

func result(id, content string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolResult{
		ToolResult: &parleyv1.ToolResult{CallId: id, Content: content},
	}}
}

func note(text string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Progress{
		Progress: &parleyv1.TurnProgress{Text: text},
	}}
}

func handoff(name string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_NextAgent{NextAgent: name}}
}

// readAll reads a sequence to its end.
func readAll(events iter.Seq2[*parleyv1.TurnEvent, error]) (all []*parleyv1.TurnEvent, err error) {
	for event, err := range events {
		if err != nil {
			return all, err
		}
		all = append(all, event)
	}
	return all, nil
}

// splitByMessage groups the events by the message that they belong to. Calls that were cut off are no message.
func splitByMessage(all []*parleyv1.TurnEvent) (messages [][]*parleyv1.TurnEvent) {
	for _, e := range all {
		var opens bool
		switch e.GetEvent().(type) {
		case *parleyv1.TurnEvent_AnswerStarted, *parleyv1.TurnEvent_ToolResult:
			opens = true
		case *parleyv1.TurnEvent_TextDelta, *parleyv1.TurnEvent_StructuredData, *parleyv1.TurnEvent_ToolCall,
			*parleyv1.TurnEvent_ReasoningDelta, *parleyv1.TurnEvent_ToolCallDelta:
			opens = messages == nil
		default:
			continue
		}
		if opens {
			messages = append(messages, nil)
		}
		messages[len(messages)-1] = append(messages[len(messages)-1], e)
	}
	return slices.DeleteFunc(messages, func(events []*parleyv1.TurnEvent) bool {
		return !slices.ContainsFunc(events, func(e *parleyv1.TurnEvent) bool {
			return e.GetAnswerStarted() == nil && e.GetToolCallDelta() == nil
		})
	})
}

// continues appends the delta e to last if it continues it, and reports whether it does.
func continues(last, e *parleyv1.TurnEvent) bool {
	switch d := e.GetEvent().(type) {
	case *parleyv1.TurnEvent_TextDelta:
		if last.GetTextDelta() == nil {
			return false
		}
		last.GetTextDelta().Text += d.TextDelta.GetText()
	case *parleyv1.TurnEvent_ReasoningDelta:
		if last.GetReasoningDelta() == nil {
			return false
		}
		last.GetReasoningDelta().Text += d.ReasoningDelta.GetText()
	case *parleyv1.TurnEvent_ToolCallDelta:
		if last.GetToolCallDelta().GetId() != d.ToolCallDelta.GetId() {
			return false
		}
		last.GetToolCallDelta().Arguments += d.ToolCallDelta.GetArguments()
	default:
		return false
	}
	last.Index = e.GetIndex()
	return true
}

// expectedReplay returns the events that a store replays after an index, or that they are gone,
// given the events that the first reader received. The first messages of the answer are dropped
// from the history.
func expectedReplay(all []*parleyv1.TurnEvent, dropped int, after int32) (want []*parleyv1.TurnEvent, gone bool) {
	start, end := 0, all[len(all)-1]
	for all[start].GetStarted() == nil {
		start++
	}
	want = append(want, markReplayed(all[start], true))
	for i, events := range splitByMessage(all) {
		if i < dropped {
			for _, e := range events {
				gone = gone || after < e.GetIndex() && e.GetToolCallDelta() == nil
			}
			continue
		}
		var run *parleyv1.TurnEvent // The open run of text or reasoning.
		for _, e := range events {
			last := run.GetIndex()
			switch {
			case e.GetToolCallDelta() != nil:
				run = nil // Deltas of calls are left out.
			case e.GetTextDelta() == nil && e.GetReasoningDelta() == nil:
				want = append(want, e)
			case run != nil && continues(run, e):
				gone = gone || last <= after && after < e.GetIndex() // A reader cannot resume within a merged run.
			default:
				run = proto.CloneOf(e)
				want = append(want, run)
			}
		}
	}
	want = append(want, end)
	slices.SortFunc(want, func(a, b *parleyv1.TurnEvent) int { return int(a.GetIndex() - b.GetIndex()) })
	want = slices.DeleteFunc(want, func(e *parleyv1.TurnEvent) bool { return e.GetIndex() <= after })
	return want, after > end.GetIndex() || gone && after != 0 && after != end.GetIndex()
}

// mergeAdjacent returns events as a late reader receives them: deltas of one kind that follow one another are one
// event.
func mergeAdjacent(events []*parleyv1.TurnEvent) (merged []*parleyv1.TurnEvent) {
	for _, e := range events {
		if n := len(merged); n > 0 {
			if last := proto.CloneOf(merged[n-1]); continues(last, e) {
				merged[n-1] = last
				continue
			}
		}
		merged = append(merged, e)
	}
	return merged
}

// sentEvents is a sink that records the events of one turn at a time, unmerged.
type sentEvents struct{ events []*parleyv1.TurnEvent }

func (*sentEvents) HasSubscribers() bool { return true }

func (s *sentEvents) TurnEvent(_, _ string, e *parleyv1.TurnEvent) {
	s.events = append(s.events, proto.CloneOf(e))
}

// diffEvents describes the difference of two lists of events. It ignores the conversation, which a
// replay reports in its current state.
func diffEvents(want, got []*parleyv1.TurnEvent) string {
	equal := slices.EqualFunc(want, got, func(w, g *parleyv1.TurnEvent) bool {
		if g.GetStarted() != nil {
			g = proto.CloneOf(g)
			g.GetStarted().Conversation = w.GetStarted().GetConversation()
		}
		return proto.Equal(w, g)
	})
	if equal {
		return "" // cmp.Diff would be slow.
	}
	return cmp.Diff(want, got, protocmp.Transform())
}

// TestReplay: a turn is resumed from every index, while its events are retained and later from the
// store. It returns the events after the index or EventsGoneError.
func TestReplay(t *testing.T) {
	var pieces []*parleyv1.RespondResponse
	var failure error
	sent := new(sentEvents)
	f := newFixture(t, map[string]agent.Agent{"main": agentFunc(
		func(_ context.Context, _ *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
			respondWith(pieces...)(nil, nil, yield)
			if failure != nil {
				yield(nil, failure)
			}
		})}, func(o *Options) { o.EventSink = sent })
	conversations := 0
	rapid.Check(t, func(rt *rapid.T) {
		if pieces, failure = new(pieceGenerator).draw(rt), nil; rapid.IntRange(0, 4).Draw(rt, "fails") == 0 {
			failure = &agent.Error{Message: "out of order"}
		}
		conversations++
		request := &parleyv1.ChatRequest{ConversationId: fmt.Sprint("c", conversations), Content: "q", RequestId: "r"}
		sent.events = nil
		received, err := readAll(f.Chat(t.Context(), tenant, request, storeRequest(request)))
		all := sent.events
		if diff := diffEvents(mergeAdjacent(all), mergeAdjacent(received)); err != nil || diff != "" {
			rt.Fatalf("Chat: error %v, events (-want +got):\n%s", err, diff)
		}
		check := func(name string, rule func(after int32) ([]*parleyv1.TurnEvent, bool)) {
			last := all[len(all)-1].GetIndex()
			for after := range last + 2 {
				want, gone := rule(after)
				got, err := readAll(f.Resume(t.Context(), tenant, request.GetConversationId(), "", after))
				if refused := errors.As(err, new(*EventsGoneError)); refused != gone || err != nil && !refused {
					rt.Errorf("%s: Resume(%d): error = %v, want EventsGoneError: %t", name, after, err, gone)
				} else if diff := diffEvents(want, got); err == nil && diff != "" {
					rt.Errorf("%s: Resume(%d) (-want +got):\n%s", name, after, diff)
				}
			}
			want, _ := rule(0)
			got, err := readAll(f.Chat(t.Context(), tenant, request, storeRequest(request)))
			if diff := diffEvents(want, got); err != nil || diff != "" {
				rt.Errorf("%s: retry: error %v, events (-want +got):\n%s", name, err, diff)
			}
		}
		check("live", func(after int32) ([]*parleyv1.TurnEvent, bool) {
			replayed := append([]*parleyv1.TurnEvent{markReplayed(all[0], true)}, all[1:]...)
			return mergeAdjacent(replayed[min(int(after), len(all)):]), int(after) > len(all)
		})
		f.releaseAll()
		check("from the store", func(after int32) ([]*parleyv1.TurnEvent, bool) { return expectedReplay(all, 0, after) })

		// Drop the first messages of the history: the question, then messages of the answer.
		messages := all[len(all)-1].GetFinished().GetMessages()
		dropped := rapid.IntRange(0, len(messages)).Draw(rt, "dropped")
		f.trimHistory(t, request.GetConversationId(), len(messages)-dropped)
		shorter := make([]*parleyv1.TurnEvent, 0, len(all))
		for _, e := range all {
			e = proto.CloneOf(e)
			if s := e.GetStarted(); s != nil {
				s.UserMessage = nil
			}
			if s := e.GetFinished(); s != nil {
				s.Messages = s.GetMessages()[dropped:]
			}
			shorter = append(shorter, e)
		}
		check(fmt.Sprintf("without %d messages", dropped),
			func(after int32) ([]*parleyv1.TurnEvent, bool) { return expectedReplay(shorter, dropped, after) })
	})
}

// trimHistory drops all but the newest messages of a conversation.
func (f *fixture) trimHistory(t *testing.T, id string, newest int) {
	t.Helper()
	update := &store.Update{Tenant: tenant, ConversationID: id}
	if newest == 0 {
		update.KeepThrough = new(int32)
	} else {
		update.Fields = []string{"retention.max_messages"}
		update.Values = &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: int32(newest)}}
	}
	if _, err := f.store.Update(t.Context(), update); err != nil {
		t.Fatal(err)
	}
}
