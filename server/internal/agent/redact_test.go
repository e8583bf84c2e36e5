package agent_test

import (
	"testing"

	"github.com/parleyhq/parley/server/internal/agent"
)

func TestRedact(t *testing.T) {
	for name, test := range map[string]struct {
		text    string
		secrets []string
		want    string
	}{
		"no secrets":                  {"all is well", nil, "all is well"},
		"not there":                   {"all is well", []string{"sk-1"}, "all is well"},
		"empty secrets":               {"all is well", []string{"", " \n"}, "all is well"},
		"too short":                   {"status 401", []string{"1", "401"}, "status 401"},
		"empty text":                  {"", []string{"sk-1"}, ""},
		"everywhere":                  {"sk-1, sk-1 and sk-1", []string{"sk-1"}, "[redacted], [redacted] and [redacted]"},
		"all of it":                   {"sk-1", []string{"sk-1"}, "[redacted]"},
		"several":                     {"key sk-1, team blue", []string{"blue", "sk-1"}, "key [redacted], team [redacted]"},
		"one within another":          {"Bearer sk-1 of sk-1", []string{"sk-1", "Bearer sk-1"}, "[redacted] of [redacted]"},
		"overlapping":                 {"<abcdef>", []string{"abcd", "cdef"}, "<[redacted]>"},
		"overlapping itself":          {"<aaaaaa>", []string{"aaaa"}, "<[redacted]>"},
		"side by side":                {"<abcdefgh>", []string{"abcd", "efgh"}, "<[redacted]>"},
		"the replacement as a secret": {"redacted sk-1", []string{"sk-1", "redacted"}, "[redacted] [redacted]"},
		"white space around it":       {"key sk-1.", []string{" sk-1\n"}, "key [redacted]."},
		"words of a header":           {"Basic c2hvcnQ is c2hvcnQ", []string{"Basic c2hvcnQ"}, "[redacted] is [redacted]"},
		"the first word":              {"Digest is no secret", []string{"Digest a=1b, c=2d"}, "Digest is no secret"},
		"every further word":          {"c=2d a=1b,", []string{" Digest a=1b, c=2d\n"}, "[redacted] [redacted]"},
		"short words":                 {"it is a key", []string{"Key it is a"}, "it is a key"},
		"runes":                       {"Schlüssel: grün!", []string{"grün"}, "Schlüssel: [redacted]!"},
		"in ASCII": {
			`grün: gr\u00fcn, \ud83d\ude00ku\u00dfe`, []string{"grün", "😀kuße"}, "[redacted]: [redacted], [redacted]",
		},
		"in plain JSON":     {`{"key":"a\"b<c&"}`, []string{`a"b<c&`}, `{"key":"[redacted]"}`},
		"as PHP writes it":  {`{"key":"a\"\/b\u00fc"}`, []string{`a"/bü`}, `{"key":"[redacted]"}`},
		"in a path":         {"/a/b%20%C3%A9&c", []string{"a/b é&c"}, "/[redacted]"},
		"JSON within JSON":  {`"{\"key\":\"a\\\"b\u00fc\"}"`, []string{`a"bü`}, `"{\"key\":\"[redacted]\"}"`},
		"a URL within JSON": {`{"url":"/a\u0026b%20c"}`, []string{"a&b c"}, `{"url":"/[redacted]"}`},
		"in JSON":           {`{"key":"a\"b\u003cc"}`, []string{`a"b<c`}, `{"key":"[redacted]"}`},
		"in a URL":          {"/a%2Fb%20c?key=a%2Fb+c", []string{"a/b c"}, "/[redacted]?key=[redacted]"},
		"in HTML":           {"<p>a&lt;b&amp;c</p>", []string{"a<b&c"}, "<p>[redacted]</p>"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := agent.Redact(test.text, test.secrets...); got != test.want {
				t.Errorf("Redact(%q, %q) = %q, want %q", test.text, test.secrets, got, test.want)
			}
		})
	}
}

// TestRedactTail: the rest of a secret at the beginning is replaced too.
func TestRedactTail(t *testing.T) {
	for name, test := range map[string]struct {
		text    string
		secrets []string
		want    string
	}{
		"the rest of one":        {"7890 and 1234567890", []string{"1234567890"}, "[redacted] and [redacted]"},
		"too little of it":       {"890 is all", []string{"1234567890"}, "890 is all"},
		"all of it":              {"1234567890", []string{"1234567890"}, "[redacted]"},
		"the longest rest":       {"abab|", []string{"ababab"}, "[redacted]|"},
		"of several":             {"67890abc", []string{"4567890abcd", "34567890"}, "[redacted]abc"},
		"in JSON":                {`cd\"ef.`, []string{`abcd"ef`}, "[redacted]."},
		"cut in an escape":       {`0026cdef.`, []string{`ab&cdef`}, "[redacted]."},
		"not the beginning":      {" 7890", []string{"1234567890"}, " 7890"},
		"rest of a short secret": {"abc", []string{"xabc"}, "abc"},
		"":                       {"", []string{"1234567890"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := agent.RedactTail(test.text, test.secrets...); got != test.want {
				t.Errorf("RedactTail(%q, %q) = %q, want %q", test.text, test.secrets, got, test.want)
			}
		})
	}
}
