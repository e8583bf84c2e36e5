// Package openaitest is a provider of the chat completions API for tests: a
// [providertest.Server], and replies in the very form of the protocol's stream. Begin with
// [New].
package openaitest

import (
	"testing"

	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

// New starts a provider whose URL ends in /v1, as OpenAI's own does. See
// [providertest.New].
func New(tb testing.TB, replies ...providertest.Reply) *providertest.Server {
	tb.Helper()
	return providertest.New(tb, "/v1", replies...)
}

// Events answers with one event of the stream for each of the data, which are not checked,
// and leaves it there: [DONE] is for the caller to say.
func Events(data ...string) providertest.Reply {
	parts := make([]string, 0, len(data))
	for _, d := range data {
		parts = append(parts, "data: "+d+"\n\n")
	}
	return providertest.Parts(parts...)
}

// Done is the data that ends a stream.
const Done = "[DONE]"

// Text answers with the words, one to a chunk, then finish_reason "stop", a usage of 9
// tokens and 1 for each word, and [DONE].
func Text(words ...string) providertest.Reply {
	return Events(append(Words(words...), Finish("stop"), Usage(9, len(words)), Done)...)
}

// Words are the data of the first chunk, which has only the role, and one for each word.
func Words(words ...string) []string {
	chunks := []string{Delta(map[string]any{"role": "assistant", "content": "", "refusal": nil})}
	for _, word := range words {
		chunks = append(chunks, Delta(map[string]any{"content": word}))
	}
	return chunks
}

// Call is a tool call that the model makes.
type Call = providertest.Call

// Calls answers with tool calls as OpenAI streams them: the id and the name first, then
// the arguments in parts of a few runes, call by call. The stream ends as that of Text.
func Calls(calls ...Call) providertest.Reply {
	chunks := []string{Delta(map[string]any{"role": "assistant", "content": nil})}
	for i, call := range calls {
		chunks = append(chunks, ToolDelta(map[string]any{
			"index": i, "id": call.ID, "type": "function", "function": map[string]any{"name": call.Name, "arguments": ""},
		}))
		for _, part := range call.ArgumentParts() {
			chunks = append(chunks, ToolDelta(map[string]any{"index": i, "function": map[string]any{"arguments": part}}))
		}
	}
	return Events(append(chunks, Finish("tool_calls"), Usage(9, len(chunks)), Done)...)
}

// Delta is the data of a chunk with this delta.
func Delta(delta map[string]any) string { return chunk(delta, nil) }

// ToolDelta is the data of a chunk with these parts of tool calls.
func ToolDelta(calls ...map[string]any) string {
	return Delta(map[string]any{"tool_calls": calls})
}

// Finish is the data of the chunk that says why the model stopped.
func Finish(reason string) string { return chunk(map[string]any{}, reason) }

// Usage is the data of the last chunk, which has no choices.
func Usage(input, output int) string {
	return providertest.JSON(envelope([]any{}, map[string]any{
		"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output,
		"prompt_tokens_details":     map[string]any{"cached_tokens": 0, "audio_tokens": 0},
		"completion_tokens_details": map[string]any{"reasoning_tokens": 0, "audio_tokens": 0},
	}))
}

func chunk(delta map[string]any, finish any) string {
	choice := map[string]any{"index": 0, "delta": delta, "logprobs": nil, "finish_reason": finish}
	return providertest.JSON(envelope([]any{choice}, nil))
}

func envelope(choices []any, usage any) map[string]any {
	return map[string]any{
		"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1760000000,
		"model": "test-model-2026", "system_fingerprint": "fp_1", "choices": choices, "usage": usage,
	}
}
