package mcp

import (
	"context"
	"encoding/json"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxPageBytes limits the messages of a page, unless a single message is larger. Clients limit the size of a reply,
// often to 16 MiB, and a reply contains its page twice: as data and as text.
const maxPageBytes = 1 << 20

const historyInput = `{
  "type": "object",
  "additionalProperties": false,
  "required": ["conversation_id"],
  "properties": {
    "conversation_id": {
      "type": "string",
      "minLength": 1,
      "maxLength": 256,
      "description": "The conversation to read."
    },
    "page_size": {
      "type": "integer",
      "minimum": 0,
      "maximum": 1000,
      "description": "Maximum number of messages (default 20). A page may have fewer and still have a next_page_token."
    },
    "page_token": {
      "type": "string",
      "description": "next_page_token of the previous page; all other arguments except page_size must be the same."
    },
    "newest_first": {
      "type": "boolean",
      "description": "Newest messages first instead of oldest first. Use it to see how a long conversation ended."
    },
    "after_sequence": {
      "type": "integer",
      "minimum": 0,
      "description": "Only messages after this sequence, to read what is new."
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
      "description": "Messages in the requested order, complete except native and reasoning.",
      "items": {
        "type": "object",
        "required": ["sequence", "role"],
        "properties": {
          "sequence": {"type": "integer", "description": "Position in the conversation, from 1."},
          "role": {"type": "string", "enum": ["ROLE_USER", "ROLE_ASSISTANT", "ROLE_SYSTEM", "ROLE_TOOL"]},
          "content": {"type": "string"},
          "agent": {"type": "string", "description": "Name of the agent that wrote the message."},
          "status": {"type": "string", "description": "MESSAGE_STATUS_INCOMPLETE: the agent was interrupted."},
          "structured_data": {"type": "array", "items": {"type": "object"}},
          "tool_calls": {"type": "array", "items": {"type": "object"}},
          "tool_result": {"type": "object"},
          "attachments": {"type": "array", "items": {"type": "object"}},
          "create_time": {"type": "string", "format": "date-time"}
        }
      }
    },
    "next_page_token": {"type": "string", "description": "There are more messages: call again with this page_token. Left out on the last page."},
    "last_sequence": {"type": "integer", "description": "Highest sequence so far, also of removed messages; 0 if there was none."},
    "oldest_sequence": {"type": "integer", "description": "Sequence of the oldest stored message; earlier ones were dropped or cleared. last_sequence + 1 if there are none."},
    "active_turn_id": {"type": "string", "description": "Set while a question is being answered: more messages will follow."}
  }
}`

// getHistory returns the tool get_history.
func (s *Server) getHistory() tool {
	return tool{
		description: &sdk.Tool{
			Name:  "get_history",
			Title: "Read a conversation",
			Description: "Read the messages of a conversation in pages, with their data and tool calls. " +
				"Use it to read earlier messages, or the partial answer of an interrupted turn. To continue a conversation, you " +
				"need not read it: its agent knows it.",
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

// historyPage reads one page.
func (s *Server) historyPage(ctx context.Context, list *parleyv1.ListMessagesRequest) (*historyPage, error) {
	ctx, cancel := s.withTimeout(ctx)
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
		message.Native, message.Reasoning = nil, "" // They are for the agent that wrote them and for people.
		if page.Messages[i], err = asJSON(message); err != nil {
			return nil, err
		}
	}
	return page, nil
}
