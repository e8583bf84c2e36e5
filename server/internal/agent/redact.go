package agent

import (
	"encoding/json"
	"fmt"
	"html"
	"iter"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// redacted stands where a secret was.
	redacted = "[redacted]"

	// minSecretBytes is the least that is looked for. What is shorter, such as the 1 of a
	// version header, is in every other text by chance, and keeps no secret.
	minSecretBytes = 4
)

// Redact returns the text with "[redacted]" in place of every secret, also where it is
// written as in JSON, a URL or HTML, or as one of them in another. Where secrets overlap,
// all that any of them covers is gone. White space around a secret is not part of it,
// since HTTP sends headers without. Of several words, as in "Bearer token", each behind the
// first is a secret by itself, too. One of fewer than 4 bytes is passed over.
//
// Bound a text after Redact, not before: what was cut in the middle is not found. Of a text
// whose beginning is gone already, see [RedactEnd].
func Redact(text string, secrets ...string) string { return redact(text, secrets, false) }

// RedactEnd is Redact of the end of a longer text: the rest of a secret, of 4 bytes or more,
// that it begins with is gone, too.
func RedactEnd(text string, secrets ...string) string { return redact(text, secrets, true) }

func redact(text string, secrets []string, isEnd bool) string {
	covered, found := make([]bool, len(text)), false
	for _, secret := range secrets {
		for form := range forms(secret) {
			for n := len(form) - 1; isEnd && n >= minSecretBytes; n-- {
				if strings.HasPrefix(text, form[len(form)-n:]) {
					for i := range n {
						covered[i] = true
					}
					found = true
					break
				}
			}
			for from := 0; ; {
				at := strings.Index(text[from:], form)
				if at < 0 {
					break
				}
				from += at
				for i := range len(form) {
					covered[from+i] = true
				}
				found = true
				from++ // the next may begin inside this one
			}
		}
	}
	if !found {
		return text
	}
	var b strings.Builder
	for at := 0; at < len(text); {
		end := len(text)
		if n := slices.Index(covered[at:], !covered[at]); n > 0 {
			end = at + n
		}
		if covered[at] {
			b.WriteString(redacted)
		} else {
			b.WriteString(text[at:end])
		}
		at = end
	}
	return b.String()
}

// forms are the ways in which a secret, and the words of it, may be written.
func forms(secret string) iter.Seq[string] {
	return func(yield func(string) bool) {
		parts := []string{strings.TrimSpace(secret)}
		if words := strings.Fields(secret); len(words) > 1 {
			parts = append(parts, words[1:]...)
		}
		for _, part := range parts {
			if len(part) < minSecretBytes {
				continue
			}
			for _, form := range written(part) {
				if !yield(form) {
					return
				}
			}
		}
	}
}

// written is the text in its forms, one inside of another too: a provider may quote in its
// JSON what it has read in a URL.
func written(text string) []string {
	all := []string{text}
	for range 2 {
		for _, form := range all {
			all = append(all,
				url.QueryEscape(form), url.PathEscape(form), (&url.URL{Path: form}).EscapedPath(), html.EscapeString(form),
				jsonEscaped(form), goEscaped(form), asciiEscaped(form), strings.ReplaceAll(form, "/", `\/`))
		}
		slices.Sort(all)
		all = slices.Compact(all)
	}
	return all
}

// jsonEscaped is the text as Go's JSON has it, safe inside of HTML.
func jsonEscaped(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		return text // a string always can be written
	}
	return string(quoted[1 : len(quoted)-1])
}

// goEscaped is the text as %q has it, and as the JSON of most others.
func goEscaped(text string) string {
	quoted := strconv.Quote(text)
	return quoted[1 : len(quoted)-1]
}

// asciiEscaped is the text as JSON in ASCII.
func asciiEscaped(text string) string {
	var b strings.Builder
	for _, unit := range utf16.Encode([]rune(goEscaped(text))) {
		if unit < utf8.RuneSelf {
			b.WriteByte(byte(unit))
		} else {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}
