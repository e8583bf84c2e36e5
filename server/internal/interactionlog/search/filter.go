package search

import "github.com/parleyhq/parley/server/internal/interactionlog/entry"

// filter selects the lines that a query must parse.
type filter struct {
	tenant, conversation string  // conversation "": all
	text                 *needle // nil: all
}

// mayMatch reports whether a line may be an entry that the query wants. It returns false only for lines
// that begin exactly as the encoder writes them. It may miss a line that was written by hand, begins so
// and repeats a key later.
func (f *filter) mayMatch(text []byte) bool {
	if !entry.HasBraces(text) {
		return true // Parsing fails, and the line is counted.
	}
	if !f.text.mayMatch(text) {
		return false
	}
	h, ok := entry.ParseHead(text)
	if !ok {
		return true
	}
	if string(h.Tenant) != f.tenant || f.conversation != "" && string(h.ConversationID) != f.conversation {
		return false
	}
	if f.text == nil {
		return true
	}
	content, ok := h.RawContent(text)
	return !ok || f.text.mayMatch(content)
}

// Conversation selects the entries of a conversation.
type Conversation struct{ Tenant, ID string }

// MayMatch reports whether a line may be an entry of the conversation. It returns false only for lines that begin
// exactly as the encoder writes them. It may miss a line that was written by hand, begins so and repeats a key later.
func (c Conversation) MayMatch(line []byte) bool {
	f := filter{tenant: c.Tenant, conversation: c.ID}
	return f.mayMatch(line)
}
