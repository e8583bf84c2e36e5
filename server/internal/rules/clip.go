package rules

import "unicode/utf8"

// Clip shortens a text to at most limit bytes, at the boundary of a character. A shortened text ends
// with "…". Package client/mcp has the same function, because clients import no package of the
// server.
func Clip(text string, limit int) string {
	const mark = "…"
	if len(text) <= limit {
		return text
	}
	return Truncate(text, limit-len(mark)) + mark
}

// Truncate returns the beginning of a text, at most limit bytes, and does not split a character.
func Truncate(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	end := max(0, limit)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}
