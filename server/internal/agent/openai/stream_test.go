package openai

import (
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/openai/openaitest"
	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

// Streams of several providers as in their documentation, without unused fields.
const (
	openaiStream = `data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1741569952,"model":"gpt-x-2026","service_tier":"default","system_fingerprint":"fp_1","choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"a1"}

data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1741569952,"model":"gpt-x-2026","choices":[{"index":0,"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"b"}

data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1741569952,"model":"gpt-x-2026","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}

data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1741569952,"model":"gpt-x-2026","choices":[],"usage":{"prompt_tokens":1200,"completion_tokens":40,"total_tokens":1240,"prompt_tokens_details":{"cached_tokens":1024,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":32,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}

data: [DONE]

`
	// With usage in each chunk, separate reasoning, and a finish_reason in a chunk with text.
	vllmStream = `data: {"id":"cmpl-1","object":"chat.completion.chunk","model":"qwen","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":{"prompt_tokens":5,"total_tokens":5,"completion_tokens":0}}

data: {"id":"cmpl-1","object":"chat.completion.chunk","model":"qwen","choices":[{"index":0,"delta":{"reasoning_content":"The user greets."}}],"usage":{"prompt_tokens":5,"total_tokens":8,"completion_tokens":3}}

data: {"id":"cmpl-1","object":"chat.completion.chunk","model":"qwen","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop","stop_reason":null}],"usage":{"prompt_tokens":5,"total_tokens":9,"completion_tokens":4}}

data: [DONE]

`
	// With CR LF, comments, event names, several lines of data, and no final blank line.
	gatewayStream = ": GATEWAY PROCESSING\r\n\r\nevent: " +
		"message\r\ndata:{\"error\":null,\"choices\":[{\"index\":0,\r\ndata:\"delta\":{\"content\":\"Hi\"}}]}\r\n\r\n" +
		"data:\r\n\r\nid: 7\r\ndata: {\"choices\":[{\"finish_reason\":\"stop\",\"delta\":{}}]}\r\n\r\ndata: [DONE]"
)

func TestStreams(t *testing.T) {
	const hi = `{"choices":[{"delta":{"content":"Hi"}}]}`
	tests := []struct {
		name   string
		stream string
		want   []*parleyv1.RespondResponse
	}{
		{"openai", openaiStream, []*parleyv1.RespondResponse{textPiece("Hi"), usagePiece(&parleyv1.Usage{
			Model: "gpt-x-2026", InputTokens: 1200, OutputTokens: 40, CachedInputTokens: 1024, ReasoningTokens: 32,
		}), finishPiece("stop")}},
		{"vllm", vllmStream, []*parleyv1.RespondResponse{
			agent.ReasoningPiece("The user greets."), textPiece("Hi"),
			agent.NativePiece(nativeType, []byte(`{"content":"Hi","reasoning_content":"The user greets.","role":"assistant"}`)),
			usagePiece(&parleyv1.Usage{Model: "qwen", InputTokens: 5, OutputTokens: 4}), finishPiece("stop"),
		}},
		{"a gateway", gatewayStream, []*parleyv1.RespondResponse{textPiece("Hi"), finishPiece("stop")}},
		{
			"done without a finish_reason", "data: " + hi + "\n\ndata: [DONE]\n\n", []*parleyv1.RespondResponse{textPiece("Hi")},
		},
		{"only done", "data: [DONE]\n\n", nil},
		{"usage without a model", data(`{"usage":{"prompt_tokens":-1,"completion_tokens":9999999999}}`, openaitest.Done), []*parleyv1.RespondResponse{
			usagePiece(&parleyv1.Usage{Model: "test-model", OutputTokens: math.MaxInt32}),
		}},
		{
			"cut off by the limit", data(hi, openaitest.Finish("length")),
			[]*parleyv1.RespondResponse{textPiece("Hi"), finishPiece("length")},
		},
		{
			"filtered", data(hi, openaitest.Finish("content_filter")),
			[]*parleyv1.RespondResponse{textPiece("Hi"), finishPiece("content_filter")},
		},
		{"empty", data(openaitest.Finish("stop")), []*parleyv1.RespondResponse{finishPiece("stop")}},
		{"refusal", data(`{"choices":[{"delta":{"refusal":"I can't."}}]}`, openaitest.Finish("stop")), []*parleyv1.RespondResponse{
			textPiece("I can't."), finishPiece("stop"),
		}},
		{
			"odd chunks", data(`{}`, `{"choices":null}`, `{"choices":[{"delta":null}]}`, `{"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":null}}]}`,
				`{"choices":[{"index":1,"delta":{"content":"another choice"}}]}`, hi,
				`{"object":"chat.completion.chunk","error":null}`, openaitest.Done),
			[]*parleyv1.RespondResponse{textPiece("Hi")},
		},
		{
			"content parts", data(`{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[]},{"type":"text","text":"a\u00e9"},{"type":"text","text":"b"},{"type":"text"}]}}]}`, openaitest.Done),
			[]*parleyv1.RespondResponse{textPiece("aéb")},
		},
		{
			"split characters", data(`{"choices":[{"delta":{"content":"a`+"\xe2\x82"+`"}}]}`, `{"choices":[{"delta":{"content":"`+"\xac"+`b\ud83d"}}]}`,
				`{"choices":[{"delta":{"content":""}}]}`, `{"choices":[{"delta":{"content":"\ude00"}}]}`,
				`{"choices":[{"delta":{"content":"`+"\xff\xe2"+`"}}]}`, openaitest.Done),
			[]*parleyv1.RespondResponse{
				textPiece("a"), textPiece("€b"), textPiece("😀"), textPiece("\uFFFD"), textPiece("\uFFFD"),
			},
		},
		{
			"reasoning under both names", data(`{"choices":[{"delta":{"reasoning":"Hm\ud83d","reasoning_content":"Hm\ud83d"}}]}`,
				`{"choices":[{"delta":{"reasoning":"\ude00","reasoning_content":""}}]}`,
				`{"choices":[{"delta":{"reasoning":{"effort":"low"},"reasoning_content":null,"content":"Hi"}}]}`, openaitest.Done),
			[]*parleyv1.RespondResponse{
				agent.ReasoningPiece("Hm"), agent.ReasoningPiece("😀"), textPiece("Hi"),
				agent.NativePiece(nativeType, []byte(
					`{"content":"Hi","reasoning":"Hm\ud83d\ude00","reasoning_content":"Hm\ud83d","role":"assistant"}`)),
			},
		},
		{"names too long", data(`{"model":"` + strings.Repeat("é", 100) + `","usage":{"prompt_tokens":1},"choices":[{"finish_reason":"` + strings.Repeat("x", 200) + `"}]}`), []*parleyv1.RespondResponse{
			usagePiece(&parleyv1.Usage{Model: strings.Repeat("é", 64), InputTokens: 1}), finishPiece(strings.Repeat("x", 128)),
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := openaitest.New(t, providertest.Parts(test.stream))
			pieces, err := answer(t.Context(), agentOf(t, s), newRequest("Hi"))
			if diff := cmp.Diff(test.want, pieces, protocmp.Transform()); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
	t.Run("byte by byte", func(t *testing.T) {
		s := openaitest.New(t, providertest.Parts(strings.Split(openaiStream, "")...))
		pieces, err := answer(t.Context(), agentOf(t, s), newRequest("Hi"))
		if diff := cmp.Diff(tests[0].want, pieces, protocmp.Transform()); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	})
}

// data returns a stream with these events.
func data(events ...string) string { return "data: " + strings.Join(events, "\n\ndata: ") + "\n\n" }

// TestBrokenStreams: pieces before the end are passed on, and the error describes the end.
func TestBrokenStreams(t *testing.T) {
	half := data(openaitest.Words("half")...)
	const notStream = `the provider did not answer with a stream; check that base_url is the address of its API, in the form "https://api.openai.com/v1"`
	const cutOff = "the answer was cut off: the stream ended before the answer"
	tests := []struct {
		name  string
		reply providertest.Reply
		text  string
		want  agent.Error
	}{
		{"ends", providertest.Parts(half), "half", agent.Error{Message: cutOff, Retryable: true}},
		{
			"ends in an event", providertest.Parts(half, `data: {"choices":[{"finish_reason":"stop"}]}`), "half",
			agent.Error{Message: cutOff, Retryable: true},
		},
		{
			"ends in a call",
			providertest.Parts(data(openaitest.ToolDelta(map[string]any{
				"index": 0, "id": "c", "function": map[string]any{"name": "f", "arguments": "{"},
			}))),
			"",
			agent.Error{Message: cutOff, Retryable: true},
		},
		{
			"breaks", providertest.Sequence(providertest.Parts(half), providertest.Break), "half",
			agent.Error{Message: "the answer broke off", Detail: "the connection was closed", Retryable: true},
		},
		{
			"error in the stream", providertest.Parts(half + data(`{"error":{"message":"The engine is overloaded","type":"server_error","code":null}}`)), "half",
			agent.Error{Message: "the provider failed during the answer: The engine is overloaded", Retryable: true},
		},
		{
			"error with a status", providertest.Parts(half + data(`{"id":"g","error":{"code":429,"message":"Slow down"},"choices":[{"finish_reason":"error","delta":{"content":"never seen"}}]}`)), "half",
			agent.Error{
				Message: "the provider's quota or rate limit is used up (429 Too Many Requests): Slow down", Retryable: true,
			},
		},
		{
			"error that is not retryable",
			providertest.Parts(data(`{"error":{"message":"no such tool","type":"invalid_request_error"}}`)), "",
			agent.Error{Message: "the provider refused the request (400 Bad Request): no such tool"},
		},
		{
			"error object", providertest.Parts(data(`{"object":"error","message":"This model's maximum context length is 4096 tokens","code":"x"}`, "[DONE]")), "",
			agent.Error{
				Message: "the conversation is too long for the model; configure a smaller window for the agent (400 Bad " +
					"Request): This model's maximum context length is 4096 tokens",
			},
		},
		{
			"error event", providertest.Parts("event: error\ndata: {\"message\":\"gone\"}\n\n"), "",
			agent.Error{Message: "the provider failed during the answer: gone", Retryable: true},
		},
		{
			"not JSON", providertest.Parts(half + data("upstream "+testKey+" timed out")), "half",
			agent.Error{
				Message: "the provider sent an event that is not a JSON object: upstream [redacted] timed out", Retryable: true,
			},
		},
		{
			"a list", providertest.Parts(data("[1]")), "",
			agent.Error{Message: "the provider sent an event that is not a JSON object: [1]", Retryable: true},
		},
		{
			"nothing", providertest.Parts(), "",
			agent.Error{Message: notStream},
		},
		{
			"a page", providertest.Fail(http.StatusOK, "<html><title>Chat</title></html>"), "",
			agent.Error{Message: notStream},
		},
		{
			"an error with status 200", providertest.Fail(http.StatusOK, `{"error":"model not loaded"}`), "",
			agent.Error{Message: "the provider did not answer with a stream; check base_url and model: model not loaded"},
		},
		{
			"a call without a name", providertest.Parts(data(openaitest.ToolDelta(map[string]any{"index": 0, "id": "c", "function": map[string]any{"arguments": "{}"}}), openaitest.Done)), "",
			agent.Error{Message: "the model called a tool with a name of 0 bytes, want 1 to 128", Retryable: true},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := openaitest.New(t, test.reply)
			pieces, err := answer(t.Context(), agentOf(t, s), newRequest("Hi"))
			if texts(pieces) != test.text || len(pieces) > 1 {
				t.Errorf("pieces = %v, want %q", pieces, test.text)
			}
			failure, ok := errors.AsType[*agent.Error](err)
			if !ok {
				t.Fatalf("Respond = %v, want an *agent.Error", err)
			}
			if diff := cmp.Diff(test.want, *failure); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if len(s.Requests()) != 1 {
				t.Errorf("%d requests, want 1: a stream that has begun is not repeated", len(s.Requests()))
			}
		})
	}
}

// TestMemoryIsLimited: an endless response is refused before it uses much memory.
func TestMemoryIsLimited(t *testing.T) {
	lines := strings.Repeat("x", 64<<10)
	argument := openaitest.ToolDelta(map[string]any{
		"index": 0, "id": "c", "function": map[string]any{"name": "f", "arguments": lines},
	})
	calls := data(openaitest.ToolDelta(map[string]any{"function": map[string]any{"name": "f", "arguments": "{}"}}))
	for name, test := range map[string]struct {
		reply providertest.Reply
		want  string
	}{
		"a line": {
			providertest.Sequence(providertest.Parts("data: "), providertest.Endless(lines)),
			"the provider sent an event of more than 4194304 bytes",
		},
		"an event": {
			providertest.Endless("data: " + lines + "\n"), "the provider sent an event of more than 4194304 bytes",
		},
		"arguments": {providertest.Endless(data(argument)), "the model's tool calls are larger than 4194304 bytes"},
		"calls":     {providertest.Endless(calls), "the model made more than 1000 tool calls in one answer"},
		"an error response": {
			providertest.Sequence(providertest.Fail(http.StatusTeapot, "no coffee "), providertest.Endless(lines)),
			"the provider refused the request (418 I'm a teapot)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			disconnected := make(chan struct{})
			s := openaitest.New(t, providertest.Sequence(test.reply, func(http.ResponseWriter, *http.Request) {
				close(disconnected)
			}))
			pieces, err := answer(t.Context(), agentOf(t, s), newRequest("Hi"))
			if len(pieces) != 0 || err == nil || err.Error() != test.want {
				t.Errorf("Respond = %v, %v, want %s", pieces, err, test.want)
			}
			<-disconnected
		})
	}
	t.Run("one large event", func(t *testing.T) {
		text := strings.Repeat("x", 2<<20)
		s := openaitest.New(t, openaitest.Text(text))
		if pieces, err := answer(t.Context(), agentOf(t, s), newRequest("Hi")); texts(pieces) != text || err != nil {
			t.Errorf("Respond = %d bytes, %v, want 2 MiB", len(texts(pieces)), err)
		}
	})
}

// TestProgressWhileReasoning: while the model reasons and does not report it, Progress pieces are sent at intervals.
func TestProgressWhileReasoning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		go func() {
			for range 25 { // One event a second.
				time.Sleep(time.Second) //nolint:forbidigo // In a bubble.
				_, _ = io.WriteString(w, data(openaitest.Delta(map[string]any{"reasoning_content": nil})))
			}
			_, _ = io.WriteString(w, data(openaitest.Delta(map[string]any{"content": "42"}), openaitest.Finish("stop"),
				openaitest.Done))
		}()
		start := time.Now()
		var got []string
		s := &stream{
			agent: &Agent{usageGrace: usageGrace}, cancel: func() {}, lastPiece: start,
			events: agent.NewEventStream(r),
			emit: func(piece *parleyv1.RespondResponse) bool {
				got = append(got,
					time.Since(start).String()+" "+piece.GetProgress().GetText()+piece.GetText()+piece.GetFinishReason())
				return true
			},
		}
		if err := s.read(); err != nil {
			t.Fatal(err)
		}
		want := []string{"10s the model is still working", "20s the model is still working", "25s 42", "25s stop"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
