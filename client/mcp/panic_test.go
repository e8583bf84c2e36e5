package mcp

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// A fault of ours costs the call in which it shows, not the program.
func TestPanicInATool(t *testing.T) {
	var lines bytes.Buffer
	s := New(nil, Options{Log: slog.New(slog.NewTextHandler(&lines, nil))})
	call := s.handler(tool{described: &sdk.Tool{Name: "broken"}, call: func(context.Context, *request) (*sdk.CallToolResult, error) {
		panic("a fault")
	}})
	result, err := call(t.Context(), &sdk.CallToolRequest{Params: &sdk.CallToolParamsRaw{}})
	refusal, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok || refusal.Code != jsonrpc.CodeInternalError || strings.Contains(refusal.Message, "a fault") || result != nil {
		t.Errorf("got %v, %v", result, err)
	}
	if said := lines.String(); !strings.Contains(said, "a fault") || !strings.Contains(said, "tool=broken") {
		t.Errorf("the log says %q", said)
	}
	if len(s.calls) > 0 {
		t.Error("the call is still counted")
	}
}

// TestPanicWithoutALog: without a logger, a tool that panics returns the same error as with one.
func TestPanicWithoutALog(t *testing.T) {
	call := New(nil, Options{}).handler(tool{described: &sdk.Tool{Name: "broken"}, call: func(context.Context, *request) (*sdk.CallToolResult, error) {
		panic("a fault")
	}})
	_, err := call(t.Context(), &sdk.CallToolRequest{Params: &sdk.CallToolParamsRaw{}})
	if refusal, ok := errors.AsType[*jsonrpc.Error](err); !ok || refusal.Code != jsonrpc.CodeInternalError {
		t.Errorf("a tool that panics returned error %v, want code %d", err, jsonrpc.CodeInternalError)
	}
}
