// Package mcp serves the conversations of a Parley server to clients of the Model Context Protocol
// (MCP), as tools: ask_question, list_conversations, get_history, search_interactions and
// clear_conversation. [Server.Serve] serves a client that has started this program, on standard input
// and output. [Server.Handler] serves clients over HTTP.
//
// The list of tools is in tools.go. Each tool has a file with its description and its function. The
// other files are shared by the tools:
//
//   - turn.go follows the turn of a question, progress.go reports its progress.
//   - arguments.go reads the arguments of a call.
//   - errors.go and refusal.go convert errors to errors of JSON-RPC.
//   - http.go serves HTTP, calls.go finds calls to cancel.
//
// Start at [New].
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
	// maxRequestBytes limits a message of a client. It equals the limit of the Parley server.
	maxRequestBytes = client.MaxGRPCBytes
	// maxCalls limits the concurrent calls. Each may run a turn.
	maxCalls = 256
)

const instructions = `Parley stores conversations with agents. Ask with ask_question; to continue a conversation, ` +
	`pass the conversation_id of its first answer. Conversations expire some time after their last message.`

// Options are the options of [New]. The zero value is valid.
type Options struct {
	// Version is the version of this program that clients see. If empty, it is "dev".
	Version string
	// Timeout limits each call to the Parley server except those of ask_question, because turns
	// have their own limits. If 0, there is no limit.
	Timeout time.Duration
	// Log receives the internal errors of this package. If nil, they are not logged.
	Log *slog.Logger
}

// Server is an MCP server for one Parley server. It keeps no state between calls and is safe for concurrent use by
// any number of clients. It refuses calls above its limit of 256 concurrent calls.
type Server struct {
	parley  *client.Client
	timeout time.Duration
	log     *slog.Logger
	server  *sdk.Server
	calls   chan struct{} // Contains one element for each running call.
}

// New returns a server that calls the Parley server through c. It does not close c.
func New(c *client.Client, o Options) *Server {
	implementation := &sdk.Implementation{Name: "parley", Title: "Parley", Version: cmp.Or(o.Version, "dev")}
	s := &Server{
		parley:  c,
		timeout: o.Timeout,
		log:     cmp.Or(o.Log, slog.New(slog.DiscardHandler)),
		calls:   make(chan struct{}, maxCalls),
		server: sdk.NewServer(implementation, &sdk.ServerOptions{
			Instructions: instructions,
			// The tools never change, so clients need no notifications of changes.
			Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}},
		}),
	}
	s.server.AddReceivingMiddleware(refuseUndeclared)
	for _, t := range s.tools() {
		s.server.AddTool(t.description, s.handler(t))
	}
	return s
}

// refuseUndeclared refuses the methods of capabilities that are not declared. Without it the SDK answers them with
// empty lists. The SDK reads the parameters first: if they are missing or malformed, it refuses the call
// itself, with another code. Over HTTP, handler refuses all these methods before the SDK.
func refuseUndeclared(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, request sdk.Request) (sdk.Result, error) {
		if err := undeclared(method); err != nil {
			return nil, err
		}
		return next(ctx, method, request)
	}
}

// undeclared returns the error that the protocol requires for methods of capabilities that New does not declare. It
// returns nil for other methods.
func undeclared(method string) error {
	switch capability, _, _ := strings.Cut(method, "/"); capability {
	case "prompts", "resources", "completion", "logging":
		return &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: fmt.Sprintf("method not found: %q", method)}
	}
	return nil
}

// Serve serves one client that writes messages to in and reads them from out, one on each line. At the end of in or
// ctx it cancels the running calls, waits a few seconds at most for them, and returns nil. It returns an
// error if in cannot be read or contains an invalid message. If a read of in blocks when ctx ends, its
// goroutine remains until that read returns.
func (s *Server) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	lines, feed := io.Pipe()
	go func() {
		_, err := io.Copy(feed, in)
		_ = feed.CloseWithError(err) // A nil error closes with io.EOF.
	}()
	// The end of ctx closes the input, because the SDK cancels the calls at the end of the input.
	stop := context.AfterFunc(ctx, func() { _ = feed.Close() })
	defer stop()
	return s.server.Run(context.WithoutCancel(ctx), &sdk.IOTransport{
		Reader: lines, Writer: noCloser{out}, MaxLineLength: maxRequestBytes,
	})
}

// noCloser is a writer that the SDK must not close.
type noCloser struct{ io.Writer }

// Close does nothing.
func (noCloser) Close() error { return nil }
