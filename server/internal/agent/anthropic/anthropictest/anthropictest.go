// Package anthropictest is a fake provider of Anthropic's Messages API for tests: a
// [providertest.Server] and replies in the form of the API's event stream. An example:
//
//	fake := anthropictest.New(t, anthropictest.Text("Hel", "lo."))
//	… an agent with the base URL fake.URL answers "Hello." …
//	request := fake.Requests()[0].JSON()
//
// Start at [New].
package anthropictest

import (
	"cmp"
	"testing"

	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

// New starts a provider whose URL has no path, like Anthropic's. See [providertest.New].
func New(tb testing.TB, replies ...providertest.Reply) *providertest.Server {
	tb.Helper()
	return providertest.New(tb, "", replies...)
}

// Text answers with the words, one in each event.
func Text(words ...string) providertest.Reply { return Answer(Message{Words: words}) }

// Calls answers with tool calls and without text.
func Calls(calls ...Call) providertest.Reply { return Answer(Message{Calls: calls}) }

// Answer answers with the message.
func Answer(message Message) providertest.Reply { return providertest.Parts(message.Events()...) }

// Failure returns the body of an error response of the API. kind is for example "overloaded_error".
func Failure(kind, message string) string { return providertest.JSON(failure(kind, message)) }

// Message is an answer of the model. The zero value is an empty answer.
type Message struct {
	// Model is the name of the model. If empty, it is "claude-test".
	Model string
	// Thinking is the thinking, one part in each event. It precedes the text.
	Thinking []string
	// Words are the text, one in each event. They precede the calls.
	Words []string
	// Calls are the tool calls.
	Calls []Call
	// StopReason is the reason for the end. If empty, it is "tool_use" with calls and "end_turn"
	// without.
	StopReason string
	// Usage contains the token counts of the API.
	Usage Usage
}

// Call is a tool call of the model.
type Call = providertest.Call

// Usage counts tokens: prompt tokens that are not cached, written to the cache and read from the
// cache, output tokens, and output tokens for thinking.
type Usage struct{ Input, CacheWrite, CacheRead, Output, Thinking int }

// Events returns the complete answer as events.
func (m Message) Events() []string {
	events := []string{m.Start(), Event(object{"type": "ping"})}
	index := 0
	block := func(start object, deltas []object) {
		events = append(events, Event(object{"type": "content_block_start", "index": index, "content_block": start}))
		for _, delta := range deltas {
			events = append(events, Event(object{"type": "content_block_delta", "index": index, "delta": delta}))
		}
		events = append(events, Event(object{"type": "content_block_stop", "index": index}))
		index++
	}
	if len(m.Thinking) > 0 {
		var deltas []object
		for _, part := range m.Thinking {
			deltas = append(deltas, object{"type": "thinking_delta", "thinking": part})
		}
		block(object{"type": "thinking", "thinking": "", "signature": ""},
			append(deltas, object{"type": "signature_delta", "signature": "c2ln"}))
	}
	if len(m.Words) > 0 {
		var deltas []object
		for _, word := range m.Words {
			deltas = append(deltas, object{"type": "text_delta", "text": word})
		}
		block(object{"type": "text", "text": ""}, deltas)
	}
	for _, call := range m.Calls {
		deltas := []object{{"type": "input_json_delta", "partial_json": ""}} // The API sends an empty part first.
		for _, part := range call.ArgumentParts() {
			deltas = append(deltas, object{"type": "input_json_delta", "partial_json": part})
		}
		block(object{"type": "tool_use", "id": call.ID, "name": call.Name, "input": object{}}, deltas)
	}
	return append(events, m.end()...)
}

// Start returns the first event of the answer.
func (m Message) Start() string {
	return Event(object{"type": "message_start", "message": object{
		"id": "msg_1", "type": "message", "role": "assistant", "content": []any{},
		"model": cmp.Or(m.Model, "claude-test"), "stop_reason": nil, "stop_sequence": nil,
		"usage": object{
			"input_tokens": m.Usage.Input, "cache_creation_input_tokens": m.Usage.CacheWrite,
			"cache_read_input_tokens": m.Usage.CacheRead, "output_tokens": min(m.Usage.Output, 1),
		},
	}})
}

// end returns the last two events.
func (m Message) end() []string {
	reason := "end_turn"
	if len(m.Calls) > 0 {
		reason = "tool_use"
	}
	usage := object{"output_tokens": m.Usage.Output}
	if m.Usage.Thinking > 0 {
		usage["output_tokens_details"] = object{"thinking_tokens": m.Usage.Thinking}
	}
	return []string{
		Event(object{
			"type": "message_delta", "delta": object{"stop_reason": cmp.Or(m.StopReason, reason), "stop_sequence": nil},
			"usage": usage,
		}),
		Event(object{"type": "message_stop"}),
	}
}

// TextDelta returns an event with the next text of the block with an index.
func TextDelta(index int, text string) string {
	return Event(object{
		"type": "content_block_delta", "index": index, "delta": object{"type": "text_delta", "text": text},
	})
}

// Error returns the event with which the API reports a failure during an answer.
func Error(kind, message string) string { return Event(failure(kind, message)) }

// Event encodes an event. Its name is the "type" of its data.
func Event(data map[string]any) string {
	name, ok := data["type"].(string)
	if !ok {
		panic("anthropictest: an event's data has a type") // The test passed invalid data.
	}
	return "event: " + name + "\ndata: " + providertest.JSON(data) + "\n\n"
}

type object = map[string]any

func failure(kind, message string) object {
	return object{"type": "error", "error": object{"type": kind, "message": message}, "request_id": "req_1"}
}
