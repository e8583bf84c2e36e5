package ids

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestIDs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		id                    string
		conversation, request bool
	}{
		{"", false, true},
		{".", false, true},
		{"..", false, true},
		{"...", true, true},
		{"a", true, true},
		{"user@example.com", true, true},
		{"app/1", true, true},
		{"ü", true, true},
		{"u\u0308", true, true},
		{"-a", true, true},
		{`"a\b"`, true, true},
		{"a b", true, true},
		{"a\u00a0b", true, true},
		{"/", true, true},
		{"%2F", true, true},
		{":", true, true},
		{"👩\u200d🚀", true, true},
		{"\u200fa\u202e", true, true},
		{"\ufeff", true, true},
		{"\ufffd", true, true},
		{" a", false, false},
		{"a ", false, false},
		{" ", false, false},
		{"\u00a0a", false, false},
		{"a\u3000", false, false},
		{"a\x00b", false, false},
		{"a\nb", false, false},
		{"a\tb", false, false},
		{"\x7f", false, false},
		{"a\u0085b", false, false},
		{"a\u2028b", false, false},
		{"a\u2029b", false, false},
		{"a\xff", false, false},
		{"\xc3", false, false},
		{"\xed\xa0\x80", false, false},
		{strings.Repeat("x", 256), true, true},
		{strings.Repeat("ü", 128), true, true},
		{strings.Repeat("x", 257), false, false},
		{strings.Repeat("ü", 128) + "x", false, false},
	} {
		if got := IsConversation(test.id); got != test.conversation {
			t.Errorf("IsConversation(%q) = %t, want %t", test.id, got, test.conversation)
		}
		if got := IsRequest(test.id); got != test.request {
			t.Errorf("IsRequest(%q) = %t, want %t", test.id, got, test.request)
		}
	}
}

// TestEarlierIDs checks that all ids that earlier versions accepted stay valid.
func TestEarlierIDs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		if id := rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._:-]{0,127}`).Draw(t, "conversation"); !IsConversation(id) {
			t.Errorf("IsConversation(%q) = false, want true", id)
		}
		if id := rapid.StringMatching(`[!-~]{0,64}`).Draw(t, "request"); !IsRequest(id) {
			t.Errorf("IsRequest(%q) = false, want true", id)
		}
	})
}

// TestIDsOfAnyText compares the functions with a regular expression.
func TestIDsOfAnyText(t *testing.T) {
	t.Parallel()
	rule := regexp.MustCompile(`^[^\p{Cc}\p{Z}]([^\p{Cc}\p{Zl}\p{Zp}]*[^\p{Cc}\p{Z}])?$`)
	text := rapid.OneOf(rapid.String(), rapid.StringN(250, 260, 260), rapid.StringOf(rapid.RuneFrom([]rune("a. \n\u00a0\u2028ü"))),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 8), func(b []byte) string { return string(b) }))
	rapid.Check(t, func(t *rapid.T) {
		id := text.Draw(t, "id")
		want := utf8.ValidString(id) && rule.MatchString(id) && len(id) <= MaxBytes
		if got := IsRequest(id); got != (want || id == "") {
			t.Errorf("IsRequest(%q) = %t, want %t", id, got, want)
		}
		if got := IsConversation(id); got != (want && id != "." && id != "..") {
			t.Errorf("IsConversation(%q) = %t, want %t", id, got, want)
		}
	})
}
