// Package ids checks the ids that clients choose. Its functions decide as the rules in
// proto/parley/rules/v1/rules.proto do, without their cost. Start at [IsConversation].
package ids

import (
	"unicode"
	"unicode/utf8"
)

// MaxBytes is the maximum length of an id of a conversation, request, message or tool call.
const MaxBytes = 256

// IsConversation reports whether id can be the id of a conversation: 1 to MaxBytes bytes of UTF-8 without control
// characters and line breaks (Unicode categories Cc, Zl and Zp), without a space (Zs) at its start or end, and neither
// "." nor "..", which HTTP clients remove from paths.
func IsConversation(id string) bool { return id != "" && id != "." && id != ".." && IsRequest(id) }

// IsRequest reports whether id can be the id of a request. It may be empty, "." and ".."; otherwise the rule is that of
// conversations.
func IsRequest(id string) bool {
	if len(id) > MaxBytes {
		return false
	}
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c > '~' {
			return isText(id)
		}
	}
	return true
}

// MaxKeyBytes is the maximum length of the key of a record.
const MaxKeyBytes = 512

// IsKey reports whether key can be the key of a record: 1 to MaxKeyBytes bytes of UTF-8 without control characters and
// line breaks.
func IsKey(key string) bool { return key != "" && len(key) <= MaxKeyBytes && isPrintable(key) }

// isText checks an id of any characters.
func isText(id string) bool {
	first, _ := utf8.DecodeRuneInString(id)
	last, _ := utf8.DecodeLastRuneInString(id)
	return isPrintable(id) && !unicode.Is(unicode.Zs, first) && !unicode.Is(unicode.Zs, last)
}

// isPrintable reports whether a text is UTF-8 without control characters and line breaks.
func isPrintable(text string) bool {
	for _, r := range text {
		if unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp) {
			return false
		}
	}
	return utf8.ValidString(text)
}
