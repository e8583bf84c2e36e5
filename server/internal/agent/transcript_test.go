package agent_test

import (
	stdcmp "cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

const (
	user      = parleyv1.Role_ROLE_USER
	assistant = parleyv1.Role_ROLE_ASSISTANT
	tool      = parleyv1.Role_ROLE_TOOL
	cutOff    = parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE
)

func newMessage(role parleyv1.Role, content string) *parleyv1.Message {
	return &parleyv1.Message{Role: role, Content: content}
}

// calling returns an assistant message with calls that have these ids. The tool's name contains the
// first letter of the id.
func calling(content string, ids ...string) *parleyv1.Message {
	m := newMessage(assistant, content)
	for _, id := range ids {
		m.ToolCalls = append(m.ToolCalls, &parleyv1.ToolCall{Id: id, Name: fmt.Sprintf("tool-%.1s", id), Arguments: "{}"})
	}
	return m
}

func result(id, content string) *parleyv1.Message {
	return &parleyv1.Message{Role: tool, ToolResult: &parleyv1.ToolResult{CallId: id, Content: content}}
}

// lines describes each message in a line.
func lines(messages []*parleyv1.Message) []string {
	var all []string
	for _, m := range messages {
		line := strings.ToLower(strings.TrimPrefix(m.GetRole().String(), "ROLE_"))
		for _, call := range m.GetToolCalls() {
			line += " [" + call.GetId() + "]"
		}
		if r := m.GetToolResult(); r != nil {
			line += " (" + r.GetCallId() + ") " + r.GetContent()
		}
		if m.GetContent() != "" {
			line += " " + m.GetContent()
		}
		if m.GetStatus() == cutOff {
			line += " …"
		}
		all = append(all, line)
	}
	return all
}

func TestAnswered(t *testing.T) {
	failure := result("x", "no such city")
	failure.ToolResult.Name, failure.ToolResult.IsError, failure.Status = "weather", true, cutOff
	withContent := result("x", "sunny")
	withContent.Content = "From the roof."
	half := calling("Let me", "a", "b")
	half.Status = cutOff
	tests := []struct {
		name     string
		messages []*parleyv1.Message
		want     []string
	}{
		{"nothing", nil, nil},
		{
			"no calls",
			[]*parleyv1.Message{newMessage(user, "Hi"), newMessage(assistant, "Hello")},
			[]string{"user Hi", "assistant Hello"},
		},
		{
			"already answered",
			[]*parleyv1.Message{
				newMessage(user, "Hi"), calling("", "a", "b"), result("a", "1"), result("b", "2"), newMessage(assistant, "3"),
			},
			[]string{"user Hi", "assistant [a] [b]", "tool (a) 1", "tool (b) 2", "assistant 3"},
		},
		{
			"results in a different order",
			[]*parleyv1.Message{calling("", "a", "b"), result("b", "2"), result("a", "1")},
			[]string{"assistant [a] [b]", "tool (a) 1", "tool (b) 2"},
		},
		{
			"answered late, after other messages",
			[]*parleyv1.Message{
				calling("", "a", "b"), result("a", "1"), newMessage(assistant, "Well."), result("b", "2"), calling("", "c"),
				newMessage(parleyv1.Role_ROLE_SYSTEM, "!"), result("c", "3"),
			},
			[]string{
				"assistant [a] [b]", "tool (a) 1", "tool (b) no result", "assistant Well.", "user Result of a tool: 2",
				"assistant [c]", "tool (c) 3", "system !",
			},
		},
		{
			"never answered",
			[]*parleyv1.Message{calling("", "a", "b"), result("b", "2"), newMessage(user, "Never mind")},
			[]string{"assistant [a] [b]", "tool (a) no result", "tool (b) 2", "user Never mind"},
		},
		{
			"cut off in its calls",
			[]*parleyv1.Message{half, newMessage(user, "Continue"), result("b", "2")},
			[]string{
				"assistant [a] [b] Let me …", "tool (a) no result", "tool (b) no result", "user Continue",
				"user Result of a tool: 2",
			},
		},
		{
			"results without a call",
			[]*parleyv1.Message{
				result("a", "early"), calling("", "a"), failure, withContent,
				{Role: tool, Content: "plain"},
				result("a", "1"),
				result("a", "again"),
			},
			[]string{
				"user Result of a tool: early", "assistant [a]", "tool (a) 1", "user Failure of a tool (weather): no such city …",
				"user From the roof.\n\nResult of a tool: sunny", "user plain", "user Result of a tool: again",
			},
		},
		{
			"id reused in each turn",
			[]*parleyv1.Message{
				calling("", "a"), result("a", "1"), calling("", "a"), result("a", "2"), calling("", "a"), result("a", "3"),
			},
			[]string{"assistant [a]", "tool (a) 1", "assistant [a_2]", "tool (a_2) 2", "assistant [a_3]", "tool (a_3) 3"},
		},
		{
			"id reused while the call is open: the older call gets no result",
			[]*parleyv1.Message{
				calling("", "a"), newMessage(user, "Again"), calling("", "a"), result("a", "2"), result("a", "late"),
			},
			[]string{
				"assistant [a]", "tool (a) no result", "user Again", "assistant [a_2]", "tool (a_2) 2",
				"user Result of a tool: late",
			},
		},
		{
			"provider that restarts its ids with each answer",
			[]*parleyv1.Message{calling("", "a", "b"), result("a", "1"), calling("", "a"), result("b", "2"), result("a", "3")},
			[]string{
				"assistant [a] [b]", "tool (a) 1", "tool (b) no result", "assistant [a_2]", "tool (a_2) 3",
				"user Result of a tool: 2",
			},
		},
		{
			"duplicate id in one message: the first call is answered first",
			[]*parleyv1.Message{calling("", "a", "b", "a", "a"), result("a", "1"), result("a", "2")},
			[]string{
				"assistant [a] [b] [a_2] [a_3]", "tool (a) 1", "tool (b) no result", "tool (a_2) 2", "tool (a_3) no result",
			},
		},
		{
			"id that looks like a derived one",
			[]*parleyv1.Message{calling("", "a", "a_2", "a", "a_2")},
			[]string{
				"assistant [a] [a_2] [a_3] [a_2_2]",
				"tool (a) no result", "tool (a_2) no result", "tool (a_3) no result", "tool (a_2_2) no result",
			},
		},
		{
			"id that was already derived",
			[]*parleyv1.Message{
				calling("", "a", "a"), result("a", "1"), result("a", "2"), calling("", "a_2"), result("a_2", "3"),
			},
			[]string{"assistant [a] [a_2]", "tool (a) 1", "tool (a_2) 2", "assistant [a_2_2]", "tool (a_2_2) 3"},
		},
		{
			"no id",
			[]*parleyv1.Message{calling("", ""), result("", "1"), calling("", ""), result("", "2")},
			[]string{"assistant [_2]", "tool (_2) 1", "assistant [_3]", "tool (_3) 2"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, lines(agent.Answered(test.messages))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnsweredNamesToolOfMissingResult(t *testing.T) {
	got := agent.Answered([]*parleyv1.Message{calling("", "a")})
	want := &parleyv1.Message{
		Role: tool, ToolResult: &parleyv1.ToolResult{CallId: "a", Name: "tool-a", Content: "no result"},
	}
	if diff := cmp.Diff(want, got[1], protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAnsweredKeepsOtherFields(t *testing.T) {
	carried := &parleyv1.Message{
		Id: "m", Sequence: 7, Agent: "writer", Metadata: map[string]string{"k": "v"},
		StructuredData: []*parleyv1.StructuredData{{Type: "n", Value: structpb.NewNumberValue(1)}},
		Attachments:    []*parleyv1.Attachment{{Uri: "file:///a"}},
	}
	second, answer, stray := proto.CloneOf(carried), proto.CloneOf(carried), proto.CloneOf(carried)
	second.Role, second.ToolCalls = assistant, calling("", "a").GetToolCalls()
	answer.Role, answer.ToolResult = tool, &parleyv1.ToolResult{CallId: "a", Name: "n", Content: "c", IsError: true}
	stray.Role, stray.ToolResult = tool, &parleyv1.ToolResult{CallId: "x"}

	got := agent.Answered([]*parleyv1.Message{calling("", "a"), result("a", "1"), second, answer, stray})
	second, answer, stray = proto.CloneOf(second), proto.CloneOf(answer), proto.CloneOf(stray)
	second.ToolCalls[0].Id, answer.ToolResult.CallId = "a_2", "a_2"
	stray.Role, stray.ToolResult, stray.Content = user, nil, "Result of a tool: "
	want := []*parleyv1.Message{calling("", "a"), result("a", "1"), second, answer, stray}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// drawMessages returns a history with unique texts, so that each can be found again: message m3,
// its result r3, the arguments of its calls g3.0, g3.1 and so on. There are few different ids.
func drawMessages(t *rapid.T) []*parleyv1.Message {
	ids := rapid.SampledFrom([]string{"", "a", "a_2", "a_3", "b"})
	messages := make([]*parleyv1.Message, rapid.IntRange(0, 12).Draw(t, "messages"))
	for i := range messages {
		m := newMessage(rapid.SampledFrom([]parleyv1.Role{user, assistant, assistant, tool, tool}).Draw(t, "role"),
			fmt.Sprintf("<m%d>", i))
		if rapid.Bool().Draw(t, "cut off") {
			m.Status = cutOff
		}
		switch m.GetRole() {
		case tool:
			m.ToolResult = &parleyv1.ToolResult{
				CallId: ids.Draw(t, "id"), Content: fmt.Sprintf("<r%d>", i), IsError: rapid.Bool().Draw(t, "error"),
			}
		case assistant:
			for k := range rapid.IntRange(0, 3).Draw(t, "calls") {
				m.ToolCalls = append(m.ToolCalls, &parleyv1.ToolCall{
					Id: ids.Draw(t, "id"), Arguments: fmt.Sprintf("<g%d.%d>", i, k),
				})
			}
		}
		messages[i] = m
	}
	return messages
}

func cloned(messages []*parleyv1.Message) []*parleyv1.Message {
	clones := make([]*parleyv1.Message, len(messages))
	for i, m := range messages {
		clones[i] = proto.CloneOf(m)
	}
	return clones
}

func TestAnsweredProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		messages := drawMessages(t)
		before := cloned(messages)
		got := agent.Answered(messages)
		if diff := cmp.Diff(before, messages, protocmp.Transform()); diff != "" {
			t.Fatalf("Answered changed its input (-before +after):\n%s", diff)
		}
		if diff := cmp.Diff(got, agent.Answered(got), protocmp.Transform()); diff != "" {
			t.Fatalf("Answered is not idempotent (-once +twice):\n%s", diff)
		}
		checkNothingLost(t, messages, got)
		checkAnswered(t, got)
		checkPairs(t, messages, got)

		// A longer history assigns the same ids to its beginning.
		prefix := rapid.IntRange(0, len(messages)).Draw(t, "prefix")
		first := callIDs(agent.Answered(messages[:prefix]))
		if all := callIDs(got); !slices.Equal(first, all[:len(first)]) {
			t.Fatalf("ids = %q, then %q with more messages", first, all)
		}
	})
}

// checkNothingLost checks that each text occurs once, in a message of the same status, and that
// messages other than tool messages keep their order.
func checkNothingLost(t *rapid.T, messages, got []*parleyv1.Message) {
	text := fmt.Sprint(got)
	var order, orderGot []string
	for i, m := range messages {
		marks := []string{fmt.Sprintf("<m%d>", i)}
		if m.GetRole() == tool {
			marks = append(marks, m.GetToolResult().GetContent())
		} else {
			order = append(order, marks[0])
		}
		for _, call := range m.GetToolCalls() {
			marks = append(marks, call.GetArguments())
		}
		for _, mark := range marks {
			if n := strings.Count(text, mark); n != 1 {
				t.Fatalf("%s occurs %d times in %v, want once", mark, n, lines(got))
			}
			j := slices.IndexFunc(got, func(g *parleyv1.Message) bool { return strings.Contains(g.String(), mark) })
			if got[j].GetStatus() != m.GetStatus() {
				t.Fatalf("%s: status %v became %v", mark, m.GetStatus(), got[j].GetStatus())
			}
		}
	}
	for _, g := range got {
		if slices.Contains(order, g.GetContent()) {
			orderGot = append(orderGot, g.GetContent())
		}
	}
	if diff := cmp.Diff(order, orderGot); diff != "" {
		t.Fatalf("order (-want +got):\n%s", diff)
	}
}

// checkAnswered checks that each call is directly followed by one result, in the order of the
// calls, that there are no other results, and that ids are unique.
func checkAnswered(t *rapid.T, got []*parleyv1.Message) {
	seen := map[string]bool{"": true}
	for rest := got; len(rest) > 0; {
		m := rest[0]
		rest = rest[1:]
		if m.GetRole() == tool || m.GetToolResult() != nil {
			t.Fatalf("result without a call: %v in %q", m, lines(got))
		}
		for _, call := range m.GetToolCalls() {
			if seen[call.GetId()] {
				t.Fatalf("id %q is not unique: %q", call.GetId(), lines(got))
			}
			seen[call.GetId()] = true
			if len(rest) == 0 || rest[0].GetRole() != tool || rest[0].GetToolResult().GetCallId() != call.GetId() {
				t.Fatalf("no result directly after %v: %q", call, lines(got))
			}
			rest = rest[1:]
		}
	}
}

// checkPairs checks that each call has the result that the API defines, unless another message is
// between them: a result answers the newest earlier message that contains a call with its id, and
// there the first call without a result.
func checkPairs(t *rapid.T, messages, got []*parleyv1.Message) {
	results := make(map[string]string) // By the arguments of the call.
	for i, m := range messages {
		if m.GetRole() != tool {
			continue
		}
		for _, asking := range slices.Backward(messages[:i]) {
			named := slices.DeleteFunc(slices.Clone(asking.GetToolCalls()), func(c *parleyv1.ToolCall) bool {
				return c.GetId() != m.GetToolResult().GetCallId()
			})
			open := slices.IndexFunc(named, func(c *parleyv1.ToolCall) bool { return results[c.GetArguments()] == "" })
			if open >= 0 {
				results[named[open].GetArguments()] = m.GetToolResult().GetContent()
			}
			if asking.GetRole() == user || asking.GetRole() == assistant {
				break
			}
		}
	}
	for i, m := range got {
		for k, call := range m.GetToolCalls() {
			want := stdcmp.Or(results[call.GetArguments()], "no result")
			if content := got[i+1+k].GetToolResult().GetContent(); content != want {
				t.Fatalf("result of %v = %s, want %s", call, content, want)
			}
		}
	}
}

func callIDs(messages []*parleyv1.Message) []string {
	var ids []string
	for _, m := range messages {
		for _, call := range m.GetToolCalls() {
			ids = append(ids, call.GetId())
		}
	}
	return ids
}

func TestText(t *testing.T) {
	list, err := structpb.NewValue(map[string]any{"name": "R&D <b>", "n": 50, "tags": []any{"a", nil, true, "```\nx"}})
	if err != nil {
		t.Fatal(err)
	}
	data := []*parleyv1.StructuredData{{Type: "library_list", Value: list}, {Type: "odd", Value: structpb.NewNumberValue(math.NaN())}, {Type: "none"}}
	const blocks = "```json type=library_list\n" + `{"n":50,"name":"R&D <b>","tags":["a",null,true,"` + "```" + `\nx"]}` +
		"\n```\n\n```json type=odd\n\"NaN\"\n```\n\n```json type=none\nnull\n```"
	tests := []struct {
		name    string
		message *parleyv1.Message
		want    string
	}{
		{"nil", nil, ""},
		{"nothing", &parleyv1.Message{}, ""},
		{"content", newMessage(user, " Hi \n"), " Hi \n"},
		{"cut off", &parleyv1.Message{Content: " The answer is", Status: cutOff}, " The answer is [cut off]"},
		{"cut off at once", &parleyv1.Message{Role: assistant, Status: cutOff}, ""},
		{"cut off in its reasoning", &parleyv1.Message{Role: assistant, Reasoning: "Hm", Status: cutOff}, ""},
		{
			"cut off after a call",
			&parleyv1.Message{Role: assistant, ToolCalls: []*parleyv1.ToolCall{{Id: "a"}}, Status: cutOff}, "[cut off]",
		},
		{"data", &parleyv1.Message{StructuredData: data}, blocks},
		{
			"content and data", &parleyv1.Message{Content: "Here.", StructuredData: data, Status: cutOff},
			"Here. [cut off]\n\n" + blocks,
		},
		{"a tool result", result("a", "1"), ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, agent.Text(test.message)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
