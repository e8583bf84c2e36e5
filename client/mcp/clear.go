package mcp

import (
	"context"
	"encoding/json"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const clearInput = `{
  "type": "object",
  "additionalProperties": false,
  "required": ["conversation_id"],
  "properties": {
    "conversation_id": {
      "type": "string",
      "minLength": 1,
      "maxLength": 256,
      "description": "The conversation to clear."
    }
  }
}`

const clearOutput = `{
  "type": "object",
  "required": ["conversation_id", "message_count", "last_sequence"],
  "properties": {
    "conversation_id": {"type": "string"},
    "message_count": {"type": "integer", "description": "Number of messages that remain."},
    "last_sequence": {"type": "integer", "description": "Highest sequence so far, also of removed messages: the next message gets the following one."}
  }
}`

// clearConversation returns the tool clear_conversation.
func (s *Server) clearConversation() tool {
	return tool{
		description: &sdk.Tool{
			Name:  "clear_conversation",
			Title: "Clear a conversation",
			Description: "Permanently remove all messages of a conversation. The conversation remains with its id and " +
				"settings, and its agent starts without history. Use it only when the user asks for that. It is refused while a " +
				"question of the conversation is being answered.",
			InputSchema:  json.RawMessage(clearInput),
			OutputSchema: json.RawMessage(clearOutput),
			Annotations:  &sdk.ToolAnnotations{DestructiveHint: new(true), IdempotentHint: true, OpenWorldHint: new(false)},
		},
		call: s.clear,
	}
}

// cleared is the result of clear_conversation.
type cleared struct {
	ConversationID string `json:"conversation_id"`
	MessageCount   int32  `json:"message_count"`
	LastSequence   int32  `json:"last_sequence"`
}

func (s *Server) clear(ctx context.Context, r *request) (*sdk.CallToolResult, error) {
	toClear := &parleyv1.ClearConversationRequest{ConversationId: r.required("conversation_id")}
	if err := r.check(); err != nil {
		return nil, err
	}
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	reply, err := s.parley.ClearConversation(ctx, toClear)
	if err != nil {
		return nil, err
	}
	c := reply.GetConversation()
	return structured(cleared{
		ConversationID: c.GetId(), MessageCount: c.GetMessageCount(), LastSequence: c.GetLastSequence(),
	})
}
