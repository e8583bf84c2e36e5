package routing

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// drawHistory draws random messages. It uses few types, agents and call ids, so that they repeat.
func drawHistory(t *rapid.T) []*parleyv1.Message {
	name := rapid.SampledFrom([]string{"a", "b", "c", "", "ä ö\t ü"})
	id := rapid.SampledFrom([]string{"1", "2", "3"})
	content := rapid.StringOfN(rapid.SampledFrom([]rune("abc dé日🙂 \n\t\u2028")), 0, 60, -1)
	return history(rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *parleyv1.Message {
		m := &parleyv1.Message{
			Id:   "01234567-89ab-4def-8123-456789abcdef",
			Role: parleyv1.Role(rapid.Int32Range(1, 4).Draw(t, "role")), Agent: name.Draw(t, "agent"),
			Content: content.Draw(t, "content"), Usage: &parleyv1.Usage{Model: "large", InputTokens: 5},
			Metadata: rapid.MapOfN(name, content, 0, 2).Draw(t, "metadata"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "values") {
			m.StructuredData = append(m.StructuredData, data(name.Draw(t, "type"), content.Draw(t, "value")))
		}
		for range rapid.IntRange(0, 2).Draw(t, "attachments") {
			m.Attachments = append(m.Attachments, &parleyv1.Attachment{Uri: "file:" + content.Draw(t, "uri")})
		}
		if m.Role == parleyv1.Role_ROLE_TOOL {
			m.ToolResult = &parleyv1.ToolResult{CallId: id.Draw(t, "call_id"), Content: content.Draw(t, "result")}
		}
		if m.Role == parleyv1.Role_ROLE_ASSISTANT {
			for range rapid.IntRange(0, 2).Draw(t, "calls") {
				m.ToolCalls = append(
					m.ToolCalls,
					&parleyv1.ToolCall{Id: id.Draw(t, "call"), Name: "tool", Arguments: content.Draw(t, "arguments")},
				)
			}
			m.Summary = rapid.OneOf(rapid.Just(""), content).Draw(t, "summary")
			m.Status = parleyv1.MessageStatus(rapid.Int32Range(1, 2).Draw(t, "status"))
			if rapid.IntRange(0, 4).Draw(t, "empty") == 0 {
				m.Content, m.Summary, m.StructuredData, m.ToolCalls, m.Attachments = "", "", nil, nil, nil
			}
		}
		return m
	}), 0, 30).Draw(t, "messages")...)
}

// reference is a slow implementation of Summarize that follows the proto comments literally.
func reference(c *parleyv1.Conversation, messages []*parleyv1.Message, limit int) *parleyv1.RoutingSummary {
	messages = slices.DeleteFunc(slices.Clone(messages), func(m *parleyv1.Message) bool {
		return m.Role == parleyv1.Role_ROLE_ASSISTANT && m.Status == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE &&
			m.Content == "" && m.Summary == "" && len(m.StructuredData)+len(m.ToolCalls)+len(m.Attachments) == 0
	})
	older := max(0, len(messages)-limit)
	s := &parleyv1.RoutingSummary{
		ConversationId: c.Id, Uid: c.Uid, Version: c.Version, ActiveAgent: c.ActiveAgent, ActiveTurnId: c.ActiveTurnId,
		MessageCount: c.MessageCount, LastSequence: c.LastSequence, UpdateTime: c.UpdateTime, ExpireTime: c.ExpireTime,
		RecentMessages: messages[older:], Text: referenceText(messages),
	}
	var recent []string
	for _, m := range messages[older:] {
		for _, d := range m.StructuredData {
			recent = append(recent, d.Type)
		}
	}
	for i, m := range messages {
		for _, d := range m.StructuredData {
			use := &parleyv1.StructuredDataUse{Type: d.Type}
			if at := slices.IndexFunc(s.StructuredDataTypes, func(u *parleyv1.StructuredDataUse) bool { return u.Type == d.Type }); at >= 0 {
				use = s.StructuredDataTypes[at]
				s.StructuredDataTypes = slices.Delete(s.StructuredDataTypes, at, at+1)
			}
			use.Count++
			use.LastSequence, use.LastAgent = m.Sequence, m.Agent
			s.StructuredDataTypes = slices.Insert(s.StructuredDataTypes, 0, use)
			s.ReferencedData = slices.DeleteFunc(
				s.ReferencedData,
				func(r *parleyv1.ReferencedData) bool { return r.Data.Type == d.Type },
			)
			if !slices.Contains(recent, d.Type) {
				r := &parleyv1.ReferencedData{Sequence: m.Sequence, Agent: m.Agent, Data: d}
				s.ReferencedData = slices.Insert(s.ReferencedData, 0, r)
			}
		}
		if m.Role == parleyv1.Role_ROLE_ASSISTANT && m.Agent != "" {
			s.RecentAgents = slices.DeleteFunc(
				s.RecentAgents,
				func(a *parleyv1.AgentUse) bool { return a.Agent == m.Agent },
			)
			s.RecentAgents = slices.Insert(
				s.RecentAgents,
				0,
				&parleyv1.AgentUse{Agent: m.Agent, LastSequence: m.Sequence, LastTime: m.CreateTime},
			)
		}
		if m.Role != parleyv1.Role_ROLE_SYSTEM {
			s.AwaitingAnswer = m.Role == parleyv1.Role_ROLE_USER
		}
		for k, call := range m.ToolCalls {
			sameID := func(c *parleyv1.ToolCall) bool { return c.Id == call.Id }
			missing, superseded := 1, false // results missing for it and the calls with its id before it
			for _, earlier := range m.ToolCalls[:k] {
				if sameID(earlier) {
					missing++
				}
			}
			for _, later := range messages[i+1:] {
				superseded = superseded || slices.ContainsFunc(later.ToolCalls, sameID)
				if later.GetToolResult().GetCallId() == call.Id {
					missing--
				}
			}
			if !superseded && missing > 0 {
				s.PendingToolCalls = append(s.PendingToolCalls, call)
			}
		}
	}
	return s
}

func referenceText(messages []*parleyv1.Message) string {
	var clauses []string
	for _, m := range messages {
		if m.Role != parleyv1.Role_ROLE_ASSISTANT {
			continue
		}
		var types []string
		for _, d := range m.StructuredData {
			if !slices.Contains(types, d.Type) {
				types = append(types, d.Type)
			}
		}
		words := strings.Fields(m.Content)
		words = words[:min(len(words), 8)]
		for _, c := range []string{m.Summary, strings.Join(types, "+"), strings.Join(words, " ")} {
			if c = strings.Join(strings.Fields(c), " "); c != "" {
				clauses = append(clauses, c)
				break
			}
		}
	}
	for len(clauses) > 0 {
		if text := "Previous: " + strings.Join(clauses, ", "); utf8.RuneCountInString(text) <= 500 {
			return text
		} else if len(clauses) == 1 {
			return string([]rune(text)[:499]) + "…"
		}
		clauses = clauses[1:]
	}
	return ""
}

func checkAgainstReference(t *rapid.T) {
	messages := drawHistory(t)
	c := header(messages)
	limit := rapid.IntRange(0, 20).Draw(t, "limit")
	before := proto.CloneOf(c)

	got := summarize(t, c, messages, Options{MessageLimit: limit})
	if d := diff(reference(c, messages, limit), got); d != "" {
		t.Fatalf("summary (-reference +got):\n%s", d)
	}
	if d := diff(before, c); d != "" {
		t.Fatalf("Summarize changed the header (-before +after):\n%s", d)
	}
}

func TestSummarizeEqualsReference(t *testing.T) { rapid.Check(t, checkAgainstReference) }

func FuzzSummarize(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkAgainstReference)) }
