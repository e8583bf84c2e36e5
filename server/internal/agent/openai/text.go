package openai

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// joiner puts text together that comes in the JSON strings of many chunks. Some servers
// cut it in mid-rune, others in the middle of an escaped surrogate pair; the beginning of
// such a rune is held back until its end comes.
type joiner struct {
	held string // of the JSON
}

// add takes the inside of the next JSON string and returns the text that is whole with it.
func (j *joiner) add(inside string) string {
	inside = j.held + inside
	whole := len(inside) - unfinished(inside)
	j.held = inside[whole:]
	return unescaped(inside[:whole])
}

// rest is what was held back and will never be whole.
func (j *joiner) rest() string {
	rest := unescaped(j.held)
	j.held = ""
	return rest
}

// unfinished is how many bytes at the end of s begin a rune that more may complete.
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
		return 0 // they are escaped ones, and what follows is plain text
	}
	if unit, err := strconv.ParseUint(s[at+2:], 16, 16); err != nil || unit < 0xD800 || unit > 0xDBFF {
		return 0
	}
	return escape
}

// unescaped is the text for which the inside of a JSON string stands. Bytes that are no
// rune become U+FFFD each.
func unescaped(inside string) string {
	if !strings.Contains(inside, `\`) && utf8.ValidString(inside) {
		return inside
	}
	var text string
	if err := json.Unmarshal([]byte(`"`+inside+`"`), &text); err != nil {
		return strings.ToValidUTF8(inside, "\uFFFD") // chunks are checked to be JSON
	}
	return text
}

// inside is what the JSON value holds as text, still escaped: a string as it is, the
// texts of a list of content parts, nothing of null and other values.
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
