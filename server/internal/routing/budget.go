package routing

import (
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// fits reports whether recent messages and referenced data have at most budget bytes together.
func fits(recent store.Frames, referenced []*parleyv1.ReferencedData, budget int) bool {
	size := len(recent)
	for _, r := range referenced {
		size += fieldSize(r)
	}
	return size <= budget
}

// fit removes referenced data and messages from a summary until they take at most budget bytes of
// its encoded form, and sets Truncated. The newest message has priority over all others: if it does
// not fit, fit keeps its beginning. Of the oldest message that is left, fit may keep only the end.
// A question, or the list that "the second one" refers to, is mostly at the end.
func fit(s *parleyv1.RoutingSummary, budget int) {
	recent := s.RecentMessages
	left := budget
	for i, m := range slices.Backward(recent) {
		size := fieldSize(m)
		if size <= left {
			left -= size
			continue
		}
		s.Truncated = true
		s.RecentMessages, s.ReferencedData = recent[i+1:], nil
		truncate := truncateStart
		if i == len(recent)-1 {
			truncate = truncateEnd
		}
		if truncate(m, left) {
			s.RecentMessages = recent[i:]
		}
		return
	}
	for i, r := range s.ReferencedData { // newest first
		if left -= fieldSize(r); left < 0 {
			s.Truncated = true
			s.ReferencedData = s.ReferencedData[:i]
			return
		}
	}
}

// truncateEnd shortens m to at most budget bytes and reports whether it succeeded. It never removes
// ids, role, agent, summary, usage and times. Those have less than 2 KiB together, so truncateEnd
// succeeds with any larger budget. It shortens or removes, in this order: the end of the content, the
// end of the tool result, all metadata, then attachments, tool calls and structured data from the last
// one on. If the removal of a large value leaves space, the content gets it back.
func truncateEnd(m *parleyv1.Message, budget int) bool {
	content := m.Content
	excess := func() int { return fieldSize(m) - budget }
	m.Content = truncateText(m.Content, excess())
	if m.ToolResult != nil {
		m.ToolResult.Content = truncateText(m.ToolResult.Content, excess())
	}
	if excess() > 0 {
		m.Metadata = nil
	}
	m.Attachments = truncateList(m.Attachments, excess())
	m.ToolCalls = truncateList(m.ToolCalls, excess())
	m.StructuredData = truncateList(m.StructuredData, excess())
	if excess() > 0 {
		return false
	}
	m.Content = content
	m.Content = truncateText(m.Content, excess())
	return true
}

// truncateStart shortens m to at most budget bytes by removing as little as possible from the
// beginning of its content. It reports whether any content is left.
func truncateStart(m *parleyv1.Message, budget int) bool {
	content := m.Content
	start := min(fieldSize(m)-budget, len(content))
	for start > 0 { // The length prefixes of a shorter text may be shorter, too.
		if m.Content = content[start-1:]; fieldSize(m) > budget {
			break
		}
		start--
	}
	for start < len(content) && !utf8.RuneStart(content[start]) {
		start++
	}
	m.Content = content[start:]
	return m.Content != "" && fieldSize(m) <= budget
}

// truncateText removes at least excess bytes from the end of s. It does not split a character.
func truncateText(s string, excess int) string {
	if excess <= 0 {
		return s
	}
	end := max(0, len(s)-excess)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// truncateList removes elements from the end of a list until they make up excess bytes. It may remove
// one attachment too many, because it counts one byte for a tag and those of attachments have two.
func truncateList[M proto.Message](list []M, excess int) []M {
	for excess > 0 && len(list) > 0 {
		last := len(list) - 1
		excess -= fieldSize(list[last])
		list = list[:last]
	}
	return list
}

// fieldSize returns the encoded size of a message as a field of another message, with a tag of one
// byte and the length prefix.
func fieldSize(m proto.Message) int {
	return 1 + protowire.SizeBytes(proto.Size(m))
}
