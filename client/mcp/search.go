package mcp

import (
	"context"
	"encoding/json"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const searchInput = `{
  "type": "object",
  "additionalProperties": false,
  "required": ["query"],
  "properties": {
    "query": {
      "type": "string",
      "minLength": 1,
      "maxLength": 1024,
      "description": "Text to find, a word or an exact phrase. The search ignores case."
    },
    "days": {
      "type": "integer",
      "minimum": 0,
      "description": "Number of days to search, including today, in UTC (default 7)."
    },
    "conversation_id": {
      "type": "string",
      "minLength": 1,
      "maxLength": 256,
      "description": "Search only this conversation."
    },
    "page_size": {
      "type": "integer",
      "minimum": 0,
      "maximum": 1000,
      "description": "Maximum number of messages (default 50). A page may have fewer and still have a next_page_token."
    },
    "page_token": {
      "type": "string",
      "description": "next_page_token of the previous page; all other arguments except page_size must be the same."
    }
  }
}`

const searchOutput = `{
  "type": "object",
  "required": ["interactions", "skipped_count"],
  "properties": {
    "interactions": {
      "type": "array",
      "description": "Complete messages, newest first.",
      "items": {
        "type": "object",
        "required": ["timestamp", "conversation_id", "role"],
        "properties": {
          "timestamp": {"type": "string", "format": "date-time"},
          "conversation_id": {"type": "string", "description": "The conversation may be expired or deleted; get_history then does not find it."},
          "agent": {"type": "string", "description": "The author: \"User\" or the user's name, or the name of the agent or tool."},
          "role": {"type": "string", "enum": ["ROLE_USER", "ROLE_ASSISTANT", "ROLE_SYSTEM", "ROLE_TOOL"]},
          "content": {"type": "string"},
          "metadata": {"type": "object", "description": "turn_number is the position of the message in its conversation, from 1."}
        }
      }
    },
    "next_page_token": {"type": "string", "description": "There are more: call again with this page_token. Left out on the last page."},
    "skipped_count": {"type": "integer", "description": "Number of log entries that could not be read."},
    "unreachable": {"type": "array", "items": {"type": "string"}, "description": "Servers that did not answer: their messages are missing. Left out if there are none."}
  }
}`

// searchInteractions returns the tool search_interactions.
func (s *Server) searchInteractions() tool {
	return tool{
		description: &sdk.Tool{
			Name:  "search_interactions",
			Title: "Search messages",
			Description: "Find messages of the last days that contain a text in the interaction log, newest first, also of " +
				"expired and deleted conversations. Use it when the user asks where or when something was said. To read one " +
				"stored conversation, use get_history.",
			InputSchema:  json.RawMessage(searchInput),
			OutputSchema: json.RawMessage(searchOutput),
			Annotations:  &sdk.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: new(false)},
		},
		call: s.search,
	}
}

// searchPage is the result of search_interactions.
type searchPage struct {
	Interactions  []json.RawMessage `json:"interactions"`
	NextPageToken string            `json:"next_page_token,omitempty"`
	SkippedCount  int32             `json:"skipped_count"`
	Unreachable   []string          `json:"unreachable,omitempty"`
}

func (s *Server) search(ctx context.Context, r *request) (*sdk.CallToolResult, error) {
	search := &parleyv1.SearchInteractionsRequest{
		Query:          r.required("query"),
		Days:           r.number("days"),
		ConversationId: r.text("conversation_id"),
		PageSize:       r.number("page_size"),
		PageToken:      r.text("page_token"),
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	for {
		page, err := s.searchPage(ctx, search)
		if err != nil {
			return nil, err
		}
		fit := fitting(page.Interactions)
		if fit == len(page.Interactions) {
			return structured(page)
		}
		search.PageSize = int32(fit) // Another search is expensive, so this one requests a full page.
	}
}

// fitting returns how many of the first interactions fit into a page, at least one.
func fitting(interactions []json.RawMessage) int {
	size := 0
	for i, interaction := range interactions {
		if size += len(interaction); i > 0 && size > maxPageBytes {
			return i
		}
	}
	return len(interactions)
}

// searchPage reads one page.
func (s *Server) searchPage(ctx context.Context, search *parleyv1.SearchInteractionsRequest) (*searchPage, error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	reply, err := s.parley.SearchInteractions(ctx, search)
	if err != nil {
		return nil, err
	}
	page := &searchPage{
		Interactions:  make([]json.RawMessage, len(reply.GetInteractions())),
		NextPageToken: reply.GetNextPageToken(),
		SkippedCount:  reply.GetSkippedCount(),
		Unreachable:   reply.GetUnreachable(),
	}
	for i, interaction := range reply.GetInteractions() {
		if page.Interactions[i], err = asJSON(interaction); err != nil {
			return nil, err
		}
	}
	return page, nil
}
