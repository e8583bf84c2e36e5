package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"runtime/debug"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// tool is what a client is told of a tool, and what the tool does.
type tool struct {
	described *sdk.Tool
	// call returns the result, or any error: handler makes it one that helps.
	call func(context.Context, *request) (*sdk.CallToolResult, error)
}

// tools are all that there are. Another one is another entry.
func (s *Server) tools() []tool {
	return []tool{s.askQuestion(), s.listConversations(), s.getHistory(), s.searchInteractions(), s.clearConversation()}
}

// request is one call of a tool.
type request struct {
	*arguments

	progress *progress
}

// handler runs t for one call: within the limit, and no longer than the client is there.
func (s *Server) handler(t tool) sdk.ToolHandler {
	return func(ctx context.Context, call *sdk.CallToolRequest) (result *sdk.CallToolResult, err error) {
		defer func() { // The SDK would let it end the program.
			if cause := recover(); cause != nil {
				s.log.ErrorContext(ctx, "panic in an MCP tool", "tool", t.described.Name, "error", cause, "stack", string(debug.Stack()))
				result, err = nil, toRPC(errInternal)
			}
		}()
		select {
		case s.calls <- struct{}{}:
			defer func() { <-s.calls }()
		default:
			return nil, toRPC(errTooManyCalls)
		}
		ctx, cancel := untilCallerLeaves(ctx)
		defer cancel()
		arguments, err := readArguments(call.Params)
		if err != nil {
			return nil, toRPC(err)
		}
		if result, err = t.call(ctx, &request{arguments: arguments, progress: newProgress(ctx, call)}); err != nil {
			return nil, toRPC(err)
		}
		return result, nil
	}
}

// limited returns a context for a call that the Parley server answers at once. cancel must
// be called.
func (s *Server) limited(ctx context.Context) (limited context.Context, cancel context.CancelFunc) {
	if s.timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, s.timeout)
}

// structured returns v as a result: as data and, for clients that know only text, as JSON.
func structured(v any) (*sdk.CallToolResult, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return &sdk.CallToolResult{
		Content:           []sdk.Content{&sdk.TextContent{Text: string(text)}},
		StructuredContent: json.RawMessage(text),
	}, nil
}

// asJSON returns message as compact JSON with the names of the API.
func asJSON(message proto.Message) (json.RawMessage, error) {
	loose, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	if err != nil {
		return nil, err
	}
	var tight bytes.Buffer // protojson varies its blanks on purpose.
	err = json.Compact(&tight, loose)
	return tight.Bytes(), err
}
