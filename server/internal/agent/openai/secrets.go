package openai

import (
	"encoding/base64"
	"net/url"
	"strconv"
	"strings"
	"unicode"

	"github.com/parleyhq/parley/server/internal/agent"
)

// maxShownBytes is how much of a provider's words is shown.
const maxShownBytes = 1 << 10

// secrets are what is never shown: the key, the headers' values, and the user, the
// password and the query of base_url.
type secrets []string

func newSecrets(config agent.Model, base *url.URL) secrets {
	values := []string{config.Key, base.RawQuery}
	for _, value := range config.Headers {
		_, token, _ := strings.Cut(value, " ") // of "Bearer token"
		values = append(values, value, token)
	}
	for _, query := range base.Query() {
		values = append(values, query...)
	}
	if user := base.User; user != nil {
		password, _ := user.Password()
		basic := base64.StdEncoding.EncodeToString([]byte(user.Username() + ":" + password))
		values = append(values, user.String(), user.Username(), password, basic)
	}
	var s secrets
	for _, value := range values {
		s = append(s, value)
		// As paths have it, and encoders of JSON that leave "&" as it is, or escape all
		// that is not ASCII, or "/"; agent.Redact knows of the other ways.
		path := (&url.URL{Path: value}).EscapedPath()
		for _, form := range []string{path, unquoted(strconv.Quote(value)), unquoted(strconv.QuoteToASCII(value)), strings.ReplaceAll(value, "/", `\/`)} {
			if form != value {
				s = append(s, form)
			}
		}
	}
	return s
}

func unquoted(s string) string { return s[1 : len(s)-1] }

// shown is the text without secrets, line breaks and other control characters, cut to
// maxShownBytes.
func (s secrets) shown(text string) string {
	// The secrets go first: cut in two, one would not be found.
	text = agent.Redact(text, s...)
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if len(text) > maxShownBytes {
		text = clipped(text, maxShownBytes-len("…")) + "…"
	}
	return text
}
