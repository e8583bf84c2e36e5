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

type object = map[string]any

// call calls a tool, checks the result by the tool's output schema, and returns it.
func call(t *testing.T, session *sdk.ClientSession, tool string, arguments object) object {
	t.Helper()
	result, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		t.Fatalf("%s(%v): %v", tool, arguments, err)
	}
	return checked(t, tool, result)
}

func checked(t *testing.T, tool string, result *sdk.CallToolResult) object {
	t.Helper()
	data, ok := result.StructuredContent.(object)
	if !ok || result.IsError {
		t.Fatalf("%s: result %+v", tool, result)
	}
	if err := outputSchema(t, tool).Validate(data); err != nil {
		t.Errorf("%s: %v\n%v", tool, err, data)
	}
	// Who reads only text is told the same.
	text := object{}
	for i, content := range result.Content {
		block, ok := content.(*sdk.TextContent)
		switch {
		case !ok || block.Text == "":
			t.Errorf("%s: content %d is %v", tool, i, content)
		case tool == "ask_question" && i == 0:
			text["answer"] = block.Text
		default:
			if err := json.Unmarshal([]byte(block.Text), &text); err != nil {
				t.Errorf("%s: %v: %s", tool, err, block.Text)
			}
		}
	}
	if data["answer"] == "" {
		text["answer"] = "" // In words, there is none.
	}
	if diff := cmp.Diff(data, text); diff != "" {
		t.Errorf("%s: the text differs from the data (-data +text):\n%s", tool, diff)
	}
	return data
}

func outputSchema(t *testing.T, name string) *jsonschema.Resolved {
	t.Helper()
	for _, tool := range new(Server).tools() {
		if tool.described.Name == name {
			return resolved(t, tool.described.OutputSchema)
		}
	}
	t.Fatalf("no tool %s", name)
	return nil
}

func resolved(t *testing.T, schema any) *jsonschema.Resolved {
	t.Helper()
	raw, ok := schema.(json.RawMessage)
	if !ok {
		t.Fatalf("a schema is %T", schema)
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

// at is what data has at a path of names and places, nil where there is nothing.
func at(data any, path ...any) any {
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

// listed is the list that data has under a name.
func listed(t *testing.T, data object, name string) []any {
	t.Helper()
	list, ok := data[name].([]any)
	if !ok {
		t.Fatalf("%s is %v", name, data[name])
	}
	return list
}

// refused calls a tool and returns the error, with its data.
func refused(t *testing.T, session *sdk.ClientSession, tool string, arguments any) (*jsonrpc.Error, errorData) {
	t.Helper()
	result, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: arguments})
	failure, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok {
		t.Fatalf("%s(%v): result %+v, error %v, want one of JSON-RPC", tool, arguments, result, err)
	}
	var data errorData
	if err := json.Unmarshal(failure.Data, &data); err != nil {
		t.Fatalf("%s: error.data %s: %v", tool, failure.Data, err)
	}
	return failure, data
}

// listener is a client's handler of progress that keeps what it is told, and tells of it.
type listener chan *sdk.ProgressNotificationParams

func listen() (listener, *sdk.ClientOptions) {
	l := make(listener, 1000)
	return l, &sdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
		l <- r.Params
	}}
}

// until takes what the listener is told until a message has part in it, and returns all.
func (l listener) until(t *testing.T, part string) []*sdk.ProgressNotificationParams {
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
			t.Fatalf("no progress with %q, only %+v", part, all)
		}
	}
}

func asking(arguments object, token any) *sdk.CallToolParams {
	params := &sdk.CallToolParams{Name: "ask_question", Arguments: arguments}
	params.SetProgressToken(token)
	return params
}

// endsCancelled waits for the end of the newest turn of a conversation.
func endsCancelled(t *testing.T, c *client.Client, id string) {
	t.Helper()
	for event, err := range c.ResumeTurn(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: id}) {
		if err != nil {
			t.Fatal(err)
		}
		if finished := event.GetFinished(); finished != nil && finished.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_CANCELLED {
			t.Errorf("the turn ended %s", finished.GetTurn().GetState())
		}
	}
}
