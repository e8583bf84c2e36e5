// Package rpc serves the API over gRPC. It is the only room that knows handlers, status
// codes and error details: a handler takes a request that the interceptors have found
// valid, makes one or two calls of the store or of package turn, and makes their results
// a reply. Begin with [Server]; status.go says what a client is told of each error,
// validate.go what a request may look like.
package rpc

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/interactionlog"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// defaultMaxMessageBytes is Options.MaxMessageBytes unless set.
const defaultMaxMessageBytes = 256 << 10

// Turns runs Chat turns; package turn does. Tests of streams that never end, or of a fault
// in a handler, come in here.
type Turns interface {
	// Chat begins a turn, or finds the one that q began before, and yields its events.
	Chat(ctx context.Context, tenant string, request *parleyv1.ChatRequest, q *store.Request) iter.Seq2[*parleyv1.TurnEvent, error]
	// Resume yields the events of a turn behind an index.
	Resume(ctx context.Context, tenant, conversationID, turnID string, after int32) iter.Seq2[*parleyv1.TurnEvent, error]
	// Get returns a turn.
	Get(ctx context.Context, tenant, conversationID, turnID string) (*parleyv1.Turn, error)
	// List returns the newest turns of a conversation, newest first.
	List(ctx context.Context, tenant, conversationID string) ([]*parleyv1.Turn, error)
	// Cancel ends a turn and returns it.
	Cancel(ctx context.Context, tenant, conversationID, turnID string) (*parleyv1.Turn, error)
	// Running counts the turns that are being answered.
	Running() int
}

// Options of a Server. All are required but those that say what they are when zero.
type Options struct {
	// Store keeps the conversations; its observer feeds Hub.
	Store store.Store
	// StoreName is what GetStats calls the store: "memory", "bolt" or "redis".
	StoreName string
	// Turns runs Chat turns.
	Turns Turns
	// Hub wakes the readers that wait for a change.
	Hub *watch.Hub
	// Interactions is the interaction log, which Store feeds. Nil: there is none, and calls of
	// InteractionLogService are refused.
	Interactions *interactionlog.Log
	// Backuper copies Store. Nil: nobody can, and BackupStore is refused.
	Backuper store.Backuper
	// Agents that ListAgents lists.
	Agents *agent.Set
	// MaxMessageBytes bounds the encoded form of one message; 0 is 256 KiB.
	MaxMessageBytes int
	// Version of the program, for GetStats.
	Version string
	// Headroom is how many bytes of the heap hold nothing, which GetStats leaves out.
	Headroom int
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log is for what clients are not told, and at debug level for every call.
	Log *slog.Logger
	// Authenticate says who makes a call, or why it cannot say: the error's text goes to the
	// log, not to the caller. Nil: nobody signs in, and everybody may do everything.
	Authenticate func(ctx context.Context) (auth.Principal, error)
}

// Server is ConversationService, InteractionLogService and AdminService. Make one with New,
// pass its ServerOptions to the grpc.Server, Register it there, and Stop it before
// GracefulStop.
type Server struct {
	// What a later version brings answers UNIMPLEMENTED.
	parleyv1.UnimplementedConversationServiceServer
	parleyv1.UnimplementedInteractionLogServiceServer
	parleyv1.UnimplementedAdminServiceServer

	store           store.Store
	backuper        store.Backuper
	storeName       string
	turns           Turns
	hub             *watch.Hub
	interactions    *interactionlog.Log
	agents          *agent.Set
	maxMessageBytes int
	version         string
	headroom        int
	now             func() time.Time
	log             *slog.Logger
	authenticate    func(ctx context.Context) (auth.Principal, error)

	imports   chan struct{} // one for each that is under way
	buffers   sync.Pool     // of *[]byte, for messages that are only looked at
	startTime time.Time
	stopping  chan struct{} // closed by stop
	stop      func()
}

// New returns a server that is not registered yet. It fails when the rules in the protos
// cannot be used at all.
func New(o Options) (*Server, error) {
	if err := rules.Compile(); err != nil {
		return nil, fmt.Errorf("rules of the API: %w", err)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MaxMessageBytes == 0 {
		o.MaxMessageBytes = defaultMaxMessageBytes
	}
	stopping := make(chan struct{})
	return &Server{
		store: o.Store, backuper: o.Backuper, storeName: o.StoreName, turns: o.Turns, hub: o.Hub, interactions: o.Interactions, agents: o.Agents,
		maxMessageBytes: o.MaxMessageBytes, version: o.Version, headroom: o.Headroom, now: o.Now, log: o.Log,
		authenticate: o.Authenticate, imports: make(chan struct{}, maxImports), startTime: o.Now(),
		stopping: stopping, stop: sync.OnceFunc(func() { close(stopping) }),
	}, nil
}

// Register adds the services to a grpc.Server that has the server's ServerOptions or
// LoopbackOptions.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	parleyv1.RegisterConversationServiceServer(r, s)
	parleyv1.RegisterInteractionLogServiceServer(r, s)
	parleyv1.RegisterAdminServiceServer(r, s)
}

// Stop ends the calls that only wait for something to happen, those to come included, so
// that a graceful stop need not wait for them. All other calls go on. It may be called
// more than once.
func (s *Server) Stop() { s.stop() }
