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
      "description": "Text to find, in upper or lower case, as one piece: a word or a phrase as it was said."
    },
    "days": {
      "type": "integer",
      "minimum": 0,
      "description": "How many days to search, the last of them today, in UTC; 7 when left out."
    },
    "conversation_id": {
      "type": "string",
      "pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$",
      "description": "Search this conversation only."
    },
    "page_size": {
      "type": "integer",
      "minimum": 0,
      "maximum": 1000,
      "description": "Messages to return at most; 50 when left out. A page may hold fewer and still have a next_page_token."
    },
    "page_token": {
      "type": "string",
      "description": "next_page_token of the page before; the other arguments but page_size must be the same as then."
    }
  }
}`

const searchOutput = `{
  "type": "object",
  "required": ["interactions", "skipped_count"],
  "properties": {
    "interactions": {
      "type": "array",
      "description": "Whole messages, newest first.",
      "items": {
        "type": "object",
        "required": ["timestamp", "conversation_id", "role"],
        "properties": {
          "timestamp": {"type": "string", "format": "date-time"},
          "conversation_id": {"type": "string", "description": "It may have ended, and get_history not know it any more."},
          "agent": {"type": "string", "description": "Whose words these are: \"User\" or the user's name, or the name of the agent or tool."},
          "role": {"type": "string", "enum": ["ROLE_USER", "ROLE_ASSISTANT", "ROLE_SYSTEM", "ROLE_TOOL"]},
          "content": {"type": "string"},
          "metadata": {"type": "object", "description": "turn_number is the message's place in its conversation, from 1."}
        }
      }
    },
    "next_page_token": {"type": "string", "description": "There are more: call again with it as page_token. Left out on the last page."},
    "skipped_count": {"type": "integer", "description": "Lines of the log that could not be read."}
  }
}`

func (s *Server) searchInteractions() tool {
	return tool{
		described: &sdk.Tool{
			Name:  "search_interactions",
			Title: "Search what was said",
			Description: "Find a text in the log of all that was said in the last days, newest first, each message whole, also of conversations that have ended. " +
				"Use it when the user asks where or when something was said. To read one conversation that is kept, use get_history.",
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
		search.PageSize = int32(fit) // To search again is dear: for as many as it can be.
	}
}

// fitting is how many, from the first on, make a page; one always does.
func fitting(interactions []json.RawMessage) int {
	size := 0
	for i, interaction := range interactions {
		if size += len(interaction); i > 0 && size > maxPageBytes {
			return i
		}
	}
	return len(interactions)
}

func (s *Server) searchPage(ctx context.Context, search *parleyv1.SearchInteractionsRequest) (*searchPage, error) {
	ctx, cancel := s.limited(ctx)
	defer cancel()
	reply, err := s.parley.SearchInteractions(ctx, search)
	if err != nil {
		return nil, err
	}
	page := &searchPage{
		Interactions:  make([]json.RawMessage, len(reply.GetInteractions())),
		NextPageToken: reply.GetNextPageToken(),
		SkippedCount:  reply.GetSkippedCount(),
	}
	for i, interaction := range reply.GetInteractions() {
		if page.Interactions[i], err = asJSON(interaction); err != nil {
			return nil, err
		}
	}
	return page, nil
}
