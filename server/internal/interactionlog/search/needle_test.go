package search

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf16"

	"pgregory.net/rapid"

	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
	"github.com/parleyhq/parley/server/internal/interactionlog/entrytest"
)

func TestNeedleIgnoresCase(t *testing.T) {
	for _, tt := range []struct {
		needle, text string
		found        bool
	}{
		{"", "", true},
		{"goals", "Quarterly GOALS", true},
		{"goals", "goal s", false},
		{"ÄPFEL", "Die äpfel", true},
		{"äpfel", "DIE ÄPFEL", true},
		{"strasse", "Straße", false},
		{"STRAẞE", "straße", true},
		{"σοφός", "ΣΟΦΌΣ", true},
		{"kelvin", "300 \u212Aelvin", true},
		{"\u212A", "k", true},
		{"wusste", "wu\u017Fſte", true},
		{"привет", "ПРИВЕТ", true},
		{"日本", "今日本屋", true},
		{"𐐨", "𐐀", true},
		{`say "hi"`, `SAY "HI"`, true},
		{"a\nb", "A\nB", true},
		{`c:\temp`, `C:\Temp`, true},
		{"\xff", "\ufffd", true},
	} {
		n := newNeedle(tt.needle)
		if got := n.matches(tt.text); got != tt.found {
			t.Errorf("needle %q: matches(%q) = %t", tt.needle, tt.text, got)
		}
		line := entrytest.Sample{Content: tt.text}.String()
		f := filter{tenant: "default", text: n}
		if got := f.mayMatch([]byte(line[:len(line)-1])); tt.found && !got {
			t.Errorf("needle %q: filter rejects %s", tt.needle, line)
		}
	}
}

// TestFilterEscapes has escapes that are easily mistaken for others.
func TestFilterEscapes(t *testing.T) {
	for _, tt := range []struct{ needle, raw string }{
		{"\ufffd", "\xff"},
		{"\ufffd", `\ud800`},
		{"nq", `\\nq`},
		{"\nq", `\nq`},
		{"\\\nq", `\\\nq`},
		{"u006eq", `\\u006eq`},
		{"nq", `\u006Eq`},
		{"quark", `\u0051uark`},
		{"quark", `Quar\u212a`},
		{"/q", `\/q`},
		{`"`, `\"`},
		{`"`, `\u0022`},
		{"\u2028q", `\u2028Q`},
		{"😀", `\ud83d\ude00`},
		{"q😀", `q\ud83d\ude00`},
		{"😀q", `\ud83d\ude00q`},
		{"ÄQ", `\u00e4q`},
	} {
		line := strings.TrimSuffix(entrytest.Sample{}.String(), "\n")
		line = strings.Replace(line, `"content":""`, `"content":"`+tt.raw+`"`, 1)
		l, err := entry.Parse([]byte(line))
		if n := newNeedle(tt.needle); err != nil || !n.matches(l.Interaction.Content) {
			t.Errorf("needle %q does not match %s, %v", tt.needle, line, err)
		} else if f := (filter{tenant: "default", text: n}); !f.mayMatch([]byte(line)) {
			t.Errorf("needle %q: filter rejects %s", tt.needle, line)
		}
	}
}

// TestFilterRefuses checks that the filter rejects lines. To parse a line that does not match costs a hundred times as
// much as to reject it.
func TestFilterRefuses(t *testing.T) {
	for _, tt := range []struct{ name, needle, content, conversation string }{
		{"other text", "goals", "goal", ""},
		{"a key of the line", "timestamp", "x", ""},
		{"a word of the metadata", "turn_number", "x", ""},
		{"beside escapes", "xgoals", "\n\"goals\"\\goals\tgoals", ""},
		{"after a backslash and the quote at the end", ",", "x\\", ""},
		{"other escape", "\t", "\u0001\n", ""},
		{"other conversation", "goals", "goals", "other"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			line := entrytest.Sample{Content: tt.content}.String()
			f := filter{tenant: "default", text: newNeedle(tt.needle), conversation: tt.conversation}
			if f.mayMatch([]byte(line[:len(line)-1])) {
				t.Errorf("needle %q: filter accepts %s", tt.needle, line)
			}
		})
	}
	line := entrytest.Sample{}.String()
	if (&filter{tenant: "other"}).mayMatch([]byte(line[:len(line)-1])) {
		t.Error("filter accepts a line of another tenant")
	}
}

// hardRune generates runes that are hard to find: runes with more than two cases, with cases of different
// lengths, runes that JSON escapes and runes that occur in escapes.
func hardRune() *rapid.Generator[rune] {
	const runes = "kKK\u212AsSſßẞäÄσΣςθΘϑϴ\u0345\u1fbeǅ𐐀𐐨😀日\"\\/\b\f\n\r\t\x01u0nrtbfaAdD41 \ufffdﬅﬆ"
	return rapid.SampledFrom([]rune(runes))
}

func hardText(limit int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOfN(hardRune(), 0, limit).Draw(t, "runes")) })
}

// changeCase changes the case of random runes.
func changeCase(t *rapid.T, text string) string {
	return strings.Map(func(r rune) rune {
		for range rapid.IntRange(0, 3).Draw(t, "folds") {
			r = unicode.SimpleFold(r)
		}
		return r
	}, text)
}

// encodeJSONString writes a JSON string with random escapes, even unnecessary ones.
func encodeJSONString(t *rapid.T, text string) string {
	var b strings.Builder
	for _, r := range text {
		how := rapid.IntRange(0, 5).Draw(t, "spelling")
		short := strings.IndexRune(shortRunes, r)
		switch {
		case how == 0 && r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04X`, high, low)
		case how == 0 || r < ' ' && short < 0:
			fmt.Fprintf(&b, `\u%04x`, r)
		case how == 1 && r == '\ufffd':
			b.WriteString(`\ud800`) // Half a surrogate pair is read as U+FFFD.
		case how == 2 && r == '\ufffd':
			b.WriteByte(0xff)
		case short >= 0 && (r != '/' || how == 1):
			b.WriteByte('\\')
			b.WriteByte(shortEscapes[short])
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// TestFilterAgreesWithModel searches for texts in lines of any spelling. It checks that the filter accepts
// a line if a simple search finds the text in the parsed entry.
func TestFilterAgreesWithModel(t *testing.T) { rapid.Check(t, checkNeedle) }

func FuzzNeedle(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkNeedle)) }

func checkNeedle(t *rapid.T) {
	content := hardText(12).Draw(t, "content")
	var text string
	if runes := []rune(content); len(runes) > 0 && rapid.Bool().Draw(t, "part") {
		from := rapid.IntRange(0, len(runes)-1).Draw(t, "from")
		text = changeCase(t, string(runes[from:rapid.IntRange(from, len(runes)).Draw(t, "to")]))
	} else {
		text = hardText(4).Draw(t, "text")
	}
	canonical := entrytest.Sample{Agent: hardText(3).Draw(t, "agent")}.String()
	line := strings.Replace(canonical, `"content":""`, `"content":"`+encodeJSONString(t, content)+`"`, 1)
	line = strings.TrimSuffix(line, "\n")
	parsed, err := entry.Parse([]byte(line))
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	truth := strings.Contains(modelFold(parsed.Interaction.Content), modelFold(text))
	n := newNeedle(text)
	if got := n.matches(parsed.Interaction.Content); got != truth {
		t.Fatalf("needle %q: matches(%q) = %t, want %t", text, parsed.Interaction.Content, got, truth)
	}
	f := filter{tenant: "default", text: n}
	if truth && !f.mayMatch([]byte(line)) {
		t.Fatalf("needle %q: filter rejects %s", text, line)
	}
}

// modelFold replaces every rune with the smallest of its cases.
func modelFold(text string) string {
	var b strings.Builder
	for _, r := range text {
		forms := []rune{r}
		for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
			forms = append(forms, other)
		}
		b.WriteRune(slices.Min(forms))
	}
	return b.String()
}

// TestLongNeedle checks that a long needle and a long line do not take quadratic time.
func TestLongNeedle(t *testing.T) {
	n := newNeedle(strings.Repeat("a", 1<<20) + "b")
	line := entrytest.Sample{Content: strings.Repeat("a", 1<<20)}.String()
	f := filter{tenant: "default", text: n}
	if f.mayMatch([]byte(line[:len(line)-1])) && n.matches(line) {
		t.Error("found a text that the line does not contain")
	}
}

func FuzzMayMatch(f *testing.F) {
	f.Add("a", []byte(`\u006`))
	f.Add("\"", []byte(`\`))
	f.Fuzz(func(_ *testing.T, text string, raw []byte) { newNeedle(text).mayMatch(raw) })
}
