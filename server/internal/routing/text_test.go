package routing

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"pgregory.net/rapid"
)

func TestText(t *testing.T) {
	tests := []struct {
		name     string
		messages []*parleyv1.Message
		want     string
	}{
		{"nothing said", nil, ""},
		{"no answer", history(user("Which libraries are there?"), system(), result("1")), ""},
		{
			"summaries, oldest first", history(user("?"), summed("searched for React libraries"), user("?"), summed("analyzed Zustand")),
			"Previous: searched for React libraries, analyzed Zustand",
		},
		{
			"types for want of a summary", history(assistant("a", "Look:", data("list", ""), data("price", ""), data("list", ""))),
			"Previous: list+price",
		},
		{
			"words for want of data", history(assistant("a", "one two three four five six seven eight nine")),
			"Previous: one two three four five six seven eight",
		},
		{"a summary of blanks is none", history(summed(" \n ", data("list", ""))), "Previous: list"},
		{"one line", history(summed(" searched\r\nfor\t\u2028 libraries \n")), "Previous: searched for libraries"},
		{"one line of words", history(assistant("a", "\n# Title\n\n- first\n- second")), "Previous: # Title - first - second"},
		{"an answer without a word", history(summed("searched"), calls("1"), assistant("a", " \n")), "Previous: searched"},
		{"no clause at all", history(calls("1"), assistant("a", "")), ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := summarize(t, nil, test.messages, Options{}).Text; got != test.want {
				t.Errorf("text %q, want %q", got, test.want)
			}
		})
	}
}

// The limit counts characters, not bytes, of the whole text.
func TestTextLimit(t *testing.T) {
	long := func(n int) *parleyv1.Message { return assistant("a", strings.Repeat("ü", n)) }
	wide := strings.Repeat("🙂", 490)
	tests := []struct {
		name     string
		messages []*parleyv1.Message
		want     string
	}{
		{"exactly", history(long(244), long(244)), "Previous: " + strings.Repeat("ü", 244) + ", " + strings.Repeat("ü", 244)},
		{"one more: the oldest goes", history(long(245), long(244)), "Previous: " + strings.Repeat("ü", 244)},
		{"none older than what goes", history(long(1), long(480), long(200)), "Previous: " + strings.Repeat("ü", 200)},
		{"one that fits alone", history(long(9), assistant("a", wide)), "Previous: " + wide},
		{"one that does not fit alone", history(long(9), assistant("a", wide+"🙂")), "Previous: " + wide[:489*4] + "…"},
		{"a word without end", history(long(1 << 20)), "Previous: " + strings.Repeat("ü", 489) + "…"},
		{"a plain one", history(assistant("a", strings.Repeat("x", 490))), "Previous: " + strings.Repeat("x", 490)},
		{"a plain one that does not fit", history(assistant("a", strings.Repeat("x", 491))), "Previous: " + strings.Repeat("x", 489) + "…"},
		{"a plain word without end", history(assistant("a", strings.Repeat("x", 1<<20))), "Previous: " + strings.Repeat("x", 489) + "…"},
		{"plain words without end", history(summed(strings.Repeat("one two ", 1<<16))), "Previous: " + strings.Repeat("one two ", 61) + "o…"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := summarize(t, nil, test.messages, Options{}).Text; got != test.want {
				t.Errorf("text %q, want %q", got, test.want)
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
		if want := naiveText(messages); got != want {
			t.Errorf("text %q, want %q", got, want)
		}
		if n := utf8.RuneCountInString(got); n > 500 {
			t.Errorf("%d characters, want 500 at most", n)
		}
		if got != "" && !strings.HasPrefix(got, "Previous: ") {
			t.Errorf("text %q has no prefix", got)
		}
		if strings.ContainsFunc(got, func(r rune) bool { return r != ' ' && unicode.IsSpace(r) }) || strings.Contains(got, "  ") {
			t.Errorf("text %q has white space other than single blanks", got)
		}
	})
}
