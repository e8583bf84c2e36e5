package mcp

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const askInput = `{
  "type": "object",
  "additionalProperties": false,
  "required": ["question"],
  "properties": {
    "question": {
      "type": "string",
      "minLength": 1,
      "description": "The message to the agent. The agent knows the conversation so far: do not repeat it."
    },
    "conversation_id": {
      "type": "string",
      "minLength": 1,
      "maxLength": 256,
      "description": "The conversation to continue: the conversation_id of an earlier answer, or one from list_conversations. Leave it out to begin a new conversation. An id that does not exist or has expired begins an empty conversation with that id."
    },
    "agent": {
      "type": "string",
      "maxLength": 128,
      "description": "Name of the agent that answers. Leave it out unless the user asks for a certain agent: the agent of the conversation or the default agent then answers. The error for an unknown name lists the known ones."
    }
  }
}`

const askOutput = `{
  "type": "object",
  "required": ["answer", "conversation_id", "state", "created"],
  "properties": {
    "answer": {"type": "string", "description": "The answer of the agent, often Markdown; may be empty."},
    "conversation_id": {"type": "string", "description": "Pass it with the next question to continue this conversation."},
    "state": {
      "type": "string",
      "enum": ["COMPLETED", "INPUT_REQUIRED"],
      "description": "COMPLETED: the answer is complete. INPUT_REQUIRED: the agent waits for the results of open_tool_calls, which only a program can send."
    },
    "created": {"type": "boolean", "description": "The conversation did not exist before: the agent knew only this question."},
    "agent": {"type": "string", "description": "Name of the agent that answered."},
    "turn_id": {"type": "string"},
    "structured_data": {
      "type": "array",
      "description": "Typed data that the agent sent with its text.",
      "items": {
        "type": "object",
        "required": ["type", "value"],
        "properties": {"type": {"type": "string"}, "value": {}}
      }
    },
    "open_tool_calls": {
      "type": "array",
      "description": "Calls whose results the agent waits for.",
      "items": {
        "type": "object",
        "required": ["id", "name"],
        "properties": {
          "id": {"type": "string"},
          "name": {"type": "string"},
          "arguments": {"type": "string", "description": "JSON as the model wrote it."}
        }
      }
    }
  }
}`

// askQuestion returns the tool ask_question.
func (s *Server) askQuestion() tool {
	return tool{
		description: &sdk.Tool{
			Name:  "ask_question",
			Title: "Ask an agent",
			Description: "Ask an agent a question and wait for its answer, which may take minutes. The answer comes with a " +
				"conversation_id: pass it with the next question, and the agent knows the earlier messages. While another " +
				"question of the same conversation is being answered, this one waits. Cancelling the call stops the agent; its " +
				"partial answer remains in the history.",
			InputSchema:  json.RawMessage(askInput),
			OutputSchema: json.RawMessage(askOutput),
			// The actions of an agent are unknown, but it deletes nothing from the history.
			Annotations: &sdk.ToolAnnotations{DestructiveHint: new(false), OpenWorldHint: new(true)},
		},
		call: s.ask,
	}
}

func (s *Server) ask(ctx context.Context, r *request) (*sdk.CallToolResult, error) {
	question := &parleyv1.ChatRequest{
		Content:        r.required("question"),
		ConversationId: r.text("conversation_id"),
		Agent:          r.text("agent"),
		OnBusy:         parleyv1.OnBusy_ON_BUSY_QUEUE, // Models send several questions at once.
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	t, err := s.follow(ctx, question, r.progress)
	if err != nil {
		return nil, err
	}
	if err := t.failure(); err != nil {
		return nil, err
	}
	a, err := newAnswer(t)
	if err != nil {
		return nil, err
	}
	rest, err := json.Marshal(a.about)
	if err != nil {
		return nil, err
	}
	// The text content is the answer itself, then the other fields as JSON.
	return &sdk.CallToolResult{
		Content:           []sdk.Content{&sdk.TextContent{Text: a.text()}, &sdk.TextContent{Text: string(rest)}},
		StructuredContent: a,
	}, nil
}

// answer is the result of ask_question.
type answer struct {
	Answer string `json:"answer"`
	about
}

// about contains the fields of an answer except its text.
type about struct {
	ConversationID string            `json:"conversation_id"`
	State          string            `json:"state"`
	Created        bool              `json:"created"`
	Agent          string            `json:"agent,omitempty"`
	TurnID         string            `json:"turn_id,omitempty"`
	StructuredData []json.RawMessage `json:"structured_data,omitempty"`
	OpenToolCalls  []json.RawMessage `json:"open_tool_calls,omitempty"`
}

// newAnswer returns the answer of an ended turn.
func newAnswer(t *turn) (*answer, error) {
	end := t.finished.GetTurn()
	a := &answer{about: about{
		ConversationID: t.conversation, Created: t.created,
		State: stateName(end.GetState()), Agent: end.GetAgent(), TurnID: end.GetId(),
	}}
	var texts []string
	var open []*parleyv1.ToolCall
	for _, m := range t.finished.GetMessages() {
		if m.GetRole() == parleyv1.Role_ROLE_ASSISTANT {
			a.Agent = m.GetAgent() // After a handover this is the last agent.
			if m.GetContent() != "" {
				texts = append(texts, m.GetContent())
			}
		}
		for _, d := range m.GetStructuredData() {
			data, err := asJSON(d)
			if err != nil {
				return nil, err
			}
			a.StructuredData = append(a.StructuredData, data)
		}
		open = append(unanswered(open, m.GetToolResult()), m.GetToolCalls()...)
	}
	a.Answer = strings.Join(texts, "\n\n")
	for _, call := range open {
		c, err := asJSON(call)
		if err != nil {
			return nil, err
		}
		a.OpenToolCalls = append(a.OpenToolCalls, c)
	}
	return a, nil
}

// unanswered returns open without the call that result answers, if there is one.
func unanswered(open []*parleyv1.ToolCall, result *parleyv1.ToolResult) []*parleyv1.ToolCall {
	answered := slices.IndexFunc(open, func(call *parleyv1.ToolCall) bool { return call.GetId() == result.GetCallId() })
	if result == nil || answered < 0 {
		return open
	}
	return slices.Delete(open, answered, answered+1)
}

// text returns the text of an answer, or a note if it is empty.
func (a *answer) text() string {
	switch {
	case a.Answer != "":
		return a.Answer
	case len(a.OpenToolCalls) > 0:
		return "(The agent waits for the results of tool calls, which only a program can send.)"
	default:
		return "(The agent completed the turn without text.)"
	}
}
