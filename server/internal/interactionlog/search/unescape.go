package search

import (
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// Results of runeAt and runeBefore that are not runes.
const (
	// unknownRune stands for an escape that runeAt does not decode: half of a surrogate pair, or an
	// invalid one.
	unknownRune rune = -1 - iota
	// endOfText stands for the end of the text.
	endOfText
)

const (
	// shortEscapes are the second bytes of the short escapes. shortRunes are the runes that they spell.
	shortEscapes = `"\/bfnrt`
	shortRunes   = "\"\\/\b\f\n\r\t"
	unicodeBytes = len(`\u0000`)
)

// runeAt returns the rune at an offset in the raw form of a JSON string, and its length there. The offset
// must be the beginning of a rune or of an escape.
func runeAt(raw []byte, at int) (r rune, size int) {
	if at == len(raw) {
		return endOfText, 0
	}
	switch c := raw[at]; {
	case c == '\\':
		return unescape(raw[at:])
	case c < utf8.RuneSelf:
		return rune(c), 1
	default:
		return utf8.DecodeRune(raw[at:])
	}
}

// unescape returns the rune of the escape that a text begins with, and the length of the escape.
func unescape(raw []byte) (r rune, size int) {
	if len(raw) < 2 {
		return unknownRune, 0
	}
	if i := strings.IndexByte(shortEscapes, raw[1]); i >= 0 {
		return rune(shortRunes[i]), 2
	}
	var unit [2]byte
	if len(raw) < unicodeBytes || raw[1] != 'u' {
		return unknownRune, 0
	}
	if _, err := hex.Decode(unit[:], raw[2:unicodeBytes]); err != nil {
		return unknownRune, 0
	}
	if r = rune(unit[0])<<8 | rune(unit[1]); 0xD800 <= r && r < 0xE000 {
		return unknownRune, 0
	}
	return r, unicodeBytes
}

// runeBefore returns the rune that ends at an offset, and its length.
func runeBefore(raw []byte, at int) (r rune, size int) {
	if at == 0 {
		return endOfText, 0
	}
	for _, size := range [...]int{2, unicodeBytes} {
		from := at - size
		if from >= 0 && raw[from] == '\\' && (size == 2 || raw[from+1] == 'u') && startsEscape(raw[:from+1]) {
			return unescape(raw[from:at])
		}
	}
	if c := raw[at-1]; c < utf8.RuneSelf {
		return rune(c), 1
	}
	return utf8.DecodeLastRune(raw[:at])
}

// startsEscape reports whether the backslash at the end of a text begins an escape. It does not if an
// escape of a backslash ends with it.
func startsEscape(raw []byte) bool {
	n := 0
	for n < len(raw) && raw[len(raw)-1-n] == '\\' {
		n++
	}
	return n%2 == 1
}
