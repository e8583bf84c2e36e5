package rpc

import (
	"context"
	"fmt"
	"iter"

	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/calllog"
	"github.com/parleyhq/parley/server/internal/rpc/pages"
	"github.com/parleyhq/parley/server/internal/rpc/retries"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/store"
)

// Chat stores tool results and the user's message, starts a turn, and streams its events.
func (s *Server) Chat(r *parleyv1.ChatRequest, stream grpc.ServerStreamingServer[parleyv1.ChatResponse]) error {
	ctx := stream.Context()
	q, err := s.prepareChat(tenant(ctx), r)
	if err != nil {
		return err
	}
	calllog.Of(ctx).SetConversation(r.GetConversationId())
	events := s.turns.Chat(ctx, tenant(ctx), r, q)
	return forward(r.GetConversationId(), events, func(e *parleyv1.TurnEvent) error {
		return stream.Send(&parleyv1.ChatResponse{Event: e})
	})
}

// prepareChat checks the sizes in a request and sets its conversation_id if it has none. It removes the fields of
// create_with that clients cannot set. It returns the request that the store compares retries with.
func (s *Server) prepareChat(tenant string, r *parleyv1.ChatRequest) (*store.Request, error) {
	const method = "Chat"
	if err := s.checkInputSizes(r); err != nil {
		return nil, err
	}
	var err error
	if r.CreateWith, err = s.settableWith(r.GetCreateWith()); err != nil {
		return nil, err
	}
	q, err := retries.NewRequest(r.GetRequestId(), method, &parleyv1.ChatRequest{
		Content: r.GetContent(), StructuredData: r.GetStructuredData(), ToolResults: r.GetToolResults(),
		Attachments: r.GetAttachments(), Metadata: r.GetMetadata(), Agent: r.GetAgent(), SystemPrompt: r.SystemPrompt,
		CreateWith: r.GetCreateWith(), Records: r.GetRecords(),
	})
	if err != nil {
		return nil, err
	}
	r.ConversationId = retries.IDOr(r.GetConversationId(), r.GetRequestId(), tenant, method)
	return q, nil
}

// checkInputSizes returns an error if a tool result or the message of a request is too large.
func (s *Server) checkInputSizes(r *parleyv1.ChatRequest) error {
	for i, m := range turn.Inputs(r) {
		name := "the message"
		if m.GetRole() == parleyv1.Role_ROLE_TOOL {
			name = fmt.Sprintf("tool_results[%d]", i)
		}
		if err := s.checkSize(name, m); err != nil {
			return err
		}
	}
	return nil
}

// ResumeTurn streams the events of a turn after a given index, whether the turn is running or ended.
func (s *Server) ResumeTurn(
	r *parleyv1.ResumeTurnRequest, stream grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse],
) error {
	ctx, id := stream.Context(), r.GetConversationId()
	events := s.turns.Resume(ctx, tenant(ctx), id, r.GetTurnId(), r.GetAfterIndex())
	return forward(id, events, func(e *parleyv1.TurnEvent) error {
		return stream.Send(&parleyv1.ResumeTurnResponse{Event: e})
	})
}

// forward sends all events of a turn, until the turn ends or send fails.
func forward(
	conversationID string, events iter.Seq2[*parleyv1.TurnEvent, error], send func(*parleyv1.TurnEvent) error,
) error {
	for event, err := range events {
		if err != nil {
			return inConversation(conversationID, err)
		}
		if err := send(event); err != nil {
			return err
		}
	}
	return nil
}

// GetTurn returns the state of a turn.
func (s *Server) GetTurn(ctx context.Context, r *parleyv1.GetTurnRequest) (*parleyv1.GetTurnResponse, error) {
	t, err := s.turns.Get(ctx, tenant(ctx), r.GetConversationId(), r.GetTurnId())
	if err != nil {
		return nil, inNamed(r.GetConversationId(), err)
	}
	calllog.Of(ctx).SetConversation(t.GetConversationId())
	return &parleyv1.GetTurnResponse{Turn: t}, nil
}

// ListTurns returns a page of the turns of a conversation, or of the tenant, newest first.
func (s *Server) ListTurns(ctx context.Context, r *parleyv1.ListTurnsRequest) (*parleyv1.ListTurnsResponse, error) {
	page, err := pages.OpenTurns(r, tenant(ctx))
	if err != nil {
		return nil, err
	}
	listed, err := s.turns.List(ctx, page.List)
	if err != nil {
		return nil, inNamed(r.GetConversationId(), err)
	}
	return &parleyv1.ListTurnsResponse{Turns: listed.Turns, NextPageToken: page.Token(listed.Next)}, nil
}

// CancelTurn cancels a running or queued turn and returns its final state.
func (s *Server) CancelTurn(ctx context.Context, r *parleyv1.CancelTurnRequest) (*parleyv1.CancelTurnResponse, error) {
	t, err := s.turns.Cancel(ctx, tenant(ctx), r.GetConversationId(), r.GetTurnId())
	if err != nil {
		return nil, inConversation(r.GetConversationId(), err)
	}
	return &parleyv1.CancelTurnResponse{Turn: t}, nil
}
