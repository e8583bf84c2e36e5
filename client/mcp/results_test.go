package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// object is a decoded JSON object.
type object = map[string]any

// call calls a tool and returns its result, which it checks with checked.
func call(t *testing.T, session *sdk.ClientSession, tool string, arguments object) object {
	t.Helper()
	result, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		t.Fatalf("%s(%v): %v", tool, arguments, err)
	}
	return checked(t, tool, result)
}

// checked returns the data of a result. It checks the data against the output schema of the tool, and the text against
// the data.
func checked(t *testing.T, tool string, result *sdk.CallToolResult) object {
	t.Helper()
	data, ok := result.StructuredContent.(object)
	if !ok || result.IsError {
		t.Fatalf("%s: result %+v, want structured content", tool, result)
	}
	if err := outputSchema(t, tool).Validate(data); err != nil {
		t.Errorf("%s: %v\n%v", tool, err, data)
	}
	// The text must contain the same as the data.
	text := object{}
	for i, content := range result.Content {
		block, ok := content.(*sdk.TextContent)
		switch {
		case !ok || block.Text == "":
			t.Errorf("%s: content %d = %v, want a text", tool, i, content)
		case tool == "ask_question" && i == 0:
			text["answer"] = block.Text
		default:
			if err := json.Unmarshal([]byte(block.Text), &text); err != nil {
				t.Errorf("%s: %v: %s", tool, err, block.Text)
			}
		}
	}
	if data["answer"] == "" {
		text["answer"] = "" // The text is then a note.
	}
	if diff := cmp.Diff(data, text); diff != "" {
		t.Errorf("%s: the text differs from the data (-data +text):\n%s", tool, diff)
	}
	return data
}

// outputSchema returns the output schema of a tool.
func outputSchema(t *testing.T, name string) *jsonschema.Resolved {
	t.Helper()
	for _, tool := range new(Server).tools() {
		if tool.description.Name == name {
			return resolved(t, tool.description.OutputSchema)
		}
	}
	t.Fatalf("no tool %s", name)
	return nil
}

// resolved decodes a schema.
func resolved(t *testing.T, schema any) *jsonschema.Resolved {
	t.Helper()
	raw, ok := schema.(json.RawMessage)
	if !ok {
		t.Fatalf("schema is %T, want json.RawMessage", schema)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// valueAt returns the value at a path of names and indexes in data, or nil if there is none.
func valueAt(data any, path ...any) any {
	for _, step := range path {
		switch v := data.(type) {
		case object:
			name, _ := step.(string)
			data = v[name]
		case []any:
			i, ok := step.(int)
			if !ok || i >= len(v) {
				return nil
			}
			data = v[i]
		default:
			return nil
		}
	}
	return data
}

// listAt returns the list with a name in data.
func listAt(t *testing.T, data object, name string) []any {
	t.Helper()
	list, ok := data[name].([]any)
	if !ok {
		t.Fatalf("%s is %v, want a list", name, data[name])
	}
	return list
}

// callError calls a tool and returns its error, with error.data.
func callError(t *testing.T, session *sdk.ClientSession, tool string, arguments any) (*jsonrpc.Error, errorData) {
	t.Helper()
	result, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: arguments})
	failure, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok {
		t.Fatalf("%s(%v): result %+v, error %v, want a JSON-RPC error", tool, arguments, result, err)
	}
	var data errorData
	if err := json.Unmarshal(failure.Data, &data); err != nil {
		t.Fatalf("%s: error.data %s: %v", tool, failure.Data, err)
	}
	return failure, data
}

// progressListener receives the progress notifications of a client.
type progressListener chan *sdk.ProgressNotificationParams

// newProgressListener returns a listener and the options of a client that sends its notifications to it.
func newProgressListener() (progressListener, *sdk.ClientOptions) {
	l := make(progressListener, 1000)
	return l, &sdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context,
		r *sdk.ProgressNotificationClientRequest,
	) {
		l <- r.Params
	}}
}

// until receives notifications until a message contains part, and returns all of them.
func (l progressListener) until(t *testing.T, part string) []*sdk.ProgressNotificationParams {
	t.Helper()
	var all []*sdk.ProgressNotificationParams
	for {
		select {
		case params := <-l:
			all = append(all, params)
			if strings.Contains(params.Message, part) {
				return all
			}
		case <-t.Context().Done():
			t.Fatalf("no progress that contains %q in %+v", part, all)
		}
	}
}

// askParams returns the parameters of ask_question with a progress token.
func askParams(arguments object, token any) *sdk.CallToolParams {
	params := &sdk.CallToolParams{Name: "ask_question", Arguments: arguments}
	params.SetProgressToken(token)
	return params
}

// awaitCancelledTurn waits until the newest turn of a conversation has ended and checks that it was cancelled.
func awaitCancelledTurn(t *testing.T, c *client.Client, id string) {
	t.Helper()
	for event, err := range c.ResumeTurn(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: id}) {
		if err != nil {
			t.Fatal(err)
		}
		if finished := event.GetFinished(); finished != nil &&
			finished.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_CANCELLED {
			t.Errorf("the turn ended as %s, want CANCELLED", finished.GetTurn().GetState())
		}
	}
}
