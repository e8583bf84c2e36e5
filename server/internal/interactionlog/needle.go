package interactionlog

import (
	"bytes"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxCompared bounds how many runes on each side of a place are compared ahead of parsing a
// line: otherwise a long needle in one that almost repeats it would take their product.
const maxCompared = 64

// needle is a text to find, whatever the case of its letters: two runes are the same if
// Unicode's simple case folding says so. In lines it looks for its anchor, the rune of it
// that is likely the rarest, in each of the ways in which JSON may spell that.
type needle struct {
	folded   string
	runes    []rune // of folded
	anchor   int    // in runes
	variants []variant
	short    byte // the anchor's escape of one letter, 'n' for a line feed; 0: it has none
	// everywhere: the anchor may stand where nothing of it can be seen.
	matchesInvalid bool
}

// form is a spelling of the anchor in UTF-8, found by one of its bytes.
type variant struct {
	rarest byte
	offset int // of sign
}

// newNeedle returns a needle for a text; nil, which is everywhere, for the empty one.
func newNeedle(text string) *needle {
	if text == "" {
		return nil
	}
	n := &needle{folded: foldText(text)}
	n.runes = []rune(n.folded)
	cost := int(^uint(0) >> 1)
	for i, r := range n.runes[:min(len(n.runes), maxCompared)] {
		if forms, c := variantsOf(r); c < cost {
			n.anchor, n.variants, cost = i, forms, c
		}
	}
	r := n.runes[n.anchor]
	if i := strings.IndexRune(shortRunes, r); i >= 0 {
		n.short = shortEscapes[i]
	}
	n.matchesInvalid = r == utf8.RuneError // Bytes that are no UTF-8 are read as this one.
	return n
}

// in reports whether a text holds the needle.
func (n *needle) matches(text string) bool {
	return n == nil || strings.Contains(foldText(text), n.folded)
}

// mayBeIn reports whether JSON text may hold the needle in a string. What it refuses does not.
func (n *needle) mayMatch(raw []byte) bool {
	if n == nil || n.matchesInvalid {
		return true
	}
	for _, f := range n.variants {
		for at := 0; ; at++ {
			i := bytes.IndexByte(raw[at:], f.rarest)
			if i < 0 {
				break
			}
			at += i
			if at >= f.offset && n.mayMatchAt(raw, at-f.offset) {
				return true
			}
		}
	}
	return n.mayMatchEscaped(raw)
}

// mayBeEscaped reports whether an escape may spell the anchor of the needle.
func (n *needle) mayMatchEscaped(raw []byte) bool {
	for at := 0; ; at += 2 {
		i := bytes.IndexByte(raw[at:], '\\')
		at += i
		if i < 0 || at+1 == len(raw) {
			return false
		}
		if next := raw[at+1]; (next == 'u' || next == n.short) && n.mayMatchAt(raw, at) {
			return true
		}
	}
}

// mayBeAt reports whether the needle may stand in raw with the anchor at a place.
func (n *needle) mayMatchAt(raw []byte, place int) bool {
	for at, i := place, n.anchor; i < min(len(n.runes), n.anchor+maxCompared); i++ {
		r, size := runeAt(raw, at)
		if r == unknownRune {
			return true
		}
		if fold(r) != n.runes[i] {
			return false
		}
		at += size
	}
	for at, i := place, n.anchor-1; i >= 0; i-- {
		r, size := runeBefore(raw, at)
		if r == unknownRune {
			return true
		}
		if fold(r) != n.runes[i] {
			return false
		}
		at -= size
	}
	return true
}

// foldText folds every rune of a text.
func foldText(text string) string { return strings.Map(fold, text) }

// fold returns one and the same rune for all that differ in case only: the lower one of
// ASCII, or else the least.
func fold(r rune) rune {
	if r < utf8.RuneSelf { // or no rune
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}
	least := r
	for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
		least = min(least, other)
	}
	if least < utf8.RuneSelf {
		return fold(least) // K, of which the sign of Kelvin is a form
	}
	return least
}

// formsOf returns the spellings of a rune, and how much work it is to look for them.
func variantsOf(r rune) (forms []variant, cost int) {
	const pass = 20 // to look for a byte that never comes
	for other := r; ; {
		var best variant
		least := int(^uint(0) >> 1)
		for i, b := range []byte(string(other)) {
			if c := frequency(b); c < least {
				best, least = variant{rarest: b, offset: i}, c
			}
		}
		if !slices.Contains(forms, best) {
			forms, cost = append(forms, best), cost+least+pass
		}
		if other = unicode.SimpleFold(other); other == r {
			break
		}
	}
	if r == utf8.RuneError {
		cost += 1000 // See everywhere.
	}
	return forms, cost
}

// frequency says about how many of 1000 bytes of a line are this one. English is what it
// knows, and what a line has besides its text; of other languages it knows that the first byte
// of a rune tells least.
func frequency(b byte) int {
	const letters = "etaoinsrhldcumfwgpybvkxjqz"
	switch i := strings.IndexByte(letters, b|0x20); {
	case b == ' ':
		return 170
	case b == '"':
		return 80
	case '0' <= b && b <= '9':
		return 30 // in ids and times
	case b == ',' || b == '-' || b == ':' || b == '_' || b == '\\':
		return 20
	case b >= 0xC0:
		return 60
	case b >= 0x80:
		return 8
	case i < 0:
		return 6
	case b < 'a':
		return 2
	default:
		return [len(letters)]int{100, 75, 65, 62, 58, 57, 53, 50, 45, 33, 32, 23, 23, 20, 18, 17, 16, 15, 14, 12, 8, 6, 2, 1, 1, 1}[i]
	}
}
