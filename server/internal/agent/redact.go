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
	// redacted replaces a secret.
	redacted = "[redacted]"

	// minSecretBytes is the minimum length of a secret. Shorter values, for example the 1 of a
	// version header, occur in other texts by chance and are not secret.
	minSecretBytes = 4
)

// Redact returns text with each secret replaced by "[redacted]". It also finds a secret that is
// encoded as JSON, URL or HTML, or as a combination of two of them. Overlapping secrets are
// replaced together. White space around a secret is ignored, because HTTP sends headers without it.
// If a secret has several words, for example "Bearer token", each word after the first is a secret
// too. A secret of fewer than 4 bytes is ignored.
//
// Truncate a text after Redact, not before: a secret that is cut in the middle is not found. For a
// text whose beginning is already cut off, use [RedactTail].
func Redact(text string, secrets ...string) string { return redact(text, secrets, false) }

// RedactTail is like Redact, for the end of a longer text: it also replaces the rest of a secret at
// the beginning of text, if the rest has 4 bytes or more.
func RedactTail(text string, secrets ...string) string { return redact(text, secrets, true) }

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
				from++ // The next occurrence may overlap this one.
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

// forms returns the encodings of a secret and of its words.
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
			for _, form := range encodings(part) {
				if !yield(form) {
					return
				}
			}
		}
	}
}

// encodings returns the encodings of a text, and those of the encodings, because a provider may
// quote a part of a URL in JSON.
func encodings(text string) []string {
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

// jsonEscaped returns the text as encoding/json writes it, safe inside HTML.
func jsonEscaped(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		return text // Encoding a string cannot fail.
	}
	return string(quoted[1 : len(quoted)-1])
}

// goEscaped returns the text as %q writes it, which equals the JSON of most other encoders.
func goEscaped(text string) string {
	quoted := strconv.Quote(text)
	return quoted[1 : len(quoted)-1]
}

// asciiEscaped returns the text as JSON in ASCII.
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
