package mcp

import (
	"context"
	"encoding/json"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxPageBytes of messages make a page, unless a message alone is larger. Clients bound what
// they read of a reply, often at 16 MiB, and a page is in it twice: as data and as text.
const maxPageBytes = 1 << 20

const historyInput = `{
  "type": "object",
  "additionalProperties": false,
  "required": ["conversation_id"],
  "properties": {
    "conversation_id": {
      "type": "string",
      "pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$",
      "description": "The conversation to read."
    },
    "page_size": {
      "type": "integer",
      "minimum": 0,
      "maximum": 1000,
      "description": "Messages to return at most; 20 when left out. A page may hold fewer and still have a next_page_token."
    },
    "page_token": {
      "type": "string",
      "description": "next_page_token of the page before; the other arguments but page_size must be the same as then."
    },
    "newest_first": {
      "type": "boolean",
      "description": "Newest messages first instead of oldest first. Use it to see how a long conversation ended."
    },
    "after_sequence": {
      "type": "integer",
      "minimum": 0,
      "description": "Only messages after the one of this sequence: what is new since then."
    }
  }
}`

const historyOutput = `{
  "type": "object",
  "required": ["conversation_id", "messages", "last_sequence", "oldest_sequence"],
  "properties": {
    "conversation_id": {"type": "string"},
    "messages": {
      "type": "array",
      "description": "Whole messages, in the order asked for.",
      "items": {
        "type": "object",
        "required": ["sequence", "role"],
        "properties": {
          "sequence": {"type": "integer", "description": "Place in the conversation, from 1."},
          "role": {"type": "string", "enum": ["ROLE_USER", "ROLE_ASSISTANT", "ROLE_SYSTEM", "ROLE_TOOL"]},
          "content": {"type": "string"},
          "agent": {"type": "string", "description": "Name of the agent that wrote it."},
          "status": {"type": "string", "description": "MESSAGE_STATUS_INCOMPLETE: the agent was cut off there."},
          "structured_data": {"type": "array", "items": {"type": "object"}},
          "tool_calls": {"type": "array", "items": {"type": "object"}},
          "tool_result": {"type": "object"},
          "attachments": {"type": "array", "items": {"type": "object"}},
          "create_time": {"type": "string", "format": "date-time"}
        }
      }
    },
    "next_page_token": {"type": "string", "description": "There are more messages: call again with it as page_token. Left out on the last page."},
    "last_sequence": {"type": "integer", "description": "Sequence of the newest message ever; 0 when there was none."},
    "oldest_sequence": {"type": "integer", "description": "Sequence of the oldest message that is kept: those before it were dropped or cleared. last_sequence + 1 when none is."},
    "active_turn_id": {"type": "string", "description": "Set while a question is being answered: there is more to come."}
  }
}`

func (s *Server) getHistory() tool {
	return tool{
		described: &sdk.Tool{
			Name:  "get_history",
			Title: "Read a conversation",
			Description: "Read the messages of a conversation, page by page, each message whole, with the data and tool calls in it. " +
				"Use it to see what was said before, or what became of an answer that was cut off. To go on with a conversation it need not be read: its agent knows it.",
			InputSchema:  json.RawMessage(historyInput),
			OutputSchema: json.RawMessage(historyOutput),
			Annotations:  &sdk.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: new(false)},
		},
		call: s.history,
	}
}

// historyPage is the result of get_history.
type historyPage struct {
	ConversationID string            `json:"conversation_id"`
	Messages       []json.RawMessage `json:"messages"`
	NextPageToken  string            `json:"next_page_token,omitempty"`
	LastSequence   int32             `json:"last_sequence"`
	OldestSequence int32             `json:"oldest_sequence"`
	ActiveTurnID   string            `json:"active_turn_id,omitempty"`
}

func (s *Server) history(ctx context.Context, r *request) (*sdk.CallToolResult, error) {
	list := &parleyv1.ListMessagesRequest{
		ConversationId: r.required("conversation_id"),
		PageSize:       r.number("page_size"),
		PageToken:      r.text("page_token"),
		Ascending:      !r.flag("newest_first"),
		AfterSequence:  r.number("after_sequence"),
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	for {
		page, err := s.historyPage(ctx, list)
		if err != nil {
			return nil, err
		}
		size := 0
		for _, message := range page.Messages {
			size += len(message)
		}
		if size <= maxPageBytes || len(page.Messages) <= 1 {
			return structured(page)
		}
		list.PageSize = int32(len(page.Messages) / 2)
	}
}

func (s *Server) historyPage(ctx context.Context, list *parleyv1.ListMessagesRequest) (*historyPage, error) {
	ctx, cancel := s.limited(ctx)
	defer cancel()
	reply, err := s.parley.ListMessages(ctx, list)
	if err != nil {
		return nil, err
	}
	page := &historyPage{
		ConversationID: reply.GetConversation().GetId(),
		Messages:       make([]json.RawMessage, len(reply.GetMessages())),
		NextPageToken:  reply.GetNextPageToken(),
		LastSequence:   reply.GetConversation().GetLastSequence(),
		OldestSequence: reply.GetOldestSequence(),
		ActiveTurnID:   reply.GetConversation().GetActiveTurnId(),
	}
	for i, message := range reply.GetMessages() {
		if page.Messages[i], err = asJSON(message); err != nil {
			return nil, err
		}
	}
	return page, nil
}
