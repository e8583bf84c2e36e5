package agent

import (
	"encoding/json"
	"html"
	"net/url"
	"slices"
	"strings"
)

const (
	// redacted stands where a secret was.
	redacted = "[redacted]"

	// minSecretBytes is the least that is looked for. What is shorter, such as the 1 of a
	// version header, is in every other text by chance, and keeps no secret.
	minSecretBytes = 4
)

// Redact returns the text with "[redacted]" in place of every secret, also where it is
// written as in JSON, a URL or HTML. Where secrets overlap, all that any of them covers is
// gone. White space around a secret is not part of it, since HTTP sends headers without;
// one of fewer than 4 bytes is passed over.
//
// Bound a text after Redact, not before: what was cut in the middle is not found.
func Redact(text string, secrets ...string) string {
	covered, found := make([]bool, len(text)), false
	for _, secret := range secrets {
		for _, form := range forms(strings.TrimSpace(secret)) {
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

// forms are the ways in which a secret may be written.
func forms(secret string) []string {
	if len(secret) < minSecretBytes {
		return nil
	}
	all := []string{secret, url.QueryEscape(secret), url.PathEscape(secret), html.EscapeString(secret)}
	if quoted, err := json.Marshal(secret); err == nil {
		all = append(all, string(quoted[1:len(quoted)-1]))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
