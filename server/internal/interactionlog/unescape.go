package interactionlog

import (
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// What stands where there is no rune.
const (
	// anyRune: an escape that takes more than a look at it, a half of a surrogate pair or one
	// that is not valid.
	unknownRune rune = -1 - iota
	// noRune: the end.
	endOfText
)

const (
	// shortEscapes are those of one letter, and shortRunes what they spell.
	shortEscapes = `"\/bfnrt`
	shortRunes   = "\"\\/\b\f\n\r\t"
	unicodeBytes = len(`\u0000`)
)

// runeAt returns the rune that a JSON string has at a place of its raw form, where none but
// a whole rune or escape starts, and its size there.
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

// unescape returns the rune of the escape that a text begins with.
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

// runeBefore is runeAt for the rune that ends at a place.
func runeBefore(raw []byte, at int) (r rune, size int) {
	if at == 0 {
		return endOfText, 0
	}
	for _, size := range [...]int{2, unicodeBytes} {
		if from := at - size; from >= 0 && raw[from] == '\\' && (size == 2 || raw[from+1] == 'u') && startsEscape(raw[:from+1]) {
			return unescape(raw[from:at])
		}
	}
	if c := raw[at-1]; c < utf8.RuneSelf {
		return rune(c), 1
	}
	return utf8.DecodeLastRune(raw[:at])
}

// escapes reports whether the backslash that a text ends with begins an escape, and is not
// itself what another one spells.
func startsEscape(raw []byte) bool {
	n := 0
	for n < len(raw) && raw[len(raw)-1-n] == '\\' {
		n++
	}
	return n%2 == 1
}
