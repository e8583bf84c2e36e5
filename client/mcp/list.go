package mcp

import (
	"context"
	"encoding/json"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const listInput = `{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "page_size": {
      "type": "integer",
      "minimum": 0,
      "maximum": 1000,
      "description": "Maximum number of conversations (default 50)."
    },
    "page_token": {
      "type": "string",
      "description": "next_page_token of the previous page."
    }
  }
}`

const listOutput = `{
  "type": "object",
  "required": ["conversations", "total_size"],
  "properties": {
    "conversations": {
      "type": "array",
      "description": "Newest first.",
      "items": {
        "type": "object",
        "required": ["conversation_id", "message_count", "preview"],
        "properties": {
          "conversation_id": {"type": "string"},
          "title": {"type": "string"},
          "agent": {"type": "string", "description": "Name of the conversation's agent, if it has one."},
          "message_count": {"type": "integer", "description": "Number of stored messages."},
          "preview": {"type": "string", "description": "The first 120 characters of the newest message; get_history returns all of it."},
          "create_time": {"type": "string", "format": "date-time"},
          "update_time": {"type": "string", "format": "date-time"},
          "expire_time": {"type": "string", "format": "date-time", "description": "When the conversation expires unless a message is added. Left out if it does not expire."},
          "active_turn_id": {"type": "string", "description": "Set while a question is being answered."}
        }
      }
    },
    "next_page_token": {"type": "string", "description": "There are more: call again with this page_token. Left out on the last page."},
    "total_size": {"type": "integer", "description": "Total number of conversations."}
  }
}`

// listConversations returns the tool list_conversations.
func (s *Server) listConversations() tool {
	return tool{
		description: &sdk.Tool{
			Name:  "list_conversations",
			Title: "List conversations",
			Description: "List the stored conversations, newest first, each with the beginning of its newest message. " +
				"Use it to find the conversation_id of a conversation that the user mentions.",
			InputSchema:  json.RawMessage(listInput),
			OutputSchema: json.RawMessage(listOutput),
			Annotations:  &sdk.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: new(false)},
		},
		call: s.list,
	}
}

// conversationList is the result of list_conversations.
type conversationList struct {
	Conversations []conversationRow `json:"conversations"`
	NextPageToken string            `json:"next_page_token,omitempty"`
	TotalSize     int64             `json:"total_size"`
}

// conversationRow contains only the fields that help to choose a conversation, because there may be many rows.
type conversationRow struct {
	ConversationID string `json:"conversation_id"`
	Title          string `json:"title,omitempty"`
	Agent          string `json:"agent,omitempty"`
	MessageCount   int32  `json:"message_count"`
	Preview        string `json:"preview"`
	CreateTime     string `json:"create_time"`
	UpdateTime     string `json:"update_time"`
	ExpireTime     string `json:"expire_time,omitempty"`
	ActiveTurnID   string `json:"active_turn_id,omitempty"`
}

func (s *Server) list(ctx context.Context, r *request) (*sdk.CallToolResult, error) {
	list := &parleyv1.ListConversationsRequest{PageSize: r.number("page_size"), PageToken: r.text("page_token")}
	if err := r.check(); err != nil {
		return nil, err
	}
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	reply, err := s.parley.ListConversations(ctx, list)
	if err != nil {
		return nil, err
	}
	page := conversationList{
		Conversations: make([]conversationRow, len(reply.GetConversations())),
		NextPageToken: reply.GetNextPageToken(),
		TotalSize:     reply.GetTotalSize(),
	}
	for i, entry := range reply.GetConversations() {
		c := entry.GetConversation()
		page.Conversations[i] = conversationRow{
			ConversationID: c.GetId(), Title: c.GetTitle(), Agent: c.GetAgent(),
			MessageCount: c.GetMessageCount(), Preview: entry.GetPreview(), ActiveTurnID: c.GetActiveTurnId(),
			CreateTime: stamp(c.GetCreateTime()), UpdateTime: stamp(c.GetUpdateTime()), ExpireTime: stamp(c.GetExpireTime()),
		}
	}
	return structured(page)
}

// stamp returns a time in RFC 3339, in seconds, or "" if t is nil.
func stamp(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339)
}
