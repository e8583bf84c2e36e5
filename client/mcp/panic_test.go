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

// TestPanicInATool checks that a panic in a tool ends only its call, not the program.
func TestPanicInATool(t *testing.T) {
	var lines bytes.Buffer
	s := New(nil, Options{Log: slog.New(slog.NewTextHandler(&lines, nil))})
	call := s.handler(tool{description: &sdk.Tool{Name: "broken"}, call: func(context.Context, *request) (*sdk.CallToolResult, error) {
		panic("a fault")
	}})
	result, err := call(t.Context(), &sdk.CallToolRequest{Params: &sdk.CallToolParamsRaw{}})
	refusal, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok || refusal.Code != jsonrpc.CodeInternalError || strings.Contains(refusal.Message, "a fault") || result != nil {
		t.Errorf("handler() = %v, %v, want an internal error without details", result, err)
	}
	if log := lines.String(); !strings.Contains(log, "a fault") || !strings.Contains(log, "tool=broken") {
		t.Errorf("log = %q, want the panic and the tool", log)
	}
	if len(s.calls) > 0 {
		t.Error("the call is still counted")
	}
}

// TestPanicWithoutALog checks that a tool that panics returns the same error without a logger.
func TestPanicWithoutALog(t *testing.T) {
	call := New(nil, Options{}).handler(tool{description: &sdk.Tool{Name: "broken"}, call: func(context.Context, *request) (*sdk.CallToolResult, error) {
		panic("a fault")
	}})
	_, err := call(t.Context(), &sdk.CallToolRequest{Params: &sdk.CallToolParamsRaw{}})
	if refusal, ok := errors.AsType[*jsonrpc.Error](err); !ok || refusal.Code != jsonrpc.CodeInternalError {
		t.Errorf("a tool that panics returned error %v, want code %d", err, jsonrpc.CodeInternalError)
	}
}
