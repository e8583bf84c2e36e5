// Package openaitest is a fake provider of the chat completions API for tests: a
// [providertest.Server] and replies in the form of the API's event stream. Start at [New].
package openaitest

import (
	"testing"

	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

// New starts a provider whose URL ends in /v1, like OpenAI's. See [providertest.New].
func New(tb testing.TB, replies ...providertest.Reply) *providertest.Server {
	tb.Helper()
	return providertest.New(tb, "/v1", replies...)
}

// Events answers with one event for each of the data, which are not checked. The caller must add
// [Done] if the stream is to be complete.
func Events(data ...string) providertest.Reply {
	parts := make([]string, 0, len(data))
	for _, d := range data {
		parts = append(parts, "data: "+d+"\n\n")
	}
	return providertest.Parts(parts...)
}

// Done is the data that ends a stream.
const Done = "[DONE]"

// Text answers with the words, one in each chunk, then finish_reason "stop", a usage of 9 input
// tokens and 1 output token for each word, and [Done].
func Text(words ...string) providertest.Reply {
	return Events(append(Words(words...), Finish("stop"), Usage(9, len(words)), Done)...)
}

// Words returns the data of the first chunk, which contains only the role, and of one chunk for
// each word.
func Words(words ...string) []string {
	chunks := []string{Delta(map[string]any{"role": "assistant", "content": "", "refusal": nil})}
	for _, word := range words {
		chunks = append(chunks, Delta(map[string]any{"content": word}))
	}
	return chunks
}

// Reasoning returns the data of one chunk for each part of the reasoning, as vLLM and llama.cpp send it.
func Reasoning(parts ...string) []string {
	var chunks []string
	for _, part := range parts {
		chunks = append(chunks, Delta(map[string]any{"reasoning_content": part}))
	}
	return chunks
}

// Call is a tool call of the model.
type Call = providertest.Call

// Calls answers with tool calls in the form of OpenAI: for each call the id and the name, then the
// arguments in parts of a few characters. The stream ends like that of Text.
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

// Delta returns the data of a chunk with this delta.
func Delta(delta map[string]any) string { return chunk(delta, nil) }

// ToolDelta returns the data of a chunk with these parts of tool calls.
func ToolDelta(calls ...map[string]any) string {
	return Delta(map[string]any{"tool_calls": calls})
}

// Finish returns the data of the chunk with the finish reason.
func Finish(reason string) string { return chunk(map[string]any{}, reason) }

// Usage returns the data of the last chunk, which has no choices.
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
