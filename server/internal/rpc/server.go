// Package rpc serves the API over gRPC. It contains the handlers of all services and the interceptors
// around them.
//
// The interceptors authenticate the caller, validate the request, and limit the time of a call. A
// handler makes one or two calls of the store or of package turn, and builds the reply from their
// results. It returns errors of these packages. Only the interceptors make statuses with codes and
// details: status.go maps errors to statuses. Start at [Server].
package rpc

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/calllog"
	"github.com/parleyhq/parley/server/internal/interactionlog"
	"github.com/parleyhq/parley/server/internal/limit"
	"github.com/parleyhq/parley/server/internal/peer"
	"github.com/parleyhq/parley/server/internal/rpc/receive"
	"github.com/parleyhq/parley/server/internal/rpc/summaries"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/tracing"
	"github.com/parleyhq/parley/server/internal/transfer"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// defaultMaxMessageBytes is the default of Options.MaxMessageBytes.
const defaultMaxMessageBytes = 256 << 10

// Turns runs turns. The implementations are turn.Manager, and peer.Turns for several servers on one store. Tests
// replace it, for example to test streams that never end, or panics in a handler.
type Turns interface {
	// Chat starts a turn and yields its events. If an earlier call with the request q started a turn,
	// Chat yields the events of that turn.
	Chat(
		ctx context.Context, tenant string, request *parleyv1.ChatRequest, q *store.Request,
	) iter.Seq2[*parleyv1.TurnEvent, error]
	// Resume yields the events of a turn after an index.
	Resume(
		ctx context.Context, tenant, conversationID, turnID string, after int32,
	) iter.Seq2[*parleyv1.TurnEvent, error]
	// Get returns a turn. If conversationID is empty, it may belong to any conversation of the tenant.
	Get(ctx context.Context, tenant, conversationID, turnID string) (*parleyv1.Turn, error)
	// List returns a page of turns, newest first.
	List(ctx context.Context, l *turn.ListRequest) (*turn.Page, error)
	// Cancel cancels a turn and returns its final state.
	Cancel(ctx context.Context, tenant, conversationID, turnID string) (*parleyv1.Turn, error)
	// Running returns the number of running turns.
	Running() int
	// RunningOf returns the number of running turns of a tenant.
	RunningOf(tenant string) int
}

// Interactions reads and erases the entries of interaction logs. The implementations are interactionlog.Log, and
// peer.Interactions for several servers on one store.
type Interactions interface {
	// List returns a page of entries.
	List(ctx context.Context, l *interactionlog.List) (*interactionlog.Page, error)
	// Search returns a page of entries that contain a text.
	Search(ctx context.Context, s *interactionlog.Search) (*interactionlog.Page, error)
	// Erase removes the entries of a conversation and returns their number.
	Erase(ctx context.Context, tenant, conversationID string) (int64, error)
	// Lost returns the number of entries that this server could not write.
	Lost() int64
}

// Options configure a Server. All fields are required unless their comment describes the zero value.
type Options struct {
	// Store stores the conversations. Its observer must pass changes to Hub.
	Store store.Store
	// StoreName is the name of the store in GetStats: "memory", "bolt" or "redis".
	StoreName string
	// Turns runs turns.
	Turns Turns
	// Peers receives the events of turns of other servers on the same store. If nil, there are no other servers.
	Peers *peer.Turns
	// Self is this server, as other servers on the same store call it. If zero, none calls it.
	Self store.Server
	// Hub notifies the calls that wait for a change.
	Hub *watch.Hub
	// Interactions is the interaction log. The observer of Store must pass changes to it, or to the log of this server. If
	// nil, there is no interaction log, and calls of InteractionLogService fail.
	Interactions Interactions
	// Backuper copies Store. If nil, the store does not support backups, and BackupStore fails.
	Backuper store.Backuper
	// Agents are the agents that ListAgents returns.
	Agents *agent.Set
	// MaxMessageBytes is the maximum encoded size of a message. If 0, it is 256 KiB.
	MaxMessageBytes int
	// MaxConversationBytes is the maximum size of the messages of a conversation in Store, in bytes. If 0, it is
	// store.MaxMessageBytes.
	MaxConversationBytes int
	// SummaryBytes is the maximum memory for routing summaries that may be requested again. If 0, none is kept.
	SummaryBytes int
	// Retentions says which retentions clients may not set. The zero value forbids none.
	Retentions rules.Retentions
	// Limits are the limits of tenants. If nil, there are none.
	Limits *limit.Tenants
	// Version is the version of the program in GetStats.
	Version string
	// BallastBytes is the size of the GC ballast in bytes. GetStats subtracts it from the size of the heap.
	// If 0, there is no ballast.
	BallastBytes int
	// Now is the clock. If nil, it is time.Now.
	Now func() time.Time
	// Log receives the internal errors that statuses do not contain, and the entries of calls.
	Log *slog.Logger
	// Calls says which calls have an entry in Log.
	Calls calllog.Settings
	// Tracer begins the spans of calls. If nil, there are none.
	Tracer *tracing.Tracer
	// Auth authenticates and authorizes the callers. If nil, sign-in is off, and every caller may call every
	// method.
	Auth *auth.Authenticator
	// Monitor receives events for metrics. If nil, nothing is reported.
	Monitor Monitor
	// Unary and Stream are called around all other interceptors, for example to measure calls. They may be nil.
	Unary  grpc.UnaryServerInterceptor
	Stream grpc.StreamServerInterceptor
}

// Server implements ConversationService, RecordService, InteractionLogService and AdminService. Create it
// with New, pass its ServerOptions to grpc.NewServer, and call Register with the grpc.Server. Before you stop
// the grpc.Server gracefully, call Stop.
type Server struct {
	// Methods that this version does not implement return UNIMPLEMENTED. Those of messageReader replace
	// the ones here, see [Server.methods].
	parleyv1.UnimplementedConversationServiceServer
	parleyv1.UnimplementedRecordServiceServer
	parleyv1.UnimplementedInteractionLogServiceServer
	parleyv1.UnimplementedAdminServiceServer

	store           store.Store
	backuper        store.Backuper
	storeName       string
	turns           Turns
	peers           *peer.Turns // nil: there are no other servers
	self            store.Server
	hub             *watch.Hub
	interactions    Interactions
	agents          *agent.Set
	maxMessageBytes int
	retentions      rules.Retentions
	version         string
	ballastBytes    int
	now             func() time.Time
	log             *slog.Logger
	calls           *calllog.Log
	tracer          *tracing.Tracer
	auth            *auth.Authenticator
	limits          *limit.Tenants
	summaries       *summaries.Cache
	monitor         Monitor
	outerUnary      grpc.UnaryServerInterceptor  // nil: none
	outerStream     grpc.StreamServerInterceptor // nil: none

	signedInReceives, publicReceives *receive.Limiter
	healthWatches                    atomic.Int64

	importer *transfer.Importer
	// largeExports and largeForks limit the memory of calls that need a complete conversation.
	largeExports, largeForks *transfer.LargeReads
	requests                 *decoder
	refusals                 []row // see status.go
	startTime                time.Time
	stopping                 chan struct{} // closed by stop
	stop                     func()
}

// New returns a server that is not registered yet.
func New(o Options) *Server {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Auth == nil {
		o.Auth = auth.New(o.Now)
	}
	if o.MaxMessageBytes == 0 {
		o.MaxMessageBytes = defaultMaxMessageBytes
	}
	if o.Monitor == nil {
		o.Monitor = noMonitor{}
	}
	stopping := make(chan struct{})
	return &Server{
		store: o.Store, backuper: o.Backuper, storeName: o.StoreName, turns: o.Turns, peers: o.Peers,
		self: o.Self, hub: o.Hub,
		interactions: o.Interactions, agents: o.Agents,
		maxMessageBytes: o.MaxMessageBytes, retentions: o.Retentions,
		version: o.Version, ballastBytes: o.BallastBytes, now: o.Now, log: o.Log,
		calls: calllog.New(calllog.Options{
			Settings: o.Calls, Log: o.Log, Now: o.Now, CodeOf: codeOf, Traced: tracing.Traced,
		}),
		tracer: o.Tracer, auth: o.Auth, refusals: refusals(),
		importer: transfer.NewImporter(
			o.Store, cmp.Or(o.MaxConversationBytes, store.MaxMessageBytes), o.Now, o.Retentions),
		largeExports: transfer.NewLargeReads(transfer.MaxLargeExportBytes),
		largeForks:   transfer.NewLargeReads(maxLargeForkBytes),
		requests:     newDecoder(), limits: o.Limits, summaries: summaries.New(o.SummaryBytes),
		monitor: o.Monitor, outerUnary: o.Unary, outerStream: o.Stream,
		signedInReceives: receive.New(maxReceives), publicReceives: receive.New(maxPublicReceives),
		startTime: o.Now(),
		stopping:  stopping, stop: sync.OnceFunc(func() { close(stopping) }),
	}
}

// Register registers the services with a grpc.Server, which must have the options that ServerOptions
// or LoopbackOptions returns.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	r = s.Registrar(r)
	parleyv1.RegisterConversationServiceServer(r, s)
	parleyv1.RegisterRecordServiceServer(r, s)
	parleyv1.RegisterInteractionLogServiceServer(r, s)
	parleyv1.RegisterAdminServiceServer(r, s)
}

// Registrar returns a registrar for services of r. It receives the request of a call that is not a stream only after
// the interceptors of ServerOptions have accepted the caller, and then limits, meters and validates it. r must have
// the options that ServerOptions or LoopbackOptions returns.
func (s *Server) Registrar(r grpc.ServiceRegistrar) grpc.ServiceRegistrar { return &registrar{r, s} }

type registrar struct {
	grpc.ServiceRegistrar
	server *Server
}

// methods returns the methods of a service with the handlers of messageReader.
func (s *Server) methods(d *grpc.ServiceDesc) []grpc.MethodDesc {
	methods, handlers := slices.Clone(d.Methods), messageReader{s}.handlers()
	for i, m := range methods {
		if handler, ok := handlers["/"+d.ServiceName+"/"+m.MethodName]; ok {
			methods[i].Handler = handler
		}
	}
	return methods
}

// RegisterService registers a service.
func (r *registrar) RegisterService(description *grpc.ServiceDesc, implementation any) {
	d := *description
	d.Methods = r.server.methods(description)
	for i := range d.Methods {
		m := &d.Methods[i]
		m.Handler = r.server.afterSignIn("/"+d.ServiceName+"/"+m.MethodName, m.Handler)
	}
	r.ServiceRegistrar.RegisterService(&d, implementation)
}

// afterSignIn returns a handler that receives the request after outer, the interceptors of the grpc.Server. These get
// no request.
func (s *Server) afterSignIn(method string, handler grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, outer grpc.UnaryServerInterceptor) (any, error) {
		info := &grpc.UnaryServerInfo{Server: srv, FullMethod: method}
		return outer(ctx, nil, info, func(ctx context.Context, _ any) (any, error) {
			return handler(srv, ctx, func(request any) error {
				return s.receives(method).Receive(ctx, func() error { return decode(request) })
			}, s.checkUnary)
		})
	}
}

// checkUnary contains the interceptors that need the request.
func (s *Server) checkUnary(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	return s.tenantUnary(ctx, request, info, func(ctx context.Context, request any) (any, error) {
		return s.limitUnary(ctx, request, info, func(ctx context.Context, request any) (any, error) {
			return s.validateUnary(ctx, request, info, acceptUnary(handler))
		})
	})
}

const (
	// maxLargeForkBytes is the maximum size, in bytes, of the messages of conversations of more than 6 MiB that are
	// copied at the same time. A larger one is copied alone. A fork needs about four times the size of the conversation.
	maxLargeForkBytes = 64 << 20
	// maxReceives is how many calls receive a request at the same time. Their requests need at most 512 MiB. Many
	// more small calls may start at once: their requests arrive in microseconds, and a call waits for the others.
	maxReceives = 128
	// maxPublicReceives is the same for methods without sign-in, so that callers without a credential do not block
	// others.
	maxPublicReceives = 16
	// maxHealthWatches is how many clients watch the health of the server, which needs no sign-in.
	maxHealthWatches = 1024
)

// receives returns the limiter of the calls of a method.
func (s *Server) receives(method string) *receive.Limiter {
	if s.auth.Public(method) {
		return s.publicReceives
	}
	return s.signedInReceives
}

// Stop ends the calls that only wait for a change, so that a graceful stop of the grpc.Server does not
// wait for them. It also ends such calls that start later. All other calls continue. Stop may be
// called more than once.
func (s *Server) Stop() { s.stop() }
