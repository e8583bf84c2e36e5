package search

import (
	"bytes"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxCompared is the maximum number of runes that are compared on each side of the anchor before a line
// is parsed. Without it, a long needle in a line that almost repeats it would take quadratic time.
const maxCompared = 64

// needle is a text to search for, ignoring case as in Unicode's simple case folding. In lines it searches
// for its anchor, the rune that is probably the rarest, in each spelling that JSON allows.
type needle struct {
	folded   string
	runes    []rune // the runes of folded
	anchor   int    // index in runes
	variants []variant
	short    byte // second byte of the anchor's short escape, such as 'n' of \n; 0: it has none
	// matchesInvalid is true if the anchor is U+FFFD. Invalid UTF-8 is read as U+FFFD, so the anchor
	// may be where no spelling of it is.
	matchesInvalid bool
}

// variant is the UTF-8 encoding of the anchor in one case, found by its rarest byte.
type variant struct {
	rarest byte
	offset int // of the rarest byte in the encoding
}

// newNeedle returns a needle for a text. For the empty text it returns nil, which matches every text.
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
	n.matchesInvalid = r == utf8.RuneError
	return n
}

// matches reports whether a text contains the needle.
func (n *needle) matches(text string) bool {
	return n == nil || strings.Contains(foldText(text), n.folded)
}

// mayMatch reports whether a string in JSON text may contain the needle. If it returns false, none does.
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

// mayMatchEscaped reports whether the needle may be where an escape spells its anchor.
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

// mayMatchAt reports whether the needle may be in raw with its anchor at an offset.
func (n *needle) mayMatchAt(raw []byte, anchor int) bool {
	for at, i := anchor, n.anchor; i < min(len(n.runes), n.anchor+maxCompared); i++ {
		r, size := runeAt(raw, at)
		if r == unknownRune {
			return true
		}
		if fold(r) != n.runes[i] {
			return false
		}
		at += size
	}
	for at, i := anchor, n.anchor-1; i >= 0; i-- {
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

// fold returns the same rune for all runes that differ only in case: the lower case in ASCII if there is
// one, or else the smallest of them.
func fold(r rune) rune {
	if r < utf8.RuneSelf { // This includes the constants that stand for no rune.
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
		return fold(least) // For example the Kelvin sign folds to k.
	}
	return least
}

// variantsOf returns the encodings of a rune in all cases, and the estimated cost of searching for them.
func variantsOf(r rune) (forms []variant, cost int) {
	const missCost = 20 // for searching a byte that does not occur
	for other := r; ; {
		var best variant
		least := int(^uint(0) >> 1)
		for i, b := range []byte(string(other)) {
			if c := frequency(b); c < least {
				best, least = variant{rarest: b, offset: i}, c
			}
		}
		if !slices.Contains(forms, best) {
			forms, cost = append(forms, best), cost+least+missCost
		}
		if other = unicode.SimpleFold(other); other == r {
			break
		}
	}
	if r == utf8.RuneError {
		cost += 1000 // See needle.matchesInvalid.
	}
	return forms, cost
}

// frequency estimates how many of 1000 bytes of a line are b. It knows English text and the parts of a
// line that are not text. In other languages the first byte of a rune is the most frequent.
func frequency(b byte) int {
	const letters = "etaoinsrhldcumfwgpybvkxjqz"
	perMille := [len(letters)]int{
		100, 75, 65, 62, 58, 57, 53, 50, 45, 33, 32, 23, 23, 20, 18, 17, 16, 15, 14, 12, 8, 6, 2, 1, 1, 1,
	}
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
		return perMille[i]
	}
}
