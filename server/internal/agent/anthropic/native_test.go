package anthropic_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/anthropic/anthropictest"
	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

// blocks returns the events of an answer with these blocks. A block has its start and its deltas.
func blocks(stopReason string, all ...[]string) providertest.Reply {
	events := []string{anthropictest.Message{}.Start()}
	raw := func(kind, data string) string { return "event: " + kind + "\ndata: " + data + "\n\n" }
	for i, block := range all {
		events = append(events, raw("content_block_start",
			fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":%s}`, i, block[0])))
		for _, delta := range block[1:] {
			events = append(events, raw("content_block_delta",
				fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":%s}`, i, delta)))
		}
		events = append(events, event("content_block_stop", object{"index": i}))
	}
	return providertest.Parts(append(events,
		event("message_delta", object{"delta": object{"stop_reason": stopReason}, "usage": object{}}),
		event("message_stop", nil))...)
}

// Blocks of an answer that thinks before each of its parts.
var (
	thought = []string{
		`{"type":"thinking","thinking":"","signature":""}`,
		`{"type":"thinking_delta","thinking":"I <look> \ud83d"}`, `{"type":"thinking_delta","thinking":"\ude00 up."}`,
		`{"type":"signature_delta","signature":"c2lnbmF0dXJl+/=="}`,
	}
	redactedThought = []string{`{"type":"redacted_thinking","data":"ZW5jcnlwdGVk"}`}
	blank           = []string{`{"type":"text","text":""}`, `{"type":"text_delta","text":"\n\n"}`}
	lookUp          = []string{`{"type":"text","text":""}`, `{"type":"text_delta","text":"Let me "}`, `{"type":"text_delta","text":"see."}`}
	lookUpCall      = []string{
		`{"type":"tool_use","id":"toolu_1","name":"price","input":{}}`, `{"type":"input_json_delta","partial_json":""}`,
		`{"type":"input_json_delta","partial_json":"{\"of\": \"su"}`, `{"type":"input_json_delta","partial_json":"gar\", \"n\": 1.0}"}`,
	}
	clockCall = []string{`{"type":"tool_use","id":"toolu_2","name":"clock","input":{}}`}
)

const (
	sentThought = `{"signature":"c2lnbmF0dXJl+/==","thinking":"I <look> 😀 up.","type":"thinking"}`
	sentText    = `{"text":"Let me see.","type":"text"}`
	sentCalls   = `{"id":"toolu_1","input":{"n":1,"of":"sugar"},"name":"price","type":"tool_use"},` +
		`{"id":"toolu_2","input":{},"name":"clock","type":"tool_use"}`
	sentRedacted = `{"data":"ZW5jcnlwdGVk","type":"redacted_thinking"}`
)

// messageOf returns the message that the server stores for the pieces of an answer.
func messageOf(pieces []*parleyv1.RespondResponse) *parleyv1.Message {
	m := &parleyv1.Message{Role: assistant, Agent: "claude", Status: parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE}
	for _, piece := range pieces {
		m.Content += piece.GetText()
		if call := piece.GetToolCall(); call != nil {
			m.ToolCalls = append(m.ToolCalls, call)
		}
		if native := piece.GetNative(); native != nil {
			m.Native = native
		}
		if data := piece.GetStructuredData(); data != nil {
			m.StructuredData = append(m.StructuredData, data)
		}
	}
	return m
}

// loop lets a model answer with reply, changes the message of that answer, and sends it with the results of its calls.
// It returns the message before the change and the assistant's message in the request, as JSON with sorted keys.
func loop(
	t *testing.T, reply providertest.Reply, change func(*parleyv1.Message), wrap func(agent.Agent) agent.Agent,
) (stored *parleyv1.Message, sent string) {
	t.Helper()
	fake := anthropictest.New(t, reply, anthropictest.Text("It is 50 cents."))
	a := wrap(newAgent(t, agent.Model{BaseURL: fake.URL}))
	request := newRequest("What is sugar?")
	var pieces []*parleyv1.RespondResponse
	for piece, err := range a.Respond(t.Context(), request) {
		if err != nil {
			t.Fatal(err)
		}
		pieces = append(pieces, piece)
	}
	stored = messageOf(pieces)
	m := messageOf(pieces)
	if change != nil {
		change(m)
	}
	request.Messages = append(request.Messages, m)
	for _, call := range m.GetToolCalls() {
		request.Messages = append(request.Messages, &parleyv1.Message{
			Role: tool, ToolResult: &parleyv1.ToolResult{CallId: call.GetId(), Content: "50"},
		})
	}
	if len(m.GetToolCalls()) == 0 {
		request.Messages = append(request.Messages, &parleyv1.Message{Role: user, Content: "Sure?"})
	}
	for _, err := range a.Respond(t.Context(), request) {
		if err != nil {
			t.Fatal(err)
		}
	}
	messages := fake.Requests()[1].Messages()
	if len(messages) != 3 {
		t.Fatalf("request has the messages %q, want 3", messages)
	}
	return stored, messages[1]
}

func plainAgent(a agent.Agent) agent.Agent { return a }

func content(blocks ...string) string {
	return `{"content":[` + strings.Join(blocks, ",") + `],"role":"assistant"}`
}

// TestThinkingIsSentBack: the blocks of an answer with thinking are in the next request unchanged and in their order.
// Without thinking, an answer has no native form.
func TestThinkingIsSentBack(t *testing.T) {
	t.Parallel()
	search := `{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}}`
	found := `{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":{"type":"web_search_tool_result_error","error_code":"unavailable"}}`
	for name, test := range map[string]struct {
		reply    providertest.Reply
		want     string
		isNative bool
	}{
		"a tool loop": {
			blocks("tool_use", thought, redactedThought, blank, lookUp, lookUpCall, clockCall),
			content(sentThought, sentRedacted, sentText, sentCalls), true,
		},
		"interleaved": {
			blocks("tool_use", thought, lookUp, redactedThought, lookUpCall, clockCall),
			content(sentThought, sentText, sentRedacted, sentCalls), true,
		},
		"only text":     {blocks("end_turn", thought, lookUp), content(sentThought, sentText), true},
		"no signature":  {blocks("end_turn", thought[:3], lookUp), content(`{"signature":"","thinking":"I <look> 😀 up.","type":"thinking"}`, sentText), true},
		"text cut off":  {blocks("max_tokens", thought, lookUp), content(sentThought, sentText), true},
		"no thinking":   {blocks("tool_use", lookUp, lookUpCall, clockCall), content(sentText, sentCalls), false},
		"ends to think": {blocks("max_tokens", thought, lookUp, thought), content(sentText), false},
		"call cut off":  {blocks("max_tokens", thought, lookUp, lookUpCall[:3]), content(sentText), false},
		"unknown delta": {blocks("end_turn", append(thought, `{"type":"news_delta","news":1}`), lookUp), content(sentText), false},
		"tool of theirs": {
			blocks("end_turn", []string{search, `{"type":"input_json_delta","partial_json":"{\"query\":\"sugar\"}"}`}, []string{found}, append(lookUp,
				`{"type":"citations_delta","citation":{"type":"char_location","cited_text":"x"}}`)),
			content(`{"id":"srvtoolu_1","input":{"query":"sugar"},"name":"web_search","type":"server_tool_use"}`,
				`{"content":{"error_code":"unavailable","type":"web_search_tool_result_error"},"tool_use_id":"srvtoolu_1","type":"web_search_tool_result"}`,
				`{"citations":[{"cited_text":"x","type":"char_location"}],"text":"Let me see.","type":"text"}`), true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stored, sent := loop(t, test.reply, nil, plainAgent)
			if diff := cmp.Diff(test.want, sent); diff != "" {
				t.Errorf("message in the request (-want +got):\n%s", diff)
			}
			if kind := stored.GetNative().GetType(); (kind == "anthropic.content") != test.isNative {
				t.Errorf("native form = %q, want one: %t", kind, test.isNative)
			}
		})
	}
}

// TestSignaturesAreExact: the native form has the JSON of the API byte for byte, except for the order of fields.
func TestSignaturesAreExact(t *testing.T) {
	t.Parallel()
	stored, _ := loop(t, blocks("tool_use", thought, lookUpCall), nil, plainAgent)
	const want = `[{"signature":"c2lnbmF0dXJl+/==","thinking":"I <look> \ud83d\ude00 up.","type":"thinking"},` +
		`{"id":"toolu_1","input":{"of": "sugar", "n": 1.0},"name":"price","type":"tool_use"}]`
	if diff := cmp.Diff(want, string(stored.GetNative().GetValue())); diff != "" {
		t.Errorf("native form (-want +got):\n%s", diff)
	}
}

// TestChangedAnswersAreRebuilt: a native form is not sent if the message was changed, is incomplete, is of another
// kind, or is not what the API sends. The other fields are sent instead.
func TestChangedAnswersAreRebuilt(t *testing.T) {
	t.Parallel()
	value := func(value string) func(*parleyv1.Message) {
		return func(m *parleyv1.Message) { m.Native.Value = []byte(value) }
	}
	const blockOfCall = `{"type":"tool_use","id":"toolu_1","name":"price","input":{"of":"sugar","n":1.0}}`
	rebuilt := content(sentText, `{"id":"toolu_1","input":{"n":1,"of":"sugar"},"name":"price","type":"tool_use"}`)
	for name, test := range map[string]struct {
		change func(*parleyv1.Message)
		want   string
	}{
		"unchanged": {func(*parleyv1.Message) {}, content(sentThought, sentText, `{"id":"toolu_1","input":{"n":1,"of":"sugar"},"name":"price","type":"tool_use"}`)},
		"another text": {
			func(m *parleyv1.Message) { m.Content = "Let me look." },
			strings.ReplaceAll(rebuilt, "Let me see.", "Let me look."),
		},
		"other arguments": {
			func(m *parleyv1.Message) { m.ToolCalls[0].Arguments = `{"of":"salt"}` },
			strings.ReplaceAll(rebuilt, `{"n":1,"of":"sugar"}`, `{"of":"salt"}`),
		},
		"another id": {
			func(m *parleyv1.Message) { m.ToolCalls[0].Id = "toolu_9" }, strings.ReplaceAll(rebuilt, "toolu_1", "toolu_9"),
		},
		"another tool": {
			func(m *parleyv1.Message) { m.ToolCalls[0].Name = "cost" }, strings.ReplaceAll(rebuilt, "price", "cost"),
		},
		"without its call": {func(m *parleyv1.Message) { m.ToolCalls = nil }, content(sentText)},
		"incomplete": {
			func(m *parleyv1.Message) { m.Status = parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE },
			strings.ReplaceAll(rebuilt, "see.", "see. [cut off]"),
		},
		"another kind": {func(m *parleyv1.Message) { m.Native.Type = "openai.chat.message" }, rebuilt},
		"no value":     {value(""), rebuilt},
		"no JSON":      {value("[{"), rebuilt},
		"no list":      {value(`{"type":"text","text":"Let me see."}`), rebuilt},
		"no block":     {value(`[{"text":"Let me see."},` + blockOfCall + `]`), rebuilt},
		"no object":    {value(`["Let me see.",` + blockOfCall + `]`), rebuilt},
		"input is text": {
			value(`[{"type":"text","text":"Let me see."},{"type":"tool_use","id":"toolu_1","name":"price","input":"x"}]`), rebuilt,
		},
		"written by another program": {
			value(`[{"type":"thinking","thinking":"other"},{"type":"text","text":"Let me see."},` + blockOfCall + `]`),
			content(`{"thinking":"other","type":"thinking"}`, sentText, `{"id":"toolu_1","input":{"n":1,"of":"sugar"},"name":"price","type":"tool_use"}`),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, sent := loop(t, blocks("tool_use", thought, lookUp, lookUpCall), test.change, plainAgent)
			if diff := cmp.Diff(test.want, sent); diff != "" {
				t.Errorf("message in the request (-want +got):\n%s", diff)
			}
		})
	}
}

// TestStructuredBlocksAndThinking: with structured_blocks, the text of the message lacks the blocks that its native
// form has. The native form is sent unless the data was changed.
func TestStructuredBlocksAndThinking(t *testing.T) {
	t.Parallel()
	reply := func() providertest.Reply {
		return blocks("end_turn", thought, []string{
			`{"type":"text","text":""}`, `{"type":"text_delta","text":"Two:\n\n` + "```" + `json type=list\n[1, 2]\n` + "```" + `\n"}`,
		})
	}
	stored, sent := loop(t, reply(), nil, agent.Blocks)
	if stored.GetContent() != "Two:" || len(stored.GetStructuredData()) != 1 || !strings.HasPrefix(sent, `{"content":[`+sentThought) ||
		!strings.Contains(sent, `[1, 2]`) {
		t.Errorf("message %v is sent as %s, want the native form", stored, sent)
	}
	_, sent = loop(t, reply(), func(m *parleyv1.Message) { m.StructuredData[0].Type = "other" }, agent.Blocks)
	if strings.Contains(sent, "thinking") || !strings.Contains(sent, "[1,2]") {
		t.Errorf("message with other data is sent as %s, want no native form", sent)
	}
}

// TestRefusedThinking: if the API refuses the blocks of earlier answers, the request is sent again without them. If it
// refuses that too, the turn fails with its reason.
func TestRefusedThinking(t *testing.T) {
	t.Parallel()
	refusal := func(status int, reason string) providertest.Reply {
		return providertest.Fail(status, anthropictest.Failure("invalid_request_error", reason))
	}
	signature := refusal(http.StatusBadRequest, "Invalid `signature` in `thinking` block")
	native := messageOf(nil)
	native.Content = "Let me see."
	native.Native = &parleyv1.Native{Type: "anthropic.content", Value: []byte("[" + sentThought + "," + sentText + "]")}
	plain := messageOf(nil)
	plain.Content = "Let me see."
	for name, test := range map[string]struct {
		message *parleyv1.Message
		replies []providertest.Reply
		want    []string // The assistant's messages in the requests.
		failure string
	}{
		"refused once":    {native, []providertest.Reply{signature, anthropictest.Text("ok")}, []string{content(sentThought, sentText), content(sentText)}, ""},
		"refused twice":   {native, []providertest.Reply{signature, refusal(400, "no model")}, []string{content(sentThought, sentText), content(sentText)}, "no model"},
		"without native":  {plain, []providertest.Reply{refusal(400, "no model")}, []string{content(sentText)}, "no model"},
		"another refusal": {native, []providertest.Reply{refusal(401, "no key")}, []string{content(sentThought, sentText)}, "no key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := anthropictest.New(t, test.replies...)
			_, err := answer(t, newAgent(t, agent.Model{BaseURL: fake.URL}), &parleyv1.RespondRequest{
				Messages: []*parleyv1.Message{{Role: user, Content: "Hi."}, test.message, {Role: user, Content: "Go on."}},
			})
			if (err == nil) != (test.failure == "") || err != nil && !strings.Contains(err.Error(), test.failure) {
				t.Errorf("error = %v, want %q", err, test.failure)
			}
			var got []string
			for _, r := range fake.Requests() {
				got = append(got, r.Messages()[1])
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("assistant's messages in the requests (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLargeThinking: the native form of an answer with more than 3 MiB of blocks is left out, and its type is
// reported. The answer itself is complete.
func TestLargeThinking(t *testing.T) {
	t.Parallel()
	large := []string{thought[0]}
	for range 4 {
		large = append(large, `{"type":"thinking_delta","thinking":"`+strings.Repeat("x", 1<<20)+`"}`)
	}
	pieces, err := answerTo(t, blocks("end_turn", large, lookUp))
	m := messageOf(pieces)
	if err != nil || m.GetContent() != "Let me see." || m.GetNative().GetType() != "anthropic.content" || m.GetNative().GetValue() != nil {
		t.Errorf("answer = %q with native form %q of %d bytes, %v, want the type alone",
			m.GetContent(), m.GetNative().GetType(), len(m.GetNative().GetValue()), err)
	}
}
