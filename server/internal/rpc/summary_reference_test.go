package rpc

import (
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// drawWords draws a text of up to 12 words with all kinds of white space between them.
func drawWords(t *rapid.T, label string) string {
	words := rapid.SliceOfN(
		rapid.SampledFrom([]string{"yes", "the", "second", "größer", "日本", "🙂", "\n", "\t", "\u2028", "a,", "+"}),
		0,
		12,
	)
	return strings.Join(words.Draw(t, label), " ")
}

// drawLong draws a text of up to limit bytes. Most are short.
func drawLong(t *rapid.T, label string, limit int) string {
	text := drawWords(t, label)
	if text == "" || rapid.IntRange(0, 4).Draw(t, label+" is long") > 0 {
		return text[:min(len(text), limit/2)]
	}
	return strings.Repeat(text, rapid.IntRange(1, max(1, limit/len(text))).Draw(t, label+" times"))
}

// drawMessage draws a message with any role. It uses few types, agents and call ids, so that they
// repeat.
func drawMessage(t *rapid.T) *parleyv1.Message {
	m := &parleyv1.Message{
		Id: rapid.SampledFrom(
			[]string{"", "", "mine"},
		).Draw(
			t,
			"id",
		), Role: parleyv1.Role(rapid.Int32Range(1, 4).Draw(t, "role")),
		Content: strings.ToValidUTF8(
			drawLong(t, "content", 4<<10),
			"",
		), Status: parleyv1.MessageStatus(rapid.Int32Range(0, 2).Draw(t, "status")),
	}
	agents, ids := rapid.SampledFrom(
		[]string{"", "searcher", "analyst", "schöngeist"},
	), rapid.SampledFrom(
		[]string{"1", "2", "3"},
	)
	switch m.Role {
	case parleyv1.Role_ROLE_ASSISTANT:
		m.Agent, m.Summary = agents.Draw(t, "agent"), strings.ToValidUTF8(drawLong(t, "summary", 500), "")
		for range rapid.IntRange(0, 2).Draw(t, "calls") {
			m.ToolCalls = append(
				m.ToolCalls,
				&parleyv1.ToolCall{Id: ids.Draw(t, "call"), Name: "tool", Arguments: drawWords(t, "arguments")},
			)
		}
	case parleyv1.Role_ROLE_TOOL:
		m.Agent = agents.Draw(t, "agent")
		m.ToolResult = &parleyv1.ToolResult{
			CallId:  ids.Draw(t, "call_id"),
			Content: drawWords(t, "result"),
			IsError: rapid.Bool().Draw(t, "is_error"),
		}
	default:
	}
	types := rapid.SampledFrom(
		[]string{
			"list",
			"price",
			"ein Maß",
			strings.Repeat("t", 128),
			strings.Repeat("u", 128),
			strings.Repeat("v", 128),
			strings.Repeat("w", 128),
		},
	)
	for range rapid.IntRange(-2, 5).Draw(t, "values") {
		m.StructuredData = append(
			m.StructuredData,
			&parleyv1.StructuredData{Type: types.Draw(t, "type"), Value: drawValue(t)},
		)
	}
	if rapid.IntRange(0, 9).Draw(t, "extras") == 0 {
		m.Metadata, m.Attachments = map[string]string{
			"a": drawWords(t, "metadata"),
		}, []*parleyv1.Attachment{
			{Uri: "file:1"},
			{Uri: "file:2"},
		}
	}
	return m
}

func drawValue(t *rapid.T) *structpb.Value {
	word := structpb.NewStringValue(drawWords(t, "value"))
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		return structpb.NewListValue(
			&structpb.ListValue{Values: []*structpb.Value{word, structpb.NewNumberValue(1.5), structpb.NewNullValue()}},
		)
	case 1:
		return structpb.NewStructValue(
			&structpb.Struct{Fields: map[string]*structpb.Value{"name": word, "good": structpb.NewBoolValue(true)}},
		)
	default:
		return word
	}
}

// referenceSummary returns the summary of a conversation with these messages, as the comments in
// routing.proto define it.
func referenceSummary(c *parleyv1.Conversation, stored []*parleyv1.Message, limit int) *parleyv1.RoutingSummary {
	s := &parleyv1.RoutingSummary{
		ConversationId: c.GetId(), Uid: c.GetUid(), Version: c.GetVersion(), UpdateTime: c.GetUpdateTime(),
		ExpireTime:  c.GetExpireTime(),
		ActiveAgent: c.GetActiveAgent(), ActiveTurnId: c.GetActiveTurnId(), LastSequence: c.GetLastSequence(),
		MessageCount: int32(len(stored)),
	}
	stored = slices.DeleteFunc(slices.Clone(stored), isEmptyAnswer)
	s.RecentMessages, s.Text = stored[max(0, len(stored)-limit):], referenceText(stored)
	var dialog []*parleyv1.Message // without system messages
	for i, m := range stored {
		if m.GetRole() != parleyv1.Role_ROLE_SYSTEM {
			dialog = append(dialog, m)
		}
		for k, call := range m.GetToolCalls() {
			// Results answer the calls of a message that have the same id in their order. If a later message
			// has a call with the id, none of them is pending.
			earlierCalls, results, superseded := 0, 0, false
			sameID := func(c *parleyv1.ToolCall) bool { return c.GetId() == call.GetId() }
			for _, earlier := range m.GetToolCalls()[:k] {
				if sameID(earlier) {
					earlierCalls++
				}
			}
			for _, later := range stored[i+1:] {
				superseded = superseded || slices.ContainsFunc(later.GetToolCalls(), sameID)
				if later.GetToolResult().GetCallId() == call.GetId() {
					results++
				}
			}
			if !superseded && results <= earlierCalls {
				s.PendingToolCalls = append(s.PendingToolCalls, call)
			}
		}
	}
	s.AwaitingAnswer = len(dialog) > 0 && dialog[len(dialog)-1].GetRole() == parleyv1.Role_ROLE_USER
	for _, m := range slices.Backward(stored) {
		sameAgent := func(a *parleyv1.AgentUse) bool { return a.GetAgent() == m.GetAgent() }
		if m.GetRole() == parleyv1.Role_ROLE_ASSISTANT && m.GetAgent() != "" &&
			!slices.ContainsFunc(s.RecentAgents, sameAgent) {
			s.RecentAgents = append(
				s.RecentAgents,
				&parleyv1.AgentUse{Agent: m.GetAgent(), LastSequence: m.GetSequence(), LastTime: m.GetCreateTime()},
			)
		}
	}
	for _, values := range referenceValues(stored) {
		newest := values[0]
		s.StructuredDataTypes = append(s.StructuredDataTypes, &parleyv1.StructuredDataUse{
			Type: newest.GetData().GetType(), Count: int32(len(values)), LastSequence: newest.GetSequence(),
			LastAgent: newest.GetAgent(),
		})
		hasNewest := func(m *parleyv1.Message) bool { return m.GetSequence() == newest.GetSequence() }
		if !slices.ContainsFunc(s.RecentMessages, hasNewest) {
			s.ReferencedData = append(s.ReferencedData, newest)
		}
	}
	return s
}

// isEmptyAnswer reports whether a message is an answer that was cut off before it said anything.
func isEmptyAnswer(m *parleyv1.Message) bool {
	return m.GetRole() == parleyv1.Role_ROLE_ASSISTANT &&
		m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE && m.GetContent() == "" && m.GetSummary() == "" &&
		len(m.GetStructuredData())+len(m.GetToolCalls())+len(m.GetAttachments()) == 0
}

// referenceValues returns the values of each type, the newest first. The type with the newest value is
// the first.
func referenceValues(stored []*parleyv1.Message) [][]*parleyv1.ReferencedData {
	var types [][]*parleyv1.ReferencedData
	for _, m := range slices.Backward(stored) {
		for _, d := range slices.Backward(m.GetStructuredData()) {
			value := &parleyv1.ReferencedData{Sequence: m.GetSequence(), Agent: m.GetAgent(), Data: d}
			at := slices.IndexFunc(
				types,
				func(t []*parleyv1.ReferencedData) bool { return t[0].GetData().GetType() == d.GetType() },
			)
			if at < 0 {
				types = append(types, []*parleyv1.ReferencedData{value})
			} else {
				types[at] = append(types[at], value)
			}
		}
	}
	return types
}

// referenceText returns the text of a summary: a clause for each assistant message that has one, and as
// many of the newest clauses as fit. If the newest clause alone does not fit, it is truncated.
func referenceText(stored []*parleyv1.Message) string {
	var clauses []string
	for _, m := range stored {
		var types []string
		for _, d := range m.GetStructuredData() {
			if !slices.Contains(types, d.GetType()) {
				types = append(types, d.GetType())
			}
		}
		words := strings.Fields(m.GetContent())
		for _, clause := range []string{m.GetSummary(), strings.Join(types, "+"), strings.Join(words[:min(8, len(words))], " ")} {
			if clause = strings.Join(strings.Fields(clause), " "); clause != "" &&
				m.GetRole() == parleyv1.Role_ROLE_ASSISTANT {
				clauses = append(clauses, clause)
				break
			}
		}
	}
	text := ""
	for i := range clauses {
		text = "Previous: " + strings.Join(clauses[i:], ", ")
		if utf8.RuneCountInString(text) <= 500 {
			return text
		}
	}
	if text != "" {
		text = string([]rune(text)[:499]) + "…"
	}
	return text
}

// referenceTruncate removes messages and values from a summary until the rest fits into maxBytes, and
// sets Truncated. If the newest message does not fit, it returns that message. If maxBytes is 0, there
// is no limit.
func referenceTruncate(s *parleyv1.RoutingSummary, maxBytes int) (tooLarge *parleyv1.Message) {
	for maxBytes > 0 && variableSize(s) > maxBytes {
		s.Truncated = true
		switch {
		case len(s.ReferencedData) > 0: // newest first
			s.ReferencedData = s.ReferencedData[:len(s.ReferencedData)-1]
		case len(s.RecentMessages) > 1:
			if !referenceTruncateStart(s, maxBytes) {
				s.RecentMessages = s.RecentMessages[1:]
			}
		default:
			return s.RecentMessages[0]
		}
	}
	return nil
}

// referenceTruncateStart removes characters from the beginning of the oldest message until the summary
// fits. It reports whether any characters are left.
func referenceTruncateStart(s *parleyv1.RoutingSummary, maxBytes int) bool {
	oldest := proto.CloneOf(s.RecentMessages[0])
	s.RecentMessages = append([]*parleyv1.Message{oldest}, s.RecentMessages[1:]...)
	for rest := []rune(oldest.GetContent()); len(rest) > 0; rest = rest[1:] {
		if oldest.Content = string(rest); variableSize(s) <= maxBytes {
			return true
		}
	}
	return false
}

// variableSize returns the size that max_bytes limits.
func variableSize(s *parleyv1.RoutingSummary) int {
	return proto.Size(
		&parleyv1.RoutingSummary{RecentMessages: s.GetRecentMessages(), ReferencedData: s.GetReferencedData()},
	)
}
