package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/echo"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

// What is measured: conversations of messages of so many bytes.
const (
	benchMessages = 20
	benchContent  = 500
)

// benchServer is the service on a store in a file, wired as run does, and a client of it.
type benchServer struct {
	ctx     context.Context //nolint:containedctx // the benchmark's
	dir     string
	config  *config.Config
	log     *slog.Logger
	store   *savesCounted
	talker  repeater
	agents  *agent.Set
	hub     *watch.Hub
	conn    *grpc.ClientConn
	http    string // address
	client  parleyv1.ConversationServiceClient
	ids     []string // of the conversations
	message *parleyv1.Message
}

// openBenchServer serves that many conversations until the benchmark ends; without an
// interaction log, unless a flag says otherwise.
func openBenchServer(b *testing.B, conversations int, flags ...string) *benchServer {
	b.Helper()
	c := loadConfig(b, append([]string{
		"--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--data-dir=" + b.TempDir(), "--max-conversations=0", "--interaction-log=false",
	}, flags...), nil)
	lines, err := os.Create(filepath.Join(c.DataDir, "log"))
	check(b, err)
	queue := newLogQueue(lines)
	b.Cleanup(func() { queue.close(); lines.Close() })
	log := newLogger(c, queue)

	var turns *turn.Manager
	hub := watch.New(watch.Options{})
	kept, err := openStorage(b.Context(), c, log, func(committed []store.Change) {
		hub.Committed(committed)
		turns.Committed(committed)
	}, func(err error) { b.Error(err) })
	check(b, err)
	var maintaining sync.WaitGroup
	if kept.interactions != nil {
		maintaining.Go(func() { kept.interactions.Maintain(b.Context()) })
	}
	b.Cleanup(func() {
		maintaining.Wait()
		check(b, kept.Close())
	})
	talker := newTalker()
	agents, err := agent.NewSet("talker", []agent.Entry{{Name: "talker", Agent: talker}, {Name: "author", Agent: newAuthor()}, {Name: "echo", Agent: echo.New()}})
	check(b, err)
	s := &benchServer{
		ctx: b.Context(), dir: c.DataDir, config: c, log: log, store: &savesCounted{Store: kept}, talker: talker, agents: agents, hub: hub,
		message: benchMessage(parleyv1.Role_ROLE_USER),
	}
	turns = s.newTurns()
	s.conn = s.serve(b, turns)
	s.client = parleyv1.NewConversationServiceClient(s.conn)
	check(b, s.fill(conversations))
	return s
}

// newTurns is a manager that knows of no turn but what the store does.
func (s *benchServer) newTurns() *turn.Manager {
	c := s.config
	return turn.New(s.ctx, turn.Options{
		Store: s.store, Agents: s.agents, Log: s.log, TurnTimeout: c.TurnTimeout, IdleTimeout: c.IdleTimeout,
		MaxAnswerBytes: c.MaxAnswerBytes, MaxTurns: c.MaxTurns,
	})
}

// serve serves the store with these turns and connects to that.
func (s *benchServer) serve(b *testing.B, turns *turn.Manager) *grpc.ClientConn {
	b.Helper()
	service, err := rpc.New(rpc.Options{Store: s.store, StoreName: s.config.Store, Turns: turns, Hub: s.hub, Agents: s.agents, Log: s.log})
	check(b, err)
	transports, err := openTransports(s.ctx, s.config, service, s.log)
	check(b, err)
	transports.grpc.RegisterService(plainService(), nil)
	var serving errgroup.Group
	transports.serve(&serving)
	s.http = transports.http.listener.Addr().String()
	b.Cleanup(func() {
		transports.grpc.Stop()
		transports.http.stop(context.WithoutCancel(s.ctx))
		check(b, serving.Wait())
	})
	return connect(b, transports.grpcListener)
}

// connect makes a client's connection.
func connect(b *testing.B, l net.Listener) *grpc.ClientConn {
	b.Helper()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(b, err)
	b.Cleanup(func() { conn.Close() })
	return conn
}

func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func benchMessage(role parleyv1.Role) *parleyv1.Message {
	text := strings.Repeat("all happy families are alike ", benchContent)
	return &parleyv1.Message{Role: role, Content: text[:benchContent]}
}

// fill makes the conversations.
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

// anyID is that of any conversation, each as likely as the others.
func (s *benchServer) anyID() string { return s.ids[rand.N(len(s.ids))] }

// appending appends a message to any conversation, with a request_id if told.
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

// appendingInProcess does the same without gRPC.
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

// loading loads any conversation.
func (s *benchServer) loading() (call, error) {
	r := new(parleyv1.LoadConversationRequest)
	return func(done *atomic.Int64) error {
		r.ConversationId = s.anyID()
		reply, err := s.client.LoadConversation(s.ctx, r)
		if err == nil && len(reply.GetMessages()) != benchMessages {
			err = fmt.Errorf("loaded %d messages", len(reply.GetMessages()))
		}
		done.Add(1)
		return err
	}, nil
}

// summing asks for the routing summary of any conversation.
func (s *benchServer) summing() (call, error) {
	r := new(parleyv1.GetRoutingSummaryRequest)
	return func(done *atomic.Int64) error {
		r.ConversationId = s.anyID()
		_, err := s.client.GetRoutingSummary(s.ctx, r)
		done.Add(1)
		return err
	}, nil
}

// polled is how many conversations a caller of polling knows.
const polled = 20

// polling asks for the summary of any conversation that it knows, if there is a newer one,
// and there is none.
func (s *benchServer) polling() (call, error) {
	known := &parleyv1.BatchGetRoutingSummariesRequest{MessageLimit: proto.Int32(0)}
	for range polled {
		known.ConversationIds = append(known.ConversationIds, s.anyID())
	}
	summaries, err := s.client.BatchGetRoutingSummaries(s.ctx, known)
	if err != nil {
		return nil, err
	}
	r := new(parleyv1.GetRoutingSummaryRequest)
	return func(done *atomic.Int64) error {
		last := summaries.GetSummaries()[rand.N(polled)]
		r.ConversationId, r.KnownVersion = last.GetConversationId(), &last.Version
		reply, err := s.client.GetRoutingSummary(s.ctx, r)
		if err == nil && !reply.GetNotModified() {
			err = fmt.Errorf("conversation %s has changed", r.GetConversationId())
		}
		done.Add(1)
		return err
	}, nil
}
