// Package mcp offers the conversations of a Parley server to clients of the Model Context
// Protocol, as tools: ask_question, list_conversations, get_history and clear_conversation.
// Begin with [New], then [Server.Serve] for a client that has started this program, or
// [Server.Handler] for clients that come over HTTP.
//
// In the code, tools.go has the list of tools. Each has a file with what clients are told of
// it and what it does; turn.go follows the turn of a question, progress.go tells of it
// meanwhile, arguments.go reads what a client sent, and errors.go makes errors those of
// JSON-RPC.
package mcp

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhq/parley/client"
)

const (
	// maxRequestBytes is what a message of a client may have, as at the Parley server.
	maxRequestBytes = 4 << 20
	// maxCalls are under way at once; each may hold a turn.
	maxCalls = 256
)

const instructions = `Parley keeps conversations with agents. Ask with ask_question; to go on with a conversation, ` +
	`pass the conversation_id that came with its first answer. Conversations expire some time after their last message.`

// Options is what a server is told beside its client. The zero value is good.
type Options struct {
	// Version is what clients are told of this program; empty: "dev".
	Version string
	// Timeout bounds each call to the Parley server, ask_question aside, whose turns have
	// limits of their own; 0: no bound.
	Timeout time.Duration
	// Log receives the faults of this package. If nil, they are not logged.
	Log *slog.Logger
}

// Server is an MCP server before one Parley server. It keeps no state between calls and may
// serve any number of clients at once, 256 calls at a time; more are refused.
type Server struct {
	parley  *client.Client
	timeout time.Duration
	log     *slog.Logger
	server  *sdk.Server
	calls   chan struct{} // One for each call that is under way.
}

// New returns a server that calls c, which it does not close.
func New(c *client.Client, o Options) *Server {
	implementation := &sdk.Implementation{Name: "parley", Title: "Parley", Version: cmp.Or(o.Version, "dev")}
	s := &Server{
		parley:  c,
		timeout: o.Timeout,
		log:     cmp.Or(o.Log, slog.New(slog.DiscardHandler)),
		calls:   make(chan struct{}, maxCalls),
		server: sdk.NewServer(implementation, &sdk.ServerOptions{
			Instructions: instructions,
			// What there is never changes: nobody need hold a stream to hear of that.
			Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}},
		}),
	}
	s.server.AddReceivingMiddleware(refuseUndeclared)
	for _, t := range s.tools() {
		s.server.AddTool(t.described, s.handler(t))
	}
	return s
}

// refuseUndeclared refuses the methods of capabilities that are not declared, which the SDK
// answers with empty lists. The SDK reads their parameters first: if those are missing or
// malformed, it refuses them itself, with a code of its own. Over HTTP the handler refuses all.
func refuseUndeclared(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, request sdk.Request) (sdk.Result, error) {
		if err := undeclared(method); err != nil {
			return nil, err
		}
		return next(ctx, method, request)
	}
}

// undeclared returns the error that the protocol asks for if a method is one of the capabilities
// that New does not declare, else nil.
func undeclared(method string) error {
	switch capability, _, _ := strings.Cut(method, "/"); capability {
	case "prompts", "resources", "completion", "logging":
		return &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: fmt.Sprintf("method not found: %q", method)}
	}
	return nil
}

// Serve serves the one client that writes to in and reads from out, a message a line, until
// in or ctx ends. Then it cancels the calls that are under way, waits for them, a few seconds
// at most, and returns nil. An error means that in was broken or held what is no message.
// A read of in that hangs when ctx ends is left behind; it is the last one.
func (s *Server) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	lines, feed := io.Pipe()
	go func() {
		_, err := io.Copy(feed, in)
		_ = feed.CloseWithError(err) // Nil: the end.
	}()
	// The end of ctx is told as the end of the input: that is what cancels the calls.
	stop := context.AfterFunc(ctx, func() { _ = feed.Close() })
	defer stop()
	return s.server.Run(context.WithoutCancel(ctx), &sdk.IOTransport{
		Reader: lines, Writer: unclosed{out}, MaxLineLength: maxRequestBytes,
	})
}

// unclosed is a writer that belongs to somebody else.
type unclosed struct{ io.Writer }

// Close does nothing.
func (unclosed) Close() error { return nil }
