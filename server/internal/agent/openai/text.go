package openai

import (
	"encoding/json"
	"strings"
)

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
