package anthropic

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// maxWord is the limit of the API for the name of the model and the finish reason.
const maxWord = 128

// event contains the fields of all types of events that are used.
type event struct {
	Type    string      `json:"type"`
	Index   agent.Index `json:"index"`
	Message struct {
		Model string `json:"model"`
		Usage usage  `json:"usage"`
	} `json:"message"` // message_start
	ContentBlock struct {
		Type  string          `json:"type"`
		Text  string          `json:"text"`
		ID    agent.ID        `json:"id"`
		Name  string          `json:"name"`
		Input json.RawMessage `json:"input"`

		Thinking json.RawMessage `json:"thinking"`
	} `json:"content_block"` // content_block_start
	Delta struct {
		Type        string          `json:"type"`
		Text        string          `json:"text"`
		PartialJSON json.RawMessage `json:"partial_json"` // Kept escaped, as toolUse explains.
		Thinking    json.RawMessage `json:"thinking"`     // Kept escaped, too.
		Signature   json.RawMessage `json:"signature"`
		Citation    json.RawMessage `json:"citation"`
		StopReason  string          `json:"stop_reason"`
	} `json:"delta"` // content_block_delta, message_delta
	Usage usage `json:"usage"` // message_delta
}

type usage struct {
	Input      agent.TokenCount `json:"input_tokens"`
	CacheWrite agent.TokenCount `json:"cache_creation_input_tokens"`
	CacheRead  agent.TokenCount `json:"cache_read_input_tokens"`
	Output     agent.TokenCount `json:"output_tokens"`
	Details    struct {
		Thinking agent.TokenCount `json:"thinking_tokens"`
	} `json:"output_tokens_details"`
}

// answer is an answer that is being received.
type answer struct {
	model      string
	usage      parleyv1.Usage
	stopReason string
	thinking   agent.Joiner
	calls      map[agent.Index]*toolUse // Calls that are not passed on yet, by the index of their block.
	bounds     agent.CallLimits
	content    content
	complete   bool      // The last event was received.
	lastPiece  time.Time // Time of the last piece.
	hasContent bool      // A call, or text other than white space, was received.
}

// toolUse is a call that is being received. Some gateways split the input within a character, so it
// is decoded when all of it is there.
type toolUse struct {
	id, name string
	initial  string          // Input at the start of the block; always {} from the API itself.
	input    strings.Builder // The inside of a JSON string.
	text     agent.Joiner    // Of the parts of the input.
}

// add processes the next event and returns its pieces. While events bring no pieces, as when the model
// does not report its thinking, add returns a Progress piece at intervals.
func (a *answer) add(e *event) ([]*parleyv1.RespondResponse, error) {
	pieces, err := a.process(e)
	if err == nil && len(pieces) == 0 && time.Since(a.lastPiece) >= agent.ProgressInterval {
		pieces = []*parleyv1.RespondResponse{agent.WorkingProgress()}
	}
	if len(pieces) > 0 {
		a.lastPiece = time.Now()
	}
	for _, piece := range pieces {
		a.hasContent = a.hasContent || piece.GetToolCall() != nil || strings.TrimSpace(piece.GetText()) != ""
	}
	if err == nil && a.complete && !a.hasContent {
		err = agent.CheckEmpty(a.stopReason)
	}
	return pieces, err
}

// process processes an event and returns its pieces. Unknown types of events, blocks and deltas are
// ignored, as the API requires: new types may be added.
func (a *answer) process(e *event) ([]*parleyv1.RespondResponse, error) {
	switch e.Type {
	case "message_start":
		a.model = agent.Truncate(e.Message.Model, maxWord)
		a.count(&e.Message.Usage)
	case "content_block_start":
		return a.startBlock(e)
	case "content_block_delta":
		switch e.Delta.Type {
		case "text_delta":
			return textPieces(e.Delta.Text), nil
		case "thinking_delta":
			return a.reasoningPieces(e.Delta.Thinking), nil
		case "input_json_delta":
			return a.addInput(e.Index, e.Delta.PartialJSON)
		}
	case "content_block_stop":
		if call := a.calls[e.Index]; call != nil && json.Valid([]byte(call.arguments())) {
			delete(a.calls, e.Index)
			return []*parleyv1.RespondResponse{call.piece()}, nil
		}
	case "message_delta":
		if e.Delta.StopReason != "" {
			a.stopReason = agent.Truncate(e.Delta.StopReason, maxWord)
		}
		a.count(&e.Usage)
	case "message_stop":
		a.complete = true
		return a.end(), nil
	}
	return nil, nil
}

// startBlock processes the start of a block.
func (a *answer) startBlock(e *event) ([]*parleyv1.RespondResponse, error) {
	switch block := &e.ContentBlock; block.Type {
	case "text":
		return textPieces(block.Text), nil
	case "thinking":
		return a.reasoningPieces(block.Thinking), nil
	case "tool_use":
		call := &toolUse{id: string(block.ID), name: block.Name, initial: strings.ToValidUTF8(string(block.Input), "\uFFFD")}
		if err := agent.CheckCallName(call.name); err != nil {
			return nil, err
		}
		if call.id == "" || len(call.id) > agent.MaxCallIDBytes {
			return nil, &agent.Error{
				Message: fmt.Sprintf("the model made a tool call with an id of %d bytes, want 1 to %d",
					len(call.id), agent.MaxCallIDBytes),
			}
		}
		if a.calls == nil {
			a.calls = make(map[agent.Index]*toolUse)
		}
		a.calls[e.Index] = call
		begin := []*parleyv1.RespondResponse{agent.CallDelta(call.id, call.name, "")}
		return begin, a.bounds.Add(1, len(call.id)+len(call.name)+len(call.initial))
	}
	return nil, nil
}

// addInput adds a part of the input of a call and returns the piece that passes it on. value is a JSON value.
func (a *answer) addInput(index agent.Index, value json.RawMessage) ([]*parleyv1.RespondResponse, error) {
	call := a.calls[index]
	if call == nil {
		return nil, nil // The input of a tool that the provider runs itself.
	}
	if len(value) == 0 || value[0] != '"' {
		return nil, nil
	}
	part := string(value[1 : len(value)-1])
	call.input.WriteString(part)
	if err := a.bounds.Add(0, len(agent.Unescape(part))); err != nil {
		return nil, err
	}
	text := call.text.Add(part)
	if text == "" {
		return nil, nil
	}
	return []*parleyv1.RespondResponse{agent.CallDelta(call.id, call.name, text)}, nil
}

// count updates the usage. The provider's counts include all earlier ones and only increase. A
// later event may omit counts of an earlier event.
func (a *answer) count(u *usage) {
	a.usage.InputTokens = max(a.usage.InputTokens, agent.SumTokens(u.Input, u.CacheWrite, u.CacheRead))
	a.usage.CachedInputTokens = max(a.usage.CachedInputTokens, agent.SumTokens(u.CacheRead))
	a.usage.OutputTokens = max(a.usage.OutputTokens, agent.SumTokens(u.Output))
	a.usage.ReasoningTokens = max(a.usage.ReasoningTokens, agent.SumTokens(u.Details.Thinking))
}

// end returns the last pieces: calls that are complete although their input is not JSON, the native
// form, the usage and the finish reason.
func (a *answer) end() []*parleyv1.RespondResponse {
	var pieces []*parleyv1.RespondResponse
	for _, index := range slices.Sorted(maps.Keys(a.calls)) {
		if piece := a.calls[index].piece(); agent.IsComplete(piece.GetToolCall(), a.stopReason) {
			pieces = append(pieces, piece)
		}
	}
	pieces = append(pieces, a.content.pieces()...)
	pieces = append(pieces, &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Usage{Usage: &parleyv1.Usage{
		Model:             a.model,
		InputTokens:       a.usage.InputTokens,
		OutputTokens:      a.usage.OutputTokens,
		CachedInputTokens: a.usage.CachedInputTokens,
		ReasoningTokens:   a.usage.ReasoningTokens,
	}}})
	if a.stopReason != "" {
		pieces = append(pieces, &parleyv1.RespondResponse{
			Piece: &parleyv1.RespondResponse_FinishReason{FinishReason: a.stopReason},
		})
	}
	return pieces
}

// arguments returns the input as the model wrote it.
func (t *toolUse) arguments() string {
	switch {
	case t.input.Len() > 0:
		return agent.Unescape(t.input.String())
	case t.initial != "":
		return t.initial
	}
	return "{}"
}

func (t *toolUse) piece() *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCall{
		ToolCall: &parleyv1.ToolCall{Id: t.id, Name: t.name, Arguments: t.arguments()},
	}}
}

// reasoningPieces returns the pieces of the next part of the thinking. value is a JSON value.
func (a *answer) reasoningPieces(value json.RawMessage) []*parleyv1.RespondResponse {
	if len(value) < 2 || value[0] != '"' {
		return nil
	}
	text := a.thinking.Add(string(value[1 : len(value)-1]))
	if text == "" {
		return nil
	}
	return []*parleyv1.RespondResponse{agent.ReasoningPiece(text)}
}

func textPieces(text string) []*parleyv1.RespondResponse {
	if text == "" {
		return nil
	}
	return []*parleyv1.RespondResponse{{Piece: &parleyv1.RespondResponse_Text{Text: text}}}
}
