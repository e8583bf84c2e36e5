package rules

import "unicode/utf8"

// Clip shortens a text to at most limit bytes, at the boundary of a character. A shortened text ends
// with "…".
func Clip(text string, limit int) string {
	const mark = "…"
	if len(text) <= limit {
		return text
	}
	end := limit - len(mark)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}
