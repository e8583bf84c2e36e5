package openai

import (
	"strings"
	"testing"
)

// TestJoiner: however the text is cut, it comes out the same and nothing is held for long.
func TestJoiner(t *testing.T) {
	for inside, want := range map[string]string{
		`caf` + "é €😀":          "café €😀",
		`\ud83d\ude00 \"\\\n`:   "😀 \"\\\n",
		`\\ud83d`:               `\ud83d`, // an escaped backslash, no surrogate
		`\\\ud83d\ude00`:        `\😀`,
		`\ud83d`:                "\uFFFD",
		`\ud83dx \ude00 \u00e9`: "\uFFFDx \uFFFD é",
		"\xff\xff \xe2\x82":     "\uFFFD\uFFFD \uFFFD\uFFFD",
		"":                      "",
	} {
		for cut := range len(inside) + 1 {
			if inEscape(inside, cut) {
				continue // that would be no JSON
			}
			var j joiner
			if got := j.add(inside[:cut]) + j.add(inside[cut:]) + j.rest(); got != want || j.held != "" {
				t.Errorf("%q cut at %d: %q, %q is held, want %q", inside, cut, got, j.held, want)
			}
		}
	}
	var j joiner
	if got := j.add(`\\ud83d`); got != `\ud83d` {
		t.Errorf("%q, though nothing is to be waited for", got)
	}
}

// inEscape reports whether the cut would be inside of an escape.
func inEscape(inside string, cut int) bool {
	for i := 0; i < cut; {
		n := 1
		if inside[i] == '\\' {
			if n = 2; strings.HasPrefix(inside[i:], `\u`) {
				n = 6
			}
		}
		if i += n; i > cut {
			return true
		}
	}
	return false
}
