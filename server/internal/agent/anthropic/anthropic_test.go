package anthropic_test

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/anthropic"
	"github.com/parleyhq/parley/server/internal/agent/anthropic/anthropictest"
	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

const (
	user      = parleyv1.Role_ROLE_USER
	assistant = parleyv1.Role_ROLE_ASSISTANT
	system    = parleyv1.Role_ROLE_SYSTEM
	tool      = parleyv1.Role_ROLE_TOOL
)

var _ agent.Agent = (*anthropic.Agent)(nil)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newAgent returns an agent that is closed at the end of the test.
func newAgent(t *testing.T, config agent.Model) *anthropic.Agent {
	t.Helper()
	if config.Model == "" {
		config.Model = "claude-test"
	}
	a, err := anthropic.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func newRequest(content string) *parleyv1.RespondRequest {
	return &parleyv1.RespondRequest{Messages: []*parleyv1.Message{{Role: user, Content: content}}}
}

// answer returns the pieces and the error of an answer. The error must be last and without a piece.
func answer(
	t *testing.T, a *anthropic.Agent, request *parleyv1.RespondRequest,
) (pieces []*parleyv1.RespondResponse, err error) {
	t.Helper()
	for piece, fault := range a.Respond(t.Context(), request) {
		if err != nil || (fault == nil) == (piece == nil) {
			t.Fatalf("Respond yields %v, %v after error %v", piece, fault, err)
		}
		if err = fault; err == nil && piece.GetToolCallDelta() == nil { // TestCallDeltas is about these.
			pieces = append(pieces, piece)
		}
	}
	return pieces, err
}

// answerTo returns the answer to "Hi." if the provider sends reply.
func answerTo(t *testing.T, reply providertest.Reply) ([]*parleyv1.RespondResponse, error) {
	t.Helper()
	return answer(t, newAgent(t, agent.Model{BaseURL: anthropictest.New(t, reply).URL}), newRequest("Hi."))
}

func text(text string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: text}}
}

func call(id, name, arguments string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{
		Piece: &parleyv1.RespondResponse_ToolCall{ToolCall: &parleyv1.ToolCall{Id: id, Name: name, Arguments: arguments}},
	}
}

// ending returns the last pieces of each answer: the usage and the finish reason.
func ending(usage *parleyv1.Usage, reason string) []*parleyv1.RespondResponse {
	usage.Model = "claude-test"
	return []*parleyv1.RespondResponse{
		{Piece: &parleyv1.RespondResponse_Usage{Usage: usage}},
		{Piece: &parleyv1.RespondResponse_FinishReason{FinishReason: reason}},
	}
}

func event(kind string, rest map[string]any) string {
	data := map[string]any{"type": kind}
	maps.Copy(data, rest)
	return anthropictest.Event(data)
}

type object = map[string]any

func TestPieces(t *testing.T) {
	t.Parallel()
	none := func() *parleyv1.Usage { return new(parleyv1.Usage) }
	stop := []string{
		event("message_delta", object{"delta": object{"stop_reason": "end_turn"}, "usage": object{}}),
		event("message_stop", nil),
	}
	start := anthropictest.Message{}.Start()
	stream := func(events ...string) providertest.Reply {
		return providertest.Parts(append(append([]string{start}, events...), stop...)...)
	}
	begin := func(index int, block object) string {
		return event("content_block_start", object{"index": index, "content_block": block})
	}
	delta := func(index int, delta object) string {
		return event("content_block_delta", object{"index": index, "delta": delta})
	}
	end := func(index int) string { return event("content_block_stop", object{"index": index}) }
	input := func(s string) object { return object{"type": "input_json_delta", "partial_json": s} }
	lookup := object{"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": object{}}

	for name, test := range map[string]struct {
		reply providertest.Reply
		want  []*parleyv1.RespondResponse
	}{
		"text in pieces": {
			anthropictest.Text("Sugar ", "costs ", "50 cents."),
			append([]*parleyv1.RespondResponse{text("Sugar "), text("costs "), text("50 cents.")}, ending(none(), "end_turn")...),
		},
		"nothing": {anthropictest.Text(), ending(none(), "end_turn")},
		"usage": {
			anthropictest.Answer(anthropictest.Message{
				Usage: anthropictest.Usage{Input: 7, CacheWrite: 20, CacheRead: 300, Output: 40, Thinking: 5},
			}),
			ending(&parleyv1.Usage{InputTokens: 327, CachedInputTokens: 300, OutputTokens: 40, ReasoningTokens: 5}, "end_turn"),
		},
		"usage beyond the range of the API": {
			anthropictest.Answer(anthropictest.Message{
				Usage: anthropictest.Usage{Input: 1 << 40, CacheRead: 1 << 31, Output: -1},
			}),
			ending(&parleyv1.Usage{InputTokens: 1<<31 - 1, CachedInputTokens: 1<<31 - 1}, "end_turn"),
		},
		"cut off at the limit": {
			anthropictest.Answer(anthropictest.Message{Words: []string{"Once"}, StopReason: "max_tokens"}),
			append([]*parleyv1.RespondResponse{text("Once")}, ending(none(), "max_tokens")...),
		},
		"refusal with a text": {
			anthropictest.Answer(anthropictest.Message{Words: []string{"No."}, StopReason: "refusal"}),
			append([]*parleyv1.RespondResponse{text("No.")}, ending(none(), "refusal")...),
		},
		"complete calls": {
			anthropictest.Answer(anthropictest.Message{Words: []string{"Let me see."}, Calls: []anthropictest.Call{
				{ID: "toolu_1", Name: "look_up", Arguments: `{"product": "Zücker",  "n": 12345678901234567890}`},
				{ID: "toolu_2", Name: "list"},
			}}),
			append([]*parleyv1.RespondResponse{
				text("Let me see."), call("toolu_1", "look_up", `{"product": "Zücker",  "n": 12345678901234567890}`),
				call("toolu_2", "list", "{}"),
			}, ending(none(), "tool_use")...),
		},
		"call that the limit cut off": {
			anthropictest.Answer(anthropictest.Message{StopReason: "max_tokens", Calls: []anthropictest.Call{
				{ID: "toolu_1", Name: "list"}, {ID: "toolu_2", Name: "look_up", Arguments: `{"product": "Su`},
			}}),
			append([]*parleyv1.RespondResponse{call("toolu_1", "list", "{}")}, ending(none(), "max_tokens")...),
		},
		"call that is not JSON": {
			anthropictest.Calls(anthropictest.Call{ID: "toolu_1", Name: "look_up", Arguments: `{product}`}),
			append([]*parleyv1.RespondResponse{call("toolu_1", "look_up", `{product}`)}, ending(none(), "tool_use")...),
		},
		"call that is complete at its start": {
			stream(begin(0, object{"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": object{"n": 1}}), end(0)),
			append([]*parleyv1.RespondResponse{call("toolu_1", "look_up", `{"n":1}`)}, ending(none(), "end_turn")...),
		},
		"blocks that overlap": {
			stream(begin(0, lookup), begin(1, object{"type": "text", "text": "A"}), delta(0, input(`{"n"`)),
				anthropictest.TextDelta(1, "B"), delta(0, input(`:1}`)), end(1), end(0)),
			append([]*parleyv1.RespondResponse{text("A"), text("B"), call("toolu_1", "look_up", `{"n":1}`)},
				ending(none(), "end_turn")...),
		},
		"thinking is reasoning, unknown types are omitted": {
			stream(
				begin(0, object{"type": "thinking", "thinking": "Hm", "signature": ""}),
				delta(0, object{"type": "thinking_delta", "thinking": "Hmm"}), delta(0,
					object{"type": "signature_delta", "signature": "s"}), end(0),
				begin(1, object{"type": "redacted_thinking", "data": "xyz"}), end(1),
				begin(2, object{"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": object{}}),
				delta(2, input(`{"query":"x"}`)), end(2),
				begin(3, object{"type": "hologram", "beam": []int{1}}), delta(3, object{"type": "beam_delta", "beam": 2}), end(3),
				event("weather", object{"index": "north", "delta": 7}), ": a comment\n\n", "data: odd\n\n", event("ping", nil),
				"event: ping\ndata: now\n\n",
				"data: {\"type\":\"message_stop\"}\n\n",
				begin(4, object{"type": "text", "text": ""}), anthropictest.TextDelta(4, "Sugar."), end(4),
			),
			append([]*parleyv1.RespondResponse{
				agent.ReasoningPiece("Hm"), agent.ReasoningPiece("Hmm"), text("Sugar."),
			}, ending(none(), "end_turn")...),
		},
		"character split between the parts of a call": {
			stream(begin(0, lookup), delta(0, input(`{"a":"`)),
				strings.Replace(delta(0, input("?")), "?", "\xe2\x82", 1),
				strings.Replace(delta(0, input("?")), "?", "\xac\xff", 1), delta(0, input(`"}`)), end(0)),
			append([]*parleyv1.RespondResponse{call("toolu_1", "look_up", "{\"a\":\"€\uFFFD\"}")}, ending(none(), "end_turn")...),
		},
		"numbers of another type": {
			stream(
				begin(0, object{"type": "tool_use", "id": 7, "name": "look_up", "input": object{}}),
				event("content_block_start", object{"index": "1", "content_block": lookup}),
				event("content_block_delta", object{"index": "1", "delta": input("1")}), delta(0, input("2")), end(0),
				event("content_block_stop", object{"index": json.RawMessage("1.0")}),
			),
			append([]*parleyv1.RespondResponse{call("7", "look_up", "2"), call("toolu_1", "look_up", "1")},
				ending(none(), "end_turn")...),
		},
		"events after the end": {
			providertest.Parts(append(anthropictest.Message{}.Events(), anthropictest.TextDelta(0, "more"))...),
			ending(none(), "end_turn"),
		},
		"CR LF": {
			providertest.Parts(strings.ReplaceAll(strings.Join(anthropictest.Message{Words: []string{"A\n", "B"}}.Events(), ""),
				"\n", "\r\n")),
			append([]*parleyv1.RespondResponse{text("A\n"), text("B")}, ending(none(), "end_turn")...),
		},
		"invalid UTF-8": {
			stream(strings.Replace(anthropictest.TextDelta(0, "a?b"), "?", "\xff\xfe", 1)),
			append([]*parleyv1.RespondResponse{text("a\uFFFD\uFFFDb")}, ending(none(), "end_turn")...),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := answerTo(t, test.reply)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("pieces (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSplit: characters that are split over reads are decoded correctly.
func TestSplit(t *testing.T) {
	t.Parallel()
	message := anthropictest.Message{
		Words: []string{"Zücker ", "🍬", " 5¢"},
		Calls: []anthropictest.Call{{ID: "toolu_1", Name: "list", Arguments: `{"was":"Süßes"}`}},
	}
	var parts []string
	for _, b := range []byte(strings.Join(message.Events(), "")) {
		parts = append(parts, string([]byte{b}))
	}
	got, err := answerTo(t, providertest.Parts(parts...))
	if err != nil {
		t.Fatal(err)
	}
	want := append([]*parleyv1.RespondResponse{
		text("Zücker "), text("🍬"), text(" 5¢"), call("toolu_1", "list", `{"was":"Süßes"}`),
	},
		ending(new(parleyv1.Usage), "tool_use")...)
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("pieces (-want +got):\n%s", diff)
	}
}

// TestEnvironmentIsIgnored: the environment and files for Anthropic's own tools have no effect. A
// test of agent.Provider covers the proxy, which is the only exception.
func TestEnvironmentIsIgnored(t *testing.T) {
	elsewhere := anthropictest.New(t) // It fails the test if it receives a request.
	home := t.TempDir()
	config := filepath.Join(home, ".config", "anthropic")
	for path, content := range map[string]string{
		"active_config":             "default",
		"configs/default.json":      `{"version":"1.0","base_url":"` + elsewhere.URL + `","workspace_id":"leaked","authentication":{"type":"user_oauth","client_id":"leaked"}}`,
		"credentials/default.json":  `{"version":"1.0","type":"oauth_token","access_token":"leaked"}`,
		"configs/leaked.json":       `{"base_url":"` + elsewhere.URL + `"}`,
		"credentials/leaked.json":   `{"access_token":"leaked"}`,
		"configs/not_even_json.txt": "leaked",
	} {
		path = filepath.Join(config, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range map[string]string{
		"HOME": home, "XDG_CONFIG_HOME": "", "ANTHROPIC_CONFIG_DIR": config, "ANTHROPIC_PROFILE": "leaked",
		"ANTHROPIC_API_KEY": "leaked", "ANTHROPIC_AUTH_TOKEN": "leaked", "ANTHROPIC_BASE_URL": elsewhere.URL,
		"ANTHROPIC_CUSTOM_HEADERS": "X-Leaked: leaked", "ANTHROPIC_WORKSPACE_ID": "leaked",
		"ANTHROPIC_ORGANIZATION_ID": "leaked",
	} {
		t.Setenv(name, value)
	}
	for _, key := range []string{"", "sk-own"} {
		fake := anthropictest.New(t, anthropictest.Text("Hello."))
		if _, err := answer(t, newAgent(t, agent.Model{BaseURL: fake.URL, Key: key}), newRequest("Hi.")); err != nil {
			t.Fatal(err)
		}
		request := fake.Requests()[0]
		if got := request.Header.Get("X-Api-Key"); got != key {
			t.Errorf("X-Api-Key = %q, want %q", got, key)
		}
		for name, values := range request.Header {
			if strings.Contains(strings.Join(values, " ")+name, "eaked") || name == "Authorization" {
				t.Errorf("header %s: %q comes from the environment", name, values)
			}
		}
	}
}

func TestConcurrentAnswers(t *testing.T) {
	t.Parallel()
	fake := anthropictest.New(t)
	fake.Always(anthropictest.Text("Hello."))
	a := newAgent(t, agent.Model{BaseURL: fake.URL, Tools: []agent.Tool{{Name: "list"}}})
	faults := make(chan error)
	for range 20 {
		go func() {
			var err error
			for _, fault := range a.Respond(t.Context(),
				&parleyv1.RespondRequest{CacheStable: true, Messages: newRequest("Hi.").GetMessages()}) {
				err = errors.Join(err, fault)
			}
			faults <- err
		}()
	}
	for range 20 {
		if err := <-faults; err != nil {
			t.Error(err)
		}
	}
}

// TestLongAnswer: an answer may be larger than the limit of an event.
func TestLongAnswer(t *testing.T) {
	t.Parallel()
	message := anthropictest.Message{Words: slices.Repeat([]string{strings.Repeat("sugar ", 1<<10)}, 800)}
	whole := strings.Join(message.Events(), "")
	for name, stream := range map[string]string{"LF": whole, "CR LF": strings.ReplaceAll(whole, "\n", "\r\n")} {
		pieces, err := answerTo(t, providertest.Parts(stream))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n := 0
		for _, piece := range pieces {
			n += len(piece.GetText())
		}
		if n != 800*6<<10 {
			t.Errorf("%s: text has %d bytes, want %d", name, n, 800*6<<10)
		}
	}
}
