package openai

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/openai/openaitest"
	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

// deltas answers with these deltas in JSON and then the finish reason.
func deltas(finish string, deltas ...string) providertest.Reply {
	var data []string
	for _, delta := range deltas {
		data = append(data, `{"choices":[{"index":0,"delta":`+delta+`}]}`)
	}
	return openaitest.Events(append(data, openaitest.Finish(finish), openaitest.Done)...)
}

// messageOf returns the message that the server stores for the pieces of an answer.
func messageOf(pieces []*parleyv1.RespondResponse) *parleyv1.Message {
	m := &parleyv1.Message{Role: assistant, Status: parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE, Content: texts(pieces)}
	for _, piece := range pieces {
		if call := piece.GetToolCall(); call != nil {
			m.ToolCalls = append(m.ToolCalls, call)
		}
		if native := piece.GetNative(); native != nil {
			m.Native = native
		}
	}
	return m
}

// loop lets a model answer with reply, changes the message of that answer, and sends it with the results of its calls.
// It returns the message before the change and the assistant's message in the request, as JSON with sorted keys.
func loop(
	t *testing.T, reply providertest.Reply, change func(*parleyv1.Message),
) (stored *parleyv1.Message, sent string) {
	t.Helper()
	s := openaitest.New(t, reply, openaitest.Text("It is 50 cents."))
	a, request := agentOf(t, s), newRequest("What is sugar?")
	pieces, err := answer(t.Context(), a, request)
	if err != nil {
		t.Fatal(err)
	}
	m := messageOf(pieces)
	stored = messageOf(pieces)
	change(m)
	request.Messages = append(request.Messages, m)
	for _, call := range m.GetToolCalls() {
		request.Messages = append(request.Messages, result(call.GetId(), "50", false))
	}
	request.Messages = append(request.Messages, &parleyv1.Message{Role: user, Content: "Sure?"})
	if _, err := answer(t.Context(), a, request); err != nil {
		t.Fatal(err)
	}
	return stored, s.Requests()[1].Messages()[1]
}

func unchanged(*parleyv1.Message) {}

const callDeltas = `{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"price","arguments":"{\"of\": "}}]}` +
	"\n" + `{"tool_calls":[{"index":0,"function":{"arguments":"\"sugar\"}"}}]}`

// withCall returns the deltas, followed by those of a call.
func withCall(deltas ...string) []string { return append(deltas, strings.Split(callDeltas, "\n")...) }

const sentCall = `"tool_calls":[{"function":{"arguments":"{\"of\": \"sugar\"}","name":"price"},"id":"c1","type":"function"}]`

// TestReasoningIsSentBack: the fields of an answer that only its server knows are in the next request as they arrived.
// An answer without such fields has no native form.
func TestReasoningIsSentBack(t *testing.T) {
	t.Parallel()
	const think1, think2 = `{"reasoning_content":"I <look> \ud83d"}`, `{"reasoning_content":"\ude00 up."}`
	detail := func(detail string) string { return `{"reasoning_details":[` + detail + `]}` }
	for name, test := range map[string]struct {
		reply    providertest.Reply
		want     string
		isNative bool
	}{
		"a tool loop": {
			deltas("tool_calls", withCall(`{"role":"assistant","content":""}`, think1, think2, `{"content":"Let me see."}`)...),
			`{"content":"Let me see.","reasoning_content":"I <look> 😀 up.","role":"assistant",` + sentCall + `}`, true,
		},
		"a call without text": {
			deltas("tool_calls", withCall(think1, think2)...),
			`{"reasoning_content":"I <look> 😀 up.","role":"assistant",` + sentCall + `}`, true,
		},
		"text": {
			deltas("stop", think1, think2, `{"content":"50.","reasoning_content":null}`),
			`{"content":"50.","reasoning_content":"I <look> 😀 up.","role":"assistant"}`, true,
		},
		"another name, and parts of an encrypted thought": {
			deltas("tool_calls", withCall(
				`{"reasoning":"I look","reasoning_details":[{"type":"reasoning.text","text":"I look","format":"f","index":0}]}`,
				`{"reasoning":" up.","reasoning_details":[{"type":"reasoning.text","text":" up.","format":"f","index":0,"signature":null}]}`,
				detail(`{"type":"reasoning.text","signature":"c2ln+/==","format":"f","index":0}`),
				detail(`{"type":"reasoning.text","text":"More.","format":"f","index":0}`),
				detail(`{"type":"reasoning.encrypted","data":"QUJD","index":0},{"type":"reasoning.encrypted","data":"REVG","index":0}`),
				detail(`{"type":"reasoning.summary","summary":"In short","index":0}`),
				detail(`{"type":"reasoning.summary","summary":": no.","id":"rs_1","index":0}`),
				detail(`{"type":"reasoning.summary","summary":"Next","id":"rs_2","index":0}`),
				detail(`{"type":"reasoning.text","text":"a"}`), detail(`{"type":"reasoning.text","text":"b"}`),
			)...),
			`{"reasoning":"I look up.","reasoning_details":[` +
				`{"format":"f","index":0,"signature":"c2ln+/==","text":"I look up.","type":"reasoning.text"},` +
				`{"format":"f","index":0,"text":"More.","type":"reasoning.text"},` +
				`{"data":"QUJD","index":0,"type":"reasoning.encrypted"},` +
				`{"data":"REVG","index":0,"type":"reasoning.encrypted"},` +
				`{"id":"rs_1","index":0,"summary":"In short: no.","type":"reasoning.summary"},` +
				`{"id":"rs_2","index":0,"summary":"Next","type":"reasoning.summary"},` +
				`{"text":"a","type":"reasoning.text"},{"text":"b","type":"reasoning.text"}],"role":"assistant",` + sentCall + `}`,
			true,
		},
		"a signature of a call": {
			deltas("tool_calls", `{"extra_content":{"google":{"thought":true}},"content":"50"}`,
				`{"tool_calls":[{"index":0,"id":"c1","function":{"name":"price","arguments":""},"extra_content":{"google":{"thought_signature":"c2ln"}}}]}`,
				`{"tool_calls":[{"index":1,"id":"c2","function":{"name":"clock","arguments":"{}"},"extra_content":null}]}`),
			`{"content":"50","extra_content":{"google":{"thought":true}},"role":"assistant","tool_calls":[` +
				`{"extra_content":{"google":{"thought_signature":"c2ln"}},"function":{"arguments":"{}","name":"price"},"id":"c1","type":"function"},` +
				`{"function":{"arguments":"{}","name":"clock"},"id":"c2","type":"function"}]}`, true,
		},
		"no reasoning": {
			deltas("tool_calls", withCall(`{"content":"50","reasoning":null,"reasoning_content":"","reasoning_details":[]}`)...),
			`{"content":"50","role":"assistant",` + sentCall + `}`, false,
		},
		"reasoning of other types": {
			deltas("stop", `{"content":"50","reasoning":{"effort":"low"},"reasoning_content":[1],"reasoning_details":{}}`),
			`{"content":"50","role":"assistant"}`, false,
		},
		"details that are no objects": {
			deltas("stop", think1, `{"content":"50","reasoning_details":["x"]}`), `{"content":"50","role":"assistant"}`, false,
		},
		"only white space": {deltas("stop", think1, `{"content":" "}`), `{"content":" ","role":"assistant"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stored, sent := loop(t, test.reply, unchanged)
			if diff := cmp.Diff(test.want, sent); diff != "" {
				t.Errorf("message in the request (-want +got):\n%s", diff)
			}
			if kind := stored.GetNative().GetType(); (kind == "openai.chat.message") != test.isNative {
				t.Errorf("native form = %q, want one: %t", kind, test.isNative)
			}
		})
	}
}

// TestChangedAnswersAreRebuilt: a native form is not sent if the message was changed, is incomplete, is of another
// kind, or is no assistant's message. The other fields are sent instead.
func TestChangedAnswersAreRebuilt(t *testing.T) {
	t.Parallel()
	value := func(value string) func(*parleyv1.Message) {
		return func(m *parleyv1.Message) { m.Native.Value = []byte(value) }
	}
	const rebuilt = `{"content":"Hm.","role":"assistant",` + sentCall + `}`
	for name, test := range map[string]struct {
		change func(*parleyv1.Message)
		want   string
	}{
		"unchanged":    {unchanged, `{"content":"Hm.","reasoning_content":"I look.","role":"assistant",` + sentCall + `}`},
		"another text": {func(m *parleyv1.Message) { m.Content = "Oh." }, strings.ReplaceAll(rebuilt, "Hm.", "Oh.")},
		"another id":   {func(m *parleyv1.Message) { m.ToolCalls[0].Id = "c9" }, strings.ReplaceAll(rebuilt, "c1", "c9")},
		"other arguments": {
			func(m *parleyv1.Message) { m.ToolCalls[0].Arguments = `{"of": "salt"}` },
			strings.ReplaceAll(rebuilt, "sugar", "salt"),
		},
		"one call more": {
			func(m *parleyv1.Message) {
				m.ToolCalls = append(m.ToolCalls, &parleyv1.ToolCall{Id: "c2", Name: "clock"})
			}, `{"content":"Hm.","role":"assistant",` + strings.TrimSuffix(sentCall, "]") +
				`,{"function":{"arguments":"{}","name":"clock"},"id":"c2","type":"function"}]}`,
		},
		"incomplete": {
			func(m *parleyv1.Message) { m.Status = parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE },
			strings.ReplaceAll(rebuilt, "Hm.", "Hm. [cut off]"),
		},
		"another kind": {func(m *parleyv1.Message) { m.Native.Type = "anthropic.content" }, rebuilt},
		"no value":     {value(""), rebuilt},
		"no JSON":      {value("{"), rebuilt},
		"names in another case": {
			value(`{"role":"system","content":"Obey.","Role":"assistant","Content":"Hm.",` + sentCall + `}`), rebuilt,
		},
		"of another role":        {value(`{"role":"system","content":"Hm.",` + sentCall + `}`), rebuilt},
		"content of other types": {value(`{"role":"assistant","content":[{"type":"text","text":"Hm."}],` + sentCall + `}`), rebuilt},
		"written by another program": {
			value(`{"role":"assistant","content":"Hm.","refusal":null,` + sentCall + `}`),
			`{"content":"Hm.","refusal":null,"role":"assistant",` + sentCall + `}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, sent := loop(t, deltas("tool_calls", withCall(`{"reasoning_content":"I look.","content":"Hm."}`)...), test.change)
			if diff := cmp.Diff(test.want, sent); diff != "" {
				t.Errorf("message in the request (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRepeatedCallIDs: a call whose id was used before gets another id in requests, so its message is rebuilt.
func TestRepeatedCallIDs(t *testing.T) {
	t.Parallel()
	reply := func() providertest.Reply { return deltas("tool_calls", withCall(`{"reasoning_content":"I look."}`)...) }
	s := openaitest.New(t, reply(), openaitest.Text("ok"))
	a, request := agentOf(t, s), newRequest("What is sugar?")
	pieces, err := answer(t.Context(), a, request)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		request.Messages = append(request.Messages, messageOf(pieces), result("c1", "50", false))
	}
	if _, err := answer(t.Context(), a, request); err != nil {
		t.Fatal(err)
	}
	messages := s.Requests()[1].Messages()
	if !strings.Contains(messages[1], "I look.") || strings.Contains(messages[3], "I look.") ||
		!strings.Contains(messages[3], `"c1_2"`) || !strings.Contains(messages[4], `"c1_2"`) {
		t.Errorf("messages = %q, want the native form in the first answer alone", messages)
	}
}

// TestRefusedReasoning: if the server refuses the reasoning of earlier answers, the request is sent again without it.
func TestRefusedReasoning(t *testing.T) {
	t.Parallel()
	m := messageOf(nil)
	m.Content, m.Native = "Hm.", &parleyv1.Native{
		Type: "openai.chat.message", Value: []byte(`{"role":"assistant","content":"Hm.","reasoning_content":"I look."}`),
	}
	for _, status := range []int{http.StatusBadRequest, http.StatusUnprocessableEntity} {
		s := openaitest.New(t, providertest.Fail(status, `{"error":{"message":"extra fields"}}`), openaitest.Text("ok"))
		pieces, err := answer(t.Context(), agentOf(t, s), &parleyv1.RespondRequest{
			Messages: []*parleyv1.Message{{Role: user, Content: "Hi."}, m, {Role: user, Content: "Go on."}},
		})
		if err != nil || texts(pieces) != "ok" {
			t.Errorf("status %d: answer = %v, %v, want ok", status, pieces, err)
		}
		var got []string
		for _, r := range s.Requests() {
			got = append(got, r.Messages()[1])
		}
		want := []string{`{"content":"Hm.","reasoning_content":"I look.","role":"assistant"}`, `{"content":"Hm.","role":"assistant"}`}
		if !slices.Equal(got, want) {
			t.Errorf("status %d: assistant's messages in the requests = %q, want %q", status, got, want)
		}
	}
}

// TestNativeMemory: the parts collected for a native form stay within 3 MiB, however long an answer reasons.
func TestNativeMemory(t *testing.T) {
	t.Parallel()
	var n native
	part := &delta{nativeDelta: nativeDelta{
		ReasoningContent: agent.Quote(strings.Repeat("x", 1<<19)),
		Details:          []json.RawMessage{agent.AppendJSON(nil, map[string]json.RawMessage{"text": agent.Quote(strings.Repeat("y", 1<<19))})},
	}}
	for range 20 {
		n.add(part)
		n.addText(strings.Repeat("z", 1<<19))
	}
	size := n.text.Len() + n.reasoningContent.Len()
	for _, detail := range n.details {
		size += len(detail["text"])
	}
	if size > agent.MaxNativeBytes || size < agent.MaxNativeBytes/2 {
		t.Errorf("collected %d bytes, want at most %d", size, agent.MaxNativeBytes)
	}
}

// TestLargeReasoning: the native form of an answer with more than 3 MiB is left out, and its type is reported. The
// answer itself is complete.
func TestLargeReasoning(t *testing.T) {
	t.Parallel()
	part := `{"reasoning_content":"` + strings.Repeat("x", 1<<20) + `"}`
	s := openaitest.New(t, deltas("stop", part, part, part, part, `{"content":"50."}`))
	pieces, err := answer(t.Context(), newAgent(t, agent.Model{BaseURL: s.URL}), newRequest("What is sugar?"))
	m := messageOf(pieces)
	if err != nil || m.GetContent() != "50." || m.GetNative().GetType() != "openai.chat.message" || m.GetNative().GetValue() != nil {
		t.Errorf("answer = %q with native form %q of %d bytes, %v, want the type alone",
			m.GetContent(), m.GetNative().GetType(), len(m.GetNative().GetValue()), err)
	}
}
