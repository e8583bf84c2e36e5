package entry

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"time"
	"unicode/utf8"
)

// AppendTimestamp appends a time in UTC in TimestampLayout. The year must be from 0 to 9999. It is
// several times as fast as time.AppendFormat.
func AppendTimestamp(b []byte, at time.Time) []byte {
	year, month, date := at.Date()
	hour, minute, second := at.Clock()
	b = appendDigits(b, year, 4, '-')
	b = appendDigits(b, int(month), 2, '-')
	b = appendDigits(b, date, 2, 'T')
	b = appendDigits(b, hour, 2, ':')
	b = appendDigits(b, minute, 2, ':')
	b = appendDigits(b, second, 2, '.')
	return appendDigits(b, at.Nanosecond()/1000, 6, 'Z')
}

// appendDigits appends a number, padded with zeros to a number of digits, and then the byte then.
func appendDigits(b []byte, number, digits int, then byte) []byte {
	b = append(b, "000000"[:digits]...)
	for i := len(b) - 1; number > 0 && digits > 0; i-- {
		b[i] = byte('0' + number%10)
		number, digits = number/10, digits-1
	}
	return append(b, then)
}

// appendText appends a text as it stands between the quotes of a JSON string. It escapes only what
// JSON requires and replaces invalid UTF-8 by U+FFFD.
func appendText(b, text []byte) []byte {
	if !utf8.Valid(text) {
		text = bytes.ToValidUTF8(text, []byte("\ufffd"))
	}
	for {
		n := unescapedLength(text)
		b = append(b, text[:n]...)
		if n == len(text) {
			return b
		}
		b = appendEscaped(b, text[n])
		text = text[n+1:]
	}
}

func appendEscaped(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\n':
		return append(b, `\n`...)
	case '\r':
		return append(b, `\r`...)
	case '\t':
		return append(b, `\t`...)
	}
	const hex = "0123456789abcdef"
	return append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
}

// unescapedLength returns the length of the longest prefix of a text that JSON does not escape. It
// checks eight bytes at a time. The highest bit of a byte of special is set if the byte is below 0x20,
// a quote or a backslash. The subtractions carry, so bits of later bytes may be set wrongly; only the
// first one counts.
func unescapedLength(text []byte) int {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; len(text)-n >= 8; n += 8 {
		word := binary.LittleEndian.Uint64(text[n:])
		quote, backslash := word^(ones*'"'), word^(ones*'\\')
		special := ((word-ones*0x20)&^word | (quote-ones)&^quote | (backslash-ones)&^backslash) & high
		if special != 0 {
			return n + bits.TrailingZeros64(special)/8
		}
	}
	for ; n < len(text); n++ {
		if c := text[n]; c < 0x20 || c == '"' || c == '\\' {
			break
		}
	}
	return n
}
