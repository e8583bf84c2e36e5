package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/transport"
	"github.com/parleyhq/parley/store"
)

// repeater is an agent that answers with the same piece repeatedly.
type repeater struct {
	name   string
	pieces int
	piece  string
	// window is the number of pieces that the agent sends to a conversation in readers before it waits for the
	// reader.
	window int
	// readers has a channel for each conversation whose reader reports every step pieces that it has received.
	readers *sync.Map
}

// newTalker returns an agent that answers as fast as it is read, so that each of 64 concurrent answers
// is saved before it is complete. Its readers are late: many pieces wait for them.
func newTalker() repeater {
	return repeater{
		name: "talker", pieces: 40_000, piece: "twenty bytes of text", window: 1000, readers: new(sync.Map),
	}
}

// newListener returns an agent that waits after each piece until it is received. So its readers are never late.
func newListener() repeater {
	return repeater{name: "listener", pieces: 2000, piece: "twenty bytes of text", window: 1, readers: new(sync.Map)}
}

// newAuthor returns an agent that writes a megabyte, in nearly as many pieces as a turn retains.
func newAuthor() repeater {
	return repeater{
		name: "author", pieces: 16_000, piece: strings.Repeat("sixteen of bytes", 4), readers: new(sync.Map),
	}
}

// entry returns the agent as an agent of the server.
func (a repeater) entry() agent.Entry { return agent.Entry{Name: a.name, Agent: a} }

// step returns the number of pieces that a reader reports at once.
func (a repeater) step() int { return max(1, a.window/2) }

func (a repeater) Respond(ctx context.Context, r *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		wait := a.pace(ctx, r.GetConversation().GetId())
		for i := range a.pieces {
			if err := wait(i); err != nil {
				yield(nil, err)
				return
			}
			if !yield(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: a.piece}}, nil) {
				return
			}
		}
	}
}

// pace returns a function that waits until a piece may be sent to a conversation.
func (a repeater) pace(ctx context.Context, conversationID string) (wait func(piece int) error) {
	reader, _ := a.readers.Load(conversationID)
	received, limited := reader.(chan struct{})
	return func(piece int) error {
		if !limited || piece < a.window || piece%a.step() != 0 {
			return nil
		}
		select {
		case <-received:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// piecesOf returns the number of pieces in an event.
func (a repeater) piecesOf(e *parleyv1.TurnEvent) int {
	return len(e.GetTextDelta().GetText()) / len(a.piece)
}

// single returns the event, or an event for each piece if it has several.
func (a repeater) single(e *parleyv1.TurnEvent) (events []*parleyv1.TurnEvent) {
	n := int32(a.piecesOf(e))
	if n < 2 {
		return append(events, e)
	}
	for i := range n {
		piece := proto.CloneOf(e)
		piece.Index = e.GetIndex() - n + 1 + i
		piece.Event = &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{
			Text: a.piece, Offset: e.GetTextDelta().GetOffset() + i*int32(len(a.piece)),
		}}
		events = append(events, piece)
	}
	return events
}

func (repeater) Close() error { return nil }

// saveCounter counts the saves of partial answers.
type saveCounter struct {
	store.Store
	saves atomic.Int64
}

func (s *saveCounter) SaveProgress(ctx context.Context, p *store.Progress) error {
	err := s.Store.SaveProgress(ctx, p)
	if err == nil {
		s.saves.Add(1)
	}
	return err
}

// turnReader reads the events of a turn from a server to the end.
type turnReader func(from parleyv1.ConversationServiceClient, each func(*parleyv1.TurnEvent)) error

// plainEvents is the maximum number of events of a plain stream. At the end of a slice, each stream is read to
// its end.
const plainEvents = 16_002

// turnCases compares the streams of turns with plain streams of the same pieces, each an event.
func (s *benchServer) turnCases(b *testing.B) []*benchCase {
	b.Helper()
	// This server knows only the turns in the store, as after a restart.
	restarted := parleyv1.NewConversationServiceClient(s.serve(b, s.newTurns()))
	var all []*benchCase
	for _, t := range []struct {
		group, name string
		callers     int
		agent       repeater
		prepare     func(repeater) (turnReader, error)
		from        parleyv1.ConversationServiceClient
		least       float64
	}{
		{"pieces, late", "Chat", 64, s.talker, s.talk, s.client, 0.9},
		{"pieces, late", "Chat", 1, s.talker, s.talk, s.client, 0},
		{"pieces, in time", "Chat", 64, s.listener, s.talk, s.client, 0.68},
		{"pieces, in time", "Chat", 1, s.listener, s.talk, s.client, 0},
		{"resume", "pieces of a megabyte", 1, s.author, s.resume, s.client, 0.9},
		{"replay", "a megabyte from the store", 1, s.author, s.resume, restarted, 0.5},
	} {
		prepare := func() (turnReader, error) { return t.prepare(t.agent) }
		events, err := record(prepare, t.from)
		must(b, err)
		if t.group != "replay" { // The store has the text as one event.
			var pieces []*parleyv1.TurnEvent
			for _, e := range events {
				pieces = append(pieces, t.agent.single(e)...)
			}
			if n := len(pieces); n > plainEvents {
				pieces = append(pieces[:plainEvents-1], pieces[n-1])
			}
			events = pieces
		}
		plain := newBenchCase(t.group, t.callers, "plain stream",
			readingAgain(t.agent, prepare, openPlainStream(b, t.agent, events)))
		c := newBenchCase(t.group, t.callers, t.name, readingAgain(t.agent, prepare, t.from), comparison{with: plain, least: t.least})
		if t.callers == 64 && t.agent.name == "talker" { // The time suffices for a save of each partial answer.
			plain.slices, c.slices, c.saves = 4, 4, &s.store.saves
		}
		all = append(all, plain, c)
	}
	return all
}

// record returns the events of a turn.
func record(
	prepare func() (turnReader, error), from parleyv1.ConversationServiceClient,
) (events []*parleyv1.TurnEvent, err error) {
	turn, err := prepare()
	if err == nil {
		err = turn(from, func(e *parleyv1.TurnEvent) { events = append(events, e) })
	}
	return events, err
}

// readingAgain returns calls that read the events of a turn and count the pieces of text.
func readingAgain(
	a repeater, prepare func() (turnReader, error), from parleyv1.ConversationServiceClient,
) func() (call, error) {
	return func() (call, error) {
		turn, err := prepare()
		return func(done *atomic.Int64) error {
			return turn(from, func(e *parleyv1.TurnEvent) { done.Add(int64(a.piecesOf(e))) })
		}, err
	}
}

// talk creates a conversation in which an agent answers each new message. The conversation stores few
// messages, so that the cost of storing them is small.
func (s *benchServer) talk(a repeater) (turnReader, error) {
	made, err := s.client.CreateConversation(s.ctx, &parleyv1.CreateConversationRequest{
		Conversation: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: 2}},
	})
	if err != nil {
		return nil, err
	}
	r := &parleyv1.ChatRequest{
		ConversationId: made.GetConversation().GetId(), Content: "Say something.", Agent: a.name,
	}
	return func(from parleyv1.ConversationServiceClient, each func(*parleyv1.TurnEvent)) error {
		got := make(chan struct{}, a.pieces/a.step())
		a.readers.Store(r.GetConversationId(), got)
		stream, err := from.Chat(s.ctx, r)
		if err != nil {
			return err
		}
		received := 0
		return drain(stream.Recv, func(e *parleyv1.TurnEvent) {
			each(e)
			before := received / a.step()
			received += a.piecesOf(e)
			for range received/a.step() - before {
				got <- struct{}{}
			}
		})
	}, nil
}

// resume runs a turn of an agent and returns a reader of all events except the first.
func (s *benchServer) resume(author repeater) (turnReader, error) {
	stream, err := s.client.Chat(s.ctx, &parleyv1.ChatRequest{Content: "Write a megabyte.", Agent: author.name})
	if err != nil {
		return nil, err
	}
	r := new(parleyv1.ResumeTurnRequest)
	err = drain(stream.Recv, func(e *parleyv1.TurnEvent) {
		if started := e.GetStarted(); started != nil {
			r.ConversationId, r.TurnId, r.AfterIndex = started.GetConversation().GetId(), e.GetTurnId(), e.GetIndex()
		}
	})
	return func(from parleyv1.ConversationServiceClient, each func(*parleyv1.TurnEvent)) error {
		stream, err := from.ResumeTurn(s.ctx, r)
		if err != nil {
			return err
		}
		return drain(stream.Recv, each)
	}, err
}

// drain reads the events of a turn, which must complete.
func drain[R interface{ GetEvent() *parleyv1.TurnEvent }](
	receive func() (R, error), each func(*parleyv1.TurnEvent),
) error {
	var last *parleyv1.TurnEvent
	for {
		reply, err := receive()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		last = reply.GetEvent()
		each(last)
	}
	if state := last.GetFinished().GetTurn().GetState(); state != parleyv1.TurnState_TURN_STATE_COMPLETED {
		return fmt.Errorf("turn ended with state %v, want COMPLETED", state)
	}
	return nil
}

// plainTurns is a service that only sends the events of one turn, at the pace of its agent.
type plainTurns struct {
	parleyv1.UnimplementedConversationServiceServer
	agent  repeater
	events []*parleyv1.TurnEvent
}

// openPlainStream serves events with the server's options, but without its interceptors.
func openPlainStream(
	b *testing.B, a repeater, events []*parleyv1.TurnEvent,
) parleyv1.ConversationServiceClient {
	b.Helper()
	server := grpc.NewServer(transport.GRPCOptions(time.Minute)...)
	parleyv1.RegisterConversationServiceServer(server, &plainTurns{agent: a, events: events})
	listener, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	must(b, err)
	var serving errgroup.Group
	serving.Go(func() error { return server.Serve(listener) })
	b.Cleanup(func() {
		server.Stop()
		must(b, serving.Wait())
	})
	return parleyv1.NewConversationServiceClient(connect(b, listener.Addr()))
}

// Chat sends the events.
func (t *plainTurns) Chat(r *parleyv1.ChatRequest, stream grpc.ServerStreamingServer[parleyv1.ChatResponse]) error {
	wait, piece := t.agent.pace(stream.Context(), r.GetConversationId()), 0
	for _, e := range t.events {
		if e.GetTextDelta() != nil {
			if err := wait(piece); err != nil {
				return err
			}
			piece++
		}
		if err := stream.Send(&parleyv1.ChatResponse{Event: e}); err != nil {
			return err
		}
	}
	return nil
}

// ResumeTurn sends the events.
func (t *plainTurns) ResumeTurn(_ *parleyv1.ResumeTurnRequest,
	stream grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse],
) error {
	for _, e := range t.events {
		if err := stream.Send(&parleyv1.ResumeTurnResponse{Event: e}); err != nil {
			return err
		}
	}
	return nil
}
