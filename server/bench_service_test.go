package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

// What is measured: conversations of messages of so many bytes, answers of pieces.
const (
	benchMessages = 20
	benchContent  = 500
	benchPieces   = 1000
	benchPiece    = "twenty bytes of text"
)

// benchServer is the service on a store in a file, wired as run does, and a client of it.
type benchServer struct {
	ctx     context.Context //nolint:containedctx // the benchmark's
	dir     string
	store   store.Store
	conn    *grpc.ClientConn
	client  parleyv1.ConversationServiceClient
	ids     []string // of the conversations
	message *parleyv1.Message
}

// openBenchServer serves that many conversations until the benchmark ends.
func openBenchServer(b *testing.B, conversations int) *benchServer {
	b.Helper()
	c := new(config)
	c.settings() // the defaults
	c.grpcAddress, c.httpAddress, c.dataDir, c.maxConversations = "127.0.0.1:0", "", b.TempDir(), 0
	lines, err := os.Create(filepath.Join(c.dataDir, "log"))
	check(b, err)
	b.Cleanup(func() { lines.Close() })
	log := newLogger(c, lines)

	var turns *turn.Manager
	hub, changes := watch.New(), newChangeLog(log, c.logLevel, 0)
	kept, err := openStore(c, log, func(committed []store.Change) {
		hub.Committed(committed)
		turns.Committed(committed)
		changes.Committed(committed)
	}, func(err error) { b.Error(err) })
	check(b, err)
	go changes.write(b.Context(), kept.Stats)
	b.Cleanup(func() {
		check(b, kept.Close())
		changes.Close()
	})
	agents, err := agent.NewSet("talker", []agent.Entry{{Name: "talker", Agent: talker{}}})
	check(b, err)
	turns = turn.New(b.Context(), turn.Options{
		Store: kept, Agents: agents, Log: log, TurnTimeout: c.turnTimeout, IdleTimeout: c.idleTimeout,
		MaxAnswerBytes: c.maxAnswerBytes, MaxTurns: c.maxTurns,
	})
	service, err := rpc.New(rpc.Options{Store: kept, StoreName: c.store, Turns: turns, Hub: hub, Agents: agents, Log: log})
	check(b, err)
	doors, err := openDoors(b.Context(), c, service, log)
	check(b, err)
	doors.grpc.RegisterService(plainService(), nil)
	var serving errgroup.Group
	serving.Go(doors.serveGRPC)
	b.Cleanup(func() {
		doors.grpc.Stop()
		check(b, serving.Wait())
	})

	conn, err := grpc.NewClient(doors.grpcListener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(b, err)
	b.Cleanup(func() { conn.Close() })
	s := &benchServer{
		ctx: b.Context(), dir: c.dataDir, store: kept, conn: conn, client: parleyv1.NewConversationServiceClient(conn),
		message: benchMessage(parleyv1.Role_ROLE_USER),
	}
	check(b, s.fill(conversations))
	return s
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

// chatting has talker answer in a conversation of the caller's own, which keeps so few
// messages that storing them counts for little beside the pieces.
func (s *benchServer) chatting() (call, error) {
	made, err := s.client.CreateConversation(s.ctx, &parleyv1.CreateConversationRequest{
		Conversation: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: 2}},
	})
	if err != nil {
		return nil, err
	}
	r := &parleyv1.ChatRequest{ConversationId: made.GetConversation().GetId(), Content: "Say something."}
	return func(done *atomic.Int64) error {
		stream, err := s.client.Chat(s.ctx, r)
		if err != nil {
			return err
		}
		var last *parleyv1.TurnEvent
		for {
			reply, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			if last = reply.GetEvent(); last.GetTextDelta() != nil {
				done.Add(1)
			}
		}
		if state := last.GetFinished().GetTurn().GetState(); state != parleyv1.TurnState_TURN_STATE_COMPLETED {
			return fmt.Errorf("turn ended %v", state)
		}
		return nil
	}, nil
}

// talker is an agent that answers with many pieces as fast as they are taken.
type talker struct{}

func (talker) Respond(context.Context, *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		for range benchPieces {
			if !yield(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: benchPiece}}, nil) {
				return
			}
		}
	}
}

func (talker) Close() error { return nil }
