package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// fake is a server for behaviour that the scripts cannot produce with the real server.
type fake struct {
	parleyv1.UnimplementedConversationServiceServer

	chat    func(*parleyv1.ChatRequest, *turnStream) error
	resume  func(*parleyv1.ResumeTurnRequest, *turnStream) error
	cancel  func(context.Context, *parleyv1.CancelTurnRequest) (*parleyv1.Turn, error)
	active  string // The active turn of every conversation.
	export  func(*parleyv1.ExportConversationsRequest, grpc.ServerStreamingServer[parleyv1.ExportConversationsResponse]) error
	imports func(grpc.ClientStreamingServer[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse]) error
	appends func(appendStream) error
}

// turnStream sends the events of the turn t1 and numbers them.
type turnStream struct {
	grpc.ServerStream

	send  func(*parleyv1.TurnEvent) error
	index int32 // The index of the last event.
}

// serve serves a fake that only supports Chat until the test ends, and returns the address.
func serve(t *testing.T, chat func(*parleyv1.ChatRequest, *turnStream) error) string {
	t.Helper()
	return fake{chat: chat}.serve(t)
}

// serve serves f until the test ends, and returns the address.
func (f fake) serve(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	parleyv1.RegisterConversationServiceServer(s, f)
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(listener) })
	t.Cleanup(func() { s.Stop(); running.Wait() })
	return listener.Addr().String()
}

func (f fake) Chat(request *parleyv1.ChatRequest, stream grpc.ServerStreamingServer[parleyv1.ChatResponse]) error {
	return f.chat(request, &turnStream{ServerStream: stream, send: func(event *parleyv1.TurnEvent) error {
		return stream.Send(&parleyv1.ChatResponse{Event: event})
	}})
}

func (f fake) ResumeTurn(request *parleyv1.ResumeTurnRequest,
	stream grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse],
) error {
	return f.resume(request, &turnStream{ServerStream: stream, index: request.GetAfterIndex(), send: func(event *parleyv1.TurnEvent) error {
		return stream.Send(&parleyv1.ResumeTurnResponse{Event: event})
	}})
}

func (f fake) CancelTurn(
	ctx context.Context, request *parleyv1.CancelTurnRequest,
) (*parleyv1.CancelTurnResponse, error) {
	turn, err := f.cancel(ctx, request)
	return &parleyv1.CancelTurnResponse{Turn: turn}, err
}

func (f fake) GetConversation(
	_ context.Context, request *parleyv1.GetConversationRequest,
) (*parleyv1.GetConversationResponse, error) {
	return &parleyv1.GetConversationResponse{
		Conversation: &parleyv1.Conversation{Id: request.GetConversationId(), ActiveTurnId: f.active},
	}, nil
}

// ListConversations returns three conversations in pages of one, with an empty page among them. It filters by text
// with its case.
func (f fake) ListConversations(
	_ context.Context, request *parleyv1.ListConversationsRequest,
) (*parleyv1.ListConversationsResponse, error) {
	page, next := pageOf(request.GetPageToken())
	reply := &parleyv1.ListConversationsResponse{NextPageToken: next, TotalSize: 3}
	if id := fmt.Sprintf("c%d", max(page, 1)); page != 1 && strings.Contains(id, request.GetText()) {
		reply.Conversations = []*parleyv1.ConversationEntry{{Conversation: &parleyv1.Conversation{Id: id}}}
	}
	return reply, nil
}

// ListMessages returns four messages in pages of one.
func (f fake) ListMessages(
	_ context.Context, request *parleyv1.ListMessagesRequest,
) (*parleyv1.ListMessagesResponse, error) {
	page, next := pageOf(request.GetPageToken())
	return &parleyv1.ListMessagesResponse{
		Messages:      []*parleyv1.Message{{Sequence: int32(page + 1), Role: parleyv1.Role_ROLE_USER}},
		NextPageToken: next,
	}, nil
}

func (f fake) ExportConversations(request *parleyv1.ExportConversationsRequest,
	stream grpc.ServerStreamingServer[parleyv1.ExportConversationsResponse],
) error {
	return f.export(request, stream)
}

func (f fake) ImportConversations(stream grpc.ClientStreamingServer[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse]) error {
	return f.imports(stream)
}

func (f fake) AppendStream(stream appendStream) error { return f.appends(stream) }

func pageOf(token string) (page int, next string) {
	page, _ = strconv.Atoi(token)
	if page < 3 {
		next = strconv.Itoa(page + 1)
	}
	return page, next
}

// echoChat answers a message with its conversation and its text. Some texts have a special effect.
func echoChat(request *parleyv1.ChatRequest, stream *turnStream) error {
	id := request.GetConversationId()
	if id == "" {
		id = "made-by-server"
	}
	events := []*parleyv1.TurnEvent{
		started(id), delta("in " + request.GetConversationId() + ": "), delta(request.GetContent()),
	}
	end := finished(parleyv1.TurnState_TURN_STATE_COMPLETED)
	switch request.GetContent() {
	case "busy":
		return status.Error(codes.Aborted, "a turn is running")
	case "fail":
		end = finished(parleyv1.TurnState_TURN_STATE_FAILED)
		end.GetFinished().GetTurn().Error = &parleyv1.TurnError{Reason: "AGENT_FAILED", Message: "out of ideas"}
	case "call":
		call := &parleyv1.ToolCall{Id: "c1", Name: "price", Arguments: `{"of":"sugar"}`}
		events = append(events, &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_ToolCall{ToolCall: call}})
		end = finished(parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED)
		end.GetFinished().Messages = []*parleyv1.Message{{ToolCalls: []*parleyv1.ToolCall{call}}}
	case "hand over":
		events = append(events, handover("other"), delta("taken"))
	case "think":
		return hang(stream, events...)
	case "never":
		return hang(stream)
	}
	return send(stream, append(events, end)...)
}

// hang sends events, then waits until the client cancels.
func hang(stream *turnStream, events ...*parleyv1.TurnEvent) error {
	if err := send(stream, events...); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

func send(stream *turnStream, events ...*parleyv1.TurnEvent) error {
	for _, event := range events {
		stream.index++
		event.TurnId, event.Index = "t1", stream.index
		if err := stream.send(event); err != nil {
			return err
		}
	}
	return nil
}

func started(conversation string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Started{Started: &parleyv1.TurnStarted{
		Conversation: &parleyv1.Conversation{Id: conversation},
	}}}
}

func delta(text string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{Text: text}}}
}

func handover(agent string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{
		Event: &parleyv1.TurnEvent_AnswerStarted{AnswerStarted: &parleyv1.AnswerStarted{Agent: agent}},
	}
}

func finished(state parleyv1.TurnState) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{
		Event: &parleyv1.TurnEvent_Finished{Finished: &parleyv1.TurnFinished{Turn: &parleyv1.Turn{State: state}}},
	}
}

func queued(position int32) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Queued{Queued: &parleyv1.TurnQueued{Position: position}}}
}
