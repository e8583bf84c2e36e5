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

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/transport"
	"github.com/parleyhq/parley/store"
)

// repeater is an agent that answers with the same piece repeatedly.
type repeater struct {
	pieces int
	piece  string
	// readers has a channel for each conversation whose reader reports every benchStep events that it
	// has received. The agent then sends at most 2*benchStep pieces that the reader has not received.
	readers *sync.Map
}

const benchStep = 500

// newTalker returns an agent that answers as fast as it is read, so that each of 64 concurrent answers
// is saved before it is complete.
func newTalker() repeater {
	return repeater{pieces: 8000, piece: "twenty bytes of text", readers: new(sync.Map)}
}

// newAuthor returns an agent that writes a megabyte, in nearly as many pieces as a turn retains.
func newAuthor() repeater {
	return repeater{pieces: 16_000, piece: strings.Repeat("sixteen of bytes", 4), readers: new(sync.Map)}
}

func (a repeater) Respond(ctx context.Context, r *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		reader, _ := a.readers.Load(r.GetConversation().GetId())
		received, limited := reader.(chan struct{})
		for i := range a.pieces {
			if limited && i%benchStep == 0 && i >= 2*benchStep {
				select {
				case <-received:
				case <-ctx.Done():
					yield(nil, context.Cause(ctx))
					return
				}
			}
			if !yield(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: a.piece}}, nil) {
				return
			}
		}
	}
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

// turnCases compares the streams of turns with plain streams of the same events.
func (s *benchServer) turnCases(b *testing.B) []*benchCase {
	b.Helper()
	// This server knows only the turns in the store, as after a restart.
	restarted := parleyv1.NewConversationServiceClient(s.serve(b, s.newTurns()))
	var all []*benchCase
	for _, t := range []struct {
		group, name string
		callers     int
		prepare     func() (turnReader, error)
		from        parleyv1.ConversationServiceClient
		least       float64
	}{
		{"pieces", "Chat", 64, s.talk, s.client, 0.5},
		{"pieces", "Chat", 1, s.talk, s.client, 0},
		{"resume", "events of a megabyte", 1, s.resume, s.client, 0.5},
		{"replay", "a megabyte from the store", 1, s.resume, restarted, 0.5},
	} {
		events, err := record(t.prepare, t.from)
		must(b, err)
		plain := newBenchCase(t.group, t.callers, "plain stream", readingAgain(t.prepare, openPlainStream(b, events)))
		c := newBenchCase(t.group, t.callers, t.name, readingAgain(t.prepare, t.from), comparison{with: plain, least: t.least})
		if t.callers == 64 { // The time suffices for a save of each partial answer.
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
func readingAgain(prepare func() (turnReader, error), from parleyv1.ConversationServiceClient) func() (call, error) {
	return func() (call, error) {
		turn, err := prepare()
		return func(done *atomic.Int64) error {
			return turn(from, func(e *parleyv1.TurnEvent) {
				if e.GetTextDelta() != nil {
					done.Add(1)
				}
			})
		}, err
	}
}

// talk creates a conversation in which talker answers each new message. The conversation stores few
// messages, so that the cost of storing them is small.
func (s *benchServer) talk() (turnReader, error) {
	made, err := s.client.CreateConversation(s.ctx, &parleyv1.CreateConversationRequest{
		Conversation: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: 2}},
	})
	if err != nil {
		return nil, err
	}
	r := &parleyv1.ChatRequest{ConversationId: made.GetConversation().GetId(), Content: "Say something."}
	return func(from parleyv1.ConversationServiceClient, each func(*parleyv1.TurnEvent)) error {
		got := make(chan struct{}, s.talker.pieces/benchStep)
		s.talker.readers.Store(r.GetConversationId(), got)
		stream, err := from.Chat(s.ctx, r)
		if err != nil {
			return err
		}
		n := 0
		return drain(stream.Recv, func(e *parleyv1.TurnEvent) {
			each(e)
			n++
			if n%benchStep == 0 {
				got <- struct{}{}
			}
		})
	}, nil
}

// resume runs a turn of author and returns a reader of all events except the first.
func (s *benchServer) resume() (turnReader, error) {
	stream, err := s.client.Chat(s.ctx, &parleyv1.ChatRequest{Content: "Write a megabyte.", Agent: "author"})
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

// plainTurns is a service that only sends the events of one turn.
type plainTurns struct {
	parleyv1.UnimplementedConversationServiceServer
	events []*parleyv1.TurnEvent
}

// openPlainStream serves events with the server's options, but without its interceptors.
func openPlainStream(b *testing.B, events []*parleyv1.TurnEvent) parleyv1.ConversationServiceClient {
	b.Helper()
	server := grpc.NewServer(transport.GRPCOptions(time.Minute)...)
	parleyv1.RegisterConversationServiceServer(server, &plainTurns{events: events})
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
func (t *plainTurns) Chat(_ *parleyv1.ChatRequest, stream grpc.ServerStreamingServer[parleyv1.ChatResponse]) error {
	for _, e := range t.events {
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
