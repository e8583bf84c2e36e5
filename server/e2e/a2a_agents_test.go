package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// a2aShop is an agent on the official library of A2A. It answers "price" with the call of a tool, "which" with a
// question, "wait" not before it is cancelled, and every other text with the number of messages of its context.
type a2aShop struct {
	url       string
	cancelled chan a2a.TaskID

	mu       sync.Mutex
	contexts map[string]int // messages by context
}

func startA2AShop(t *testing.T) *a2aShop {
	t.Helper()
	shop := &a2aShop{cancelled: make(chan a2a.TaskID, 1), contexts: make(map[string]int)}
	handler := a2asrv.NewHandler(shop, a2asrv.WithLogger(slog.New(slog.DiscardHandler)))
	routes := http.NewServeMux()
	server := httptest.NewServer(routes)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	routes.Handle("/a2a", a2asrv.NewJSONRPCHandler(handler))
	routes.Handle(a2asrv.WellKnownAgentCardPath, a2asrv.NewStaticAgentCardHandler(&a2a.AgentCard{
		Name: "shop", Capabilities: a2a.AgentCapabilities{Streaming: true},
		SupportedInterfaces: []*a2a.AgentInterface{
			a2a.NewAgentInterface(server.URL+"/a2a", a2a.TransportProtocolJSONRPC),
		},
	}))
	shop.url = server.URL
	return shop
}

func (s *a2aShop) Execute(ctx context.Context, on *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		s.mu.Lock()
		s.contexts[on.ContextID]++
		n := s.contexts[on.ContextID]
		s.mu.Unlock()
		if on.StoredTask == nil {
			yield(a2a.NewSubmittedTask(on, on.Message), nil)
		}
		end := func(state a2a.TaskState, parts ...*a2a.Part) {
			yield(a2a.NewStatusUpdateEvent(on, state, a2a.NewMessageForTask(a2a.MessageRoleAgent, on, parts...)), nil)
		}
		first := on.Message.Parts[0]
		if data, ok := first.Data().(map[string]any); ok {
			result, _ := data["toolResult"].(map[string]any)
			end(a2a.TaskStateCompleted, a2a.NewTextPart(fmt.Sprint(result["content"], " each.")))
			return
		}
		switch first.Text() {
		case "price":
			call := a2a.NewDataPart(map[string]any{"toolCall": map[string]any{"id": "k1", "name": "price", "arguments": "{}"}})
			call.SetMeta("parley.type", "tool_call")
			end(a2a.TaskStateInputRequired, call)
		case "which":
			end(a2a.TaskStateInputRequired, a2a.NewTextPart("Which one?"))
		case "wait":
			yield(a2a.NewArtifactEvent(on, a2a.NewTextPart("half an ")), nil)
			<-ctx.Done()
		default:
			yield(a2a.NewArtifactEvent(on, a2a.NewTextPart(fmt.Sprint("message ", n))), nil)
			end(a2a.TaskStateCompleted)
		}
	}
}

func (s *a2aShop) Cancel(_ context.Context, on *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		yield(a2a.NewStatusUpdateEvent(on, a2a.TaskStateCanceled, nil), nil)
		s.cancelled <- on.TaskID
	}
}

// TestA2AAgent: an A2A agent answers Chat. Its context survives a kill of the server. A task that waits for a tool or
// for the user ends the turn as the API defines it, and continues with the next one. A cancelled turn cancels its task.
func TestA2AAgent(t *testing.T) {
	t.Parallel()
	shop := startA2AShop(t)
	dir, config := t.TempDir(), agents(t, "default_agent: shop\nagents: {shop: {kind: a2a, url: '"+shop.url+"'}}")
	s := startServer(t, dir, config)
	if got := ask(t, s, "c", "hi"); got != "message 1" {
		t.Fatalf("first answer = %q, want message 1", got)
	}
	s.kill()
	s = startServer(t, dir, config)
	if got := ask(t, s, "c", "hi"); got != "message 2" {
		t.Errorf("answer after the kill = %q, want message 2 of the same context", got)
	}
	if got := ask(t, s, "c", "which"); got != "Which one?" {
		t.Errorf("answer = %q, want the question", got)
	}
	if got := ask(t, s, "c", "the red one"); got != "message 4" {
		t.Errorf("answer to the question = %q, want message 4", got)
	}

	calls := chat(t, s, &parleyv1.ChatRequest{ConversationId: "c", Content: "price"}).finish(t)
	if calls.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED ||
		calls.GetMessages()[0].GetToolCalls()[0].GetName() != "price" {
		t.Fatalf("turn = %v, want INPUT_REQUIRED with the call", calls)
	}
	s.kill()
	s = startServer(t, dir, config)
	result := chat(t, s, &parleyv1.ChatRequest{
		ConversationId: "c", ToolResults: []*parleyv1.ToolResult{{CallId: "k1", Content: "50 cents"}},
	})
	turn := result.finish(t).GetTurn()
	if turn.GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED || result.text != "50 cents each." {
		t.Errorf("turn after the result = %v with %q, want 50 cents each", turn, result.text)
	}

	waiting := chat(t, s, &parleyv1.ChatRequest{ConversationId: "c", Content: "wait"})
	waiting.receiveUntil(t, func() bool { return waiting.text == "half an " })
	if _, err := s.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{
		ConversationId: "c", TurnId: waiting.started.GetConversation().GetActiveTurnId(),
	}); err != nil {
		t.Fatal(err)
	}
	if turn := waiting.finish(t).GetTurn(); turn.GetState() != parleyv1.TurnState_TURN_STATE_CANCELLED {
		t.Errorf("cancelled turn = %v, want CANCELLED", turn)
	}
	select {
	case <-shop.cancelled:
	case <-time.After(time.Minute):
		t.Error("the task of the cancelled turn was not cancelled")
	}
	wantContexts(t, s, shop, 1)
	s.terminate()
	s.wantStop(t)
}

// wantContexts checks the number of contexts of the shop, and that the record of conversation c names one of them.
func wantContexts(t *testing.T, s *server, shop *a2aShop, want int) {
	t.Helper()
	reply, err := parleyv1.NewRecordServiceClient(s.conn).GetRecords(t.Context(), &parleyv1.GetRecordsRequest{
		ConversationId: "c", Keys: []string{"a2a/shop"},
	})
	if err != nil || len(reply.GetRecords()) != 1 {
		t.Fatalf("GetRecords = %v, %v, want the record of the agent", reply, err)
	}
	var kept struct{ ContextID, TaskID string }
	if err := json.Unmarshal(reply.GetRecords()[0].GetValue(), &kept); err != nil {
		t.Fatal(err)
	}
	shop.mu.Lock()
	defer shop.mu.Unlock()
	if len(shop.contexts) != want || shop.contexts[kept.ContextID] == 0 || kept.TaskID != "" {
		t.Errorf("contexts = %v, record %+v, want %d contexts, and the record to name one of them", shop.contexts, kept, want)
	}
}
