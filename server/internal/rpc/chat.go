package rpc

import (
	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn"
)

// Chat stores the user's message, has an agent answer, and streams the answer.
func (s *Server) Chat(r *parleyv1.ChatRequest, stream grpc.ServerStreamingServer[parleyv1.ChatResponse]) error {
	const method = "Chat"
	ctx := stream.Context()
	if err := s.checkSize("the message", turn.UserMessage(r)); err != nil {
		return err
	}
	q, err := newRequest(r.GetRequestId(), method, &parleyv1.ChatRequest{
		Content: r.GetContent(), StructuredData: r.GetStructuredData(), ToolResults: r.GetToolResults(),
		Attachments: r.GetAttachments(), Metadata: r.GetMetadata(), Agent: r.GetAgent(), SystemPrompt: r.SystemPrompt,
	})
	if err != nil {
		return err
	}
	if r.GetConversationId() == "" {
		r.ConversationId = newID(r.GetRequestId(), tenant(ctx), method)
	}
	events, err := s.turns.Chat(ctx, tenant(ctx), r, q)
	if err != nil {
		return inConversation(r.GetConversationId(), err)
	}
	for event, err := range events {
		if err != nil {
			return inConversation(r.GetConversationId(), err)
		}
		if err := stream.Send(&parleyv1.ChatResponse{Event: event}); err != nil {
			return err
		}
	}
	return nil
}
