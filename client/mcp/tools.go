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

// tool is the description of a tool and its function.
type tool struct {
	description *sdk.Tool
	// call executes the tool. It may return any error, which handler converts with toRPC.
	call func(context.Context, *request) (*sdk.CallToolResult, error)
}

// tools returns all tools.
func (s *Server) tools() []tool {
	return []tool{s.askQuestion(), s.listConversations(), s.getHistory(), s.searchInteractions(), s.clearConversation()}
}

// request is one call of a tool.
type request struct {
	*arguments

	progress *progress
}

// handler returns the handler of t. It applies the limit of concurrent calls and cancels the call when its
// client disconnects.
func (s *Server) handler(t tool) sdk.ToolHandler {
	return func(ctx context.Context, call *sdk.CallToolRequest) (result *sdk.CallToolResult, err error) {
		defer func() { // The SDK does not recover from panics, so one would end the program.
			if cause := recover(); cause != nil {
				s.log.ErrorContext(ctx, "panic in an MCP tool", "tool", t.description.Name, "error", cause, "stack",
					string(debug.Stack()))
				result, err = nil, toRPC(errInternal)
			}
		}()
		select {
		case s.calls <- struct{}{}:
			defer func() { <-s.calls }()
		default:
			return nil, toRPC(errTooManyCalls)
		}
		ctx, cancel := withCaller(ctx)
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

// withTimeout returns a context that ends after the timeout of [Options]. The caller must call cancel.
func (s *Server) withTimeout(ctx context.Context) (limited context.Context, cancel context.CancelFunc) {
	if s.timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, s.timeout)
}

// structured returns v as a result: as data, and as JSON text for clients that only read text.
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
	spaced, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	if err != nil {
		return nil, err
	}
	var compact bytes.Buffer // protojson varies its spaces on purpose.
	err = json.Compact(&compact, spaced)
	return compact.Bytes(), err
}
