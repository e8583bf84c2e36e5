package routing

import (
	"slices"
	"unicode/utf8"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// fits reports whether recent messages and referenced data take budget bytes at most.
func fits(recent store.Frames, referenced []*parleyv1.ReferencedData, budget int) bool {
	size := len(recent)
	for _, r := range referenced {
		size += framed(r)
	}
	return size <= budget
}

// fit leaves messages and referenced data out of a summary until they take budget bytes
// of its encoded form at most, and says so in it. The newest message goes before all else,
// even if only its beginning fits. Of the oldest that is left the end may be all: what was
// asked, and what "the second one" refers to, mostly stands there.
func fit(s *parleyv1.RoutingSummary, budget int) {
	recent := s.RecentMessages
	room := budget
	for i, m := range slices.Backward(recent) {
		size := framed(m)
		if size <= room {
			room -= size
			continue
		}
		s.Truncated = true
		s.RecentMessages, s.ReferencedData = recent[i+1:], nil
		shorten := cutStart
		if i == len(recent)-1 {
			shorten = cut
		}
		if shorten(m, room) {
			s.RecentMessages = recent[i:]
		}
		return
	}
	for i, r := range s.ReferencedData { // newest first
		if room -= framed(r); room < 0 {
			s.Truncated = true
			s.ReferencedData = s.ReferencedData[:i]
			return
		}
	}
}

// cut makes m take budget bytes at most, and reports whether that can be: what names the
// message (its ids, role, agent, summary, usage, times) may be larger already, but never
// from 2 KiB on. It ends early, in this order: the text of the content, that of the tool
// result, the metadata as a whole, then attachments, tool calls and structured data from
// the last on; what room a large one of those leaves goes to the content.
func cut(m *parleyv1.Message, budget int) bool {
	content := m.Content
	over := func() int { return framed(m) - budget }
	m.Content = cutText(m.Content, over())
	if m.ToolResult != nil {
		m.ToolResult.Content = cutText(m.ToolResult.Content, over())
	}
	if over() > 0 {
		m.Metadata = nil
	}
	m.Attachments = cutList(m.Attachments, over())
	m.ToolCalls = cutList(m.ToolCalls, over())
	m.StructuredData = cutList(m.StructuredData, over())
	if over() > 0 {
		return false
	}
	m.Content = content
	m.Content = cutText(m.Content, over())
	return true
}

// cutStart makes m take budget bytes at most by leaving out the beginning of its content, as
// little as it can, and reports whether any content is left.
func cutStart(m *parleyv1.Message, budget int) bool {
	content := m.Content
	start := min(framed(m)-budget, len(content))
	for start > 0 { // The lengths ahead of a shorter text may be shorter too.
		if m.Content = content[start-1:]; framed(m) > budget {
			break
		}
		start--
	}
	for start < len(content) && !utf8.RuneStart(content[start]) {
		start++
	}
	m.Content = content[start:]
	return m.Content != "" && framed(m) <= budget
}

// cutText takes over bytes off the end of s, or as many more as it takes not to part a
// character.
func cutText(s string, over int) string {
	if over <= 0 {
		return s
	}
	end := max(0, len(s)-over)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// cutList takes elements off the end of a list until over bytes are gone. Of attachments,
// whose tag is two bytes, one more may go than must.
func cutList[M proto.Message](list []M, over int) []M {
	for over > 0 && len(list) > 0 {
		last := len(list) - 1
		over -= framed(list[last])
		list = list[:last]
	}
	return list
}

// framed returns the bytes that a message takes as a field of another one whose tag is a
// single byte.
func framed(m proto.Message) int {
	return 1 + protowire.SizeBytes(proto.Size(m))
}
