package routing

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestText(t *testing.T) {
	tests := []struct {
		name     string
		messages []*parleyv1.Message
		want     string
	}{
		{"no messages", nil, ""},
		{"no answer", history(user("Which libraries are there?"), system(), result("1")), ""},
		{
			"summaries, oldest first", history(user("?"), withSummary("searched for React libraries"), user("?"),
				withSummary("analyzed Zustand")),
			"Previous: searched for React libraries, analyzed Zustand",
		},
		{
			"types if there is no summary",
			history(assistant("a", "Look:", data("list", ""), data("price", ""), data("list", ""))),
			"Previous: list+price",
		},
		{
			"words if there is no data", history(assistant("a", "one two three four five six seven eight nine")),
			"Previous: one two three four five six seven eight",
		},
		{"summary of white space", history(withSummary(" \n ", data("list", ""))), "Previous: list"},
		{
			"summary on one line",
			history(withSummary(" searched\r\nfor\t\u2028 libraries \n")),
			"Previous: searched for libraries",
		},
		{
			"words on one line",
			history(assistant("a", "\n# Title\n\n- first\n- second")),
			"Previous: # Title - first - second",
		},
		{
			"answer without words",
			history(withSummary("searched"), calls("1"), assistant("a", " \n")),
			"Previous: searched",
		},
		{"no clause", history(calls("1"), assistant("a", "")), ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := summarize(t, nil, test.messages, Options{}).Text; got != test.want {
				t.Errorf("Text = %q, want %q", got, test.want)
			}
		})
	}
}

// TestTextLimit checks that the limit applies to the characters of the text with its prefix, not to
// its bytes.
func TestTextLimit(t *testing.T) {
	long := func(n int) *parleyv1.Message { return assistant("a", strings.Repeat("ü", n)) }
	wide := strings.Repeat("🙂", 490)
	tests := []struct {
		name     string
		messages []*parleyv1.Message
		want     string
	}{
		{
			"at the limit",
			history(long(244), long(244)),
			"Previous: " + strings.Repeat("ü", 244) + ", " + strings.Repeat("ü", 244),
		},
		{
			"one character more, oldest clause removed",
			history(long(245), long(244)),
			"Previous: " + strings.Repeat("ü", 244),
		},
		{
			"no clause older than a removed one",
			history(long(1), long(480), long(200)),
			"Previous: " + strings.Repeat("ü", 200),
		},
		{"one clause fits", history(long(9), assistant("a", wide)), "Previous: " + wide},
		{"one clause does not fit", history(long(9), assistant("a", wide+"🙂")), "Previous: " + wide[:489*4] + "…"},
		{"very long word", history(long(1 << 20)), "Previous: " + strings.Repeat("ü", 489) + "…"},
		{"ASCII word", history(assistant("a", strings.Repeat("x", 490))), "Previous: " + strings.Repeat("x", 490)},
		{
			"ASCII word does not fit",
			history(assistant("a", strings.Repeat("x", 491))),
			"Previous: " + strings.Repeat("x", 489) + "…",
		},
		{
			"very long ASCII word",
			history(assistant("a", strings.Repeat("x", 1<<20))),
			"Previous: " + strings.Repeat("x", 489) + "…",
		},
		{
			"very many ASCII words",
			history(withSummary(strings.Repeat("one two ", 1<<16))),
			"Previous: " + strings.Repeat("one two ", 61) + "o…",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := summarize(t, nil, test.messages, Options{}).Text; got != test.want {
				t.Errorf("Text = %q, want %q", got, test.want)
			}
		})
	}
}

func TestTextIsOneShortLine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		messages := history(rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *parleyv1.Message {
			m := assistant("a", rapid.StringN(0, 600, -1).Draw(t, "content"))
			m.Summary = rapid.OneOf(rapid.Just(""), rapid.StringN(0, 500, 500)).Draw(t, "summary")
			for range rapid.IntRange(0, 6).Draw(t, "values") {
				m.StructuredData = append(m.StructuredData, data(rapid.StringN(1, 128, 128).Draw(t, "type"), ""))
			}
			return m
		}), 0, 30).Draw(t, "messages")...)
		got := summarize(t, nil, messages, Options{}).Text
		if want := referenceText(messages); got != want {
			t.Errorf("Text = %q, want %q", got, want)
		}
		if n := utf8.RuneCountInString(got); n > 500 {
			t.Errorf("Text has %d characters, want at most 500", n)
		}
		if got != "" && !strings.HasPrefix(got, "Previous: ") {
			t.Errorf("Text = %q, want the prefix", got)
		}
		otherSpace := func(r rune) bool { return r != ' ' && unicode.IsSpace(r) }
		if strings.ContainsFunc(got, otherSpace) || strings.Contains(got, "  ") {
			t.Errorf("Text = %q, want no white space except single spaces", got)
		}
	})
}
