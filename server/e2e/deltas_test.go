package e2e

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent/anthropic/anthropictest"
	"github.com/parleyhq/parley/server/internal/agent/openai/openaitest"
)

// thinker is an AgentService that streams reasoning and the parts of its calls.
type thinker struct {
	parleyv1.UnimplementedAgentServiceServer
	pieces []*parleyv1.RespondResponse
	next   chan struct{} // The agent sends a piece for each value.
}

func (a *thinker) Respond(
	_ *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse],
) error {
	for _, piece := range a.pieces {
		select {
		case <-a.next:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
		if err := stream.Send(piece); err != nil {
			return err
		}
	}
	return nil
}

func reasoningPiece(text string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Reasoning{Reasoning: text}}
}

func wordPiece(text string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: text}}
}

func writingPiece(id, arguments string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCallDelta{
		ToolCallDelta: &parleyv1.ToolCallDelta{Id: id, Name: "price", Arguments: arguments},
	}}
}

// thinkerPieces are an answer of two messages with everything that arrives in deltas. The call c3 is cut off.
func thinkerPieces() []*parleyv1.RespondResponse {
	call := func(id, arguments string) *parleyv1.RespondResponse {
		return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCall{
			ToolCall: &parleyv1.ToolCall{Id: id, Name: "price", Arguments: arguments},
		}}
	}
	result := func(id string) *parleyv1.RespondResponse {
		return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolResult{
			ToolResult: &parleyv1.ToolResult{CallId: id, Content: "50"},
		}}
	}
	return []*parleyv1.RespondResponse{
		reasoningPiece("Größer "), reasoningPiece("als?"), wordPiece("Let "), wordPiece("me see. "),
		reasoningPiece(" Both."), wordPiece("Wait."), writingPiece("c1", ""), writingPiece("c1", `["Zü`), writingPiece("c2", `["S`),
		writingPiece("c1", `cker"]`), writingPiece("c2", `alz"]`), call("c1", `["Zücker"]`), call("c2", `["Salz"]`),
		result("c1"), result("c2"), reasoningPiece("50 each."), wordPiece("The "), wordPiece("same."),
		writingPiece("c3", `["cut`),
	}
}

// assembly is what a reader shows of a turn.
type assembly struct {
	lines     []string          // complete messages and calls
	text      map[string]string // of the current message, by what it is
	arguments map[string]string // of unfinished calls
}

// assemble reads events as a client does. A gap or a repetition in a delta is an error, and so are deltas that are
// not the beginning of their call.
func assemble(events []*parleyv1.TurnEvent) ([]string, error) {
	a := assembly{text: make(map[string]string), arguments: make(map[string]string)}
	last := int32(0)
	for _, e := range events {
		if e.GetIndex() <= last {
			return nil, fmt.Errorf("event %d follows %d", e.GetIndex(), last)
		}
		last = e.GetIndex()
		if err := a.add(e); err != nil {
			return nil, fmt.Errorf("event %d: %w", last, err)
		}
	}
	return a.lines, nil
}

func (a *assembly) add(e *parleyv1.TurnEvent) error {
	extend := func(parts map[string]string, of, text string, offset int32) error {
		if int(offset) != len(parts[of]) {
			return fmt.Errorf("%s at %d follows %d bytes", of, offset, len(parts[of]))
		}
		parts[of] += text
		return nil
	}
	switch e := e.GetEvent().(type) {
	case *parleyv1.TurnEvent_TextDelta:
		return extend(a.text, "text", e.TextDelta.GetText(), e.TextDelta.GetOffset())
	case *parleyv1.TurnEvent_ReasoningDelta:
		return extend(a.text, "reasoning", e.ReasoningDelta.GetText(), e.ReasoningDelta.GetOffset())
	case *parleyv1.TurnEvent_ToolCallDelta:
		return extend(a.arguments, e.ToolCallDelta.GetId(), e.ToolCallDelta.GetArguments(), e.ToolCallDelta.GetOffset())
	case *parleyv1.TurnEvent_ToolCall:
		id, arguments := e.ToolCall.GetId(), e.ToolCall.GetArguments()
		if !strings.HasPrefix(arguments, a.arguments[id]) {
			return fmt.Errorf("call %s has arguments %q, its deltas %q", id, arguments, a.arguments[id])
		}
		delete(a.arguments, id)
		a.lines = append(a.lines, "call "+id+" "+arguments)
	case *parleyv1.TurnEvent_ToolResult, *parleyv1.TurnEvent_AnswerStarted, *parleyv1.TurnEvent_Finished:
		for _, of := range []string{"reasoning", "text"} {
			if a.text[of] != "" {
				a.lines = append(a.lines, of+" "+a.text[of])
			}
		}
		clear(a.text)
		clear(a.arguments)
		a.lines = append(a.lines, fmt.Sprintf("%T", e))
	}
	return nil
}

// thinkerConfig starts the agent and returns its configuration.
func thinkerConfig(t *testing.T, agent *thinker) map[string]any {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(service, agent)
	go func() { _ = service.Serve(listener) }() // Serve returns after Stop.
	t.Cleanup(service.Stop)
	return map[string]any{"kind": "remote", "address": listener.Addr().String()}
}

// TestDeltasResume checks that reasoning and the parts of tool calls of a remote agent and of the models stream to
// the client. A stream that is cut after any event resumes without a gap or a repetition: while the turn runs,
// after its end, and after the server was killed.
func TestDeltasResume(t *testing.T) {
	t.Parallel()
	agent := &thinker{pieces: thinkerPieces(), next: make(chan struct{}, len(thinkerPieces()))}
	anthropic := anthropictest.New(t, anthropictest.Answer(anthropictest.Message{
		Thinking: []string{"Which ", "one?"}, Words: []string{"Let ", "me see."},
		Calls: []anthropictest.Call{{ID: "c1", Name: "price", Arguments: `{"product":"Sugar"}`}},
	}))
	openai := openaitest.New(t, openaitest.Events(slices.Concat(
		openaitest.Reasoning("Which ", "one?"), openaitest.Words("Let ", "me see."), []string{
			openaitest.ToolDelta(map[string]any{"index": 0, "id": "c1", "function": map[string]any{"name": "price"}}),
			openaitest.ToolDelta(map[string]any{"index": 0, "function": map[string]any{"arguments": `{"product"`}}),
			openaitest.ToolDelta(map[string]any{"index": 0, "function": map[string]any{"arguments": `:"Sugar"}`}}),
			openaitest.Finish("tool_calls"), openaitest.Done,
		})...))
	dataDir, config := t.TempDir(), agents(t, encodeJSON(t, map[string]any{"agents": map[string]any{
		"remote":    thinkerConfig(t, agent),
		"anthropic": toolConfig("anthropic", anthropic.URL), "openai": toolConfig("openai", openai.URL),
	}}))
	s := startServer(t, dataDir, config)
	modelLines := []string{
		`call c1 {"product":"Sugar"}`, "reasoning Which one?", "text Let me see.", "*parleyv1.TurnEvent_Finished",
	}
	want := map[string][]string{
		"remote": {
			`call c1 ["Zücker"]`, `call c2 ["Salz"]`, "reasoning Größer als? Both.", "text Let me see. Wait.",
			"*parleyv1.TurnEvent_ToolResult", "*parleyv1.TurnEvent_ToolResult", "*parleyv1.TurnEvent_AnswerStarted",
			"reasoning 50 each.", "text The same.", "*parleyv1.TurnEvent_Finished",
		},
		"anthropic": modelLines, "openai": modelLines,
	}
	all := make(map[string][]*parleyv1.TurnEvent)
	for name, lines := range want {
		call := streamOf(s.Chat(timeLimited(t), &parleyv1.ChatRequest{ConversationId: name, Content: "price?", Agent: name}))
		if name == "remote" {
			readPaced(t, s, agent, call)
		}
		if err := call.drain(); err != nil {
			t.Fatal(err)
		}
		all[name] = call.events
		got, err := assemble(call.events)
		if diff := cmp.Diff(lines, got); diff != "" || err != nil {
			t.Fatalf("%s: Chat: error %v (-want +got):\n%s", name, err, diff)
		}
		for kind, has := range map[string]func(*parleyv1.TurnEvent) bool{
			"reasoning":      func(e *parleyv1.TurnEvent) bool { return e.GetReasoningDelta() != nil },
			"parts of calls": func(e *parleyv1.TurnEvent) bool { return e.GetToolCallDelta() != nil },
		} {
			if !slices.ContainsFunc(call.events, has) {
				t.Errorf("%s: Chat sent no %s", name, kind)
			}
		}
		messages := call.events[len(call.events)-1].GetFinished().GetMessages()
		if got := messages[0].GetReasoning(); !strings.Contains(lines[1]+lines[2], got) || got == "" {
			t.Errorf("%s: reasoning of the stored message = %q, want that of the stream", name, got)
		}
		wantResumes(t, s, name, call.events, lines, false)
	}
	s.kill()
	s = startServer(t, dataDir, config)
	for name, events := range all {
		wantResumes(t, s, name, events, want[name], true)
		wantReplayOfClient(t, s, name, want[name])
	}
}

// readPaced reads the turn of the agent, so that the client receives each piece as an event of its own. While the
// agent writes its calls, other readers resume.
func readPaced(t *testing.T, s *server, agent *thinker, call *eventStream) {
	t.Helper()
	call.receive(t, 1)
	for i, piece := range agent.pieces {
		agent.next <- struct{}{}
		if i > 0 && agent.pieces[i-1].GetToolResult() != nil && piece.GetToolResult() == nil {
			call.receive(t, 1) // answer_started
		}
		call.receive(t, 1)
		if delta := piece.GetToolCallDelta(); delta.GetId() == "c2" {
			wantResumesWhileRunning(t, s, call.events)
		}
	}
}

// wantReplayOfClient checks that the Go client reads the complete turn.
func wantReplayOfClient(t *testing.T, s *server, id string, lines []string) {
	t.Helper()
	c, err := client.Dial(s.conn.Target())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var replayed []*parleyv1.TurnEvent
	for event, err := range c.ResumeTurn(timeLimited(t), &parleyv1.ResumeTurnRequest{ConversationId: id}) {
		if err != nil {
			t.Fatal(err)
		}
		replayed = append(replayed, event)
	}
	got, err := assemble(replayed)
	if diff := cmp.Diff(lines, got); diff != "" || err != nil {
		t.Errorf("%s: ResumeTurn of the client after a restart: error %v (-want +got):\n%s", id, err, diff)
	}
}

// wantResumesWhileRunning checks that a reader that resumes after any event of a running turn receives the others.
func wantResumesWhileRunning(t *testing.T, s *server, events []*parleyv1.TurnEvent) {
	t.Helper()
	last := events[len(events)-1].GetIndex()
	for i, e := range events[:len(events)-1] {
		rest := resume(t, s, "remote", turnOf(events), int(e.GetIndex()))
		for rest.lastIndex() < last {
			rest.receive(t, 1)
		}
		if _, err := assemble(slices.Concat(events[:i+1], rest.events)); err != nil || rest.lastIndex() != last {
			t.Errorf("ResumeTurn after %d of a running turn = %v, %v", e.GetIndex(), rest.events, err)
		}
	}
}

// wantResumes checks that a reader that resumes after any event of an ended turn receives the rest. After a restart
// the events are merged: a reader within a run of text or reasoning gets EVENTS_GONE.
func wantResumes(t *testing.T, s *server, id string, events []*parleyv1.TurnEvent, lines []string, restarted bool) {
	t.Helper()
	resumed, gone := 0, 0
	for i := range events {
		after := events[:i]
		index := 0
		if i > 0 {
			index = int(events[i-1].GetIndex())
		}
		rest := resume(t, s, id, turnOf(events), index)
		err := rest.drain()
		if restarted && index > 0 && status.Code(err) == codes.OutOfRange {
			gone++
			continue
		}
		resumed++
		got, fault := assemble(slices.Concat(after, rest.events))
		if diff := cmp.Diff(lines, got); diff != "" || err != nil || fault != nil {
			t.Errorf("%s: ResumeTurn after %d: %v, %v (-want +got):\n%s", id, index, err, fault, diff)
		}
	}
	// Three runs of the remote agent's answer have two pieces, and one of the resumptions is between them.
	if want := 3; resumed+gone != len(events) || restarted && id == "remote" && gone != want || !restarted && gone > 0 {
		t.Errorf("%s: %d of %d resumptions succeeded, %d got EVENTS_GONE", id, resumed, len(events), gone)
	}
}
