package bench

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/echo"
	"github.com/parleyhq/parley/server/internal/app"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/calllog"
	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/limit"
	"github.com/parleyhq/parley/server/internal/logqueue"
	"github.com/parleyhq/parley/server/internal/metrics"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/tracing"
	"github.com/parleyhq/parley/server/internal/tracing/tracestore"
	"github.com/parleyhq/parley/server/internal/transport"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// The number of messages of a conversation, and their size in bytes.
const (
	benchMessages = 20
	benchContent  = 500
)

// benchServer is the service on a store in a file, wired as in package app, and a client of it.
type benchServer struct {
	ctx    context.Context //nolint:containedctx // the benchmark's
	dir    string
	config *config.Config
	log    *slog.Logger
	store  *saveCounter
	agents *agent.Set
	// The agents whose answers are measured.
	talker, listener, author repeater
	hub                      *watch.Hub
	conn                     *grpc.ClientConn
	http                     string // address
	client                   parleyv1.ConversationServiceClient
	ids                      []string            // of the conversations
	auth                     *auth.Authenticator // nil: sign-in is off
	limits                   *limit.Tenants
	telemetry
	message *parleyv1.Message
	bounds  *grpc.ServiceDesc // nil: none, see serveBounds
}

// telemetry is what a server reports about its calls.
type telemetry struct {
	metrics *metrics.Metrics // nil: none
	// paused is set while another server with the same store is measured: the metrics do not observe it then.
	paused *atomic.Bool
	calls  calllog.Calls   // empty: errors
	tracer *tracing.Tracer // nil: no traces
}

// loadConfig parses a command line and returns the settings.
func loadConfig(b *testing.B, args []string) *config.Config {
	b.Helper()
	var loaded *config.Config
	must(b, config.NewCommand(args, nil, func(_ context.Context, c *config.Config) error {
		loaded = c
		return nil
	}).ExecuteContext(b.Context()))
	return loaded
}

// pausedObserver passes changes and transactions to metrics, unless these are paused.
type pausedObserver struct {
	*metrics.Metrics
	paused *atomic.Bool // nil: never
}

func (o *pausedObserver) isPaused() bool { return o.paused != nil && o.paused.Load() }

// Committed counts changes.
func (o *pausedObserver) Committed(changes []store.Change) {
	if !o.isPaused() {
		o.Metrics.Committed(changes)
	}
}

// StoreCommit records a transaction.
func (o *pausedObserver) StoreCommit(c store.Commit) {
	if !o.isPaused() {
		o.Metrics.StoreCommit(c)
	}
}

// gcBallastBytes is the size of the GC ballast of parleyd. Without it, the size of the test binary would
// decide how often garbage is collected.
const gcBallastBytes = 64 << 20

// openBenchServer serves a number of conversations until the benchmark ends. The interaction log is off
// unless a flag turns it on.
func openBenchServer(b *testing.B, conversations int, flags ...string) *benchServer {
	b.Helper()
	s := openEmptyBenchServer(b, telemetry{}, flags...)
	must(b, s.fill(conversations))
	return s
}

// openEmptyBenchServer is openBenchServer without conversations.
func openEmptyBenchServer(b *testing.B, told telemetry, flags ...string) *benchServer {
	b.Helper()
	ballast := make([]byte, gcBallastBytes)
	b.Cleanup(func() { runtime.KeepAlive(ballast) })
	c := loadConfig(b, append([]string{
		"--data-dir=" + b.TempDir(), "--max-conversations=0", "--interaction-log=false",
	}, flags...))
	lines, err := os.Create(filepath.Join(c.DataDir, "log"))
	must(b, err)
	queue := logqueue.New(b.Context(), lines)
	b.Cleanup(func() { queue.Close(time.Second); lines.Close() })
	log := queue.Logger(c.LogFormat, c.LogLevel)

	limits := limit.New(c.Limits(), time.Now)
	storage := app.NewStorage(c, limits, log, c.LogLevel)
	talker, listener, author := newTalker(), newListener(), newAuthor()
	agents, err := agent.NewSet(talker.name, []agent.Entry{
		talker.entry(), listener.entry(), author.entry(), {Name: "echo", Agent: echo.New()},
	})
	must(b, err)
	s := &benchServer{
		ctx: b.Context(), dir: c.DataDir, config: c, log: log, store: &saveCounter{Store: storage}, agents: agents,
		talker: talker, listener: listener, author: author,
		hub:       watch.New(watch.Options{}),
		limits:    limits,
		telemetry: told,
		message:   benchMessage(parleyv1.Role_ROLE_USER),
	}
	turns := s.newTurns()
	observers := []app.Observer{s.hub, turns}
	if m := told.metrics; m != nil {
		observers = append(observers, &pausedObserver{m, told.paused})
		m.AddSources(metrics.Sources{
			Stats: func() (store.Stats, error) { return storage.Stats(s.ctx) }, RunningTurns: turns.Running,
			State: func() store.State {
				state, _ := storage.Store.(store.Inspector) // The store has a file.
				return state.State()
			},
		})
	}
	must(b, storage.Open(b.Context(), c, observers, func(err error) { b.Error(err) }))
	var maintaining sync.WaitGroup
	maintaining.Go(func() { storage.Maintain(b.Context()) })
	b.Cleanup(func() {
		maintaining.Wait()
		must(b, storage.Close())
	})
	s.conn = s.serve(b, turns)
	s.client = parleyv1.NewConversationServiceClient(s.conn)
	return s
}

// with returns a server of the same store with other telemetry.
func (s *benchServer) with(b *testing.B, told telemetry) *benchServer {
	b.Helper()
	other := *s
	other.telemetry = told
	other.conn = other.serve(b, other.newTurns())
	other.client = parleyv1.NewConversationServiceClient(other.conn)
	return &other
}

// traced returns the store whose operations have spans if there is a tracer.
func (s *benchServer) traced() store.Store {
	if s.tracer == nil {
		return s.store
	}
	return tracestore.New(s.store)
}

// newTurns returns a new manager. It knows only the turns in the store.
func (s *benchServer) newTurns() *turn.Manager {
	c := s.config
	o := turn.Options{
		Store: s.traced(), Agents: s.agents, Log: s.log, TurnTimeout: c.TurnTimeout, IdleTimeout: c.IdleTimeout,
		MaxAnswerBytes: c.MaxAnswerBytes, MaxTurns: c.MaxTurns,
	}
	if s.metrics != nil {
		s.metrics.SetAgents(s.agents.Names())
		o.OnEnd = func(e turn.End) { s.metrics.TurnEnded(metrics.Turn(e)) }
	}
	return turn.New(s.ctx, o)
}

// serve serves the store with these turns and connects to the server.
func (s *benchServer) serve(b *testing.B, turns *turn.Manager) *grpc.ClientConn {
	b.Helper()
	served := rpc.Options{
		Store: s.traced(), StoreName: s.config.Store, Turns: turns, Hub: s.hub, Agents: s.agents, Log: s.log,
		Auth: s.auth, Limits: s.limits, SummaryBytes: s.config.SummaryBytes(), Calls: calllog.Settings{Calls: s.calls}, Tracer: s.tracer,
	}
	o := transport.Options{
		GRPCAddress: "127.0.0.1:0", HTTPAddress: "127.0.0.1:0", KeepaliveTime: s.config.KeepaliveTime, Log: s.log,
		Tracer: s.tracer,
	}
	if s.metrics != nil {
		served.Unary, served.Stream = s.metrics.Unary(), s.metrics.Stream()
		o.Metrics, o.MetricsOverHTTP = s.metrics.Handler(), true
	}
	service := rpc.New(served)
	servers, err := transport.Open(s.ctx, o, service)
	must(b, err)
	if s.metrics != nil {
		s.metrics.AddMethods(servers)
	}
	servers.RegisterService(plainService(), nil)
	if s.bounds != nil {
		servers.RegisterService(s.bounds, nil)
	}
	var serving errgroup.Group
	servers.Serve(&serving)
	s.http = servers.HTTPAddress().String()
	b.Cleanup(func() {
		stopped, cancel := context.WithCancel(s.ctx)
		cancel()
		servers.Drain(stopped)
		must(b, serving.Wait())
	})
	return connect(b, servers.GRPCAddress())
}

// connect returns a connection of a client.
func connect(b *testing.B, address net.Addr) *grpc.ClientConn {
	b.Helper()
	conn, err := grpc.NewClient(address.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(b, err)
	b.Cleanup(func() { conn.Close() })
	return conn
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func benchMessage(role parleyv1.Role) *parleyv1.Message {
	text := strings.Repeat("all happy families are alike ", benchContent)
	return &parleyv1.Message{Role: role, Content: text[:benchContent]}
}

// fill creates the conversations.
func (s *benchServer) fill(conversations int) error {
	var messages []*parleyv1.Message
	for range benchMessages / 2 {
		messages = append(messages, benchMessage(parleyv1.Role_ROLE_USER), benchMessage(parleyv1.Role_ROLE_ASSISTANT))
	}
	for _, m := range messages {
		m.Id = uuid.NewString()
	}
	s.ids = make([]string, conversations)
	var callers errgroup.Group
	callers.SetLimit(64)
	for i := range s.ids {
		s.ids[i] = uuid.NewString()
		callers.Go(func() error { return s.appendTo(s.ids[i], messages) })
	}
	return callers.Wait()
}

func (s *benchServer) appendTo(id string, messages []*parleyv1.Message) error {
	_, err := s.store.Append(s.ctx, &store.Append{Tenant: auth.DefaultTenant, ConversationID: id, Messages: messages})
	return err
}

// anyID returns the id of a random conversation.
func (s *benchServer) anyID() string { return s.ids[rand.N(len(s.ids))] }

// appending returns calls that append a message to a random conversation, with or without a request_id.
func (s *benchServer) appending(requestID bool) func() (call, error) {
	return func() (call, error) {
		r := &parleyv1.AppendMessagesRequest{Messages: []*parleyv1.Message{s.message}}
		return func(done *atomic.Int64) error {
			r.ConversationId = s.anyID()
			if requestID {
				r.RequestId = uuid.NewString()
			}
			_, err := s.client.AppendMessages(s.ctx, r)
			done.Add(1)
			return err
		}, nil
	}
}

// appendingOverStream is appending over one stream, which has so many requests under way. All rounds use the same one.
func (s *benchServer) appendingOverStream(underWay int) func() (call, error) {
	var stream grpc.BidiStreamingClient[parleyv1.AppendStreamRequest, parleyv1.AppendStreamResponse]
	sent := 0 // and not answered
	return func() (call, error) {
		if stream == nil {
			var err error
			if stream, err = s.client.AppendStream(s.ctx); err != nil {
				return nil, err
			}
		}
		r := &parleyv1.AppendMessagesRequest{Messages: []*parleyv1.Message{s.message}}
		return func(done *atomic.Int64) error {
			r.ConversationId = s.anyID()
			if err := stream.Send(&parleyv1.AppendStreamRequest{Append: r}); err != nil {
				return err
			}
			if sent < underWay-1 {
				sent++
				return nil
			}
			done.Add(1)
			reply, err := stream.Recv()
			if err == nil && reply.GetError() != nil {
				err = fmt.Errorf("append: %v", reply.GetError())
			}
			return err
		}, nil
	}
}

// appendingInProcess is appending without gRPC.
func (s *benchServer) appendingInProcess() (call, error) {
	message := proto.CloneOf(s.message)
	message.Id = uuid.NewString()
	messages := []*parleyv1.Message{message}
	return func(done *atomic.Int64) error {
		err := s.appendTo(s.anyID(), messages)
		done.Add(1)
		return err
	}, nil
}

// loading returns a call that loads a random conversation.
func (s *benchServer) loading() (call, error) {
	r := new(parleyv1.LoadConversationRequest)
	return func(done *atomic.Int64) error {
		r.ConversationId = s.anyID()
		reply, err := s.client.LoadConversation(s.ctx, r)
		if err == nil && len(reply.GetMessages()) != benchMessages {
			err = fmt.Errorf("LoadConversation = %d messages, want %d", len(reply.GetMessages()), benchMessages)
		}
		done.Add(1)
		return err
	}, nil
}

// readingSummary returns a call that reads the routing summary of a random conversation.
func (s *benchServer) readingSummary() (call, error) {
	r := new(parleyv1.GetRoutingSummaryRequest)
	return func(done *atomic.Int64) error {
		r.ConversationId = s.anyID()
		_, err := s.client.GetRoutingSummary(s.ctx, r)
		done.Add(1)
		return err
	}, nil
}

// knownSummaries is how many summaries a caller of readingSummaryAgain or readingUnmodified knows.
const knownSummaries = 20

// readingSummaryAgain returns a call that reads the routing summary of one of a few conversations. They do not change.
func (s *benchServer) readingSummaryAgain() (call, error) {
	ids := make([]string, knownSummaries)
	for i := range ids {
		ids[i] = s.anyID()
	}
	r := new(parleyv1.GetRoutingSummaryRequest)
	return func(done *atomic.Int64) error {
		r.ConversationId = ids[rand.N(knownSummaries)]
		_, err := s.client.GetRoutingSummary(s.ctx, r)
		done.Add(1)
		return err
	}, nil
}

// readingUnmodified returns a call that asks for a newer summary of a conversation that has not changed.
func (s *benchServer) readingUnmodified() (call, error) {
	known := &parleyv1.BatchGetRoutingSummariesRequest{MessageLimit: proto.Int32(0)}
	for range knownSummaries {
		known.ConversationIds = append(known.ConversationIds, s.anyID())
	}
	summaries, err := s.client.BatchGetRoutingSummaries(s.ctx, known)
	if err != nil {
		return nil, err
	}
	r := new(parleyv1.GetRoutingSummaryRequest)
	return func(done *atomic.Int64) error {
		last := summaries.GetSummaries()[rand.N(knownSummaries)]
		r.ConversationId, r.KnownVersion = last.GetConversationId(), &last.Version
		reply, err := s.client.GetRoutingSummary(s.ctx, r)
		if err == nil && !reply.GetNotModified() {
			err = fmt.Errorf("GetRoutingSummary(%s) = a new version, want not_modified", r.GetConversationId())
		}
		done.Add(1)
		return err
	}, nil
}
