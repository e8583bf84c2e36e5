package agent

import (
	"strings"
	"testing"
)

// TestJoiner: the text does not depend on how it is split, and nothing is held back at the end.
func TestJoiner(t *testing.T) {
	for inside, want := range map[string]string{
		`caf` + "é €😀":          "café €😀",
		`\ud83d\ude00 \"\\\n`:   "😀 \"\\\n",
		`\\ud83d`:               `\ud83d`, // An escaped backslash, not a surrogate.
		`\\\ud83d\ude00`:        `\😀`,
		`\ud83d`:                "\uFFFD",
		`\ud83dx \ude00 \u00e9`: "\uFFFDx \uFFFD é",
		"\xff\xff \xe2\x82":     "\uFFFD\uFFFD \uFFFD\uFFFD",
		"":                      "",
	} {
		for cut := range len(inside) + 1 {
			if inEscape(inside, cut) {
				continue // The parts would not be valid JSON.
			}
			var j Joiner
			if got := j.Add(inside[:cut]) + j.Add(inside[cut:]) + j.Rest(); got != want || j.pending != "" {
				t.Errorf("%q split at %d = %q with %q held back, want %q", inside, cut, got, j.pending, want)
			}
		}
	}
	var j Joiner
	if got := j.Add(`\\ud83d`); got != `\ud83d` {
		t.Errorf("Add() = %q, want the complete text", got)
	}
}

// inEscape reports whether the position is within an escape sequence.
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
