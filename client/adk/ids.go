package adk

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxIDBytes  = 256                // The limit of the API for the id of a conversation.
	maxKeyBytes = 512                // The limit of the API for the key of a record.
	digestBytes = 1 + 2*sha256.Size  // A tilde and a SHA-256 in hexadecimal.
	upperHex    = "0123456789ABCDEF" // The digits of percent-encoding.
)

// shortened matches what looks like a shortened id.
var shortened = regexp.MustCompile(`~[0-9a-f]{64}$`)

// ConversationID returns the id of the conversation for one or more ids of a framework. The adapters of all languages
// have the same rule.
//
// The ids are joined by "/". In each of them these characters are percent-encoded as UTF-8: "%", control characters,
// line breaks, a space as the first or last character, and "/" if there are several ids. The single ids "." and ".."
// become "%2E" and "%2E%2E". A result of more than 256 bytes, the limit of the API, is cut to 191 bytes, or less to
// keep a character whole; "~" and the SHA-256 of the complete one follow. A shorter result that already ends like that
// is treated in the same way. So different ids never get the same conversation, and most ids stay as they are.
//
// ConversationID returns an error if there is no id, if all are empty, or if one is not UTF-8.
func ConversationID(ids ...string) (string, error) {
	joined, err := join(len(ids) > 1, ids)
	switch {
	case err != nil:
		return "", err
	case strings.Join(ids, "") == "":
		return "", errors.New("the id of a conversation is empty")
	case joined == "." || joined == "..":
		return strings.ReplaceAll(joined, ".", "%2E"), nil
	case len(joined) <= maxIDBytes && !shortened.MatchString(joined):
		return joined, nil
	}
	end := min(len(joined), maxIDBytes-digestBytes)
	for end < len(joined) && !utf8.RuneStart(joined[end]) {
		end--
	}
	digest := sha256.Sum256([]byte(joined))
	return joined[:end] + "~" + hex.EncodeToString(digest[:]), nil
}

// RecordKey returns the key of a record for the parts of a path: they are encoded as [ConversationID] encodes several
// ids, and joined by "/". The keys of paths that begin with the same parts begin with the same bytes. RecordKey returns
// an error if a part is not UTF-8 or the key has more than 512 bytes, the limit of the API.
func RecordKey(parts ...string) (string, error) {
	key, err := join(true, parts)
	if err == nil && len(key) > maxKeyBytes {
		err = fmt.Errorf("the key %q has more than %d bytes", key, maxKeyBytes)
	}
	if err != nil {
		return "", err
	}
	return key, nil
}

// join encodes the parts and joins them by "/". If several is set, a "/" inside a part is encoded.
func join(several bool, parts []string) (string, error) {
	var joined strings.Builder
	for i, part := range parts {
		if !utf8.ValidString(part) {
			return "", fmt.Errorf("the id %q is not UTF-8", part)
		}
		if i > 0 {
			joined.WriteByte('/')
		}
		for at, r := range part {
			size := utf8.RuneLen(r)
			atEnd := at == 0 || at+size == len(part)
			if r == '%' || r == '/' && several || unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp) ||
				atEnd && unicode.Is(unicode.Zs, r) {
				for _, b := range []byte(part[at : at+size]) {
					joined.Write([]byte{'%', upperHex[b>>4], upperHex[b&15]})
				}
				continue
			}
			joined.WriteString(part[at : at+size])
		}
	}
	return joined.String(), nil
}
