package openaitest

import (
	"net/http"
	"strings"
)

// Parts answers with an event stream whose bytes are the parts, each flushed by itself,
// and leaves it where they end.
func Parts(parts ...string) Reply {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		flush(w)
		for _, part := range parts {
			if _, err := w.Write([]byte(part)); err != nil {
				return // the client has gone
			}
			flush(w)
		}
	}
}

// Events answers with one event of the stream for each of the data, which are not checked,
// and leaves it there: [DONE] is for the caller to say.
func Events(data ...string) Reply {
	parts := make([]string, 0, len(data))
	for _, d := range data {
		parts = append(parts, "data: "+d+"\n\n")
	}
	return Parts(parts...)
}

// Done is the data that ends a stream.
const Done = "[DONE]"

// Text answers with the words, one to a chunk, then finish_reason "stop", a usage of 9
// tokens and 1 for each word, and [DONE].
func Text(words ...string) Reply {
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
type Call struct{ ID, Name, Arguments string }

// Calls answers with tool calls as OpenAI streams them: the id and the name first, then
// the arguments in parts of a few runes, call by call. The stream ends as that of Text.
func Calls(calls ...Call) Reply {
	const partRunes = 5
	chunks := []string{Delta(map[string]any{"role": "assistant", "content": nil})}
	for i, call := range calls {
		chunks = append(chunks, ToolDelta(map[string]any{
			"index": i, "id": call.ID, "type": "function", "function": map[string]any{"name": call.Name, "arguments": ""},
		}))
		for runes := []rune(call.Arguments); len(runes) > 0; {
			n := min(partRunes, len(runes))
			chunks = append(chunks, ToolDelta(map[string]any{"index": i, "function": map[string]any{"arguments": string(runes[:n])}}))
			runes = runes[n:]
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
	return encode(envelope([]any{}, map[string]any{
		"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output,
		"prompt_tokens_details":     map[string]any{"cached_tokens": 0, "audio_tokens": 0},
		"completion_tokens_details": map[string]any{"reasoning_tokens": 0, "audio_tokens": 0},
	}))
}

// Fail answers with the status and the body, as JSON unless it begins like HTML. The SDK is
// told to try again at once where it does.
func Fail(status int, body string) Reply {
	return func(w http.ResponseWriter, _ *http.Request) {
		kind := "application/json"
		if strings.HasPrefix(body, "<") {
			kind = "text/html"
		}
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Retry-After-Ms", "1")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body)) // the client may have gone
	}
}

// Stall says nothing more until the client has gone.
func Stall(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// Break cuts the connection off.
func Break(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// Endless sends the part again and again until the client has gone.
func Endless(part string) Reply {
	return func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			Parts(part)(w, r)
		}
	}
}

// Sequence is one reply made of several: what the first begins the next goes on with.
func Sequence(replies ...Reply) Reply {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, reply := range replies {
			reply(w, r)
		}
	}
}

func chunk(delta map[string]any, finish any) string {
	choice := map[string]any{"index": 0, "delta": delta, "logprobs": nil, "finish_reason": finish}
	return encode(envelope([]any{choice}, nil))
}

func envelope(choices []any, usage any) map[string]any {
	return map[string]any{
		"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1760000000,
		"model": "test-model-2026", "system_fingerprint": "fp_1", "choices": choices, "usage": usage,
	}
}

func flush(w http.ResponseWriter) {
	if flusher, ok := w.(http.Flusher); ok {
		flusher.Flush()
	}
}
