package anthropic

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	sdk "github.com/anthropics/anthropic-sdk-go"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// maxWord is the limit of the messages API for ids, the name of the model and the finish reason.
const maxWord = 128

// answer is an answer that is being received.
type answer struct {
	model      string
	usage      parleyv1.Usage
	stopReason string
	calls      map[int64]*toolUse // Calls that are not passed on yet, by the index of their block.
	bounds     agent.CallLimits
	complete   bool      // The last event was received.
	lastPiece  time.Time // Time of the last piece.
	hasContent bool      // A call, or text other than white space, was received.
}

// toolUse is a call that is being received.
type toolUse struct {
	id, name string
	initial  string // Input at the start of the block; always {} from the API itself.
	input    strings.Builder
}

// add processes the next event and returns its pieces. While the model thinks or writes a call, add
// returns a Progress piece at intervals.
func (a *answer) add(event sdk.MessageStreamEventUnion) ([]*parleyv1.RespondResponse, error) {
	pieces, err := a.process(event)
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
func (a *answer) process(event sdk.MessageStreamEventUnion) ([]*parleyv1.RespondResponse, error) {
	switch event.Type {
	case "message_start":
		a.model = agent.Truncate(event.Message.Model, maxWord)
		u := event.Message.Usage
		a.count(u.InputTokens, u.CacheCreationInputTokens, u.CacheReadInputTokens, u.OutputTokens, u.OutputTokensDetails.ThinkingTokens)
	case "content_block_start":
		return a.startBlock(event.Index, event.ContentBlock)
	case "content_block_delta":
		switch event.Delta.Type {
		case "text_delta":
			return textPieces(event.Delta.Text), nil
		case "input_json_delta":
			return nil, a.addInput(event.Index, event.Delta.PartialJSON)
		}
	case "content_block_stop":
		if call := a.calls[event.Index]; call != nil && json.Valid([]byte(call.arguments())) {
			delete(a.calls, event.Index)
			return []*parleyv1.RespondResponse{call.piece()}, nil
		}
	case "message_delta":
		if event.Delta.StopReason != "" {
			a.stopReason = agent.Truncate(string(event.Delta.StopReason), maxWord)
		}
		u := event.Usage
		a.count(u.InputTokens, u.CacheCreationInputTokens, u.CacheReadInputTokens, u.OutputTokens, u.OutputTokensDetails.ThinkingTokens)
	case "message_stop":
		a.complete = true
		return a.end(), nil
	}
	return nil, nil
}

// startBlock processes the start of a block.
func (a *answer) startBlock(index int64, block sdk.ContentBlockStartEventContentBlockUnion) ([]*parleyv1.RespondResponse, error) {
	switch block.Type {
	case "text":
		return textPieces(block.Text), nil
	case "tool_use":
		call := &toolUse{id: valid(block.ID), name: valid(block.Name), initial: block.JSON.Input.Raw()}
		if err := agent.CheckCallName(call.name); err != nil {
			return nil, err
		}
		if call.id == "" || len(call.id) > maxWord {
			return nil, &agent.Error{Message: fmt.Sprintf("the model made a tool call with an id of %d bytes, want 1 to %d", len(call.id), maxWord)}
		}
		if a.calls == nil {
			a.calls = make(map[int64]*toolUse)
		}
		a.calls[index] = call
		return nil, a.bounds.Add(1, len(call.id)+len(call.name)+len(call.initial))
	}
	return nil, nil
}

func (a *answer) addInput(index int64, input string) error {
	call := a.calls[index]
	if call == nil {
		return nil // The input of a tool that the provider runs itself.
	}
	call.input.WriteString(input)
	return a.bounds.Add(0, len(input))
}

// count updates the usage. The provider's counts include all earlier ones and only increase. A
// later event may omit counts of an earlier event.
func (a *answer) count(input, cacheWrite, cacheRead, output, thinking int64) {
	a.usage.InputTokens = max(a.usage.InputTokens, tokens(input, cacheWrite, cacheRead))
	a.usage.CachedInputTokens = max(a.usage.CachedInputTokens, tokens(cacheRead))
	a.usage.OutputTokens = max(a.usage.OutputTokens, tokens(output))
	a.usage.ReasoningTokens = max(a.usage.ReasoningTokens, tokens(thinking))
}

// end returns the last pieces: calls that are complete although their input is not JSON, the usage
// and the finish reason.
func (a *answer) end() []*parleyv1.RespondResponse {
	var pieces []*parleyv1.RespondResponse
	for _, index := range slices.Sorted(maps.Keys(a.calls)) {
		if piece := a.calls[index].piece(); agent.IsComplete(piece.GetToolCall(), a.stopReason) {
			pieces = append(pieces, piece)
		}
	}
	pieces = append(pieces, &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Usage{Usage: &parleyv1.Usage{
		Model:             a.model,
		InputTokens:       a.usage.InputTokens,
		OutputTokens:      a.usage.OutputTokens,
		CachedInputTokens: a.usage.CachedInputTokens,
		ReasoningTokens:   a.usage.ReasoningTokens,
	}}})
	if a.stopReason != "" {
		pieces = append(pieces, &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_FinishReason{FinishReason: a.stopReason}})
	}
	return pieces
}

// arguments returns the input as the model wrote it.
func (t *toolUse) arguments() string {
	switch {
	case t.input.Len() > 0:
		return valid(t.input.String())
	case t.initial != "":
		return valid(t.initial)
	}
	return "{}"
}

func (t *toolUse) piece() *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCall{
		ToolCall: &parleyv1.ToolCall{Id: t.id, Name: t.name, Arguments: t.arguments()},
	}}
}

func textPieces(text string) []*parleyv1.RespondResponse {
	if text == "" {
		return nil
	}
	return []*parleyv1.RespondResponse{{Piece: &parleyv1.RespondResponse_Text{Text: valid(text)}}}
}

// valid replaces invalid UTF-8 by U+FFFD.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// tokens returns the sum of the counts, limited to the range of the messages API.
func tokens(counts ...int64) int32 {
	var sum int64
	for _, count := range counts {
		sum = min(sum+min(max(count, 0), math.MaxInt32), math.MaxInt32)
	}
	return int32(sum)
}
