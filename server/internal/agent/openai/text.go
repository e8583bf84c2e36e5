package openai

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/parleyhq/parley/server/internal/agent"
)

// joiner concatenates text that arrives in the JSON strings of several chunks. Some servers split
// it within a character, others within an escaped surrogate pair. The beginning of such a character
// is held back until the rest arrives.
type joiner struct {
	held string // The part that is held back, still escaped.
}

// add processes the inside of the next JSON string and returns the text that is complete.
func (j *joiner) add(inside string) string {
	inside = j.held + inside
	complete := len(inside) - unfinished(inside)
	j.held = inside[complete:]
	return agent.Unescape(inside[:complete])
}

// rest returns what was held back and was never completed.
func (j *joiner) rest() string {
	rest := agent.Unescape(j.held)
	j.held = ""
	return rest
}

// unfinished returns the number of bytes at the end of s that begin a character.
func unfinished(s string) int {
	for n := 1; n < utf8.UTFMax && n <= len(s); n++ {
		if tail := s[len(s)-n:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRuneInString(tail) {
				return n
			}
			break
		}
	}
	const escape = len(`\ud83d`)
	at := len(s) - escape
	if at < 0 || s[at:at+2] != `\u` {
		return 0
	}
	if backslashes := at + 1 - len(strings.TrimRight(s[:at+1], `\`)); backslashes%2 == 0 {
		return 0 // The backslash itself is escaped, so the text after it is plain.
	}
	if unit, err := strconv.ParseUint(s[at+2:], 16, 16); err != nil || unit < 0xD800 || unit > 0xDBFF {
		return 0
	}
	return escape
}

// inside returns the text in a JSON value, still escaped: that of a string or of a list of content
// parts. It returns "" for null and other values.
func inside(value string) string {
	switch {
	case strings.HasPrefix(value, `"`):
		return strings.TrimSuffix(value[1:], `"`)
	case strings.HasPrefix(value, "["):
		var parts []struct {
			Type string          `json:"type"`
			Text json.RawMessage `json:"text"`
		}
		if err := json.Unmarshal([]byte(value), &parts); err != nil {
			return ""
		}
		var b strings.Builder
		for _, part := range parts {
			if text := string(part.Text); part.Type == "text" && strings.HasPrefix(text, `"`) {
				b.WriteString(inside(text))
			}
		}
		return b.String()
	}
	return ""
}
