// Package anthropictest is a provider of Anthropic's Messages API for tests: a
// [providertest.Server], and replies in the form of the API's event stream. Begin with
// [New]:
//
//	fake := anthropictest.New(t, anthropictest.Text("Hel", "lo."))
//	… an agent whose base URL is fake.URL says "Hello." …
//	asked := fake.Requests()[0].JSON()
package anthropictest

import (
	"cmp"
	"testing"

	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

// New starts a provider whose URL has no path, as Anthropic's own. See [providertest.New].
func New(tb testing.TB, replies ...providertest.Reply) *providertest.Server {
	tb.Helper()
	return providertest.New(tb, "", replies...)
}

// Text answers with the words, one to an event.
func Text(words ...string) providertest.Reply { return Answer(Message{Words: words}) }

// Calls answers with tool calls and no text.
func Calls(calls ...Call) providertest.Reply { return Answer(Message{Calls: calls}) }

// Answer answers with the whole message.
func Answer(message Message) providertest.Reply { return providertest.Parts(message.Events()...) }

// Failure is the body of a refusal as the API writes it; kind is such as "overloaded_error".
func Failure(kind, message string) string { return providertest.JSON(failure(kind, message)) }

// Message is an answer of the model's. The zero value is one without a word.
type Message struct {
	// Model that answers; empty is "claude-test".
	Model string
	// Words are the text, one to an event. It comes first.
	Words []string
	// Calls that it asks for.
	Calls []Call
	// StopReason; empty is "tool_use" where there are calls, else "end_turn".
	StopReason string
	// Usage as the API counts.
	Usage Usage
}

// Call is a tool call that the model makes.
type Call = providertest.Call

// Usage is tokens: those of the prompt that no cache has, those written to and read from
// a cache, those of the answer, and those of them that were spent on thinking.
type Usage struct{ Input, CacheWrite, CacheRead, Output, Thinking int }

// Events are the whole answer, as it goes over the line.
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
	if len(m.Words) > 0 {
		var deltas []object
		for _, word := range m.Words {
			deltas = append(deltas, object{"type": "text_delta", "text": word})
		}
		block(object{"type": "text", "text": ""}, deltas)
	}
	for _, call := range m.Calls {
		deltas := []object{{"type": "input_json_delta", "partial_json": ""}} // as the API has it
		for _, part := range call.ArgumentParts() {
			deltas = append(deltas, object{"type": "input_json_delta", "partial_json": part})
		}
		block(object{"type": "tool_use", "id": call.ID, "name": call.Name, "input": object{}}, deltas)
	}
	return append(events, m.end()...)
}

// Start is the first event of the answer.
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

// end is the last two events.
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
		Event(object{"type": "message_delta", "delta": object{"stop_reason": cmp.Or(m.StopReason, reason), "stop_sequence": nil}, "usage": usage}),
		Event(object{"type": "message_stop"}),
	}
}

// TextDelta is an event with the next text of the block of that index.
func TextDelta(index int, text string) string {
	return Event(object{"type": "content_block_delta", "index": index, "delta": object{"type": "text_delta", "text": text}})
}

// Error is the event by which the API gives up in the middle of an answer.
func Error(kind, message string) string { return Event(failure(kind, message)) }

// Event is one as it goes over the line, named by the "type" of its data.
func Event(data map[string]any) string {
	name, ok := data["type"].(string)
	if !ok {
		panic("anthropictest: an event's data has a type") // a test's own mistake
	}
	return "event: " + name + "\ndata: " + providertest.JSON(data) + "\n\n"
}

type object = map[string]any

func failure(kind, message string) object {
	return object{"type": "error", "error": object{"type": kind, "message": message}, "request_id": "req_1"}
}
