package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// questionCounter is an awk program that answers with the number of questions in its input and the first one.
const questionCounter = `/^\[USER\]: / { n++; if (n == 1) first = substr($0, 9) } END { printf "%d questions, the first: %s", n, first }`

// TestMCPOverHTTP calls the server's MCP tool with the official client. The second answer knows the
// first question, progress notifications arrive, and a bad argument and a failing agent have their codes.
func TestMCPOverHTTP(t *testing.T) {
	s := startServer(t, t.TempDir(), "--store=memory", "--http-address=127.0.0.1:0", agents(t, fmt.Sprintf(`
default_agent: memory
agents:
  memory: {kind: command, command: [awk, %q]}
  broken: {kind: command, command: [sh, -c, "echo out of ideas >&2; exit 3"]}
`, questionCounter)))
	var progress struct {
		sync.Mutex
		messages []string
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			progress.Lock()
			defer progress.Unlock()
			progress.messages = append(progress.messages, r.Params.Message)
		},
	})
	transport := &sdk.StreamableClientTransport{
		Endpoint: fmt.Sprintf("http://%s/mcp", s.await(t, "serving http")["address"]),
	}
	session, err := client.Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })

	id := ""
	for _, test := range []struct{ question, want string }{
		{"Where is Rome?", "1 questions, the first: Where is Rome?"},
		{"And Paris?", "2 questions, the first: Where is Rome?"},
	} {
		arguments := map[string]any{"question": test.question}
		if id != "" {
			arguments["conversation_id"] = id
		}
		params := &sdk.CallToolParams{Name: "ask_question", Arguments: arguments}
		params.SetProgressToken(test.question)
		result, err := session.CallTool(t.Context(), params)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Answer         string `json:"answer"`
			ConversationID string `json:"conversation_id"`
		}
		structured, err := json.Marshal(result.StructuredContent)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(structured, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, got.Answer); diff != "" {
			t.Errorf("answer (-want +got):\n%s", diff)
		}
		id = got.ConversationID
	}
	progress.Lock()
	if len(progress.messages) == 0 {
		t.Error("no progress notification received, want some")
	}
	progress.Unlock()

	for _, test := range []struct {
		arguments map[string]any
		want      int64
	}{
		{map[string]any{"question": 5}, jsonrpc.CodeInvalidParams},
		{map[string]any{"question": "x", "agent": "nobody"}, jsonrpc.CodeInvalidParams},
		{map[string]any{"question": "x", "agent": "broken"}, jsonrpc.CodeInternalError},
	} {
		_, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "ask_question", Arguments: test.arguments})
		if refusal, ok := errors.AsType[*jsonrpc.Error](err); !ok || refusal.Code != test.want {
			t.Errorf("ask_question(%v) = %v, want code %d", test.arguments, err, test.want)
		}
	}
}
